"""partition, inject-noise, info and data as a shell sees them."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from tests.commands import fnlkit, shell, succeed

BIN = Path(sys.executable).parent


def test_noise_before_partition(tmp_path):
    succeed("fnlkit inject-noise --dataset digits --noise 'symmetric(eta=0.4)' -o all.npz", tmp_path)
    split = "--scheme 'openset(q=0.4)' --clients 8"
    done = succeed(f"fnlkit partition all.npz {split} -o fed.npz && fnlkit info fed.npz", tmp_path)
    succeed(f"fnlkit partition - {split} -o again.npz", tmp_path, stdin=(tmp_path / "all.npz").read_bytes())
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "fed.npz").read_bytes()
    fed = Federation.read(tmp_path / "fed.npz")
    assert len(fed) == 8 and fed.noise_transition.shape == (10, 10) and 0.3 < (fed.given != fed.true).mean() < 0.5
    assert "8 clients" in done.stdout and "symmetric(eta=0.4)" in done.stdout


def test_data_of_the_user(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.normal(size=(40, 3)) for part in ("train", "test")}
    arrays |= {f"y_{part}": np.arange(40) % 4 for part in ("train", "test")}
    folder = tmp_path / "with space"
    folder.mkdir()
    np.savez(folder / "my data.npz", **arrays, speaker_train=np.array(["ann", "bob"] * 20))
    command = "fnlkit partition --dataset 'my data.npz' --scheme 'field(name=speaker)'"
    command += " | fnlkit inject-noise --noise instance -o 'a b.npz'"
    succeed(command, folder)
    fed = Federation.read(folder / "a b.npz")
    assert fed.dataset == str(folder / "my data.npz") and len(fed) == 2 and (fed.given != fed.true).any()
    succeed(command.replace("'my data.npz'", f"'{folder}/my data.npz'").replace("a b", "c"), tmp_path)
    assert (tmp_path / "c.npz").read_bytes()[-200:] == (folder / "a b.npz").read_bytes()[-200:]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("fnlkit partition --clients 5000", "lower --clients"),
        ("fnlkit partition --dataset cifar10", "run `fnlkit data get cifar10`"),
        ("fnlkit partition | fnlkit partition -", "already partitioned"),
        ("fnlkit inject-noise", "the pipe is empty"),
        ("fnlkit inject-noise --dataset digits --noise 'clients(rho=0.5)'", "run `fnlkit partition` first"),
        ("fnlkit info x", "x: not a file of fnlkit"),
        ("fnlkit data get clothing1m", "on request"),
    ],
)
def test_mistakes_are_one_line(command, says, tmp_path):
    (tmp_path / "x").write_text("hello\n")
    done = fnlkit(command, tmp_path)
    errors = [line for line in done.stderr.splitlines() if line.startswith("fnlkit: error: ")]
    assert done.returncode == 2 and len(errors) == 1 and says in errors[0], done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.glob(".fnlkit*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; needs another user")
def test_a_read_only_folder(tmp_path):
    (tmp_path / "ro").mkdir(mode=0o555)
    done = shell("fnlkit partition -o ro/x.npz", tmp_path)
    assert done.returncode == 2 and "is not writable; choose another folder" in done.stderr


def test_without_home_and_with_an_odd_locale(tmp_path):
    line = "env -u HOME -u FNLKIT_CACHE LC_ALL=POSIX PYTHONUTF8=0 fnlkit"
    done = shell(f"{line} partition | {line} info", tmp_path)
    assert done.returncode == 0 and "federation of digits" in done.stdout, done.stderr


def test_a_terminal_gets_a_table_and_no_bytes(tmp_path):
    if not Path("/usr/bin/script").exists():
        pytest.skip("needs script(1)")
    done = shell("script -qec 'fnlkit partition' /dev/null", tmp_path)
    assert done.returncode == 0 and "client_offsets" in done.stdout and "PK" not in done.stdout
    assert "not written: stdout is a terminal" in done.stdout


def test_hostile_text_in_a_file_does_not_reach_the_terminal(tmp_path):
    fed = Federation("digits", 10, np.array([0, 2]), np.arange(2), np.arange(10), np.arange(10))
    fed.meta = {"provenance": [{"command": "\x1b[2J[red]x", "parameters": {"a": "\x07"}}], "noise": [{"model": "\x1b[1mx"}]}
    files.write(fed.to_artifact(), tmp_path / "x.npz")
    done = succeed("fnlkit info x.npz && fnlkit info x.npz --json", tmp_path)
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout and "[red]x" in done.stdout


@pytest.mark.parametrize(("name", "needs"), [("folder", ["path"]), ("votes", ["data"])])
def test_info_of_a_kind_of_data_set_is_its_card(name, needs, tmp_path):
    assert "**Files.**" in succeed(f"fnlkit data info {name} -v", tmp_path).stdout
    assert json.loads(succeed(f"fnlkit data info {name} --json", tmp_path).stdout) == {"name": name, "needs": needs}

"""The folder that a site receives is a message of somebody else: it must not run commands or write outside of itself."""

import os
import shlex
import shutil
import stat
import subprocess
import tomllib

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts import saving
from fnlkit.sites import folders, identity, samples
from fnlkit.sites import project as projects
from tests.commands import refuse, refuse_call, succeed

NEEDS = "certificates need Flower: pip install 'fnlkit[flower]'"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    pytest.importorskip("cryptography", reason=NEEDS)
    folder = tmp_path_factory.mktemp("handover")
    succeed("fnlkit flower-app project --dataset digits --sites 1 --name Bonn --address localhost --rounds 1", folder)
    rng = np.random.default_rng(0)
    np.savez(folder / "ours.npz", x=rng.integers(0, 17, (20, 8, 8, 1)).astype(np.uint8), y=np.arange(20) % 10)
    return folder / "project"


@pytest.fixture
def site(project, tmp_path):
    """A copy of the folder of the site, before it joins."""
    return shutil.copytree(project / "sites/Bonn", tmp_path / "a folder")


@pytest.mark.parametrize("name", ["..", "-rf", "../evil", "a/b", "a b", "a\nb", "$(id)", "", "own", "CA", "x" * 41, "Köln"])
def test_names_that_are_options_paths_or_code_are_refused(name):
    refuse_call("`name`", identity.check_names, [name], 1)
    identity.check_names(["Bonn", "site-1", "a.b_c"], 3)
    refuse_call("different", identity.check_names, ["bonn", "Bonn"], 2)


@pytest.mark.parametrize(
    "text", ["$(touch X):8123", "a b", "-x", "host:0", "host:65536", "host:٣", "host:", ":80", "a..b", "h;x", ""]
)
def test_addresses_that_are_no_host_and_port_are_refused(text):
    refuse_call("expected a host", identity.parse_address, text)
    assert identity.parse_address("server.example.org") == ("server.example.org", 8000)
    assert identity.parse_address("10.0.0.7:9092") == ("10.0.0.7", 9092)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("superlink", "$(touch X):8123"),
        ("superlink", "server.example.org"),
        ("leave_ot", "3"),
        ("name", "../evil"),
        ("memory", "../elsewhere"),
        ("agreed", "/etc/passwd"),
        ("port", 0),
        ("client", -1),
    ],
)
def test_a_folder_that_names_code_or_other_places_is_refused(entry, value, site, project):
    settings, data = tomllib.loads((site / "site.toml").read_text()), shlex.quote(str(project.parent / "ours.npz"))
    (site / "site.toml").write_text(folders.to_toml(settings | {entry: value}))
    before = sorted(os.listdir(site.parent)), sorted(os.listdir(site))
    for words in (f"check {data} --project .", f"join . --data {data}"):
        refuse(f"fnlkit site {words}", site, entry)
    assert (sorted(os.listdir(site.parent)), sorted(os.listdir(site))) == before


@pytest.mark.parametrize(("host", "listens"), [("localhost", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("10.1.2.3", "0.0.0.0")])
def test_a_server_for_this_machine_listens_to_this_machine_only(host, listens):
    pytest.importorskip("cryptography", reason=NEEDS)
    start = folders.parts((host, 8123), ["Bonn"], b"")["coordinator/start.sh"].decode()
    assert f"--host {listens} --port 8123 " in start


@pytest.mark.parametrize(
    "name", ["start.sh", "Bonn.key", "own.key", "memory", "bin", "bin/flower-superexec", "Containerfile", "review"]
)
def test_links_in_the_folder_are_refused_and_their_targets_unchanged(name, site, project, tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    (site / name).parent.mkdir(exist_ok=True)
    (site / name).symlink_to(target)
    refuse(shlex.join(["fnlkit", "site", "join", ".", "--data", str(project.parent / "ours.npz")]), site, "symbolic link")
    assert target.read_text() == "precious" and stat.S_IMODE(target.stat().st_mode) & 0o111 == 0


def test_a_foreign_program_in_the_folder_is_refused(site, project):
    (site / "bin").mkdir()
    (site / "bin/fnlkit").write_text("#!/bin/sh\n")
    refuse_call("bin/fnlkit", folders.join, site, project.parent / "ours.npz")


@pytest.mark.parametrize("name", ["Bonn.key", "own.key", "memory/privacy.key", "memory/reviewed.npz", "review/decisions.csv"])
def test_keys_memory_and_decisions_do_not_come_with_the_folder(name, site, project):
    """A coordinator that sends `memory/privacy.key` knows the draws that protect the site's labels."""
    (site / name).parent.mkdir(exist_ok=True)
    (site / name).write_text("of somebody else")
    refuse_call(f"{name.partition('/')[0]}.*not joined", folders.join, site, project.parent / "ours.npz")
    if name == "Bonn.key":  # without its public key, it cannot be kept
        return
    settings = tomllib.loads((site / "site.toml").read_text())
    (site / "site.toml").write_text(folders.to_toml(settings | {"data": "/x.npz"}))  # claims that the site joined before
    join = shlex.join(["fnlkit", "site", "join", ".", "--data", str(project.parent / "ours.npz")])
    text = succeed(join, site).stderr
    assert "did not join before" in text and name.removesuffix("/decisions.csv") in text
    assert "did not join before" not in succeed(join, site).stderr


@pytest.mark.parametrize(
    "text", ["x = " + 5000 * "[" + 5000 * "]", "x = " + 5000 * "9", "client = 0x" + 5000 * "f", 20000 * "#"]
)
def test_settings_beyond_all_limits_are_refused_in_one_line(text, site):
    own = (site / "site.toml").read_text()
    own = own.replace("client = 0\n", "") if text.startswith("client") else own
    (site / "site.toml").write_text(f"{own}{text}\n")
    refuse("fnlkit site log --project .", site, "site.toml")


@pytest.mark.parametrize("name", ["memory/left.jsonl", "start.sh", "Bonn.key"])
def test_pipes_in_the_folder_are_refused(name, site):
    (site / name).parent.mkdir(exist_ok=True)
    os.mkfifo(site / name)
    refuse("fnlkit site log --project .", site, "no regular file")


def test_a_joined_site_keeps_keys_and_memory_to_its_owner(site, project):
    folders.join(site, project.parent / "ours.npz")
    modes = {name: stat.S_IMODE((site / name).stat().st_mode) for name in os.listdir(site)}
    assert modes["Bonn.key"] == modes["own.key"] == 0o600 and modes["memory"] == 0o700 and modes["start.sh"] == 0o755
    saving.write_bytes([b"x"], site / "memory/judged.npz")
    assert stat.S_IMODE((site / "memory/judged.npz").stat().st_mode) == 0o600


def test_a_key_is_never_readable_by_others(tmp_path, monkeypatch):
    """The temporary file has its final permissions from the moment of its creation."""
    created, open_ = [], os.open

    def watched(path, flags, mode=0o777, **more):
        descriptor = open_(path, flags, mode, **more)
        created.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    saving.write_bytes([b"secret"], tmp_path / "a.key", mode=0o600)
    assert created[0] == 0o600


def test_a_link_is_replaced_and_not_followed_if_the_mode_is_given(tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    saving.write_bytes([b"new"], tmp_path / "link", mode=0o600)
    assert (tmp_path / "target").read_bytes() == b"old" and not (tmp_path / "link").is_symlink()


def test_the_start_script_keeps_values_as_text(site, project, tmp_path):
    """A path with spaces, a dollar and a backtick is an argument, not code: the script runs with stand-ins for the programs."""
    data, programs = tmp_path / "our $(touch X) `touch Y` data.npz", tmp_path / "programs"
    shutil.copy(project.parent / "ours.npz", data)
    folders.join(site, data)
    programs.mkdir()
    for name in ("fnlkit", "flower-supernode"):
        (programs / name).write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run([site / "start.sh"], env=environment, cwd=tmp_path, capture_output=True, text=True)
    words = done.stdout.splitlines()
    assert str(data) in words[-1] and not list(tmp_path.rglob("X")) and not list(tmp_path.rglob("Y"))


@pytest.mark.parametrize("folder", ["100% of it", "back\\slash", "a $HOME folder"])
def test_the_systemd_unit_quotes_the_folder(folder, project, tmp_path):
    site = shutil.copytree(project / "sites/Bonn", tmp_path / folder)
    folders.join(site, project.parent / "ours.npz")
    (line,) = [each for each in (site / "fnlkit-site.service").read_text().splitlines() if each.startswith("ExecStart=")]
    word = line.removeprefix("ExecStart=")
    assert word[0] == word[-1] == '"'
    # systemd removes one level: %% and $$ are single characters, and a backslash escapes the next character.
    assert word[1:-1].replace("%%", "%").replace("$$", "$").replace("\\\\", "\\") == f"{site}/start.sh"


def test_the_sites_of_a_demonstration_of_a_table_have_tables(tmp_path):
    """Their cells give the vectors of the data set."""
    pytest.importorskip("cryptography", reason=NEEDS)
    succeed("fnlkit flower-app p --dataset heart --sites 2 --address localhost --demo", tmp_path)
    sites = [folders.read_site(tmp_path / f"p/sites/site-{k}") for k in range(2)]
    rows = [row for site in sites for row in samples.load_for_task(site["data"], projects.read(site["agreed"])).x_train]
    ours = datasets.load("heart").x_train
    assert np.allclose(*(np.array(sorted(map(tuple, np.asarray(each)))) for each in (rows, ours)), atol=1e-3)


def test_systemd_starts_the_site_as_the_user_who_joined_after_the_network(project, tmp_path):
    """As root, the site would write files that `fnlkit site review` of the user cannot replace."""
    site = shutil.copytree(project / "sites/Bonn", tmp_path / "Bonn")
    folders.join(site, project.parent / "ours.npz")
    unit = site / "fnlkit-site.service"
    lines = unit.read_text().splitlines()
    assert f"User={os.getuid()}" in lines and {"Wants=network-online.target", "After=network-online.target"} <= set(lines)
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        assert unit.name not in done.stderr, done.stderr


@pytest.mark.parametrize(("folder", "problem"), [("a\nExecStart=x", "control character"), ('a "quoted" folder', "quotes")])
def test_a_folder_that_systemd_or_flower_cannot_read_is_refused(folder, problem, project, tmp_path):
    site = shutil.copytree(project / "sites/Bonn", tmp_path / folder)
    refuse_call(problem, folders.join, site, project.parent / "ours.npz")
    assert not (site / "start.sh").exists()

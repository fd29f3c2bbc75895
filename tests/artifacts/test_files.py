"""Artifacts: what goes in comes out, equal content is equal bytes, and a writer never leaves half a file."""

import hashlib
import io
import os
import signal
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import kstest

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts import files, key, saving
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.files import Artifact
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.datasets.new_data import new_samples
from fnlkit.kernels.streams import HiddenStream, derive_key
from tests.commands import refuse_call, succeed

NUMBERS = [np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.sampled_from(NUMBERS).flatmap(lambda kind: hnp.arrays(kind, SHAPES))
NAMES = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_./-]{0,12}[A-Za-z0-9_-]\Z").filter(
    lambda name: ".." not in name and name not in ("kind", "meta", "sha256")
)
META = st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text(max_size=20), max_size=4)


def sample():
    return Artifact(
        "fnlkit.run/1",
        {
            "weights": np.arange(12.0).reshape(3, 4),
            "layer/0.bias": np.zeros((0, 3), np.float32),
            "flags": np.array([True, False, True]),
            "one": np.int64(-3),
        },
        {"provenance": [{"command": "train", "seed": 0}], "note": "é\n"},
    )


def packed(artifact, format="npz"):
    return b"".join(files.encode(artifact, format=format))


def same(left, right):
    left, right = (np.asarray(value) for value in (left, right))
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@given(st.dictionaries(NAMES, ARRAYS, max_size=4), META, st.sampled_from(["npz", "pt"]))
def test_artifacts_round_trip(arrays, meta, format):
    artifact = Artifact("fnlkit.run/1", arrays, meta)
    raw = packed(artifact, format)
    back = files.read(raw)
    assert (back.kind, back.meta, list(back.arrays)) == (artifact.kind, meta, list(arrays))
    assert all(same(back.arrays[name], value) for name, value in arrays.items())
    assert packed(back, format) == raw
    assert files.digest(back) == files.digest(artifact)


def test_npz_and_pt_have_one_digest_and_libraries_can_read_them():
    artifact = sample()
    npz, pt = packed(artifact), packed(artifact, "pt")
    assert files.digest(files.read(npz)) == files.digest(files.read(pt)) == files.digest(artifact)
    with np.load(io.BytesIO(npz), allow_pickle=False) as plain:
        assert str(plain["kind"]) == "fnlkit.run/1" and same(plain["weights"], artifact.arrays["weights"])
    plain = torch.load(io.BytesIO(pt), weights_only=True)
    assert plain["kind"] == "fnlkit.run/1" and same(plain["tensors"]["weights"], artifact.arrays["weights"])


def test_bytes_do_not_depend_on_python_numpy_or_the_day():
    # A changed figure means that files of older versions are refused: raise the kinds' versions instead.
    assert hashlib.sha256(packed(sample())).hexdigest() == PINNED


PINNED = "7089545ff5e0ce1cb8612a7f991ded95bbdda8a1d7a808f1765fbbf455b22b34"


def test_layouts_and_byte_orders_make_no_difference():
    plain = np.arange(24, dtype=np.float64).reshape(4, 6)
    for other in (np.asfortranarray(plain), plain.astype(">f8"), np.repeat(plain, 2, 1)[:, ::2], torch.from_numpy(plain)):
        assert packed(Artifact("fnlkit.run/1", {"x": other})) == packed(Artifact("fnlkit.run/1", {"x": plain}))
        tensor = other if isinstance(other, torch.Tensor) else np.asarray(other)
        assert packed(Artifact("fnlkit.run/1", {"x": tensor}), "pt") == packed(Artifact("fnlkit.run/1", {"x": plain}), "pt")


def test_pt_keeps_bfloat16_and_other_torch_types():
    tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    back = files.read(packed(Artifact("fnlkit.run/1", {"w": tensor.requires_grad_()}), "pt")).arrays["w"]
    assert back.dtype == torch.bfloat16 and torch.equal(back, tensor.detach()) and not back.requires_grad


@pytest.mark.parametrize("format", ["npz", "pt"])
def test_every_flipped_bit_is_found(format):
    raw = packed(Artifact("fnlkit.run/1", {"x": np.arange(3.0)}, {"a": 1}), format)
    for at in range(len(raw)):
        broken = bytearray(raw)
        broken[at] ^= 1 << at % 8
        refuse_call("", files.read, bytes(broken))


@pytest.mark.parametrize("format", ["npz", "pt"])
def test_every_shorter_file_is_refused(format):
    raw = packed(sample(), format)
    for length in range(len(raw)):
        refuse_call("", files.read, raw[:length])


def test_kinds_and_versions():
    raw = packed(sample())
    assert files.read(raw, kinds="fnlkit.run").kind == files.read(raw, kinds=["fnlkit.run/1"]).kind == "fnlkit.run/1"
    refuse_call("contains fnlkit.run/1; .*, which `fnlkit partition` writes", files.read, raw, kinds=("fnlkit.federation",))
    refuse_call("written by a newer fnlkit: fnlkit.run/2", packed, Artifact("fnlkit.run/2"))
    refuse_call("did you mean 'fnlkit.run'", packed, Artifact("fnlkit.rum/1"))
    refuse_call("fnlkit.judged/1 is of fnlkit 0.2 or 0.3", packed, Artifact("fnlkit.judged/1"))


@pytest.mark.parametrize(
    "artifact",
    [
        Artifact("fnlkit.run/1", {"../x": np.zeros(1)}),
        Artifact("fnlkit.run/1", {"a b": np.zeros(1)}),
        Artifact("fnlkit.run/1", {"kind": np.zeros(1)}),
        Artifact("fnlkit.run/1", {"x": np.array([{}], object)}),
        Artifact("fnlkit.run/1", {"x": np.zeros(1, complex)}),
        Artifact("fnlkit.run/1", {}, {"loss": float("nan")}),
        Artifact("fnlkit.run/1", {f"a{i}": np.zeros(1) for i in range(62)}),
    ],
)
def test_unreadable_values_are_not_written(artifact):
    refuse_call("", packed, artifact, error=ValueError)


def test_paths_with_spaces_newlines_and_other_scripts(tmp_path):
    for name in ("with space.npz", "new\nline.npz", "číslo 数.npz", "a" * 250 + ".npz"):
        files.write(sample(), tmp_path / name)
        assert files.read(tmp_path / name).kind == "fnlkit.run/1"
    (tmp_path / "new\nline.npz").write_bytes(b"PK\x03\x04 broken")
    refuse_call("line.npz", files.read, tmp_path / "new\nline.npz")


def test_missing_files_folders_and_pipes(tmp_path):
    refuse_call("nothing.npz: no such file", files.read, tmp_path / "nothing.npz")
    refuse_call("is a folder, .*partition", files.read, tmp_path)
    refuse_call("is a folder", files.write, sample(), tmp_path)
    refuse_call("does not exist; create it first", files.write, sample(), tmp_path / "no" / "x.npz")
    (tmp_path / "empty.npz").touch()
    refuse_call("is empty", files.read, tmp_path / "empty.npz")
    os.mkfifo(tmp_path / "fifo")
    refuse_call("not a regular file", files.read, tmp_path / "fifo")
    refuse_call("more than the limit", files.read, packed(sample()), max_bytes=100)


def test_writing_goes_through_links_and_into_devices_and_keeps_the_mode(tmp_path):
    real, link = tmp_path / "real.npz", tmp_path / "link.npz"
    files.write(Artifact("fnlkit.run/1"), real)
    real.chmod(0o640)
    link.symlink_to(real)
    files.write(sample(), link)
    assert link.is_symlink() and len(files.read(real).arrays) == 4
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    files.write(sample(), "/dev/null")
    assert not stat.S_ISREG(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_full_or_read_only_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    target = tmp_path / "run.npz"
    files.write(Artifact("fnlkit.run/1"), target)
    before = target.read_bytes()

    def refuse(*args, **kwargs):
        raise OSError(28, "No space left on device", "something temporary")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        refuse_call("No space left on device.*run.npz", files.write, sample(), target, error=OSError)
    assert target.read_bytes() == before and os.listdir(tmp_path) == ["run.npz"]


def test_a_full_device_is_an_os_error():
    refuse_call("No space left on device", files.write, sample(), "/dev/full", error=OSError)


def test_stale_temporaries_are_swept_and_living_ones_are_not(tmp_path):
    import fcntl

    dead, new, held = (tmp_path / f".fnlkit-{c * 16}.tmp" for c in "abc")
    for path in (dead, new, held):
        path.write_bytes(b"half")
    for path in (dead, held):
        os.utime(path, (time.time() - 3600,) * 2)
    with open(held, "rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        files.write(sample(), tmp_path / "x.npz")
        assert sorted(os.listdir(tmp_path)) == sorted([new.name, held.name, "x.npz"])


WRITER = """
import sys, numpy as np
from fnlkit.artifacts import files, saving
print("ready", flush=True)
for i in range(10_000):
    files.write(files.Artifact("fnlkit.run/1", {"x": np.full(2_000_000, i % 2, np.float64)}), sys.argv[1])
"""


def test_a_killed_writer_leaves_a_whole_file(tmp_path):
    """It is killed at random instants."""
    target = tmp_path / "big.npz"
    files.write(Artifact("fnlkit.run/1", {"x": np.zeros(2_000_000)}), target)
    for pause in np.random.default_rng(0).uniform(0, 0.15, 3):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(pause)
            process.send_signal(signal.SIGKILL)
            process.wait()
        x = files.read(target).arrays["x"]
        assert len(x) == 2_000_000 and (x == x[0]).all()


def test_files_flow_through_pipes(tmp_path):
    files.write(sample(), tmp_path / "x.npz")
    program = "from fnlkit.artifacts import files; files.write(files.read('-'), '-')"
    command = f'cat x.npz | "{sys.executable}" -c "{program}" | "{sys.executable}" -c "{program}" > y.npz'
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "y.npz").read_bytes()


def test_arrays_of_the_user(tmp_path):
    labels = np.array([3, 1, 2])
    np.save(tmp_path / "l.npy", labels)
    assert same(files.read_arrays(tmp_path / "l.npy")["array"], labels)
    np.savez_compressed(tmp_path / "l.npz", a=labels, b=np.array(["x", "yy"]), c=labels.astype(">i4"))
    refuse_call("not a file of fnlkit; .*partition", files.read, tmp_path / "l.npz")
    found = files.read_arrays(tmp_path / "l.npz")
    assert same(found["a"], labels) and found["b"].tolist() == ["x", "yy"] and found["c"].tolist() == [3, 1, 2]
    assert all(value.flags.writeable and value.flags.aligned for value in found.values())
    # As CIFAR-N publishes its labels: a dict of numpy arrays through torch.save.
    deep = {"t": torch.eye(2), "n": [1, None, "x"], "yes": [True, False], "none": []}
    torch.save({"clean_label": labels, "deep": deep, "coarse": [4] * 20_000}, tmp_path / "l.pt")  # lists as CIFAR-100N
    found = files.read_arrays(tmp_path / "l.pt")
    assert set(found) == {"clean_label", "deep/t", "coarse"} and same(found["coarse"], np.full(20_000, 4))
    torch.save([2**63], tmp_path / "large.pt")
    refuse_call("more than 63 bits", files.read_arrays, tmp_path / "large.pt")
    assert same(found["clean_label"], labels) and found["deep/t"].tolist() == [[1, 0], [0, 1]]
    torch.save(torch.nn.Linear(2, 3).state_dict(), tmp_path / "s.pt")
    assert files.read_arrays(tmp_path / "s.pt")["weight"].shape == (3, 2)
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    assert files.read_arrays(tmp_path / "a.csv")["array"].tolist() == [[1, 2], [3, 4]]
    (tmp_path / "b.csv").write_text("id,label,name\n0,0.5,a\n1,2,b\n")
    found = files.read_arrays(tmp_path / "b.csv")
    assert found["id"].tolist() == [0, 1] and found["label"].tolist() == [0.5, 2] and found["name"].tolist() == ["a", "b"]
    (tmp_path / "c.csv").write_text("3\n1\n")
    assert same(files.read_arrays(tmp_path / "c.csv")["array"], np.array([3, 1]))
    torch.save(labels, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    refuse_call("save it again", files.read_arrays, tmp_path / "old.pt")
    for encoding in ("utf-16", "cp1252"):
        (tmp_path / "e.csv").write_bytes("größe\n3\n1\n".encode(encoding))
        assert files.read_arrays(tmp_path / "e.csv")["größe"].tolist() == [3, 1]
    (tmp_path / "d.csv").write_text("1,2\n3\n")
    refuse_call("1 to 2 entries per row", files.read_arrays, tmp_path / "d.csv")


def test_picking_an_array():
    arrays = {"worse_label": np.zeros(1), "aggre_label": np.ones(1)}
    assert files.pick(arrays, "worse_label", "l.pt") is arrays["worse_label"]
    refuse_call("add key=NAME with one of aggre_label, worse_label", files.pick, arrays, "", "l.pt")
    refuse_call("did you mean 'worse_label'", files.pick, arrays, "worst_label", "l.pt")


def test_ctrl_c_while_the_temporary_is_made_leaves_nothing(tmp_path, monkeypatch):
    really = os.open

    def interrupted(path, *arguments, **keywords):
        really(path, *arguments, **keywords)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    refuse_call("", saving.write_bytes, [b"new"], tmp_path / "a.npz", error=KeyboardInterrupt)
    assert not list(tmp_path.iterdir())


# ---- the privacy key
def test_a_key_is_drawn_once_and_readable_by_its_owner_alone(tmp_path):
    path = tmp_path / "state" / "privacy.key"
    before = os.umask(0)
    try:
        drawn = key.read_or_draw(path)
    finally:
        os.umask(before)
    assert len(drawn) == 32 and key.read_or_draw(path) == drawn != key.read_or_draw(tmp_path / "other")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600 and os.listdir(os.path.dirname(path)) == ["privacy.key"]
    assert drawn.hex() not in key.fingerprint(drawn) and key.fingerprint(drawn) == key.fingerprint(key.read_or_draw(path))


def test_foreign_or_damaged_keys_are_refused(tmp_path):
    path = tmp_path / "key"
    key.read_or_draw(path)
    whole = path.read_bytes()
    path.chmod(0o640)
    refuse_call("chmod 600", key.read_or_draw, path)
    path.chmod(0o600)
    for data in (b"", whole[:-10], whole.upper(), whole * 2, b"\xff" * 86):
        path.write_bytes(data)
        refuse_call("`privacy_key`", key.read_or_draw, path)
        assert path.read_bytes() == data
    (tmp_path / "pipe").symlink_to("/nowhere/at/all")
    for wrong in (tmp_path, "/proc/nothing", "/dev/null", tmp_path / "pipe"):
        refuse_call("", key.read_or_draw, wrong)


def test_hidden_draws_have_the_right_distribution_and_follow_from_secret_and_facts_alone():
    stream = HiddenStream(b"s", "noise", 3)
    assert kstest(stream.random(20_000), "uniform").pvalue > 1e-3
    assert kstest(stream.standard_normal((200, 100)).reshape(-1), "norm").pvalue > 1e-3
    first = HiddenStream(b"s", "noise", 3).random(50)
    assert np.array_equal(first, HiddenStream(b"s", "noise", 3).random((5, 10)).reshape(-1))
    others = [("t", "noise", 3), ("s", "noise", 4), ("s", "noise"), ("s", "noise3")]
    seen = [first, *(HiddenStream(name.encode(), *facts).random(50) for name, *facts in others), stream.random(50)]
    assert len({draws.tobytes() for draws in seen}) == len(seen)
    keys = [derive_key(b"s", np.zeros(*form)) for form in ((2,), (2, np.float32), ((2, 1), np.float32))]
    assert len(set(keys)) == 3
    assert derive_key(b"s", "a", "b") != derive_key(b"s", "ab") and derive_key(b"s", b"1") != derive_key(b"s", 1)
    refuse_call("`privacy_key`", HiddenStream(None, "noise").random, 1)


# ---- files and data of version 0
OLD = Path(__file__).parent / "old"


@pytest.mark.parametrize("kind, command", [(Federation, "partition"), (Run, "train")])
def test_a_file_of_version_0_2_is_refused_with_the_command_that_makes_it(kind, command):
    file = OLD / ("federation.npz" if kind is Federation else "run.pt")
    refuse_call(f"{file.name}: .*written by fnlkit 0.2.0; create it again with `fnlkit {command}`", kind.read, file)


@pytest.mark.parametrize("column", ["site", "hospital", "center", "centre", "clinic", "institution"])
def test_column_names_of_sites(column, tmp_path):
    table = (OLD / "old.csv").read_text().replace("centre", column)
    (tmp_path / "table.csv").write_text(table)
    succeed("fnlkit partition --dataset table.csv --scheme sites -o fed.npz", tmp_path)
    assert Federation.read(tmp_path / "fed.npz").meta["client_names"] == ["Basel", "Bern", "Chur"]


@pytest.mark.parametrize("column", ["labeler", "labeller"])
def test_column_names_of_annotators(column, tmp_path):
    rows = [f"s{i},{i % 7},{who},{i % 2}" for i in range(12) for who in "ab"]
    (tmp_path / "votes.csv").write_text("\n".join([f"id,x,{column},label", *rows]))
    assert datasets.load(str(tmp_path / "votes.csv")).annotators == ["a", "b"]


def _bmp(value):
    """Return a gray BMP (4, 4). Pillow 10 and 13 write other palettes, and the checksum covers the bytes of a file."""
    header = b"BM" + np.array([1094, 0, 1078, 40, 4, 4], "<u4").tobytes() + b"\x01\x00\x08\x00"
    palette = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 4, axis=1) * np.array([1, 1, 1, 0], np.uint8)
    return header + np.array([0, 16, 3780, 3780, 256, 256], "<u4").tobytes() + palette.tobytes() + bytes([value]) * 16


def _folder(path, *names):
    """Write six images for each name."""
    for name in names:
        (path / name).mkdir()
        for i in range(6):
            (path / name / f"{i}.bmp").write_bytes(_bmp(10 * i))


@pytest.mark.parametrize("folder", ["_unlabeled", "_unlabelled"])
def test_folders_of_unlabeled_samples_are_no_class(folder, tmp_path):
    _folder(tmp_path, "clean", "ill", folder)
    data = datasets.load(str(tmp_path))
    assert data.class_names == ["clean", "ill"] and len(data.unlabeled.ids) == 6


def test_damaged_samples_without_a_label_are_left_out(tmp_path):
    _folder(tmp_path, "clean", "ill", "_unlabeled")
    data = datasets.load(str(tmp_path))
    (tmp_path / "_unlabeled/0.bmp").write_bytes(_bmp(0)[:60])
    read = partial(new_samples, data, str(tmp_path), cache=tmp_path / "cache", load=datasets.load, unlabeled=True)
    assert len(read(skip_damaged=True)[0]) == 5
    refuse_call("0.bmp", lambda: read()[1][:])


def test_a_folder_called_unknown_can_be_renamed(tmp_path):
    _folder(tmp_path, "clean", "unknown")
    assert any("name the folder _unlabeled" in note for note in datasets.load(str(tmp_path)).notes)


@pytest.mark.parametrize(
    ("options", "checksum"),
    [("", "2aa342a18231"), (", size=3, crop=true", "cc3a43c1e647"), (", window='40/400'", "19d461e2134c")],
)
def test_checksums_of_version_0_2_are_unchanged(options, checksum, tmp_path):
    _folder(tmp_path, "clean", "ill")
    assert datasets.load(f'folder(path="{tmp_path}"{options})').checksum[:12] == checksum


def test_the_checksum_of_a_folder_separates_size_and_window(tmp_path):
    _folder(tmp_path, "clean", "ill")
    parts = (1, "40/400"), (14, "0/400")
    one, other = (datasets.load(f"folder(path=\"{tmp_path}\", size={size}, window='{window}')") for size, window in parts)
    assert one.checksum != other.checksum


def test_a_full_disk_leaves_no_metrics_without_a_run_and_no_empty_folder(tmp_path, monkeypatch):
    fed = fnlkit.estimate_noise(fnlkit.inject_noise(fnlkit.partition("digits", clients=2, say=None), say=None), say=None)

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "_replace", full)
    os.mkfifo(tmp_path / "pipe")
    reader, errors = os.open(tmp_path / "pipe", os.O_RDWR), {"error": (InputError, OSError)}
    train = {"rounds": 1, "epochs": 1, "output": tmp_path / "run.pt", "say": None} | errors
    for method in ("fedavg", "fedsums"):
        refuse_call("No space left", fnlkit.train, fed, method, **train)
        refuse_call("No space left", fnlkit.train, fed, method, metrics=tmp_path / "pipe", **train)
    os.close(reader)
    (tmp_path / "pipe").unlink()  # a pipe is no file of this run, and stays
    refuse_call("No space left", fnlkit.export_review, fed, 0, tmp_path / "review", say=None, **errors)
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]

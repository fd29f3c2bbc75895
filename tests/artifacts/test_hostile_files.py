"""Files made to hurt: each is refused in one line, quickly, without code, and without the memory that it claims."""

import io
import os
import pickle
import re
import struct
import time
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
import torch

from benchmarks.mutations import changed_bytes
from fnlkit.artifacts import files, large, packing, sheets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.files import Artifact
from fnlkit.artifacts.safe import pt as files_pt
from fnlkit.core.errors import InputError
from tests.commands import refuse_call

HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"


def npy(header, data=b"", version=1):
    header = header.encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def zipped(members, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two members of one name
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def zipped_again(raw, change=lambda name, data: data, compression=zipfile.ZIP_STORED):
    """Return a zip whose members were changed."""
    archive = zipfile.ZipFile(io.BytesIO(raw))
    return zipped([(name, change(name, archive.read(name))) for name in archive.namelist()], compression)


def one(header, data=b"", version=1):
    return zipped([("x.npy", npy(header, data, version))])


def plain(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def claims(kind="fnlkit.run/1", meta="{}", sha256="0" * 64, **arrays):
    """A file in fnlkit's own layout that says of itself whatever one likes."""
    head = {"kind": np.array(kind), "meta": np.array(meta), "sha256": np.array(sha256), **arrays}
    return b"".join(packing.chunks([(f"{name}.npy", packing.npy(value)) for name, value in head.items()]))


def patched(raw, at, value, after=b"PK\x01\x02"):
    """Return bytes with another value at a position of the last directory entry, or of the end of the directory."""
    at += raw.rindex(after)
    return raw[:at] + value + raw[at + len(value) :]


class Payload:
    def __reduce__(self):
        return os.system, ("touch executed",)


def torched(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def own(tensors, kind="fnlkit.run/1", meta="{}", **more):
    return torched({"kind": kind, "meta": meta, "sha256": "0" * 64, "tensors": tensors, **more})


def repickled(change):
    """A .pt whose instructions were changed by hand."""
    return zipped_again(own({"w": torch.zeros(4)}), lambda name, data: change(data) if name.endswith("data.pkl") else data)


def swapped(raw, old, new):
    out = re.sub(old, lambda match: new, raw, flags=re.DOTALL)
    assert out != raw
    return out


def program(instructions):
    return repickled(lambda _: instructions)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def memo_bomb():
    """Forty tuples of two times the one before: 2^40 leaves in 200 bytes."""
    out = b"\x80\x02K\x01"
    for i in range(40):
        out += b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86"
    return out + b"."


def script_module():
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Two()), buffer)
    return buffer.getvalue()


ONE = plain(x=np.zeros(1))
NUMBER = npy(HEADER % ("<i8", "(1,)"), bytes(8))
HOSTILE = {
    # sizes and bombs
    "zeros that unpack to 100 MiB": lambda: zipped([("x.npy", npy(HEADER % ("|u1", "(104857600,)"), bytes(104857600)))], 8),
    "header that claims 32 GiB": lambda: one(HEADER % ("<f8", "(65536, 65536)")),
    "header of blanks": lambda: one(HEADER % ("<f8", "(1,)") + " " * 10**6, bytes(8), 2),
    "header length beyond the file": lambda: zipped([("x.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{}")]),
    "shape that overflows": lambda: one(HEADER % ("<f8", f"({2**40}, {2**40})")),
    "shape with a zero that overflows": lambda: one(HEADER % ("<f8", f"(0, {10**17}, {10**17})")),
    "negative shape": lambda: one(HEADER % ("<f8", "(-1,)"), bytes(8)),
    "32 dimensions": lambda: one(HEADER % ("<f8", f"({'1, ' * 32})"), bytes(8)),
    "more data than shape": lambda: one(HEADER % ("<f8", "(1,)"), bytes(800)),
    "texts of 2 GiB": lambda: one(HEADER % ("<U536870912", "(0,)")),
    "1,000 members": lambda: zipped([(f"{i}.npy", b"") for i in range(1000)]),
    "65 members": lambda: plain(**{f"a{i}": np.zeros(1) for i in range(65)}),
    # code and objects
    "objects": lambda: plain(x=np.array([Payload()], object)),
    "records": lambda: plain(x=np.zeros(2, "i4,f8")),
    "code in the header": lambda: one("{'descr': __import__('os').system('touch executed'), 'shape': ()}"),
    "long doubles": lambda: one(HEADER % ("<f16", "(1,)"), bytes(16)),
    "no npy inside": lambda: zipped([("x.npy", b"import os")]),
    "a text file inside": lambda: zipped([("readme.txt", b"hello")]),
    # zips
    "two members of one name": lambda: zipped([("x.npy", NUMBER)] * 2),
    "path upwards": lambda: zipped([("../x.npy", b"")]),
    "absolute path": lambda: zipped([("/etc/x.npy", b"")]),
    "name with a line break": lambda: zipped([("a\nb.npy", b"")]),
    "name with escape codes": lambda: zipped([("\x1b[2Jx.npy", b"")]),
    "folder entry": lambda: zipped([("x/", b"")]),
    "encrypted": lambda: patched(ONE, 8, b"\x01"),
    "overlapping members": lambda: patched(zipped([("a.npy", NUMBER), ("b.npy", NUMBER)]), 42, bytes(4)),
    "size beyond the file": lambda: patched(ONE, 20, b"\xff\xff\xff\x7f"),
    "offset beyond the file": lambda: patched(ONE, 42, b"\xff\xff\xff\x7f"),
    "count that lies": lambda: patched(ONE, 8, b"\x02\x00\x02\x00", after=b"PK\x05\x06"),
    "bytes behind": lambda: ONE + b"#!/bin/sh",
    "bytes before": lambda: b"#!/bin/sh\n" + ONE,
    "cut off": lambda: plain(x=np.zeros(100))[:-60],
    "end only": lambda: b"PK\x05\x06" + bytes(18),
    "bzip2": lambda: zipped([("x.npy", npy(HEADER % ("|u1", "(4,)"), bytes(4)))], zipfile.ZIP_BZIP2),
    # values
    "truth value 2": lambda: one(HEADER % ("|b1", "(1,)"), b"\x02"),
    "text beyond Unicode": lambda: one(HEADER % ("<U1", "(1,)"), b"\xff\xff\xff\xff"),
    "half a surrogate": lambda: one(HEADER % ("<U1", "(1,)"), struct.pack("<I", 0xD800)),
    "an empty file": lambda: b"",
    "noise": lambda: np.random.default_rng(0).bytes(1000),
    # .pt
    "pickle that runs a command": lambda: torched({"x": Payload()}),
    "bare pickle that runs a command": lambda: pickle.dumps(Payload()),
    "legacy .pt": lambda: torched({"x": torch.zeros(1)}, _use_new_zipfile_serialization=False),
    "expanded tensor": lambda: torched({"x": torch.zeros(1).expand(2**30)}),
    "view of a larger storage": lambda: torched({"x": torch.zeros(1000)[:2]}),
    "shared storage": lambda: (lambda t: torched({"x": t, "y": t.view(2, 2)}))(torch.zeros(4)),
    "transposed tensor": lambda: torched({"x": torch.zeros(2, 3).T}),
    "compressed members": lambda: zipped_again(torched({"x": torch.zeros(1000)}), compression=zipfile.ZIP_DEFLATED),
    "200,000 nested lists": lambda: program(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."),
    "ten levels": lambda: torched(nested(10)),
    "memo bomb": lambda: program(memo_bomb()),
    "quantized tensor": lambda: program(b"\x80\x02ctorch._utils\n_rebuild_qtensor\n)R."),
    "TorchScript": script_module,
    "whole module": lambda: torched(torch.nn.Linear(1, 1)),
    "long integer": lambda: program(b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b"."),
    "unknown instruction": lambda: program(b"\x80\x02(cos\nsystem\nX\x05\x00\x00\x00touch."),
    "storage of another length": lambda: repickled(lambda p: swapped(p, rb"(?<=cpuq.)K\x04t", b"K\x05t")),
    "storage that misses": lambda: repickled(lambda p: swapped(p, rb"(?<=X\x01\x00\x00\x00)0q", b"9q")),
    "negative stride": lambda: repickled(lambda p: swapped(p, rb"K\x01\x85", b"J\xff\xff\xff\xff\x85")),
    "structure that never ends": lambda: program(b"\x80\x02}"),
    "structure after its end": lambda: program(b"\x80\x02}.}."),
    "stack underflow": lambda: program(b"\x80\x02\x86."),
    "a million instructions": lambda: program(b"\x80\x02" + b"N0" * 10**6 + b"N."),
    "a memo of 32 GiB": lambda: program(b"\x80\x02Nr\xff\xff\xff\xff."),
    "one list many times": lambda: program(pickle.dumps([[7] * 100_000] * 50 + [None], 2)),
    "attributes of a name": lambda: program(b"\x80\x02cnumpy\ndtype\n}X\x04\x00\x00\x00nameNsb."),
    "slots of a name": lambda: program(b"\x80\x02cnumpy\ndtype\n}}X\x04\x00\x00\x00nameNs\x86b."),
    "big-endian": lambda: zipped_again(torched({}), lambda name, data: b"big" if name.endswith("byteorder") else data),
    "10,001 values": lambda: torched([0.5] * 10_001),
    "one set": lambda: torched({"x": {1, 2}}),
    "a complex tensor": lambda: torched({"x": torch.zeros(2, dtype=torch.complex64)}),
}


def refused(read, source, memory):
    """Read and return the message of the one exception allowed; fail for time, memory or a second line."""
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(InputError) as error:
            read(source)
        assert time.process_time() - began < 60  # a guard against hanging; no test measures speed
        assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()
    text = str(error.value)
    assert "\n" not in text and text.isprintable() and len(text) < 600, text
    return text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hostile"
    path.write_bytes(HOSTILE[name]())
    memory = 100 * 2**20 + 30 * path.stat().st_size
    for read in (files.read_arrays, files.read):
        text = refused(read, path, memory)
        assert "hostile" in text
    assert os.listdir(tmp_path) == ["hostile"], "something was executed"


def test_the_environment_cannot_turn_safety_off(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    monkeypatch.chdir(tmp_path)
    for raw in (torched({"x": Payload()}), own({"w": torch.zeros(1)}, meta=Payload())):
        refused(files.read, raw, 2**27)
    assert os.listdir(tmp_path) == []


def test_the_attack_works_on_torch_load(monkeypatch, tmp_path):
    # Without this the tests above could pass because the payload is broken.
    monkeypatch.chdir(tmp_path)
    torch.load(io.BytesIO(torched({"x": Payload()})), weights_only=False)
    assert os.listdir(tmp_path) == ["executed"]


CLAIMS = {
    "newer version": (dict(kind="fnlkit.run/7"), "written by a newer fnlkit"),
    "unknown kind": (dict(kind="fnlkit.rnu/1"), "did you mean 'fnlkit.run'"),
    "no version": (dict(kind="fnlkit.run"), "expected for example"),
    "version zero": (dict(kind="fnlkit.run/0"), "versions start at 1"),
    "huge version": (dict(kind="fnlkit.run/" + "9" * 5000), "expected for example"),
    "escape codes": (dict(kind="\x1b[2J\x1b]0;x\x07/1"), "unknown"),
    "other digits": (dict(kind="fnlkit.run/٣"), "expected for example"),
    "wrong sum": (dict(), "SHA-256"),
    "kind as number": (dict(kind=5), "expected one text"),
    "kind as list": (dict(kind=["a", "b"]), "expected one text"),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_false_claims(name):
    said, message = CLAIMS[name]
    assert message in refused(files.read, claims(**said), 2**27)


@pytest.mark.parametrize(
    "meta", ["[1]", "{", "nul", '{"a": NaN}', '{"a": Infinity}', "[" * 200_000, '{"a": ' + "9" * 5000 + "}", ""]
)
def test_false_meta(meta):
    digest = files.content_digest("fnlkit.run/1", meta, {})
    refused(files.read, claims(meta=meta, sha256=digest), 2**27)


def test_an_artifact_packed_again_is_refused():
    raw = b"".join(files.encode(Artifact("fnlkit.run/1", {"x": np.zeros(3)})))
    with np.load(io.BytesIO(raw)) as arrays:
        again = plain(**arrays)
    assert "packed again by another tool" in refused(files.read, again, 2**27)
    assert "plain npz without 'kind'" in refused(files.read, plain(x=np.zeros(1)), 2**27)
    assert "fnlkit did not write" in refused(files.read, torched({"x": torch.zeros(1)}), 2**27)


def federation(**changes):
    good = dict(
        dataset="digits", classes=3, client_offsets=np.array([0, 2, 3]), client_indices=np.array([0, 3, 1]),
        given=np.array([0, 1, 2, 2]), true=np.array([0, 1, 2, 1]), noise_client_level=np.array([0.5, 0.0]),
        noise_client_noisy=np.array([True, False]), noise_transition=np.eye(3), meta={"provenance": []},
    )  # fmt: skip
    return Federation(**(good | changes))


FALSE_FEDERATIONS = {
    "sample of two clients": dict(client_indices=np.array([0, 1, 1])),
    "position outside": dict(client_indices=np.array([0, 1, 4])),
    "negative position": dict(client_indices=np.array([0, 1, -1])),
    "offsets not from zero": dict(client_offsets=np.array([1, 2, 3])),
    "offsets beyond": dict(client_offsets=np.array([0, 2, 9])),
    "offsets backwards": dict(client_offsets=np.array([0, 5, 3])),
    "empty client": dict(client_offsets=np.array([0, 3, 3])),
    "no offsets": dict(client_offsets=np.zeros(0, int)),
    "label outside": dict(given=np.array([0, 1, 2, 3])),
    "negative label": dict(given=np.array([0, 1, 2, -1])),
    "no labels": dict(given=np.zeros(0, int), true=np.zeros(0, int), client_offsets=np.zeros(1, int)),
    "labels as floats": dict(given=np.array([0.0, 1, 2, 2])),
    "labels as a table": dict(given=np.zeros((4, 1), int)),
    "labels beyond int64": dict(given=np.array([0, 1, 2, 2**64 - 1], np.uint64)),
    "other number of true labels": dict(true=np.array([0, 1, 2])),
    "NaN level": dict(noise_client_level=np.array([np.nan, 0])),
    "level above 1": dict(noise_client_level=np.array([1.5, 0])),
    "level of another client": dict(noise_client_level=np.array([0.5])),
    "noisy as numbers": dict(noise_client_noisy=np.array([1, 0])),
    "rows that do not sum to 1": dict(noise_transition=np.full((3, 3), 0.5)),
    "negative probability": dict(noise_transition=np.eye(3) * 2 - 1 / 3),
    "transition of another size": dict(noise_transition=np.eye(4)),
    "infinite transition": dict(noise_transition=np.full((3, 3), np.inf)),
    "a billion classes": dict(classes=10**9),
    "classes as text": dict(classes="3"),
    "one class": dict(classes=1),
    "no data set": dict(dataset=""),
    "data set as number": dict(dataset=5),
    "provenance as text": dict(meta={"provenance": "me"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FALSE_FEDERATIONS)
def test_false_federation(name):
    bad = federation(**FALSE_FEDERATIONS[name])
    arrays = {key: value for key, value in bad.__dict__.items() if isinstance(value, np.ndarray)}
    artifact = Artifact("fnlkit.federation/1", arrays, {"dataset": bad.dataset, "classes": bad.classes, **bad.meta})
    refused(Federation.read, b"".join(files.encode(artifact)), 2**27)
    if name != "provenance as text":
        refuse_call("", bad.to_artifact)


def test_a_valid_federation_keeps_unknown_arrays():
    good = federation(extra={"estimate_level": np.array([0.1, 0.2]), "of/the.future": np.zeros(7)})
    back = Federation.read(b"".join(files.encode(good.to_artifact())))
    assert back.extra.keys() == good.extra.keys() and back.meta == good.meta and back.dataset == "digits"
    assert [part.tolist() for part in back.clients] == [[0, 3], [1]] and back.given_of(0).tolist() == [0, 2]
    assert back.wrong_share().tolist() == [0.5, 0.0] and len(back) == 2 and back


@pytest.mark.parametrize("missing", ["given", "client_offsets", "dataset", "classes"])
def test_a_federation_without(missing):
    artifact = federation().to_artifact()
    artifact.arrays.pop(missing, None)
    artifact.meta.pop(missing, None)
    assert f"not a federation: {'array ' if missing in ('given', 'client_offsets') else ''}'{missing}'" in refused(
        Federation.read, b"".join(files.encode(artifact)), 2**27
    )


def seeds():
    """Good files of every form that is read."""
    artifact = federation().to_artifact()
    return [
        b"".join(files.encode(artifact)),
        b"".join(files.encode(artifact, format="pt")),
        plain(x=np.arange(5), y=np.array(["a", "b"])),
        torched({"labels": np.arange(4), "t": torch.eye(2), "n": [1, 2]}),
        npy(HEADER % ("<f8", "(3,)"), bytes(24)),
        b"id,label\n0,1\n1,2\n",
    ]


def campaign(times, seed):
    """Read mutants of every form; return how many artifacts of ours came through changed."""
    rng, through = np.random.default_rng(seed), 0
    for form, raw in enumerate(seeds()):
        for _ in range(times):
            bad = changed_bytes(raw, rng)
            began = time.perf_counter()
            for read in (files.read_arrays, files.read, Federation.read):
                try:
                    read(bad)
                    through += form < 2 and bad != raw and read is not files.read_arrays
                except InputError as error:
                    assert "\n" not in str(error)
            assert time.perf_counter() - began < 5
    return through


def test_mutants():
    assert campaign(250, seed=0) == 0


@pytest.mark.slow
def test_20_000_mutants_of_every_form():
    assert campaign(20_000, seed=1) == 0


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"", "not npz, npy or .pt"),
        (b"PK\x03\x04", "no end of a zip"),
        (npy(HEADER % ("<f8", "(10,)")), "declares .10,. of float64"),
        (b"1,2\n", "not npz, npy or .pt"),
    ],
)
def test_three_gigabytes_of_nothing_are_refused_before_there_is_memory_for_them(tmp_path, head, said):
    path = tmp_path / "x.npz"
    path.write_bytes(head)
    os.truncate(path, 3 * 2**30)
    tracemalloc.start()
    try:
        for read in (files.read, files.read_arrays):
            refuse_call(said, read, path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_csv_of_too_many_entries_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"1,2,3\n" * (sheets.MAX_ENTRIES // 3 + 1))
    refuse_call("a csv of 4,194,306 entries", files.read_arrays, path)


def test_a_small_npz_that_would_fill_memory_is_read_from_the_disk_or_refused(tmp_path):
    path = tmp_path / "x.npz"
    zeros, random = np.zeros(9 * 2**20), np.random.default_rng(0).integers(0, 256, 2**20, dtype=np.uint8)  # 72 and 1 MiB
    np.savez_compressed(path, x=zeros)
    refuse_call("would unpack to", files.read_arrays, path)
    np.savez_compressed(path, x=zeros, y=random)  # 64 times its size: of the disk, not of memory
    arrays = large.open_arrays(path, decoded=tmp_path / "decoded")
    assert not isinstance(arrays["x"], np.ndarray) and float(arrays["x"][5:7].sum()) == 0
    assert np.array_equal(np.asarray(arrays["y"]), random)


def test_endless_input_is_refused_at_its_beginning(monkeypatch):
    import sys

    with open("/dev/zero", "rb") as zero:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(zero))
        refuse_call("not npz, npy or .pt", files.read, "-")
        sys.stdin.detach()


def test_the_structure_of_a_pt_has_a_largest_size(monkeypatch):
    data = b"".join(files.encode(Artifact("fnlkit.run/1", {"x": torch.zeros(2)}, {"text": "a" * 500}), format="pt"))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = len(archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl"))))
    monkeypatch.setattr(files_pt, "MAX_PICKLE", size)
    assert files.read(data).arrays["x"].shape == (2,)
    monkeypatch.setattr(files_pt, "MAX_PICKLE", size - 1)
    refuse_call(f"{size:,} bytes of structure; expected at most {size - 1:,}", files.read, data)


def test_the_structure_of_a_pt_has_limits():
    refuse_call("67,108,865 bytes of structure", files_pt.run, {"data.pkl": memoryview(bytes(64 * 2**20 + 1))})
    refuse_call("more than 250,000 instructions of structure", files_pt.run, {"data.pkl": b"\x80\x02" + b"N" * 250_001 + b"."})


def test_a_pt_of_four_levels_is_read():
    tree = [1]
    for _ in range(4):
        tree = {"a": tree}
    assert files.read_arrays(torched(tree))["a/a/a/a"].tolist() == [1]
    refuse_call("deeper than 4 levels", files.read_arrays, torched({"a": tree}))

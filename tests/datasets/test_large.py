"""Data sets that stay in their files are those in memory; tables, sounds and files that would fill it are refused."""

import json
import os
import time
import tracemalloc

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile

from fnlkit import datasets
from fnlkit.artifacts import files, large
from fnlkit.artifacts.stored import Changed, Rows, blocks
from fnlkit.core.errors import InputError
from fnlkit.datasets import array_files, dataset, load, table
from fnlkit.datasets.decoding import Decoded, read_wav
from fnlkit.datasets.places import cache_json
from fnlkit.datasets.table import read_table
from fnlkit.encoders.embed import embed_parts
from fnlkit.encoders.features import with_backbone
from fnlkit.estimators import estimate
from fnlkit.estimators.rows import read_rows
from fnlkit.experiment import Experiment, Settings
from fnlkit.simulate.partitioning import federation as split
from tests.commands import fnlkit, refuse, refuse_call, succeed
from tests.tables import write_table


# ---- data sets that stay in their files: the same samples, labels and checksums as in memory, and nothing read too early
@pytest.fixture
def small(monkeypatch, tmp_path):
    """Let every array above 100 bytes count as large; return a cache folder."""
    monkeypatch.setattr(large.open_arrays, "__kwdefaults__", {**large.open_arrays.__kwdefaults__, "small": 100})
    return tmp_path / "cache"


def arrays(kind):
    rng = np.random.default_rng(0)
    x = {
        "images": rng.integers(0, 256, (40, 6, 5, 3), dtype=np.uint8),
        "channels first": rng.random((40, 3, 6, 5)),
        "gray": rng.integers(0, 256, (40, 6, 5), dtype=np.uint8),
        "vectors": rng.normal(size=(40, 7)),
        "bytes as vectors": rng.integers(0, 9, (40, 7), dtype=np.uint8),
    }[kind]
    y = rng.integers(0, 3, 40)
    return {"x_train": x[:30], "y_train": y[:30], "x_test": x[30:], "y_test": y[30:]}


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("images", "stored"),
        ("channels first", "compressed"),
        ("gray", "npy"),
        ("vectors", "npy"),
        ("bytes as vectors", "stored"),
    ],
)
def test_samples_in_a_file_are_those_in_memory(kind, how, small, tmp_path):
    held, path = arrays(kind), tmp_path / "data.npz"
    if how == "npy":
        path = tmp_path / "folder"
        path.mkdir()
        for name, values in held.items():
            np.save(path / f"{name}.npy", values)
    else:
        (np.savez if how == "stored" else np.savez_compressed)(path, **held)
    found = datasets.load(path, cache=small)
    assert isinstance(found.x_train, Rows) and isinstance(found.x_test, Rows)
    expected = array_files.from_arrays("x", held)
    np.testing.assert_array_equal(found.x_train[[5, 6, 2]], expected.x_train[[5, 6, 2]])
    np.testing.assert_array_equal(np.asarray(found.x_test), expected.x_test)
    assert found.checksum == expected.checksum and found.x_train.dtype == expected.x_train.dtype
    assert (found.kind, found.mean, found.std) == (expected.kind, expected.mean, expected.std)
    if how == "compressed":
        before = {f: f.stat().st_mtime_ns for f in (small / "decoded").iterdir()}
        assert len(before) >= 2 and datasets.load(path, cache=small).checksum == expected.checksum
        assert before == {f: f.stat().st_mtime_ns for f in (small / "decoded").iterdir()}


@pytest.mark.parametrize("refused", ["too few labels", "columns first", "a damaged second array"])
def test_a_refused_file_leaves_no_decompressed_array(refused, small, tmp_path):
    """An npz of 8 MB that was refused left 1.5 GB in the cache."""
    held, path = arrays("vectors"), tmp_path / "data.npz"
    if refused == "too few labels":
        held["y_train"] = held["y_train"][:-1]
    elif refused == "columns first":
        held["x_train"] = np.asfortranarray(held["x_train"])
    np.savez_compressed(path, **held)
    if refused == "a damaged second array":
        raw = bytearray(path.read_bytes())
        raw[raw.index(b"x_test.npy") + 60] ^= 255
        path.write_bytes(bytes(raw))
    refuse_call("", datasets.load, path, cache=small)
    assert not (small / "decoded").exists() or not list((small / "decoded").iterdir())
    np.savez_compressed(path, **arrays("vectors"))
    datasets.load(path, cache=small)
    assert len(list((small / "decoded").iterdir())) >= 2  # an accepted file keeps them


def test_a_cache_that_cannot_be_written_is_no_damage_of_the_file(small, tmp_path):
    np.savez_compressed(tmp_path / "a.npz", **arrays("vectors"))
    refuse_call("written to .*Not a directory.*FNLKIT_CACHE", datasets.load, tmp_path / "a.npz", cache=tmp_path / "a.npz")


def test_values_that_are_not_finite_are_named_when_they_are_read(small, tmp_path):
    held, path = arrays("vectors"), tmp_path / "data.npz"
    held["x_train"][4, 2] = np.nan
    np.savez(path, **held)
    found = datasets.load(path, cache=small)
    found.x_train[:4]
    refuse_call("`x_train` contains NaN", lambda: found.x_train[[4]])
    np.savez(path, **{**held, "x_train": np.asfortranarray(held["x_train"])})
    refuse_call("`?x_train.* in C order", datasets.load, path, cache=small)
    path.write_bytes(path.read_bytes()[:-30])
    refuse_call("damaged or cut off", datasets.load, path, cache=small)


def test_a_fact_is_computed_once_until_a_file_changes(tmp_path):
    file, calls = tmp_path / "a", []
    file.write_text("one")

    def ask():
        return cache_json("checksum", lambda: calls.append(1) or len(calls), files=[file], cache=tmp_path / "cache")

    assert [ask(), ask()] == [1, 2]  # too fresh: it may change again within its time stamp
    old = time.time() - 10
    os.utime(file, (old, old))
    assert [ask(), ask(), ask()] == [3, 3, 3]
    entry = next((tmp_path / "cache" / "facts").iterdir())
    assert json.loads(entry.read_text()) == {"checksum": 3}
    entry.write_text("[]")
    assert ask() == 4
    os.utime(file, (old + 1, old + 1))
    assert ask() == 5


def test_moments_of_floats_do_not_depend_on_blocks(monkeypatch):
    x = np.random.default_rng(1).normal(3, 2, (500, 4, 4, 3)).astype(np.float32)
    expected = x.reshape(-1, 3).mean(0, dtype=float), x.reshape(-1, 3).std(0, dtype=float)
    for size in (500, 77):
        monkeypatch.setattr(dataset, "blocks", lambda rows, size=size: ((a, a + size) for a in range(0, 500, size)))
        np.testing.assert_allclose(dataset.moments(x), expected, rtol=1e-12)


def test_images_are_decoded_lazily(tmp_path, monkeypatch):
    import pickle

    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(24):
        (tmp_path / "photos" / f"class {i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 9, 3), np.uint8)).save(tmp_path / "photos" / f"class {i % 2}" / f"{i}.png")
    held = datasets.load(tmp_path / "photos", cache=tmp_path)
    assert isinstance(held.x_train, np.ndarray)
    monkeypatch.setattr(large, "SMALL", 10)
    lazy = datasets.load(tmp_path / "photos", cache=tmp_path)
    x = lazy.x_train
    assert isinstance(x, Decoded) and x.slow and x.shape == held.x_train.shape
    for which in (slice(None), slice(2, 5), [9, 1, 1, 0, 18, 17, 16, 15, 14]):
        np.testing.assert_array_equal(x[which], held.x_train[which])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x))[[3, 2]], held.x_train[[3, 2]])
    assert (lazy.checksum, lazy.mean, lazy.std) == (held.checksum, held.mean, held.std)
    (tmp_path / "photos" / "class 0" / "0.png").unlink()
    with pytest.raises(InputError, match="0.png: cannot be read"):
        [datasets.load(f'folder(path="{tmp_path}/photos")', cache=tmp_path).y_train, x[:], lazy.x_test[:]]


def first_pixels(dataset, forward):
    """A backbone that returns rows on disk."""
    return Changed(dataset.x_train, lambda x: x.reshape(len(x), -1)[:, :64].astype(np.float32))


def test_memory_follows_the_cohort(small, tmp_path, monkeypatch):
    """Through the whole pipe nobody ever holds a third of the samples, nor all their embeddings, which are as much."""
    rng, (n, side) = np.random.default_rng(0), (12_000, 16)
    for part, size in (("train", n), ("test", 50)):
        np.save(tmp_path / f"y_{part}.npy", rng.integers(0, 3, size))
        np.save(tmp_path / f"x_{part}.npy", rng.integers(0, 256, (size, side, side, 3), dtype=np.uint8))
    whole = n * side * side * 3
    monkeypatch.setattr("fnlkit.encoders.pca._MOST_FITTED", 2**18)
    monkeypatch.setattr("fnlkit.encoders.batches.BLOCK", 2**17)
    monkeypatch.setattr("fnlkit.estimators.knn._AT_ONCE", 2**17)
    monkeypatch.setattr("fnlkit.artifacts.packing.BLOCK", 2**17)
    monkeypatch.setattr(blocks, "__defaults__", (2**17, 1))
    monkeypatch.setattr(large.open_arrays, "__kwdefaults__", {**large.open_arrays.__kwdefaults__, "small": 2**17})
    monkeypatch.setattr(large, "SMALL", 2**17)
    monkeypatch.setenv("FNLKIT_CACHE", str(small))
    data = datasets.load(str(tmp_path))
    federation = split(data, "iid", clients=200, labels="true")

    def embedded():
        parts, place = {"embeddings": data.x_train, "test": data.x_test}, small / str(time.monotonic_ns())
        found = embed_parts(data, parts, "pca(dim=64)", place=place)
        about = {"dataset": data.name, "checksum": data.checksum}
        files.write(files.Artifact("fnlkit.embeddings/1", found, about), tmp_path / "emb.npz")

    def judged():
        rows = read_rows(str(tmp_path / "emb.npz"), "embeddings", federation)
        assert isinstance(rows, Rows) and rows.nbytes >= whole / 3
        estimate(federation, data, "knn", embeddings=rows)

    def trained(seen):
        settings = Settings(model="mlp(hidden=4)", rounds=2, fraction=0.02, epochs=1)
        Experiment(federation, seen, settings, engine="fused").run()

    steps = {
        "checksum": data._digest,
        "embed": embedded,
        "estimate": judged,
        "train": lambda: trained(data),
        "features": lambda: trained(with_backbone(data, f"{__name__}:first_pixels")),
    }
    for name, step in steps.items():
        step()  # imports, and compiles, which count as well
        tracemalloc.start()
        try:
            step()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        print(name, round(peak / 2**20, 2), "MiB of", round(whole / 2**20, 2))
        assert peak < whole / 3, name


# ---- tables, sounds and files of sites that would never end, or fill memory: refused before they do
def test_a_table_has_so_many_cells(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "MAX_CELLS", 1000)
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "1,2\n" * 500)
    assert len(read_table(path)) == 500
    path.write_text("a,b\n" + "1,2\n" * 501)
    refuse_call("x.csv: more than 1,000 cells; save it as Parquet", read_table, path)


def test_lines_of_a_table_end_as_any_program_ends_them(tmp_path):
    path = tmp_path / "x.csv"
    for end in ("\n", "\r\n", "\r"):
        path.write_bytes(end.join(["a,b", '1,"two', 'lines"', "", "3,4"]).encode())
        assert read_table(path).columns["b"] == [f"two{end}lines", "4"]


def test_parquet_that_unpacks_to_more_than_memory_is_refused(tmp_path, monkeypatch):
    path = write_table(tmp_path / "x.parquet", {"label": [0] * 1000, "x": ["a"] * 1000})
    assert len(read_table(path)) == 1000
    for limit in ("MAX_CELLS", "MAX_NUMBERS"):
        with monkeypatch.context() as context, pytest.raises(InputError, match="1,000 rows of 2 columns, 1 of texts"):
            context.setattr(table, limit, 999)
            read_table(path)


@pytest.mark.parametrize("name", ["x.parquet", "x.csv", "x.npz"])
def test_a_named_pipe_is_refused_as_a_table(tmp_path, name):
    os.mkfifo(tmp_path / name)
    refuse_call("not a regular file", load, tmp_path / name)


def test_a_sound_is_not_longer_than_its_file(tmp_path):
    path = tmp_path / "x.wav"
    wavfile.write(path, 8000, np.arange(100, dtype=np.int16))
    assert read_wav(path)[0].shape == (100,)
    raw = bytearray(path.read_bytes())
    raw[40:44] = (0xFFFFFFF0).to_bytes(4, "little")
    path.write_bytes(raw)
    refuse_call("244 bytes with a header for 2,147,483,640 samples", read_wav, path)
    os.mkfifo(tmp_path / "pipe.wav")
    refuse_call("not a regular file", read_wav, tmp_path / "pipe.wav")


def test_duplicate_ids_are_refused_quickly(tmp_path):
    x, y, ids = np.zeros((60_000, 1), np.float32), np.arange(60_000) % 2, np.arange(60_000)
    ids[-1] = ids[-2]
    np.savez(tmp_path / "a.npz", x=x, y=y, ids=ids)
    began = time.process_time()
    refuse_call("`ids` contains 59998 twice", load, tmp_path)
    assert time.process_time() - began < 5  # comparing each with each would be minutes


def test_thousands_of_names_for_three_classes_are_refused_before_a_matrix_of_them_is_asked_for(tmp_path):
    x, y = np.zeros((30, 4), np.float32), np.arange(30) % 3
    names = np.array([f"class {i}" for i in range(4500)])
    np.savez(tmp_path / "names.npz", x_train=x, y_train=y, x_test=x, y_test=y, class_names=names)
    refuse("fnlkit partition --dataset names.npz -o out.npz", tmp_path, "4,500 classes but 3 different labels")
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("rate", [np.array(np.nan), np.array(np.inf, np.float16)])  # a million is infinite there too
def test_a_sampling_rate_that_is_no_number_is_refused(tmp_path, rate):
    x, y = np.zeros((6, 8), np.int16), np.arange(6) % 2
    np.savez(tmp_path / "waves.npz", x_train=x, y_train=y, x_test=x, y_test=y, sample_rate=rate)
    refuse_call("`sample_rate` is .*(inf|nan).*; expected a number of Hz", load, str(tmp_path / "waves.npz"))


@pytest.mark.parametrize(
    "spec", ["manifest(file=loop.csv)", "manifest(file=3)", "folder(path=loop)", "folder(path=loop/deeper)", "loop.csv"]
)
def test_symbolic_links_in_a_circle_are_refused(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop.csv", "loop.csv")
    os.symlink("loop", "loop")
    refuse_call(spec.partition("=")[2].rstrip(")") or spec, load, spec)


# ---- damaged files stop partition and predict, unless they are left out, with their names
@pytest.mark.parametrize("route", ["folder", "files"])
def test_damaged_files_are_left_out_with_their_names(route, tmp_path):
    rng, rows = np.random.default_rng(0), []
    for name in "ab":
        (tmp_path / "all" / name).mkdir(parents=True)
        for i in range(12):
            file = tmp_path / "all" / name / f"{i}.png"
            Image.fromarray(rng.integers(0, 256, (8, 8)).astype(np.uint8)).save(file)
            rows.append(f"all/{name}/{i}.png,{name}")
    for name in ("a/3", "b/7"):
        (tmp_path / "all" / f"{name}.png").write_bytes(b"not an image")
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    source = "all" if route == "folder" else "t.csv"
    refuse(f"fnlkit partition --dataset {source} --clients 2 -o fed.npz", tmp_path, "2 of 24 files cannot be used")
    done = succeed(f"fnlkit partition --dataset {source} --clients 2 --skip-damaged -o fed.npz", tmp_path)
    assert "2 damaged files are left out" in done.stderr and "3.png" in done.stderr and "7.png" in done.stderr
    succeed("fnlkit train fed.npz --rounds 1 --fraction 1 -o run.pt", tmp_path)
    assert fnlkit(f"fnlkit predict run.pt {source}", tmp_path).returncode == 2
    done = succeed(f"fnlkit predict run.pt {source} --skip-damaged", tmp_path)
    assert len(done.stdout.splitlines()) == 23 and "2 damaged files are left out" in done.stderr
    spec = datasets.load(str(tmp_path / "all")).name if route == "folder" else str(tmp_path / "t.csv")
    kind = "folder(path" if route == "folder" else "manifest(file"
    data = datasets.load(f'{kind}="{spec}", skip_damaged=true)')
    assert len(data.y_train) + len(data.y_test) == 22 and datasets.load(data.name).checksum == data.checksum

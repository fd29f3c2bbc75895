"""Tables, sounds and files of sites that would never end, or fill memory: refused before they do."""

import os
import time

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile

from fnlkit import datasets
from fnlkit.core.errors import InputError
from fnlkit.datasets import load, table
from fnlkit.datasets.decoding import read_wav
from fnlkit.datasets.table import read_table
from tests.commands import fnlkit, refuse, refuse_call, succeed


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
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow (extra `parquet`)")
    from pyarrow import parquet

    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"label": [0] * 1000, "x": ["a"] * 1000}), path)
    assert len(read_table(path)) == 1000
    for limit in ("MAX_CELLS", "MAX_NUMBERS"):
        with monkeypatch.context() as context, pytest.raises(InputError, match="1,000 rows of 2 columns, 1 of texts"):
            context.setattr(table, limit, 999)
            read_table(path)


@pytest.mark.parametrize("name", ["x.parquet", "x.csv", "x.npz"])
def test_a_named_pipe_is_refused_as_a_table(tmp_path, name):
    pytest.importorskip("pyarrow", reason="needs pyarrow (extra `parquet`)")
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

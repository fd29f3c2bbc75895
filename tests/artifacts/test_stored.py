"""Arrays that stay in their file answer as numpy's do, and cost this process no memory."""

import mmap
import os
import pickle
import zipfile
from functools import partial

import numpy as np
import pytest

from fnlkit.artifacts import files, packing
from fnlkit.artifacts.safe import zip as zips
from fnlkit.artifacts.stored import Changed, Chosen, Stored, blocks
from tests.commands import refuse_call


@pytest.fixture
def pair(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (50, 4, 3), dtype=np.uint8)
    (tmp_path / "x.bin").write_bytes(b"head" + values.tobytes())
    return values, Stored(tmp_path / "x.bin", 4, np.uint8, values.shape)


WAYS = [
    slice(None),
    slice(3, 9),
    slice(40, 2, -3),
    slice(7, 7),
    5,
    -1,
    [4, 5, 6, 2, 2, 49, 0],
    [-1, 3],
    np.arange(50) % 7 == 3,
    np.zeros(0, int),
]


@pytest.mark.parametrize("way", WAYS, ids=range(len(WAYS)))
def test_rows_are_those_of_the_array(pair, way):
    values, stored = pair
    for rows, right in ((stored, values), (Changed(stored, partial(np.add, 1)), values + 1)):
        found = rows[way]
        np.testing.assert_array_equal(found, right[way])
        assert found.flags.writeable and found.dtype == right.dtype
    chosen = Chosen(stored, [9, 2, 30])
    np.testing.assert_array_equal(chosen[[2, 0]], values[[30, 9]])
    np.testing.assert_array_equal(np.asarray(chosen), values[[9, 2, 30]])


def test_a_position_outside_is_an_error(pair):
    for wrong in (50, -51, [0, 99]):
        with pytest.raises(IndexError):
            pair[1][wrong]


def test_it_travels_by_its_place_and_other_byte_orders_are_turned(pair, tmp_path):
    values, stored = pair
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(stored))[:], values)
    big = np.arange(12, dtype=">f4").reshape(4, 3)
    (tmp_path / "big.bin").write_bytes(big.tobytes())
    found = Stored(tmp_path / "big.bin", 0, big.dtype, big.shape)
    assert found.dtype == np.float32 and found[1:3].dtype == np.float32
    np.testing.assert_array_equal(found[[3, 1]], big[[3, 1]])


def test_a_file_cut_off_meanwhile_is_named(pair):
    os.truncate(pair[1].file, 100)
    refuse_call("became shorter", lambda: pair[1][:])


def test_blocks_cover_all_rows_in_multiples(pair):
    found = list(blocks(pair[1], size=12 * 7, multiple=3))
    assert found[0] == (0, 6) and found[-1][1] == 50 and all(a[1] == b[0] for a, b in zip(found, found[1:], strict=False))
    assert list(blocks(pair[1][:0])) == []


def test_an_artifact_of_rows_has_the_bytes_of_one_of_arrays(pair):
    values, stored = pair
    at_once, by_rows = (files.Artifact("fnlkit.embeddings/1", {"x": x, "y": np.arange(3)}) for x in (values, stored))
    assert b"".join(files.encode(by_rows)) == b"".join(files.encode(at_once))
    assert files.digest(by_rows) == files.digest(at_once)


class Zeros:
    """An array of more than 4 GiB that nobody stores: pieces of zeros, with a mark at the end."""

    def __iter__(self):
        piece = bytes(2**26)
        yield from (piece for _ in range(65))
        yield b"end"


def test_a_file_above_4_gib_is_refused_before_its_first_buffer(monkeypatch):
    monkeypatch.setattr(packing, "LIMIT", 50)
    refuse_call("'c' would make the file larger than 4 GiB", packing.chunks, [("a", [b"first"]), ("c", [b"last"])])


@pytest.mark.slow  # sums of 4 GiB; tests/cli/test_data.py reads the heads of a file of this size
def test_a_zip_of_more_than_4_gib_has_the_wide_fields_that_readers_expect(tmp_path):
    contents = [("a", [b"first"]), ("b", Zeros()), ("c", [b"last"])]
    with open(tmp_path / "wide.zip", "wb") as file:  # with holes: zeros are skipped
        for chunk in packing.chunks(contents, wide=True):
            if len(chunk) == 2**26:
                file.seek(len(chunk), os.SEEK_CUR)
            else:
                file.write(chunk)
    with zipfile.ZipFile(tmp_path / "wide.zip") as found:
        assert [info.file_size for info in found.infolist()] == [5, 65 * 2**26 + 3, 4]
        assert found.read("a") == b"first" and found.read("c") == b"last"
    with open(tmp_path / "wide.zip", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        with memoryview(raw) as view:
            a, b, c = zips.members(view, max_members=3, max_bytes=2**40)
            assert b.begin % 64 == 0 and bytes(view[b.begin + b.packed - 4 : b.begin + b.packed]) == b"\0end"
            for place, right in ((a, b"first"), (c, b"last")):
                found = zips.content(view, place)
                assert bytes(found) == right
                found.release()

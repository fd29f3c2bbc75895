"""Data sets: one layout whatever the source, errors that say which file to put where, and no connection unasked."""

import gzip
import os
import re
import unicodedata
import zlib

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile

import fnlkit
from fnlkit import datasets
from fnlkit.core.errors import InputError
from fnlkit.datasets import load, places
from fnlkit.datasets.new_data import new_samples
from fnlkit.simulate import partitioning
from tests.commands import refuse_call

pytestmark = pytest.mark.usefixtures("no_connection")


def npz(path, **changes):
    rng = np.random.default_rng(0)
    good = dict(
        x_train=rng.integers(0, 256, (6, 4, 5, 3), np.uint8),
        y_train=np.array([0, 1, 2, 0, 1, 2]),
        x_test=rng.integers(0, 256, (3, 4, 5, 3), np.uint8),
        y_test=np.array([0, 1, 2]),
    )
    np.savez(path, **{key: value for key, value in (good | changes).items() if value is not None})
    return path


def test_digits_are_real_and_fixed():
    data = load("digits")
    assert (data.kind, data.classes, data.x_train.shape, data.x_test.shape) == ("image", 10, (1438, 8, 8, 1), (359, 8, 8, 1))
    assert data.checksum == "b299f7ab717af07d548fa525cf7712c82064fd064238e9487715cf05136292d0"
    assert np.bincount(data.y_test).min() >= 35 and not data.observed
    scaled = data.x_train / 255
    np.testing.assert_allclose(data.mean, scaled.mean((0, 1, 2)))
    np.testing.assert_allclose(data.std, scaled.std((0, 1, 2)))


@pytest.mark.parametrize(
    ("given", "kind", "shape", "dtype"),
    [
        (np.zeros((4, 5, 3), np.uint8), "image", (4, 5, 3), np.uint8),
        (np.zeros((4, 5), np.uint8), "image", (4, 5, 1), np.uint8),
        (np.zeros((4, 5, 3)), "image", (4, 5, 3), np.float32),
        (np.zeros(7, np.uint8), "vector", (7,), np.float32),
        (np.zeros(99, np.int16), "wave", (99,), np.int16),
    ],
)
def test_any_npz(tmp_path, given, kind, shape, dtype):
    """Channels first, and vectors of floats: test_layout.py and test_large.py."""
    more = {"sample_rate": np.int64(8000)} if kind == "wave" else {}
    path = npz(tmp_path / "my data.npz", x_train=np.stack([given] * 6), x_test=np.stack([given] * 3), **more)
    data = load(path)
    assert (data.kind, data.x_train.shape[1:], data.x_train.dtype, data.classes) == (kind, shape, dtype, 3)
    assert data.name == str(path) and len(data.mean) == len(data.std) == (shape[-1] if kind == "image" else 0)
    assert len(data.checksum) == 64 and data.checksum == load(data.name).checksum


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(y_test=None), "but no y_test"),
        (dict(y_train=np.zeros(5, int)), "`x_train` has 6 samples but `y_train` 5 labels"),
        (dict(y_train=np.full(6, 0.5)), "`y_train` is float64"),
        (dict(y_train=np.zeros((6, 0), int)), "`y_train` is empty; expected a label for each sample"),
        (dict(y_train=np.array([0, 1, 2, 0, 1, -2])), "`y_train` contains -2; labels start at 0, and -1 is a missing label"),
        (dict(y_test=np.array([0, 1, -2])), "`y_test` contains -2; labels start at 0, and -1 is a missing label"),
        (dict(y_train=np.array([0, 1, 2, 0, 1, 10**9])), "number the classes from 0 without gaps"),
        (dict(x_test=np.zeros((3, 4, 6, 3), np.uint8)), "is uint8 (4, 5, 3) per sample but `x_test` uint8 (4, 6, 3)"),
        (dict(x_train=np.full((6, 4, 5, 3), np.nan), x_test=np.zeros((3, 4, 5, 3))), "`x_train` contains NaN"),
        (dict(x_train=np.zeros((6, 4, 5, 3), np.int32)), "`x_train` is int32"),
        (dict(x_train=np.zeros((0, 4, 5, 3), np.uint8)), "`x_train` is empty"),
        (dict(x_train=np.zeros((6, 0), np.float32)), "`x_train` is empty"),
        (dict(class_names=np.array(["a", "b"])), "`class_names` has 2 names but labels go up to 2"),
        (dict(sample_rate=np.int64(8000)), "with sample_rate expected int16 or float waves"),
    ],
)
def test_an_npz_without_the_arrays_of_a_data_set_is_refused(tmp_path, changes, message):
    refuse_call(f"d.npz.*{re.escape(message)}", load, npz(tmp_path / "d.npz", **changes))


# A copy of a repository: tests/datasets/test_places.py.
@pytest.mark.parametrize("name", sorted({*places.PLACES} - {"crowdtruth", "fashion-mnist"}))
def test_a_missing_data_set_names_the_remedy(name, tmp_path):
    assert not datasets.present(name)
    refuse_call(str(tmp_path / "cache"), load, name)
    refuse_call(f"fnlkit data get {name}|on request", load, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar1", "did you mean 'cifar10'"),
        ("digits(x=1)", "has no parameter 'x'"),
        ("folder", "write folder(path=...)"),
        ("folder(path=3)", '`path` is 3; write path="FOLDER"'),
        ("nowhere/at.npz", "no such file or folder"),
        ("at all.npz", "no such file or folder"),
    ],
)
def test_no_such_data_set(name, message):
    refuse_call(re.escape(message), load, name)


def test_the_cache_folder(monkeypatch, tmp_path):
    assert datasets.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("FNLKIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert datasets.cache_folder() == tmp_path / "xdg" / "fnlkit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert datasets.cache_folder() == tmp_path / ".cache" / "fnlkit"
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert datasets.cache_folder().name == "fnlkit-cache"


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    return header + array.tobytes()


def mnist_files(folder, pack=gzip.compress, suffix=".gz"):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, size in (("train", 30), ("t10k", 10)):
        (folder / f"{part}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(rng.integers(0, 255, (size, 28, 28), np.uint8))))
        (folder / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx((np.arange(size) % 10).astype(np.uint8))))


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (bytes, "")])
def test_mnist_from_its_idx_files(tmp_path, pack, suffix):
    mnist_files(tmp_path / "cache/MNIST/raw", pack, suffix)
    data = load("mnist")
    assert data.x_train.shape == (30, 28, 28, 1) and data.mean == (0.1307,) and data.y_train[:3].tolist() == [0, 1, 2]
    assert load("mnist", cache=tmp_path / "cache").checksum == data.checksum


HUGE = gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12, mtime=0)


@pytest.mark.parametrize("bad", [b"", b"\x1f\x8b broken", HUGE, b"\0\0\x08\x01" * 9])
def test_broken_idx_files(tmp_path, bad):
    mnist_files(tmp_path / "cache/MNIST/raw")
    (tmp_path / "cache/MNIST/raw/train-images-idx3-ubyte.gz").write_bytes(bad)
    refuse_call("train-images-idx3-ubyte.gz.*download it again", load, "mnist")


def test_an_idx_bomb_is_not_unpacked(tmp_path):
    mnist_files(tmp_path / "cache/MNIST/raw")
    squeeze = zlib.compressobj(1, wbits=31)
    bomb = b"".join(squeeze.compress(bytes(2**20)) for _ in range(80)) + squeeze.flush()
    (tmp_path / "cache/MNIST/raw/train-images-idx3-ubyte.gz").write_bytes(bomb)
    refuse_call("truncated, or larger than", load, "mnist")


def image_folder(folder, sizes=((20, 30),), parts=("",)):
    rng = np.random.default_rng(0)
    for part in parts:
        for name in ("apple", "pear"):
            (folder / part / name).mkdir(parents=True)
            for i in range(10):
                shape = (*sizes[i % len(sizes)], 3)
                Image.fromarray(rng.integers(0, 255, shape, np.uint8)).save(folder / part / name / f"{i}.png")
    return folder


def test_image_folders(tmp_path):
    data = load(image_folder(tmp_path / "one"))
    assert data.x_train.shape == (16, 20, 30, 3) and data.class_names == ["apple", "pear"]
    assert data.y_test.tolist() == [0, 0, 1, 1]
    again = load(data.name)
    assert (again.x_test == data.x_test).all() and again.checksum == data.checksum
    data = load(image_folder(tmp_path / "two", parts=("train", "test")))
    assert len(data.x_train) == len(data.x_test) == 20
    mixed = image_folder(tmp_path / "mixed", sizes=((20, 30), (40, 25)))
    with pytest.raises(InputError, match="10 of 20 files .*mixed: apple/1.png.*; the other files have 30 x 20 pixels"):
        _ = load(mixed).x_train
    new, wanted = image_folder(tmp_path / "new", sizes=((40, 25),)), tmp_path / "one"
    refuse_call("25 x 40 pixels .*resize them to 30 x 20", new_samples, load(wanted), str(new), cache=tmp_path, load=load)
    data = load(f'folder(path="{mixed}", size=16)')
    assert data.x_train.shape == (16, 16, 16, 3) and load(data.name).checksum == data.checksum
    (mixed / "apple" / "0.png").write_bytes(b"no image")
    refuse_call("0.png: cannot be read as an image", lambda: load(data.name).x_train)
    (tmp_path / "empty").mkdir()
    refuse_call("at least 2; of tables, name one file", load, tmp_path / "empty")
    np.save(tmp_path / "empty/X_train.npy", np.zeros(2))
    refuse_call("has X_train, but no x_train", load, tmp_path / "empty")


def test_clothing1m_by_its_published_lists(tmp_path):
    folder = tmp_path / "cache" / "clothing1m"
    (folder / "images/0").mkdir(parents=True)
    keys = [f"images/0/{i}.jpg" for i in range(12)]
    for key in keys:
        Image.fromarray(np.full((40, 30, 3), 99, np.uint8)).save(folder / key)
    (folder / "noisy_train_key_list.txt").write_text("\n".join(keys[:8]))
    (folder / "clean_test_key_list.txt").write_text("\n".join(keys[8:]))
    for kind in ("noisy", "clean"):
        (folder / f"{kind}_label_kv.txt").write_text("".join(f"{key} {i}\n" for i, key in enumerate(keys)))
    data = load("clothing1m(size=64)")
    assert data.observed and data.classes == 14 and data.x_train.shape == (8, 64, 64, 3)
    assert data.y_test.tolist() == [8, 9, 10, 11]
    assert load(folder).x_train.shape == (8, 224, 224, 3)
    (folder / "noisy_label_kv.txt").write_text(f"{keys[0]} 1\n")
    refuse_call("7 keys of noisy_train_key_list.txt have no label", load, "clothing1m")
    (folder / "noisy_label_kv.txt").write_text(f"{keys[0]} one\n")
    refuse_call("noisy_label_kv.txt: expected a key and a label per line", load, "clothing1m")


def spoken(folder, word, name, frames):
    (folder / word).mkdir(parents=True, exist_ok=True)
    wavfile.write(folder / word / name, 16000, np.arange(frames).astype("<i2"))


def test_speech_commands_with_unknown_and_silence(tmp_path):
    folder = tmp_path / "cache/SpeechCommands/speech_commands_v0.02"
    words = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go", "bed", "cat"]
    for word in words:
        for i in range(8):
            spoken(folder, word, f"s{i}_nohash_0.wav", 16000)
    spoken(folder, "_background_noise_", "rain.wav", 16000 * 20)
    (folder / "testing_list.txt").write_text("".join(f"{word}/s{i}_nohash_0.wav\n" for word in words for i in (0, 1, 2)))
    (folder / "validation_list.txt").write_text("".join(f"{word}/s3_nohash_0.wav\n" for word in words))
    data = load("speechcommands12")
    assert data.classes == 12 and data.class_names[:2] == ["yes", "no"] and data.class_names[10:] == ["unknown", "silence"]
    assert np.bincount(data.y_test, minlength=12).tolist() == [3] * 12
    # 16 of the 20 seconds are for training: windows start at 0, 0.5, ..., 15 seconds.
    assert np.bincount(data.y_train, minlength=12).tolist() == [4] * 10 + [8, 31]
    silence = data.x_train[data.y_train == 11]
    assert (silence[1] == np.arange(8000, 24000)).all() and data.x_test.shape == (36, 16000)
    trained = {one.tobytes() for one in silence}
    assert not trained & {one.tobytes() for one in data.x_test[data.y_test == 11]}
    assert load("speechcommands12").checksum == data.checksum
    words_alone = load("speechcommands")
    assert (words_alone.kind, words_alone.sample_rate, words_alone.x_train.shape) == ("wave", 16000, (48, 16000))
    assert set(words_alone.fields["speaker"]) == {"s4", "s5", "s6", "s7"} and words_alone.checksum != data.checksum


def test_eurosat_is_a_folder_of_images(tmp_path):
    image_folder(tmp_path / "cache/eurosat/2750")
    data = load("eurosat")
    assert data.name == "eurosat" and len(data.y_train) == 16


def test_cifar_by_torchvisions_files(tmp_path):
    (tmp_path / "cache/cifar-10-batches-py").mkdir(parents=True)
    (tmp_path / "cache/cifar-10-batches-py/data_batch_1").write_bytes(b"not the published one")
    refuse_call("unpack cifar-10-python.tar.gz", load, "cifar10")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_an_image_that_is_no_regular_file_is_refused(tmp_path, make):
    make(image_folder(tmp_path) / "apple" / "odd.png")
    refuse_call("odd.png: has the name of an image but is not a regular file", load, tmp_path)


def test_files_in_hidden_folders_are_no_samples_and_links_to_folders_are_followed(tmp_path):
    """Copies in .ipynb_checkpoints were samples, and linked folders were left out, both without a note."""
    home, other = image_folder(tmp_path / "data"), image_folder(tmp_path / "other")
    (other / "apple").rename(home / "apple/.ipynb_checkpoints")
    (home / "pear/more").symlink_to(other / "pear")
    (home / "plum").mkdir()
    data = load(home)
    assert sum("pear/more/" in name for name in data.ids) and not any("ipynb" in name for name in data.ids)
    assert any("files skipped" in note and "ipynb" in note for note in data.notes)
    assert any("1 of 3 classes have no sample: 'plum'" in note for note in data.notes)
    ids = data.ids.tolist()
    (home / "pear/latest").symlink_to("more")  # read already
    (home / "pear/again").symlink_to(home / "pear/more")
    for loop, target in (("pear/up", ".."), ("pear/more/back", home / "pear"), ("apple/.ipynb_checkpoints/self", "..")):
        (home / loop).symlink_to(target)
    assert [name.replace("pear/again/", "pear/more/") for name in load(home).ids] == ids


def test_a_link_to_a_folder_that_contains_one_already_read_is_followed(tmp_path):
    """The other images in it were lost without a note, and those of a hidden folder."""
    home, store = image_folder(tmp_path / "data"), image_folder(tmp_path / "store")
    (home / "pear").rename(home / "apple/.hidden")
    for link, target in (("pear", "apple/.hidden"), ("pear/a", store / "apple"), ("pear/b", store), ("pear/b/up", home)):
        (home / link).symlink_to(target)
    data = load(home)
    places = [name.rpartition("/")[0] for name in data.ids]
    assert data.class_names == ["apple", "pear"] and set(places) == {"apple", "pear", "pear/a", "pear/b/pear"}


def test_class_folders_of_one_name_in_two_encodings_are_noted(tmp_path):
    """A folder of a Mac is in decomposed form: its class has the same name, and is another class."""
    for part, form in (("train", "NFD"), ("test", "NFC")):
        image_folder(tmp_path / part)
        (tmp_path / part / "apple").rename(tmp_path / part / unicodedata.normalize(form, "Übel"))
    assert any("'U\\u0308bel', 'Übel' differ only in spelling" in note for note in load(tmp_path).notes)


@pytest.mark.parametrize("name", ["\x1b[31mred", "\u202ereversed", "x" * 300])
def test_class_names_have_no_control_characters(tmp_path, name):
    path = npz(tmp_path / "d.npz", class_names=np.array(["a", name, "c", "d"]))
    refuse_call("class name .* contains control characters or is longer than 200", load, path)


def test_spoken_digits_are_six_clients_with_450_recordings_of_one_speaker():
    data = datasets.load("spoken-digits")
    assert data.checksum.startswith("7760cb5b4be26f71") and not data.observed
    assert data.x_train.shape == (2700, 16, 16, 1) and data.x_test.shape == (300, 16, 16, 1) and data.classes == 10
    assert np.bincount(data.y_test).tolist() == [30] * 10
    speakers = partitioning.federation(data, scheme="sites")
    assert list(map(len, speakers.clients)) == [450] * 6
    assert all(len(set(data.fields["site"][part])) == 1 for part in speakers.clients)


def test_a_file_of_medmnist_is_read(tmp_path):
    """Gray images; test_places.py reads images with colors."""
    arrays = {f"{part}_images": np.zeros((n, 28, 28), np.uint8) for part, n in (("train", 6), ("val", 3), ("test", 4))}
    arrays |= {name.replace("images", "labels"): np.arange(len(x), dtype=np.uint8)[:, None] % 3 for name, x in arrays.items()}
    np.savez(tmp_path / "m.npz", **arrays)
    data = load(tmp_path / "m.npz")
    assert data.x_train.shape[:3] == (6, 28, 28) and data.y_train.tolist() == [0, 1, 2, 0, 1, 2] and data.classes == 3
    assert len(data.x_test) == len(data.y_test) == 4 and data.kind == "image"
    np.savez(tmp_path / "m.npz", **arrays | {"train_labels": np.eye(6, 3, dtype=np.uint8)})
    refuse_call("`train_labels` has 3 labels per sample", load, tmp_path / "m.npz")


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        (np.arange(100) % 25 + 1, None, "labels 1 to 25 are 26 classes counted from 0, and 1 have no sample: '0';"),
        (np.where(np.arange(60) % 2, 1, 9), None, "8 have no sample: '0', '2', '3', '4', '5' and 3 more;"),
        (np.arange(60) % 3, ["a", "b", "c", "d"], "1 of 4 classes have no sample: 'd'"),
        (np.where(np.arange(60) < 30, -1, np.arange(60) % 2), None, None),
    ],
)
def test_classes_without_samples_are_noted_once_at_reading(tmp_path, labels, names, expected):
    named = {} if names is None else {"class_names": np.array(names)}
    np.savez(tmp_path / "a.npz", x_train=np.zeros((len(labels), 3), np.float32), y_train=labels, **named)
    notes = []
    fnlkit.partition(tmp_path / "a.npz", clients=2, say=notes.append)
    assert sum("no sample:" in note for note in notes) == (expected is not None)
    assert expected is None or any(expected in note for note in notes)

"""A folder with an npz per site, and labels that are missing in an npz."""

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts import large
from fnlkit.simulate.partitioning import federation
from tests.commands import refuse_call


def site(folder, name, start, labels, **more):
    folder.mkdir(exist_ok=True)
    x = np.arange(start, start + len(labels), dtype=np.float32)[:, None] * np.ones(40, np.float32)
    np.savez(folder / f"{name}.npz", **{"x": x, "y": np.array(labels), **more})


@pytest.fixture(params=[False, True], ids=["in memory", "in files"])
def cache(request, monkeypatch, tmp_path):
    """A cache folder; arrays above 300 bytes count as large when they are to stay in their files."""
    if request.param:
        monkeypatch.setattr(large.open_arrays, "__kwdefaults__", {**large.open_arrays.__kwdefaults__, "small": 300})
    return tmp_path / "cache"


def test_sites_become_clients(cache, tmp_path):
    site(tmp_path / "all", "Bonn", 0, [0, 1, -1, 2], split=np.array(["train", "test", "test", "train"]))
    site(tmp_path / "all", "Aix", 10, [2, -1, 0], ids=np.array(["a", "b", "c"]))
    data = datasets.load(tmp_path / "all", cache=cache)
    assert data.kind == "vector" and data.class_names == ["0", "1", "2"] and data.observed
    assert np.asarray(data.x_train)[:, 0].tolist() == [10, 12, 0, 3] and np.asarray(data.x_test)[:, 0].tolist() == [1]
    assert data.y_train.tolist() == [2, 0, 0, 2] and data.y_test.tolist() == [1]
    assert data.ids.tolist() == ["a", "c", "Bonn.npz x[0]", "Bonn.npz x[3]"]
    assert (data.unlabeled.ids, data.unlabeled.sites) == (["b", "Bonn.npz x[2]"], ["Aix", "Bonn"])
    assert np.asarray(data.unlabeled.samples())[:, 0].tolist() == [11, 2]
    fed = federation(data, "sites")
    assert fed.meta["client_names"] == ["Aix", "Bonn"] and fed.meta["client_unlabeled"] == [1, 1]
    assert [part.tolist() for part in fed.clients] == [[0, 1], [2, 3]]
    assert datasets.load(data.name, cache=cache).checksum == data.checksum


@pytest.mark.parametrize(
    ("numbers", "texts"), [([-1, -1], ["no", "yes"]), ([0, 1], ["0", "NA"]), ([7, 8], ["007", "8"]), ([0, 1], ["?", "NaN"])]
)
def test_texts_at_one_site_can_be_the_numbers_of_another(tmp_path, numbers, texts):
    """They were refused, also beside a site without labels."""
    site(tmp_path / "all", "a", 0, numbers)
    site(tmp_path / "all", "b", 0, texts)
    site(tmp_path / "all", "c", 0, texts[::-1])
    assert len(datasets.load(tmp_path / "all").y_train) == 4 + 2 * (numbers[0] >= 0)


def test_truth_is_declared_by_all_or_none(tmp_path):
    site(tmp_path / "all", "a", 0, [0, 1], y_true=np.array([1, 1]))
    site(tmp_path / "all", "b", 0, [1, 0], y_true=np.array([1, 0]))
    assert datasets.load(tmp_path / "all").truth.tolist() == [1, 1, 1, 0]
    site(tmp_path / "all", "b", 0, [1, 0])
    refuse_call("b.npz: with truth is False here, but True in a.npz", datasets.load, tmp_path / "all")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"x": np.zeros((2, 4), np.float32)}, r"b.npz: shape is \(4,\) here, but \(40,\) in a.npz; all sites"),
        ({"x": np.zeros((3, 40), np.float32)}, "b.npz: `y` has 2 entries but `x` 3 samples"),
        ({"y": np.array([0.5, 1])}, r"b.npz: `y` is float64 of shape \(2,\); expected whole numbers or texts"),
        ({"y": np.array([-2, 1])}, "b.npz: `y` has labels -2 to 1"),
        ({"split": np.array(["train", "val"])}, "b.npz: `split` contains 'val'; write train or test"),
        ({"ids": np.array(["p", "p"])}, "b.npz: `ids` contains p twice"),
        ({"x": np.full((2, 3), np.nan)}, "b.npz: `x` contains NaN"),
        ({"y": np.array(["no", "yes"])}, "a.npz: `y` has numbers, but texts in b.npz; add `class_names`"),
        ({"y_true": np.array([], int)}, "b.npz: `y_true` has 0 entries but `x` 2 samples"),
    ],
)
def test_mistakes_name_the_file(more, message, tmp_path):
    site(tmp_path / "all", "a", 0, [0, 1])
    site(tmp_path / "all", "b", 0, [0, 1], **more)
    refuse_call(message, datasets.load, tmp_path / "all")


def test_a_file_without_labels(tmp_path):
    (tmp_path / "all").mkdir()
    np.savez(tmp_path / "all" / "a.npz", x=np.zeros((2, 3)))
    refuse_call("a.npz: has no y; expected x and y", datasets.load, tmp_path / "all")


def test_minus_one_means_no_label(cache, tmp_path):
    x = np.arange(6, dtype=np.float32)[:, None] * np.ones(40, np.float32)
    arrays = {"x_train": x, "y_train": np.array([0, -1, 1, 1, -1, 0]), "x_test": x, "y_test": np.arange(6) % 2}
    np.savez(tmp_path / "d.npz", **arrays, site_train=np.array(list("aabbbb")), y_train_true=np.array([1, 0, 1, 1, 0, 0]))
    data = datasets.load(tmp_path / "d.npz", cache=cache)
    assert data.y_train.tolist() == [0, 1, 1, 0] and data.truth.tolist() == [1, 1, 1, 0] and data.classes == 2
    assert np.asarray(data.x_train)[:, 0].tolist() == [0, 2, 3, 5]
    assert data.unlabeled.ids == ["x_train[1]", "x_train[4]"] and data.unlabeled.sites == ["a", "b"]
    assert np.asarray(data.unlabeled.samples())[:, 0].tolist() == [1, 4]
    assert federation(data, "sites").meta["client_unlabeled"] == [1, 1]
    for labels, message in ((np.array([0, -2, 1, 1, 0, 0]), "-1 is a missing label"), (np.full(6, -1), "no label, only -1")):
        np.savez(tmp_path / "d.npz", **{**arrays, "y_train": labels})
        refuse_call(message, datasets.load, tmp_path / "d.npz")


# ---- labels of arrays as texts, booleans, floats and columns, in an npz, npy files, an npz per site and a loader of the user
X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.arange(12) % 2
WORDS = np.array(["ill", "well"])[Y]


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (Y.astype(bool), ["0", "1"]),
        (Y.astype(np.float32)[:, None], ["0", "1"]),
        (WORDS[:, None], ["ill", "well"]),
        (np.array(["10", "9"])[Y], ["9", "10"]),
    ],
)
def test_types_of_labels_on_each_route(y, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = Y if names[0] != "9" else 1 - Y
    np.savez(tmp_path / "a.npz", x_train=X, y_train=y, x_test=X[:4], y_test=y[:4])
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "x_train.npy", X)
    np.save(tmp_path / "npy" / "y_train.npy", y)
    (tmp_path / "sites").mkdir()
    np.savez(tmp_path / "sites" / "aix.npz", x=X, y=y)
    (tmp_path / "own.py").write_text("import numpy as np\ndef read():\n    return dict(np.load('a.npz'))\n")
    for source in (tmp_path / "a.npz", tmp_path / "npy", tmp_path / "sites", "own.py:read"):
        data = datasets.load(source)
        assert data.class_names == names and data.y_train.tolist() == wanted.tolist(), source
    assert datasets.load(tmp_path / "a.npz").y_test.tolist() == wanted[:4].tolist()


def test_missing_labels_and_names_in_another_order(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x_train=X, y_train=np.where(np.arange(12) == 3, np.nan, Y))
    assert datasets.load(path).y_train.tolist() == [0, 1, 0, *Y[4:]]
    words = np.where(np.arange(12) == 3, "", WORDS)
    np.savez(path, x_train=X, y_train=words, class_names=["well", "ill", "dead"])
    data = datasets.load(path)
    assert data.class_names == ["well", "ill", "dead"] and data.y_train.tolist() == [1, 0, 1, *(1 - Y[4:])]
    assert len(data.unlabeled) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"y_train": Y + 0.5}, "float64"),
        ({"y_train": np.stack([Y, Y], 1)}, "shape"),
        ({"y_train": WORDS, "y_train_true": Y}, "one form"),
        ({"y_train": WORDS, "class_names": ["well", "sick"]}, "'ill'"),
        ({"y_train": WORDS, "class_names": ["well", "ill", "ill"]}, "'ill' names two of the `class_names`; rename one"),
        ({"y_train": np.where(Y, np.inf, 0.0)}, "float64"),
    ],
)
def test_labels_that_are_no_classes(more, message, tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, **more)
    refuse_call(message, datasets.load, tmp_path / "a.npz")

"""Labels of arrays as texts, booleans, floats and columns, in an npz, npy files, an npz per site and a loader of the user."""

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.errors import InputError

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.arange(12) % 2
WORDS = np.array(["ill", "well"])[Y]


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (Y, ["0", "1"]),
        (Y.astype(bool), ["0", "1"]),
        (Y.astype(np.float32), ["0", "1"]),
        (WORDS, ["ill", "well"]),
        (np.array(["10", "9"])[Y], ["9", "10"]),
    ],
)
def test_types_of_labels_on_each_route(labels, names, column, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = Y if names[0] != "9" else 1 - Y
    y = labels[:, None] if column else labels
    np.savez(tmp_path / "a.npz", x_train=X, y_train=y, x_test=X[:4], y_test=y[:4])
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "x_train.npy", X)
    np.save(tmp_path / "npy" / "y_train.npy", y)
    (tmp_path / "sites").mkdir()
    np.savez(tmp_path / "sites" / "aix.npz", x=X, y=y)
    (tmp_path / "own.py").write_text(
        f"import numpy as np\ndef read():\n    return dict(np.load({str(tmp_path / 'a.npz')!r}))\n"
    )
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
        ({"y_train": np.where(Y, np.inf, 0.0)}, "float64"),
    ],
)
def test_labels_that_are_no_classes(more, message, tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, **more)
    with pytest.raises(InputError, match=message):
        datasets.load(tmp_path / "a.npz")

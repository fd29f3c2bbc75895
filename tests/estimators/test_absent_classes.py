"""Probabilities of a model with more classes than a federation has labels of: arrays, npz, csv, and refused input."""

import numpy as np
import pytest

from fnlkit import partition
from fnlkit.errors import InputError
from fnlkit.pipeline.rows import rows_of


@pytest.fixture
def fed(tmp_path):
    """A federation of two sites with 40 labels of the classes 0, 2 and 4."""
    rows = [f"{i},{i % 7},{'ab'[i % 2]},{2 * (i % 3)}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["id,x,site,label", *rows]), encoding="utf-8")
    return partition(tmp_path / "t.csv", scheme="sites", holdout=0, say=None)


def probabilities(n, columns, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(columns), n)


def test_columns_of_classes_without_labels_are_left_out_on_all_routes(fed, tmp_path):
    n, classes = len(fed.given), fed.classes
    wide = probabilities(n, 2 * classes)
    expected = wide[:, ::2] / wide[:, ::2].sum(1, keepdims=True)
    np.save(tmp_path / "p.npy", wide)
    np.savez(tmp_path / "p.npz", probabilities=wide[:, ::-1], class_names=np.arange(2 * classes)[::-1].astype(str))
    header = ",".join(map(str, range(2 * classes)))
    np.savetxt(tmp_path / "p.csv", wide, delimiter=",", header=header, comments="", fmt="%.17g")
    for value in (wide, tmp_path / "p.npy", tmp_path / "p.npz", tmp_path / "p.csv"):
        lines = []
        rows, _ = rows_of(value, "probabilities", fed, lines.append)
        np.testing.assert_allclose(rows, expected, rtol=1e-12)
        assert (
            len(lines) == 1
            and "of class " in lines[0]
            and sorted(lines[0].split("class ")[1].split(";")[0].split(", ")) == [str(2 * k + 1) for k in range(classes)]
        )


def test_a_row_without_probability_for_the_labels_becomes_uniform(fed):
    wide = np.zeros((len(fed.given), 6))
    wide[:, 5] = 1
    rows, _ = rows_of(wide, "probabilities", fed)
    np.testing.assert_allclose(rows, 1 / fed.classes)


def test_columns_that_cannot_be_assigned_are_refused(fed):
    wide = probabilities(len(fed.given), 6)
    with pytest.raises(InputError, match="row 1 sums to"):
        rows_of(2 * wide, "probabilities", fed)
    with pytest.raises(InputError, match="has labels of"):
        rows_of(wide[:, : fed.classes - 1], "probabilities", fed)
    fed.meta["class_names"] = [f"class {k}" for k in range(fed.classes)]
    with pytest.raises(InputError, match="name the columns"):
        rows_of(wide, "probabilities", fed)

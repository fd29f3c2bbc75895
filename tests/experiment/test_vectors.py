"""Samples that are vectors: standardized with statistics from clients, and trained by a network for vectors."""

import json

import numpy as np
import pytest

import fnlkit as library
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.federated.client.scaling import moments, pool_moments
from tests.commands import fnlkit, succeed


@pytest.fixture(scope="module")
def cancer(tmp_path_factory):
    """Wisconsin breast cancer, 30 measurements from 0.001 to 4,000, as a user's file."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    order, folder = np.random.default_rng(0).permutation(len(x)), tmp_path_factory.mktemp("cancer")
    x, y = x[order].astype(np.float32), y[order]
    np.savez(folder / "d.npz", x_train=x[:455], y_train=y[:455], x_test=x[455:], y_test=y[455:])
    return folder


def test_the_clients_sums_give_the_pooled_numbers():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(90, 3)) * [1, 1e-3, 1e4] + [0, 1.6e4, -7], np.full((90, 1), 5.0)], 1)
    mean, std = pool_moments([moments(part) for part in np.split(x, [1, 20, 50])])
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, [*x.std(0)[:3], 1.0], rtol=1e-6)


@pytest.mark.parametrize("engine", ["sequential", "fused"])
def test_breast_cancer_is_learnt_without_a_word_on_scales(engine, cancer):
    common = f"--fraction 0.5 --rounds 10 --epochs 2 --engine {engine}"
    line = f"fnlkit partition --dataset d.npz --clients 8 --labels true -o f.npz && fnlkit train f.npz {common} -o {engine}.pt"
    assert "each client sent count, sum and sum of squares" in succeed(line, cancer).stderr
    run = Run.read(str(cancer / f"{engine}.pt"))
    accuracy = [row["accuracy"] for row in run.history if "accuracy" in row][-1]
    assert accuracy > 0.9
    x = np.load(cancer / "d.npz")["x_train"].astype(np.float64)
    np.testing.assert_allclose(run.meta["samples"]["mean"], x.mean(0), rtol=1e-9)
    np.testing.assert_allclose(run.meta["samples"]["std"], x.std(0), rtol=1e-6)
    # count, sum and squares of 30 features, from 8 clients, once
    assert run.traffic.sent["moments"] == 8 * (8 + 2 * 30 * 8)
    found = json.loads(fnlkit(f"fnlkit evaluate {engine}.pt --json", cancer).stdout)
    shares = np.bincount(np.load(cancer / "d.npz")["y_test"]) / 114
    # The model that is judged again reads samples as the one that was trained.
    assert shares @ found["class_accuracy"] == pytest.approx(accuracy)


def test_standardize_none_leaves_them_as_they_are(cancer):
    options = "--rounds 5 --fraction 0.5 --lr 0.0001 --standardize none --engine sequential"
    done = succeed(f"fnlkit partition --dataset d.npz --clients 8 | fnlkit train {options} -o raw.pt", cancer)
    run = Run.read(str(cancer / "raw.pt"))
    assert not run.meta["samples"]["mean"] and "moments" not in run.traffic.sent and "sent the count" not in done.stderr


def test_embeddings_that_are_no_numbers_are_refused(cancer):
    fed = library.partition(str(cancer / "d.npz"), clients=8, say=None)
    with pytest.raises(InputError, match=r"the embeddings are \(455, 2\) of type <U1; expected one vector of numbers"):
        library.train(fed, "akd(k=5)", embeddings=np.full((455, 2), ""), ledger="none", say=None)

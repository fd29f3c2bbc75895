"""The kernels against the libraries that people use today, on random data."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from fnlkit import kernels
from fnlkit.kernels import neighbors

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]


def sample(n, classes, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    scores = rng.standard_normal((n, classes)) * 1.5
    scores[np.arange(n), labels] += 2
    probs = np.exp(scores)
    return probs / probs.sum(1, keepdims=True), labels


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("n, classes", [(200, 3), (3000, 10), (3000, 16), (3000, 17), (4000, 100)])
def test_counts_are_cleanlabs(n, classes, kind):
    count = pytest.importorskip("cleanlab.count", reason="needs cleanlab: pip install fnlkit[bench]")
    probs, labels = sample(n, classes)
    probs = probs.astype(kind)
    np.testing.assert_array_equal(
        kernels.count_matrix(probs, labels).T, count.compute_confident_joint(labels, probs, calibrate=False)
    )
    # Equal counts have equal remainders, and which of them is rounded up hangs on numpy's unstable sort there.
    ours, joint = kernels.count_matrix(probs, labels, calibrate=True), count.compute_confident_joint(labels, probs)
    np.testing.assert_array_equal(np.sort(ours.T, 1), np.sort(joint, 1))
    assert (np.abs(ours.T - joint) <= 1).all()
    expected = count.get_confident_thresholds(labels, probs)
    rtol = 1e-5 if kind == np.float32 else 1e-12
    np.testing.assert_allclose(kernels.class_thresholds(probs, labels), expected, rtol=rtol)


@pytest.mark.parametrize("d", [2, 10, 40])
def test_lid_is_scikit_dimensions(d):
    skdim = pytest.importorskip("skdim", reason="needs scikit-dimension: pip install fnlkit[bench]")
    points = np.random.default_rng(d).standard_normal((400, d))
    # MacKay and Ghahramani's form: it divides by k - 1, leaving out the k-th neighbor, whose term is zero.
    theirs = skdim.id.MLE().fit_transform_pw(points, n_neighbors=20)
    np.testing.assert_allclose(kernels.lid(points, k=20) * 19 / 20, theirs, rtol=1e-9)


def test_lid_is_that_of_sklearns_neighbors():
    points = sample(500, 10)[0]
    distances = NearestNeighbors(n_neighbors=20).fit(points).kneighbors()[0]
    expected = -1 / np.log(distances / distances[:, -1:]).mean(1)
    np.testing.assert_allclose(kernels.lid(points), expected, rtol=1e-9)
    np.testing.assert_allclose(kernels.lid(points.astype(np.float32)), expected, rtol=1e-3)


@pytest.mark.parametrize("d, k", [(8, 1), (64, 10), (512, 100), (1280, 10)])
def test_votes_are_those_of_faiss_and_of_sklearn(d, k):
    import faiss

    rng = np.random.default_rng(d)
    labels = rng.integers(0, 7, 600)
    points = (rng.standard_normal((600, d)) + labels[:, None] * 0.3).astype(np.float32)
    index = faiss.IndexFlatL2(d)
    index.add(points)
    found = index.search(points, k + 1)[1][:, 1:]
    tally = (labels[found][:, :, None] == np.arange(7)).sum(1)
    votes, share = kernels.knn_vote(points, labels, k=k, ties="lowest")
    # Two neighbors whose distances agree to the last digits of float32 may change places.
    assert (votes == tally.argmax(1)).mean() > 0.995
    assert (np.abs(share - (labels[found] != labels[:, None]).mean(1)) < 1e-9).mean() > 0.99
    exact = points.astype(np.float64)
    own = KNeighborsClassifier(k, algorithm="brute").fit(exact, labels).predict(exact)
    np.testing.assert_array_equal(kernels.knn_vote(exact, labels, k=k, include_self=True, ties="lowest")[0], own)
    # Both drop the point itself, so the lists are the same.
    np.testing.assert_array_equal(neighbors.nearest(points, k, threads=2)[:, 0], found[:, 0])

"""The kernels against recorded results of the authors' own functions (tests/golden)."""

from pathlib import Path

import numpy as np
import pytest

from fnlkit import kernels

FOLDER = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def golden():
    return lambda name: np.load(FOLDER / f"{name}.npz", allow_pickle=False)


@pytest.mark.parametrize("case", ["a_k20", "a_k5", "c_k20", "d_k20", "e_k20", "f_k2", "g_k3"])
def test_lid_is_fedcorrs(golden, case):
    # Case b has another reference set than the client's own points, which FedCorr never uses.
    record, (name, k) = golden("lid_fedcorr"), case.split("_k")
    got = kernels.lid(record[f"{name}_X"], k=int(k), variant="fedcorr")
    np.testing.assert_allclose(got, record[case], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", "ABCDEF")
def test_counts_are_cleanlabs_and_fedefcs(golden, case):
    record = golden("count_matrix_cleanlab_fedefc")
    probs, labels = record[f"{case}_pred_probs"], record[f"{case}_labels"]
    np.testing.assert_allclose(kernels.class_thresholds(probs, labels), record[f"{case}_thresholds"], rtol=1e-12)
    np.testing.assert_array_equal(kernels.count_matrix(probs, labels).T, record[f"{case}_cj"])
    np.testing.assert_array_equal(kernels.count_matrix(probs, labels).T, record[f"{case}_fedefc_count"])
    calibrated = kernels.count_matrix(probs, labels, calibrate=True)
    for expected in (record[f"{case}_cj_calibrated"], record[f"{case}_fedefc_count_calibrated"]):
        # Equal counts of a row have equal remainders; which is rounded up hung on an unstable sort there (case F).
        np.testing.assert_array_equal(np.sort(calibrated.T, 1), np.sort(expected, 1))
        assert (calibrated.T != expected).sum() <= (4 if case == "F" else 0)


@pytest.mark.parametrize("case", "ABCF")
def test_transitions_are_fedefcs(golden, case):
    record = golden("fedefc_transition_and_loss")
    probs, labels = record[f"{case}_pred_probs"], record[f"{case}_labels"]
    counts = kernels.count_matrix(probs, labels)
    np.testing.assert_allclose((counts / counts.sum(1, keepdims=True)).T, record[f"{case}_T_compensate0"], rtol=1e-9)
    weighted = kernels.count_matrix(probs, labels, class_weights="labels")
    sums = weighted.sum(1, keepdims=True)
    # With weights the code also transposes, so its rows are true classes like ours.
    weighted = np.divide(weighted, sums, out=np.zeros_like(weighted), where=sums > 0)
    np.testing.assert_allclose(weighted, record[f"{case}_T_compensate1"], rtol=1e-9)


def test_inverse_is_numpys(golden):
    # Recorded matrices have columns that sum to 1: the transpose of ours.
    matrix = golden("count_matrix_cleanlab_fedefc")["F_noise_matrix"].T
    np.testing.assert_allclose(kernels.invert_transition(matrix)[0], np.linalg.inv(matrix), rtol=1e-9)


@pytest.mark.parametrize("k", [1, 5, 10, 100])
def test_votes_are_fedlns(golden, k):
    record = golden("fedln")
    votes, _ = kernels.knn_vote(record["knn_features"], record["knn_labels"], k=k, include_self=True, ties="lowest")
    np.testing.assert_array_equal(votes, record[f"knn_k{k}_pred"])
    np.testing.assert_allclose((votes != record["knn_labels"]).mean(), record[f"knn_k{k}_est"], atol=1e-12)


def test_votes_of_ties_and_of_missing_classes(golden):
    record = golden("fedln")
    votes, _ = kernels.knn_vote(record["tie_features"], record["tie_labels"], k=2, include_self=True, ties="lowest")
    np.testing.assert_array_equal(votes, record["tie_k2_pred"])
    # There the class list was overwritten: {0, 2, 4} came out as {0, 1, 2}.
    labels = record["missing_labels"]
    votes, _ = kernels.knn_vote(record["missing_features"], labels, k=10, include_self=True, ties="lowest")
    assert set(votes) <= set(labels)
    np.testing.assert_array_equal(np.searchsorted(np.unique(labels), votes), record["missing_k10_pred_official"])

"""Noise fitted to people: matrices around a common matrix, and shared errors on hard samples."""

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.datasets.votes import by_vote
from fnlkit.simulate import noise, partitioning
from fnlkit.simulate.noise.people import FITTED, margins
from tests.commands import fnlkit, refuse, refuse_call


@pytest.fixture(scope="module")
def crowd():
    """Return (federation, data) of digits: 12 annotators label all samples."""
    data = datasets.load("digits")
    data.votes, data.annotators = np.tile(data.y_train[:, None], (1, 12)), [f"r{a:02}" for a in range(12)]
    data = by_vote(data)
    return partitioning.federation(data, "annotators"), data


def test_each_client_gets_the_matrix_that_is_recorded(crowd):
    noisy = noise.inject(crowd[0], "annotators(strength=20)", seed=3)
    T = noisy.noise_transition
    assert T.shape == (12, 10, 10) and np.allclose(T.sum(2), 1)
    for k, part in enumerate(noisy.clients):
        stay = np.diagonal(T[k])[noisy.true[part]].mean()
        assert (noisy.given[part] == noisy.true[part]).mean() == pytest.approx(stay, abs=0.04)


def test_strength_is_the_similarity_of_annotators(crowd):
    spread = [noise.inject(crowd[0], f"annotators(strength={s})", seed=1).noise_transition.std(0).mean() for s in (2, 20, 500)]
    assert spread[0] > spread[1] > spread[2]


def test_annotators_agree_on_wrong_labels_of_hard_samples_only(crowd):
    noisy = noise.inject(crowd[0], "difficult(hard=0.2, agree=0.9)", seed=0, x=crowd[1].x_train)
    sample, n = noisy.extra["sample_of"], 1438
    votes = np.full((n, 12), -1)
    for k, part in enumerate(noisy.clients):
        votes[sample[part], k] = noisy.given[part]
    true = crowd[1].truth[np.unique(sample, return_index=True)[1]]
    wrong = votes != true[:, None]
    most = np.array(
        [np.bincount(row[bad], minlength=10).max() if bad.any() else 0 for row, bad in zip(votes, wrong, strict=True)]
    )
    shared = most >= 9
    assert shared.mean() == pytest.approx(0.2, abs=0.06) and noisy.noise_transition is None
    counts = [np.bincount(row[bad], minlength=10).max() for row, bad in zip(votes[shared], wrong[shared], strict=True)]
    assert np.mean(counts) / 12 == pytest.approx(0.9, abs=0.05)


def test_margins_by_hand():
    """Means 0 and 10 of one feature: the sample at 6 of class 0 is nearer to class 1."""
    x, labels = np.array([[-3.0], [-3.0], [6.0], [10.0]]), np.array([0, 0, 0, 1])
    margin, other = margins(x, labels, 2)
    scale = x.std()
    np.testing.assert_allclose(margin, np.array([13 - 3, 13 - 3, 4 - 6, 10 - 0]) / scale, rtol=1e-5)
    assert other.tolist() == [1, 1, 1, 0]


def test_the_models_on_the_command_line(tmp_path):
    for spec in ("annotators", "annotators(like=mriqc)", "difficult(like=mriqc)", "difficult(hard=0, agree=1)"):
        line = f"fnlkit partition --clients 4 | fnlkit inject-noise --noise '{spec}' --seed 2 -o noisy.npz"
        assert fnlkit(line, tmp_path).returncode == 0
        fed = Federation.read(str(tmp_path / "noisy.npz"))
        assert 0.02 < (fed.given != fed.true).mean() < 0.7
    refuse("fnlkit inject-noise --dataset digits --noise annotators -o no.npz", tmp_path, "partition")
    assert set(FITTED) == {"labelme", "mriqc"}


def test_a_single_class_has_no_other_class():
    refuse_call("one class", margins, np.ones((3, 2)), np.zeros(3, int), 4)

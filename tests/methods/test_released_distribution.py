"""The error of FedDPCont's released distribution: stated as drawn releases have it, and with a note if it is large."""

import numpy as np
import pytest

from fnlkit import inject_noise, partition, train
from fnlkit.methods.feddpcont import expected_error
from fnlkit.privacy import debias


@pytest.mark.parametrize(("epsilon", "labels"), [(0.81, 50_000), (0.81, 10_000), (2.0, 2_000)])
@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_the_expected_error_is_that_of_drawn_releases(epsilon, labels, skew):
    shares = np.exp(-skew * np.arange(10) / 3)
    shares, stay = shares / shares.sum(), np.exp(epsilon)
    flipped = (shares * (stay - 1) + 1) / (stay + 9)
    draws = np.random.default_rng(0).multinomial(labels, flipped, size=400)
    errors = [np.abs(debias(counts, epsilon) - shares).sum() / 2 for counts in draws]
    assert expected_error(shares, epsilon, labels) == pytest.approx(np.mean(errors), rel=0.05)


def test_a_large_error_is_noted():
    federation = inject_noise(partition("digits", clients=3), "symmetric(eta=0.2)")
    for method, noted in (("feddpcont", True), ("feddpcont(epsilon=6)", False), ("feddpcont(release=exact)", False)):
        notes = []
        train(federation, method=method, rounds=1, epochs=1, engine="sequential", say=notes.append)
        assert any("expected error of 28 %" in text for text in notes) == noted

"""Data of sites that several files use."""

import numpy as np
import pytest

from fnlkit import datasets


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with the npz of three sites, each with wrong labels of its own, and the server's."""
    from tests.sites.deployed import write_digits

    y, rng, parts = datasets.load("digits").y_train, np.random.default_rng(1), []
    for k, part in enumerate(np.array_split(rng.permutation(len(y))[:150], 3)):
        given = y[part].copy()
        given[: 10 * k] = rng.integers(0, 10, 10 * k)
        parts.append((part, given))
    return write_digits(tmp_path_factory.mktemp("sites"), parts, ("x_train", "y_train"))


@pytest.fixture(scope="session")
def audited(tmp_path_factory):
    """A folder with the npz of four sites, three of them with wrong labels, and the server's."""
    from tests.sites.deployed import SITES, write_digits

    y, parts = datasets.load("digits").y_train, []
    for k, part in enumerate(np.array_split(np.random.default_rng(1).permutation(len(y))[: 60 * SITES], SITES)):
        given = y[part].copy()
        given[: 12 * k] = (given[: 12 * k] + 1) % 10
        parts.append((part, given))
    return write_digits(tmp_path_factory.mktemp("audited"), parts)

"""Fixtures of the tests of audits."""

import pytest

from fnlkit.audits.site import own_model


@pytest.fixture(scope="module")
def few_trees():
    """Models that a site trains of its own table have ten trees: for tests that are about other models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_model, "TREES", 10)
        yield

"""Estimators with few draws of the bootstrap, which takes most of the time of `em`."""

import pytest

from fnlkit.estimators import likelihood


@pytest.fixture(scope="module", autouse=True)
def few_draws():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(likelihood, "DRAWS", 20)
        yield

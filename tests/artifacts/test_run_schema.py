"""A run file with metadata of a wrong type is refused, and the message names the entry."""

from dataclasses import replace

import pytest

from fnlkit import partition, train
from fnlkit.artifacts.run_schema import check
from fnlkit.errors import InputError


@pytest.fixture(scope="module")
def run():
    federation = partition("digits", clients=3, scheme="iid", seed=0)
    return train(federation, "fedavg", rounds=1, model="mlp(hidden=[2])", epochs=1, ledger="none", say=None)


@pytest.mark.parametrize("value", [False, "", "text", [0], {"a": 1}])
@pytest.mark.parametrize("name", ["needs", "own", "head", "unsaved", "machine", "input_shape", "features", "samples"])
def test_metadata_of_a_wrong_type_is_refused(run, name, value):
    check(run)
    with pytest.raises(InputError, match=name):
        check(replace(run, meta=run.meta | {name: value}))

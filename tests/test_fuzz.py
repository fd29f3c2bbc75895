"""Some broken inputs of each kind, the same every time; `python -m benchmarks.fuzz` is the campaign."""

import importlib.util
import json
import resource

import numpy as np
import pytest

from benchmarks import fuzz, mutations

if importlib.util.find_spec("flwr"):
    pytest.importorskip("flwr.supercore.logger")  # which imports it without the warnings of its own imports


# The children compute alone. Python 3.15 sees the threads of libraries, which are idle, and warns.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    fuzz.prepare(folder)
    for kind in fuzz.KINDS:
        fuzz.judge(kind, folder, 0, 0)  # imports, before children are forked
    return folder


def test_broken_inputs_end_in_a_sentence(inputs):
    here = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # children begin with the memory of this process
    counts, failures, peak = fuzz.campaign(inputs, 32, 0)
    assert not failures, failures
    assert set(counts) == set(fuzz.KINDS) and sum(counts.values()) >= 30
    assert 0 < peak < here + 2**30


def test_changed_values_contain_no_cycle():
    # A list of ODD in two places must not become an entry of itself: json refuses cycles.
    odd = repr(mutations.ODD)
    for seed in range(300):
        json.dumps(mutations.changed_tree({"a": {}, "b": []}, np.random.default_rng(seed)))
    assert repr(mutations.ODD) == odd

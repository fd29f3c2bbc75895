"""Some broken inputs of each kind, the same every time; `python -m benchmarks.fuzz` is the campaign."""

import importlib.util
import resource
import time

import pytest

from benchmarks import fuzz

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
    counts, failures, peak = fuzz.campaign(inputs, 64, 0)
    assert not failures, failures
    assert set(counts) == set(fuzz.KINDS) and sum(counts.values()) >= 60
    assert 0 < peak < here + 2**30


def test_the_campaign_ends_at_its_time_although_mutants_run(inputs, monkeypatch):
    monkeypatch.setattr(fuzz, "fnlkit", lambda arguments: time.sleep(60))
    began = time.monotonic()
    counts, failures, _ = fuzz.campaign(inputs, 40, 0, kinds=("recipe",), jobs=2, minutes=2 / 60)
    assert time.monotonic() - began < 20 and counts == {"recipe": 0} and not failures


def test_the_campaign_detects_failures(inputs, monkeypatch):
    """An internal error, a death and a silent exit of a planted command are each found, and the others judged all the same."""

    def planted(arguments):
        if planted.calls == 0:
            planted.calls += 1
            raise SystemExit(7)
        planted.calls += 1
        if planted.calls == 2:
            print("fnlkit: error: internal error: KeyError: 'x'", file=fuzz.sys.stderr)
            raise SystemExit(1)
        if planted.calls == 3:
            fuzz.os._exit(9)

    planted.calls = 0
    monkeypatch.setattr(fuzz, "fnlkit", planted)
    counts, failures, _ = fuzz.campaign(inputs, 6, 0, kinds=("recipe",), jobs=1)
    said = [text for _, _, text in failures]
    assert counts == {"recipe": 6} and "exit code 7" in said[0] and "internal error" in said[1] and "died" in said[2]

"""Several devices: the bytes of one device, whatever their number. Processes on the CPU stand for devices."""

import pickle
from functools import partial

import pytest
import torch

from fnlkit.client.training import Fit
from fnlkit.engines import devices
from fnlkit.engines.devices import Devices
from fnlkit.engines.stacked import Stacked, groups_of
from fnlkit.engines.workers import _separate
from tests.engines.steps import dies
from tests.engines.test_resume import finish
from tests.engines.test_workers import digest
from tests.experiment.test_experiment import problem, reread, same, settings
from tests.toy import toy, train

FIT = Fit(epochs=1, lr=0.1, batch_size=8)


@pytest.fixture
def count(monkeypatch):
    """Return a function that sets the number of devices."""
    return lambda number: monkeypatch.setattr(devices, "visible", lambda device: [""] * number)


def test_groups_depend_on_the_cohort_and_on_at_once():
    """Sizes 9, 9, 7, 5, 3: the pairs are the clients of 9, those of 7 and 5, and the last one."""
    sizes = torch.tensor([5, 9, 3, 9, 7]).numpy()
    assert groups_of(sizes, 2) == [[1, 3], [0, 4], [2]]
    assert groups_of(sizes, 0) == groups_of(sizes, 5) == groups_of(sizes, 9) == [[0, 1, 2, 3, 4]]


def test_only_a_group_size_selects_several_devices(count):
    assert type(toy("stacked", at_once=2)[0].engine) is Stacked
    count(2)
    assert type(toy("stacked", at_once=2)[0].engine) is Devices
    fed, _ = toy("stacked")
    assert type(fed.engine) is Stacked and any("`at_once=N`" in note for note in fed.notes)


def test_a_device_with_an_index_is_a_single_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for value, names in (("", ["0", "1"]), ("3,5", ["3", "5"]), ("GPU-a, GPU-b,-1", ["GPU-a", "GPU-b"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert devices.visible(torch.device("cuda")) == names
    for name in ("cpu", "cuda:1"):
        assert devices.visible(torch.device(name)) == [""]


@pytest.mark.parametrize(("method", "number"), [pytest.param("fedavg", 3, marks=pytest.mark.slow), ("fedcorr", 2)])
def test_one_digest(method, number, count):
    """FedDyn keeps a state on clients, and Power-of-Choice visits clients twice a round."""
    run = partial(train, "stacked", method, "feddyn(alpha=0.1)", "power-of-choice(d=8)", fraction=0.5, fit=FIT, at_once=2)
    run = partial(run, rounds=12 if method == "fedcorr" else 3, dtype=torch.float32)
    expected = run()
    count(number)
    found = run()
    assert type(found[0].engine) is Devices and digest(*found[:2]) == digest(*expected[:2])


@pytest.mark.slow
def test_a_run_that_moves_to_other_devices_ends_like_a_run_on_one(count, tmp_path):
    given, chosen = problem(), settings("coteaching", rounds=4, fraction=0.75)
    whole = finish(given, chosen, "stacked", at_once=2)
    run = reread(finish(given, chosen, "stacked", stop_after=1, at_once=2), tmp_path)
    count(2)
    same(finish(given, chosen, "stacked", resume=run, at_once=2), whole)


def test_an_answer_contains_no_other_client_of_the_stack():
    """A row of the stack (10, 1000) in float32 has 4,000 bytes."""
    stack = torch.zeros(10, 1000)
    answer = ({"weights": stack[0]}, (torch.arange(3), {"marks": stack[1]}, {"old": [stack[2]]}, {"dropped"}))
    sent = pickle.dumps(_separate(answer))
    assert len(pickle.dumps(answer)) > 120_000 > 20_000 > len(sent)
    reply, (_, rows, state, dropped) = pickle.loads(sent)
    assert torch.equal(reply["weights"], stack[0]) and torch.equal(state["old"][0], stack[2]) and dropped == {"dropped"}


def _fails(client, model, received):
    if client.id == 1:
        raise FloatingPointError("overflow")
    return {"ok": client.x.sum()[()], "unsent": (lambda: 0) if client.id == 2 else torch.tensor(1)}


@pytest.mark.slow  # pooled processes are replaced as those of workers are
def test_a_killed_device_process_loses_nothing_and_a_failed_client_only_itself(count, tmp_path):
    step = partial(dies, flag=str(tmp_path / "died"))
    fed, model = toy("stacked", at_once=2)
    (tmp_path / "died").touch()
    expected = fed.round(range(6), model, FIT, step)
    (tmp_path / "died").unlink()
    count(2)
    other, model = toy("stacked", at_once=2)
    found = other.round(range(6), model, FIT, step)
    assert (tmp_path / "died").exists() and found.ids.tolist() == list(range(6)) and not other.rejected
    for name in ("weights", "drawn"):
        assert torch.equal(found[name], expected[name])
    assert digest(other, model) == digest(fed, model)
    other.round(range(4), model, _fails, FIT)
    assert [r["client"] for r in other.rejected] == [1, 2]
    other.close()

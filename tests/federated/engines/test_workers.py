"""Workers: the bytes of sequential, whatever their number and whatever happens to them."""

import gc
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from fnlkit.core.errors import InputError
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines.stacked import groups_of
from fnlkit.federated.engines.workers import _separate
from fnlkit.kernels import get_threads
from tests.commands import LIMIT, has_ended, refuse_call, wait_until
from tests.federated.engines import steps
from tests.federated.engines.test_engines import mlp
from tests.toy import Net, toy, train

FIT = Fit(epochs=1, lr=0.1, batch_size=16)


def digest(fed, model):
    """SHA-256 over the model and all that clients remember."""
    out = hashlib.sha256(model.weights.numpy().tobytes())
    for client in fed.members:
        out.update(client.y.numpy().tobytes())
        for memory in (client.rows, client.state):
            for name in sorted(memory):
                out.update(name.encode() + torch.as_tensor(memory[name]).numpy().tobytes())
    return out.hexdigest()


@pytest.fixture(scope="module")
def staffed(tmp_path_factory):
    """A federation with two workers that stay hired for this module's tests, and no process and no descriptor afterwards."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FNLKIT_THREADS", "3")
        fed, model = toy("workers", workers=2)
        fed.round([0, 1], model, FIT)
        fed.close()
        opened = len(os.listdir("/proc/self/fd"))
        yield fed, model
        folder = tmp_path_factory.mktemp("processes")
        fed.round(range(6), model, partial(steps.writes_its_process, folder=str(folder)))
        fed.close()
        found = list(folder.iterdir())
        assert found and len(os.listdir("/proc/self/fd")) == opened
        assert all(has_ended(path.name) for path in found)


# Starting workers takes seconds. FedCorr uses all that workers receive and return.
@pytest.mark.parametrize("method, counts", [
    ("fedcorr", (2,)),
    *(pytest.param(method, (1, 3), marks=pytest.mark.slow) for method in ("fedavg", "flr", "dividemix", "fedrn")),
])  # fmt: skip
def test_one_digest(method, counts):
    """FedDyn keeps a state on clients, Power-of-Choice asks twice a round; mixup, proximal terms, rows come along."""
    run = partial(train, method=method, optimizer="feddyn(alpha=0.1)", selector="power-of-choice(d=6)")
    run = partial(run, rounds=12 if method == "fedcorr" else 4, fit=FIT, dtype=torch.float32)
    expected = digest(*run("sequential")[:2])
    for count in counts:
        assert digest(*run("workers", workers=count)[:2]) == expected


def test_a_killed_worker_is_replaced_and_its_task_repeated(staffed, tmp_path):
    fed, model = staffed
    before = fed.rounds
    replies = fed.round(range(6), model, FIT, partial(steps.dies, flag=str(tmp_path / "died")))
    other, same = toy()
    other.rounds = before
    expected = other.round(range(6), same, FIT, partial(steps.dies, flag=str(tmp_path / "died")))
    assert (tmp_path / "died").exists() and replies.ids.tolist() == list(range(6))
    for name in ("weights", "drawn"):
        assert torch.equal(replies[name], expected[name])
    assert [c.state["visits"].item() for c in fed.members[:6]] == [1] * 6
    assert any("was replaced" in note for note in fed.notes)


def test_a_task_that_kills_every_worker_is_lost_with_its_client_named(staffed):
    fed, model = staffed
    fed.rejected.clear()
    replies = fed.round(range(4), model, steps.always_dies)
    assert replies.ids.tolist() == [0, 1, 2]
    assert [r["client"] for r in fed.rejected] == [3] and "died 3 times" in fed.rejected[0]["reason"]


def test_a_stopped_worker_is_replaced_and_a_client_that_stops_them_all_is_lost(staffed, monkeypatch):
    fed, model = staffed
    monkeypatch.setattr(fed.engine, "timeout", 2.0)
    monkeypatch.setattr("fnlkit.federated.engines.workers.TRIES", 2)
    fed.rejected.clear()
    assert fed.round(range(3), model, steps.stops_in_client_1).ids.tolist() == [0, 2]
    assert [(r["client"], r["reason"]) for r in fed.rejected] == [(1, "did not answer within 2 s")]
    assert any("client 1 did not answer within 2 s; its worker was replaced" in note for note in fed.notes)


@pytest.mark.parametrize("engine", ["sequential", "workers", "fused"])
def test_kernels_compute_with_one_thread_while_clients_run(engine, staffed, monkeypatch):
    monkeypatch.setenv("FNLKIT_THREADS", "3")
    options = {"workers": 2, "network": mlp, "dtype": torch.float32} if engine == "fused" else {}
    fed, model = staffed if engine == "workers" else toy(engine, **options)
    assert fed.round(range(4), model, FIT, steps.counts_threads)["threads"].tolist() == [1, 1, 1, 1]
    assert get_threads() == 3
    if engine != "workers":
        fed.close()


def test_errors_come_home_by_their_names(staffed):
    fed, model = staffed
    fed.rejected.clear()
    fed.round([0, 1, 2], model, steps.fails)
    assert fed.rejected[0]["reason"] == "failed: FloatingPointError"
    assert "seen" in fed.members[2].rows and "seen" not in fed.members[1].rows
    refuse_call("cannot read 'mlp", fed.round, [0, 1], model, steps.wrong)


def test_closures_are_refused_by_workers(staffed):
    fed, model = staffed
    for step in (lambda client, model, received: None, partial(steps.fails.__call__), Fit(loss=lambda z, batch: z)):
        refuse_call("cannot be sent", fed.round, [0], model, step)

    class Inner(Net):
        pass

    fed, model = toy("workers", network=Inner)
    refuse_call("network cannot be sent", fed.round, [0], model, FIT)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_copy_of_the_parent_ends_without_the_workers(staffed, tmp_path):
    fed, model = staffed
    fed.rejected.clear()
    step = partial(steps.writes_its_process, folder=str(tmp_path))
    fed.round(range(8), model, step)
    pids = {path.name for path in tmp_path.iterdir()}
    copy = os.fork()
    if not copy:
        fed.close()
        os._exit(0)
    os.waitpid(copy, 0)
    fed.round(range(8), model, step)
    assert {path.name for path in tmp_path.iterdir()} == pids and not fed.rejected


def test_a_worker_that_cannot_be_prepared_ends_the_round_at_once_with_its_reason():
    fed, model = toy("workers", workers=2, network=steps.NotInWorkers)
    with pytest.raises(InputError, match="a worker process cannot start: no library"):
        fed.round([5, 6, 8, 10, 11], model, FIT)  # the smallest client first
    assert not fed.notes and not fed.engine.pools
    del fed
    gc.collect()  # the error and the pools that its traceback names


def test_an_interrupted_round_blames_no_worker(staffed, tmp_path):
    def interrupt():
        wait_until(lambda: any(tmp_path.iterdir()) or ended.is_set())
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    fed, model = staffed
    fed.notes.clear()
    ended = threading.Event()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        try:
            fed.round(range(2), model, partial(steps.sleeps, folder=str(tmp_path)))
        finally:
            ended.set()
    assert not fed.notes and all(has_ended(path.name) for path in tmp_path.iterdir())


def test_dead_and_stopped_workers_are_replaced_at_once(staffed, tmp_path, monkeypatch):
    fed, model = staffed
    fed.rejected.clear()
    step = partial(steps.writes_its_process, folder=str(tmp_path))
    fed.round(range(8), model, step)
    first, other = [process.pid for _, (process,) in fed.engine.pools.values()]
    os.kill(first, signal.SIGKILL)
    fed.round(range(8), model, step)
    pids = [process.pid for _, (process,) in fed.engine.pools.values()]
    assert first not in pids and other in pids and not fed.rejected  # the other worker went on
    monkeypatch.setattr(fed.engine, "timeout", 2.0)
    os.kill(other, signal.SIGSTOP)
    fed.round(range(8), model, step)
    assert has_ended(first) and has_ended(other) and not fed.rejected


def test_a_caller_that_ignores_its_children_keeps_its_workers(tmp_path):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        fed, model = toy("workers", workers=2)
        fed.round(range(2), model, FIT)
        fed.round(range(6), model, partial(steps.dies, flag=str(tmp_path / "died")))
        fed.round(range(6), model, FIT)
        assert (tmp_path / "died").exists() and not fed.rejected
        fed.close()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_workers_draw_different_numbers_without_a_seed(staffed):
    fed, model = staffed
    assert len(set(fed.round(range(3), model, steps.draws)["number"].tolist())) == 3


PARENT = """
import sys, time
from functools import partial
from tests.federated.engines.steps import sleeps
from tests.toy import toy
fed, model = toy("workers", workers=2)
fed.round([0, 1], model, partial(sleeps, folder=sys.argv[1]))
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_workers_end_with_their_parent(tmp_path, sign):
    """Also in the middle of a task, also if the parent cannot notify them."""
    root = Path(__file__).parents[3]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], cwd=root, stderr=subprocess.DEVNULL)
    assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    pids = [int(p.name) for p in tmp_path.iterdir()]
    parent.send_signal(sign)
    parent.wait(LIMIT)
    assert wait_until(lambda: all(map(has_ended, pids)))


# ---- groups of clients that train at once, and answers of workers
def test_groups_depend_on_the_cohort_and_on_at_once():
    """Sizes 9, 9, 7, 5, 3: the pairs are the clients of 9, those of 7 and 5, and the last one."""
    sizes = torch.tensor([5, 9, 3, 9, 7]).numpy()
    assert groups_of(sizes, 2) == [[1, 3], [0, 4], [2]]
    assert groups_of(sizes, 0) == groups_of(sizes, 5) == groups_of(sizes, 9) == [[0, 1, 2, 3, 4]]


def test_an_answer_contains_no_other_client_of_the_stack():
    """A row of the stack (10, 1000) in float32 has 4,000 bytes."""
    stack = torch.zeros(10, 1000)
    answer = ({"weights": stack[0]}, (torch.arange(3), {"marks": stack[1]}, {"old": [stack[2]]}, {"dropped"}))
    sent = pickle.dumps(_separate(answer))
    assert len(pickle.dumps(answer)) > 120_000 > 20_000 > len(sent)
    reply, (_, rows, state, dropped) = pickle.loads(sent)
    assert torch.equal(reply["weights"], stack[0]) and torch.equal(state["old"][0], stack[2]) and dropped == {"dropped"}

"""On every engine a run that was stopped, also with a schedule, ends bit for bit like one that never was."""

import time

import pytest
import torch

from fnlkit.federated.engines import ENGINES
from tests.commands import refuse_call
from tests.experiment import test_experiment as experiment
from tests.experiment.test_experiment import problem, reread, same, settings
from tests.toy import toy

CASES = [
    ("stacked", "fedcorr", "feddyn(alpha=0.1)"),
    ("fused", "flr", "fedprox(mu=0.1)"),
    ("fused", "fedcorr(usual_optimizer=feddyn(alpha=0.1), usual_decay=0.9)", "fedavg"),
    ("stacked", "fedem", "fedprox(mu=0.1)"),
]


def finish(problem, chosen, engine, **options):
    return experiment.finish(*problem, chosen, engine=engine, **options)


@pytest.mark.parametrize(("engine", "method", "optimizer"), CASES)
def test_a_resumed_run_ends_like_one_never_stopped(engine, method, optimizer, tmp_path):
    given, chosen = problem(), settings(method, optimizer=optimizer, schedule="cosine", warmup_rounds=2)
    whole = finish(given, chosen, engine)
    run = None
    for stop in (3, 9):
        run = reread(finish(given, chosen, engine, stop_after=stop, resume=run), tmp_path)
        assert len(run.history) == stop + 1
    same(finish(given, chosen, engine, resume=run), whole)


@pytest.mark.slow
def test_a_run_that_began_on_sequential_ends_alike_on_workers(tmp_path):
    """Both have the same digest (test_workers.py), and starting workers takes seconds."""
    given, chosen = problem(), settings("fedcorr", optimizer="feddyn(alpha=0.1)")
    run = reread(finish(given, chosen, "sequential", stop_after=9), tmp_path)
    same(finish(given, chosen, "workers", resume=run, workers=1), finish(given, chosen, "sequential"))


def _interrupted(client, model, received):
    if client.id == 0:
        raise KeyboardInterrupt
    time.sleep(0.2)
    client.y += 1


@pytest.mark.parametrize("engine", [name for name in ENGINES if name not in ("workers", "flower")])
def test_nothing_touches_a_client_after_ctrl_c(engine):
    """Also when other clients were at work in threads."""
    from tests.federated.engines.test_engines import mlp

    fed, model = toy(engine, network=mlp, count=3)
    before = [c.y.clone() for c in fed.members]
    refuse_call("", fed.round, [0, 1, 2], model, _interrupted, error=KeyboardInterrupt)
    fed.rollback()
    time.sleep(0.3)
    assert all(torch.equal(c.y, y) for c, y in zip(fed.members, before, strict=True)) and fed.rounds == 0
    fed.close()

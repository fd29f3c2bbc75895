"""Schedules of the learning rate equal torch's, on every engine; test_resume.py resumes runs with one."""

from functools import partial

import numpy as np
import pytest
import torch

from fnlkit.core import registry
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.settings import Settings
from tests.commands import refuse_call
from tests.experiment.test_experiment import finish, problem, reread, same, settings

ROUNDS = 12
TORCH = {
    "constant": lambda opt, rounds: torch.optim.lr_scheduler.ConstantLR(opt, factor=1.0),
    "step(every=3, factor=0.5)": lambda opt, rounds: torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.5),
    "exponential(factor=0.9)": lambda opt, rounds: torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.9),
    "cosine": lambda opt, rounds: torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=rounds),
    "cosine(lowest=0.1)": lambda opt, rounds: torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=rounds, eta_min=0.03),
}


def rates(spec, warm, lr=0.3):
    """Return the learning rates of all rounds, of a plan."""
    factor = Plan.of(Settings(schedule=spec, warmup_rounds=warm, rounds=ROUNDS)).schedule_over(ROUNDS)
    return [lr * factor(done) for done in range(ROUNDS)]


def rates_of_torch(make, warm, lr=0.3):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = partial(make, optimizer, ROUNDS - warm)
    if warm:
        rise = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / (warm + 1), total_iters=warm)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, schedule()], milestones=[warm])
    else:
        scheduler = schedule()
    found = []
    for _ in range(ROUNDS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR of torch calls step(0)
@pytest.mark.parametrize("warm", [0, 4])
@pytest.mark.parametrize("spec", TORCH)
def test_schedules_are_those_of_torch(spec, warm):
    np.testing.assert_allclose(rates(spec, warm), rates_of_torch(TORCH[spec], warm), rtol=1e-9)


def test_schedules_cover_all_registered_names():
    assert {spec.partition("(")[0] for spec in TORCH} == {*registry.SCHEDULES}


@pytest.mark.parametrize("engine", ["sequential", "stacked", "fused"])
def test_every_engine_trains_with_the_scheduled_rate(engine):
    """The weights after two rounds equal those of one round, continued with the rate that the schedule gives."""
    given = problem()
    scheduled = finish(*given, settings(rounds=2, schedule="step(every=1, factor=0.0)"), engine=engine)
    short = finish(*given, settings(rounds=1), engine=engine)
    torch.testing.assert_close(scheduled.weights, short.weights)  # the second round has rate 0
    longer = finish(*given, settings(rounds=2), engine=engine)
    assert not torch.allclose(longer.weights, short.weights)


def test_decay_is_a_schedule_and_a_warm_up_lowers_the_first_rates():
    given = problem()
    decayed = finish(*given, settings(rounds=3, decay=0.5))
    same(finish(*given, settings(rounds=3, schedule="exponential(factor=0.5)")), decayed)
    warm = finish(*given, settings(rounds=1, warmup_rounds=1, lr=0.2))
    assert torch.equal(warm.weights, finish(*given, settings(rounds=1, lr=0.1)).weights)
    refuse_call("both change the learning rate; remove one", Plan.of, Settings(schedule="cosine", decay=0.9))


def test_fedcorr_passes_through_a_schedule_once():
    """Visits of single clients advance it as far as rounds with as many clients."""
    rounds, seen = 12, []

    def watch(done, total):
        seen.append(done / total)
        return 1.0

    plan = settings("fedcorr", rounds=rounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "schedule", lambda spec: watch)
        finish(*problem(), plan)
    assert min(seen) == 0 and 0.85 < max(seen) < 1


def test_another_budget_resumes_only_if_the_rates_stay(tmp_path):
    given = problem()
    for spec, possible in (("step(every=2, factor=0.5)", True), ("cosine", False)):
        run = reread(finish(*given, settings(rounds=3, schedule=spec)), tmp_path)
        longer = settings(rounds=5, schedule=spec)
        if possible:
            same(finish(*given, longer, resume=run), finish(*given, longer))
        else:
            refuse_call("depends on the number of rounds", finish, *given, longer, resume=run)

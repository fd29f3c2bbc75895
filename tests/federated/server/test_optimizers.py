"""What an optimizer may do in a round, schedules of the learning rate, and the files that run in a round."""

import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fnlkit.core import registry
from fnlkit.experiment import Experiment
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers import Additions, FedOpt, gradient_weight, local_steps
from fnlkit.federated.server.optimizers.fedbn import normalizers
from tests.commands import refuse_call
from tests.experiment.test_experiment import finish, problem, reread, same, settings
from tests.federated.engines.test_engines import federation
from tests.toy import toy

# ---- what an optimizer may do in a round: send, see the replies, change what is aggregated, remember
FIT = Fit(epochs=2, lr=0.1, batch_size=8)


def counted(client, model, received):
    """Reply what was sent, so that the server can see that it arrived."""
    return {"echo": received["number"] + received["own"]}


def test_an_optimizer_broadcasts_reads_replies_and_keeps_state():
    fed, model = toy()
    seen = []

    def prepare(request):
        seen.append((list(request.ids), request.fit.lr, dict(request.memory)))
        own = torch.as_tensor(request.ids, dtype=torch.float64)
        return Additions(after=(counted,), broadcast={"number": torch.tensor(0.5)}, scatter={"own": own})

    def rescale(updates):
        return updates.start + 2 * (updates.trained - updates.start)

    def server(updates, merged):
        updates.memory["rounds"] = updates.memory.get("rounds", torch.tensor(0)) + 1
        seen.append((updates.replies["echo"].tolist(), updates.ids.tolist(), updates.weights.tolist(), updates.share))
        return merged

    opt = FedOpt(FIT, prepare=prepare, rescale=rescale, server=server, schedule=lambda done: 0.5**done)
    weights = torch.arange(1, 13).double()
    found, said = opt.round(fed, [7, 2, 4], model, weights=weights)
    assert seen[0] == ([7, 2, 4], 0.1, {})
    assert seen[1] == ([2.5, 4.5, 7.5], [2, 4, 7], [3.0, 5.0, 8.0], 0.25)
    other, same = toy()
    plain, _ = FedOpt(FIT).round(other, [2, 4, 7], same, weights=weights)
    torch.testing.assert_close(found.weights - model.weights, 2 * (plain.weights - model.weights), rtol=1e-9, atol=1e-12)
    opt.round(fed, [0], found)
    assert seen[2] == ([0], 0.05, {"rounds": torch.tensor(1)}) and fed.memory["rounds"] == 2


def test_a_method_and_its_optimizer_may_not_send_two_things_by_one_name():
    fed, model = toy()
    opt = FedOpt(FIT, prepare=lambda request: Additions(broadcast={"number": torch.tensor(0.5)}))
    refuse_call("both send 'number'", opt.round, fed, [0], model, broadcast={"number": torch.tensor(1.0)})


def test_local_steps_are_counted_as_they_are_taken():
    fed, model = toy()
    for client in fed.members[:4]:
        taken = []

        def count(w, w_start, batch, taken=taken):
            taken.append(1)
            return torch.zeros_like(w)

        FedOpt(FIT, corrections=(count,)).round(fed, [client.id], model)
        assert local_steps(fed.sizes, FIT)[client.id] == len(taken)


# ---- each optimizer against its formulas, written out from the local models of one round
def rounds_of(spec, cohorts, fit=FIT, aggregator="mean"):
    """Yield (weights before, local models by client, sizes by client, weights after, FedOpt, federation) of some rounds."""
    fed, model = toy()
    opt = registry.optimizer(spec, fit, aggregate=registry.aggregator(aggregator))
    for ids in cohorts:
        before = model
        model, said = opt.round(fed, ids, model)
        local = dict(zip(said.ids.tolist(), said["weights"], strict=True))
        yield before.weights, local, {i: fed.sizes[i].item() for i in local}, model.weights, opt, fed


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 1.0])
def test_the_weight_of_gradients_is_how_far_a_unit_gradient_carries(momentum):
    for n in (1, 8, 9, 39):
        fit = FIT.changed(momentum=momentum)
        velocity = gone = 0.0
        for _ in range(int(local_steps(n, fit))):
            velocity = momentum * velocity + 1.0
            gone += velocity
        assert gradient_weight(torch.tensor(n), fit).item() == pytest.approx(gone, rel=1e-12)
    assert gradient_weight(torch.tensor(39), FIT.changed(optimizer="adam")) == 10


def test_fednova_counts_progress_in_equal_steps():
    fit = FIT.changed(momentum=0.5)
    for start, local, sizes, after, _, _ in rounds_of("fednova", [[0, 3, 5, 9]], fit):
        a = {i: gradient_weight(torch.tensor(n), fit).item() for i, n in sizes.items()}
        p = {i: n / sum(sizes.values()) for i, n in sizes.items()}
        assert len(set(a.values())) > 1
        effective = sum(p[i] * a[i] for i in a)
        close(after, start + effective * sum(p[i] * (local[i] - start) / a[i] for i in a))
    alike = FIT.changed(batch_size=64)  # one step each
    (_, _, _, nova, _, _), (_, _, _, plain, _, _) = (next(rounds_of(s, [[0, 3, 5]], alike)) for s in ("fednova", "fedavg"))
    close(nova, plain)


def test_scaffold_follows_its_control_variates():
    """Two rounds: c_k' = c_k - c + (w - w_k) / (lr ||a_k||), c += sum of changes / N, and a step's gradient gains c - c_k."""
    fit = FIT.changed(momentum=0.0)
    control, own, cohorts = 0.0, {}, [[0, 3, 5, 9], [0, 4, 9]]
    for start, local, sizes, after, _, fed in rounds_of("scaffold(server_lr=0.5)", cohorts, fit):
        close(after, start + 0.5 * (torch.stack(list(local.values())).mean(0) - start))
        changes = []
        for i, n in sizes.items():
            steps = 2 * -(-n // 8)
            changes.append((start - local[i]) / (0.1 * steps) - control)
            own[i] = own.get(i, 0.0) + changes[-1]
            close(fed.members[i].state["control"], own[i])
        control = control + sum(changes) / 12
        close(fed.memory["control"], control)
    # One full-batch step from w: w - lr (g - c_k + c).
    single = FIT.changed(momentum=0.0, epochs=1, batch_size=64)
    fed, model = toy()
    opt = registry.optimizer("scaffold", single)
    model, _ = opt.round(fed, [0, 3], model)
    mine, everybody = fed.members[3].state["control"].clone(), fed.memory["control"].clone()
    _, said = opt.round(fed, [3], model)
    other, _ = toy()
    plain = other.round([3], model, single)["weights"][0]
    close(said["weights"][0], plain - 0.1 * (everybody - mine))


def test_fedexp_takes_a_larger_step_if_updates_disagree():
    for start, local, sizes, after, _, _ in rounds_of("fedexp(epsilon=0.001)", [[0, 3, 5, 9], [1, 2]]):
        p = {i: n / sum(sizes.values()) for i, n in sizes.items()}
        merged = sum(p[i] * (local[i] - start) for i in p)
        spread = sum(p[i] * (local[i] - start).square().sum() for i in p)
        close(after, start + max(1.0, (spread / (2 * (merged.square().sum() + 1e-3))).item()) * merged)


@pytest.mark.parametrize("rule", ["adam", "yogi"])
def test_adaptive_servers_take_the_mean_update_for_a_gradient(rule):
    first, second = 0.0, 1e-2**2
    for start, local, sizes, after, _, _ in rounds_of(f"fed{rule}(server_lr=0.3, tau=0.01, beta2=0.9)", [[0, 3], [5, 9], [3]]):
        step = sum(n * (local[i] - start) for i, n in sizes.items()) / sum(sizes.values())
        first = 0.9 * first + 0.1 * step
        if rule == "adam":
            second = 0.9 * second + 0.1 * step**2
        else:
            second = second - 0.1 * step**2 * torch.sign(second - step**2)
        close(after, start + 0.3 * first / (second**0.5 + 0.01))


def test_ditto_is_fedavg_with_a_model_of_its_own_on_each_client():
    """At strength 0 the personal model goes on alone; at a large one it ends at the common model that it received."""
    both = [list(rounds_of(spec, [[0, 3], [0, 5]])) for spec in ("ditto(strength=0.5)", "fedavg")]
    for (_, _, _, after, _, _), (_, _, _, plain, _, _) in zip(*both, strict=True):
        close(after, plain)
    alone, near = (list(rounds_of(f"ditto(strength={s})", [[3], [3]], FIT.changed(momentum=0.0))) for s in (0, 9.9))
    start, local, *_ = alone[0]
    fed, model = toy()
    one = fed.round([3], model, FIT.changed(momentum=0.0))["weights"][0]
    close(local[3], one)
    two = fed.round([3], model.with_weights(one), FIT.changed(momentum=0.0))["weights"][0]
    close(alone[0][5].members[3].state["personal"], two)  # after both rounds: the list is complete when it is read
    received, _, _, _, _, fed = near[1]
    free = (alone[1][5].members[3].state["personal"] - received).norm()
    assert (fed.members[3].state["personal"] - received).norm() < 0.3 * free
    assert "global" not in fed.members[3].state


def test_fedbn_leaves_batch_norm_on_the_clients():
    for engine in ("sequential", "stacked"):
        fed, model = federation(engine, [9, 4, 13])
        mask, opt, start = normalizers(fed.network), registry.optimizer("fedbn", FIT), model.weights.clone()
        assert mask.sum() == 4 * 8  # scale, shift, mean, variance of eight channels
        for _ in range(2):
            model, said = opt.round(fed, [0, 1, 2], model)
            close(said["weights"][:, mask], start[mask].expand(3, -1))
        close(model.weights[mask], start[mask])
        assert (model.weights[~mask] - start[~mask]).norm() > 0.01
        own = torch.stack([client.state["normalizers"] for client in fed.members])
        assert (own[0] - own[1]).norm() > 1e-3
        # What a client trains with: the received model with its own batch norm.
        dressed = model.weights.clone()
        dressed[mask] = own[2]
        twin, _ = federation("sequential", [9, 4, 13])
        twin.rounds = fed.rounds
        expected = twin.round([2], model.with_weights(dressed), FIT)["weights"][0]
        model, said = opt.round(fed, [2], model)
        torch.testing.assert_close(said["weights"][0][~mask], expected[~mask], rtol=0, atol=1e-9)
        torch.testing.assert_close(fed.members[2].state["normalizers"], expected[mask], rtol=0, atol=1e-9)
    fed, model = toy()
    refuse_call("this network has none", registry.optimizer("fedbn", FIT).round, fed, [0], model)


# ---- schedules of the learning rate equal torch's, on every engine; test_resume.py resumes runs with one
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


# ---- the files that run in a round are those of docs/how-a-round-works.md
ROOT = Path(__file__).resolve().parents[3]


def files_in_round(experiment):
    """Return the files of fnlkit in which a function is called in the second round of an experiment.

    Round one reads declarations, which are bound for the run.
    """
    next(experiment.program)
    experiment.clients.commit()
    codes, before = set(), sys.getprofile()
    sys.setprofile(lambda frame, event, _: codes.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        next(experiment.program)
        experiment.clients.commit()
    finally:
        sys.setprofile(before)
    paths = [Path(name) for name in codes if name.endswith(".py")]
    return {str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT / "fnlkit")}


def test_a_round_runs_in_the_files_of_the_page():
    page = (ROOT / "docs/how-a-round-works.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    listed = [file for row in rows for file in re.findall(r"\(\.\./(fnlkit/[^)]+\.py)\)", row)]
    assert len(listed) == len(set(listed))
    assert files_in_round(Experiment(*problem(), settings(), engine="sequential")) == set(listed)

"""Updates that are clipped and noised: what may be hidden, that bound and noise are as they are said to be, the price."""

import json
import math
import re

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from fnlkit import train as fnlkit_train
from fnlkit.artifacts import ledger
from fnlkit.artifacts.run import Run
from fnlkit.client.failure import Failure
from fnlkit.client.training import Fit
from fnlkit.components import registry
from fnlkit.engines.sequential import Sequential
from fnlkit.errors import InputError
from fnlkit.experiment import cards
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.settings import Settings
from fnlkit.kernels.streams import HiddenStream
from fnlkit.privacy import Sums, updates, updates_epsilon
from fnlkit.server.clients import Clients, Replies
from fnlkit.server.protection import Protection, clip_update
from tests import toy
from tests.commands import fnlkit, refuse, succeed
from tests.privacy import mechanisms

pytest.importorskip("dp_accounting", reason="extra `privacy`")

# By hand, from the papers' algorithms.
SINGLE = {"fedcorr", "flr-plus", "nnc", "akd", "na-fedavg", "fednoro", "fedelc", "maskedoptim", "fedsir", "rofl", "fedrn",
          "feddiv", "fedreda", "rhfl", "centralized", "local"}  # fmt: skip
SOLVED = {"fedsums", "ridge", "lda"}
SUMMED = {"fedefc", "fedem", "forward", "confident-learning", "feddpcont", "fedgr"}


def planned(**settings):
    return Plan.of(Settings(**settings))


# ---- which methods can
def test_possible_protection_follows_from_the_replies():
    found = {name: cards.protection_of_replies(name) for name in registry.METHODS}
    assert {found[name] for name in SINGLE} == {"–"} and {found[name] for name in SUMMED | SOLVED} == {"sum"}
    assert {found[name] for name in ("fedavg", "flr", "elr", "coteaching", "oracle")} == {"sum, dp"}
    assert "fedcorr reads each client's reply: mean LID" in planned(method="fedcorr").single_replies_reason
    assert "sends more than weights: label counts" in planned(method="feddpcont").unprotected_reason
    assert "reads each" in planned(method="oracle(usual=fedcorr)").single_replies_reason
    assert planned(method="oracle(usual=flr)").single_replies_reason is None


def test_aggregators_optimizers_and_selection_that_look_at_single_clients():
    specs = {"daagg": "daagg(clean=[0])"}
    assert [a for a in registry.AGGREGATORS if planned(aggregator=specs.get(a, a)).single_replies_reason is None] == ["mean"]
    assert {o for o in registry.OPTIMIZERS if planned(optimizer=o).single_replies_reason} == {"scaffold", "fednova", "fedexp"}
    assert planned(optimizer="feddyn(rule=fedefc)").single_replies_reason
    assert planned(optimizer="feddyn").single_replies_reason is None
    assert [s for s in registry.SELECTORS if planned(selector=s).single_replies_reason] == ["power-of-choice"]


@pytest.mark.parametrize("method", sorted(SUMMED))
def test_summed_replies_are_only_summed(method, monkeypatch):
    """Each client's reply replaced by the mean over the round: sums stay, and so does the run."""

    def trained():
        clients, model = toy.toy(network=toy.fitting(toy.Net, method))
        opt = registry.optimizer("fedavg", Fit(epochs=1, batch_size=10, lr=0.1))
        program = registry.method(method)(clients, model, opt, registry.selector("uniform", 0.5), rounds=6)
        return [step.model.weights for step in program][-1]

    plain, real, hidden = trained(), Clients.round, []

    def averaged(self, *args, **more):
        said = real(self, *args, **more)
        for name in set(said) - {"weights"}:
            hidden.append(name)
            said[name] = said[name].double().mean(0, keepdim=True).expand_as(said[name])
        return Replies(said, said.ids)

    monkeypatch.setattr(Clients, "round", averaged)
    declared = {name for _, sends in planned(method=method).method.list_replies() for name in sends}
    torch.testing.assert_close(trained(), plain, rtol=1e-9, atol=1e-12)
    assert hidden and set(hidden) <= declared


LINES = {
    "--method fedcorr": "--method fedcorr reads each client's reply: mean LID",
    "--method fedefc": "--method fedefc sends more than weights: model accuracy",
    "--method feddpcont": "sends more than weights: label counts after randomized response",
    "--aggregator median": "--aggregator median compares the clients' models",
    "--aggregator krum --fraction 0.5": "--aggregator krum compares",
    "--aggregator norm-clipping": "--aggregator norm-clipping compares",
    "--optimizer scaffold": "--optimizer scaffold reads each client's model",
    "--optimizer fedexp": "--optimizer fedexp reads each",
    "--selector power-of-choice": "--selector power-of-choice selects by the reply of each client",
    "--optimizer own.py:nosy": "--optimizer own.py:nosy reads each client's model",
    "--method own.py:silent": "--method silent does not declare its replies",
    "--model resnet20": "the network has statistics of samples in addition to its weights (batch norm)",
    "--backbone torchvision(name=shufflenet_v2_x0_5,weights=random,size=32)": "sums of their features",
    "--method centralized": "is a reference without a round of several clients",
}
OWN = """
from fnlkit.methods.fedavg import Round
from fnlkit.server.optimizers.optimizer import FedOpt

def nosy(fit, **settings):
    return FedOpt(fit, server=lambda updates, merged: merged + 0 * updates.trained.sum(), **settings)

def silent(clients, model, opt, select, *, rounds):
    model, said = opt.round(clients, select(clients, model), model)
    yield Round(model, "training", said, {})
"""


@pytest.mark.parametrize("options", LINES)
def test_unprotectable_settings_are_refused_before_training(options, noisy, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    flag, _, value = options.partition(" ")
    value, _, more = value.partition(" ")
    line = f"fnlkit train {noisy} --protect dp {flag} '{value}' {more} --rounds 1 -o run.pt"
    done = refuse(line, tmp_path, LINES[options])
    assert len(re.findall("error", done.stderr)) == 1 and done.stderr.splitlines()[-1].startswith(
        "fnlkit: error: --protect dp: "
    )
    assert not (tmp_path / "run.pt").exists()


MISTAKES = {
    "dpp": "did you mean 'dp'?; ",
    "own.py:dp": "write none, dp(",
    "dp(clip=0)": "above 0",
    "dp(noise=-1)": "above 0",
    "dp(cohort=3)": "has no parameter 'cohort'",
}


@pytest.mark.parametrize("spec", MISTAKES)
def test_a_protection_that_there_is_not(spec, noisy, tmp_path):
    done = fnlkit(f"fnlkit train {noisy} --protect '{spec}'", tmp_path)
    assert done.returncode == 2 and MISTAKES[spec] in done.stderr.splitlines()[-1]


def test_without_an_accountant_nothing_is_protected(noisy, tmp_path, monkeypatch):
    monkeypatch.setattr("fnlkit.privacy.updates.importlib.util.find_spec", lambda name: None)
    refuse(f"fnlkit train {noisy} --protect dp -o run.pt", tmp_path, "pip install 'fnlkit[privacy]'")
    assert not (tmp_path / "run.pt").exists()


# ---- the mechanism
def test_no_update_is_longer_than_the_bound_and_short_ones_are_untouched():
    rng = np.random.default_rng(0)
    for scale in (1e-9, 0.01, 0.1, 1.0, 1e9, 1e150):
        update = torch.from_numpy(rng.normal(size=300) * scale)
        short = clip_update(update, 1.7)
        length = float(torch.linalg.vector_norm(update))
        if length <= 1.7:
            assert torch.equal(short, update)
        else:
            assert float(torch.linalg.vector_norm(short)) == pytest.approx(1.7, rel=1e-14)
            torch.testing.assert_close(short / 1.7, update / length)
    assert torch.equal(clip_update(torch.zeros(3, dtype=torch.float64), 1.0), torch.zeros(3, dtype=torch.float64))


def test_one_client_moves_the_sum_by_the_bound_and_no_further():
    """Without noise to speak of: gone it takes 0.5 / 4 away, replaced by its opposite twice that; short ones are whole."""
    start = torch.zeros(50, dtype=torch.float64)
    protect, others = Protection(0.5, 1e-15, 4.0), torch.randn(3, 50, dtype=torch.float64)
    victim = 1e6 * torch.ones(1, 50, dtype=torch.float64)

    def after(*parts):
        return protect(start, torch.cat(parts), round=7)

    there, gone, opposite = after(others, victim), after(others), after(others, -victim)
    assert float((there - gone).norm()) == pytest.approx(0.5 / 4, rel=1e-12)
    assert float((there - opposite).norm()) == pytest.approx(2 * 0.5 / 4, rel=1e-12)
    assert float((after(others, victim * 1e-9) - gone).norm()) == pytest.approx(1e-3 * math.sqrt(50) / 4, rel=1e-9)


def test_the_noise_is_normal_with_the_stated_deviation():
    """Deviation z S / (q N) in every weight, of a sum of nobody too; 4 standard errors of 100,000 draws."""
    start = torch.full((100_000,), 2.0, dtype=torch.float64)

    def noise(secret, round, ids=(), begin=start):
        protect = Protection(0.5, 1.3, 4.0, HiddenStream(bytes(32), secret))
        return protect(begin, begin[None, :][:0], round=round, ids=ids) - begin

    out = noise(3, 9)
    expected = 1.3 * 0.5 / 4
    assert float(out.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * len(out)))
    assert abs(float(out.mean())) < 4 * expected / math.sqrt(len(out))
    assert float((out.abs() > 2 * expected).double().mean()) == pytest.approx(2 * norm.sf(2), abs=0.003)
    assert torch.equal(noise(3, 9), out)
    for other in (noise(3, 10), noise(4, 9), noise(3, 9, ids=[5]), noise(3, 9, begin=start + 1e-9)):
        assert abs(float((other * out).mean())) < 4 * expected**2 / math.sqrt(len(out))


# ---- the price
def gaussian_delta(epsilon, mu):
    """Of one Gaussian whose inputs lie mu deviations apart (Balle and Wang 2018, Theorem 8)."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 10), (10.0, 300)])
def test_everybody_in_every_round_is_one_gaussian(noise, rounds):
    """The sum over T rounds: neighbors 2 sqrt(T) / z apart where one is replaced, sqrt(T) / z where one is left out."""
    for sampling, apart in (("fixed", 2), ("poisson", 1)):
        found = updates_epsilon(Sums(sampling, 40, 40.0, 0.3, noise, rounds))
        exact = brentq(lambda e, mu: gaussian_delta(e, mu) - 1e-5, 0, 500, (apart * math.sqrt(rounds) / noise,))
        assert exact <= found * (1 + 1e-6) and found == pytest.approx(exact, rel=0.01), sampling


@pytest.mark.parametrize(("noise", "share"), [(1.0, 0.1), (0.7, 0.02), (3.0, 0.5)])
def test_the_cost_of_a_single_round_is_not_understated(noise, share):
    """delta(ln(1 + q (e^e - 1))) = q delta_Gaussian(e), of either drawing with its own neighbors (Balle 2018)."""
    for sampling, apart in (("poisson", 1), ("fixed", 2)):
        inner = brentq(lambda e, mu: share * gaussian_delta(e, mu) - 1e-5, 0, 500, (apart / noise,))
        exact = math.log1p(share * math.expm1(inner))
        found = updates_epsilon(Sums(sampling, 1000, 1000 * share, 1.0, noise, 1))
        assert found >= exact * (1 - 1e-4)
        assert found <= exact * (1.02 if sampling == "poisson" else 4) + 0.5, (sampling, found, exact)


def test_a_total_over_both_samplings_is_for_a_replaced_client():
    """Every client in every round: T rounds are a Gaussian with mu 2 sqrt(T) / z for a replaced client.

    Two kinds of runs, each with half of delta 1e-5: mu is 2 / 2 for one round with z = 2, and 2 sqrt(3) / 4 for three with 4.
    """
    fixed, poisson = Sums("fixed", 40, 40.0, 1.0, 2.0, 1), Sums("poisson", 40, 40.0, 1.0, 4.0, 3)
    exact = [brentq(lambda e, mu: gaussian_delta(e, mu) - 0.5e-5, 0, 500, (mu,)) for mu in (1.0, math.sqrt(3) / 2)]
    total, delta = updates.together([fixed, poisson])
    assert delta == 1e-5 and sum(exact) * (1 - 1e-6) <= total <= sum(exact) * 1.01
    assert (
        updates.neighbors([fixed, poisson]) == "replaced by any other" and updates.neighbors([poisson]) == "present or absent"
    )
    assert updates.together([poisson])[0] == updates_epsilon(poisson)


def test_a_replaced_client_costs_more_than_an_absent_one_also_with_sampling():
    """Both mixtures of a round share the part without the client, so that delta(e) <= q delta_Gaussian(e), 2 bounds apart."""
    sums = Sums("poisson", 1000, 100, 1.0, 1.0, 1)
    absent, replaced = updates_epsilon(sums), updates_epsilon(sums, replaced=True)
    inner = brentq(lambda e, mu, q: q * gaussian_delta(e, mu) - 1e-5, 0, 500, (2.0, 0.1))
    assert absent < replaced <= inner
    loud = Sums("poisson", 1000, 500, 1.0, 0.1, 100)  # too large for privacy loss distributions
    assert updates_epsilon(loud, replaced=True) > updates_epsilon(loud) > 30


def test_more_noise_costs_less_and_more_rounds_cost_more():
    for sampling in ("fixed", "poisson"):
        common = updates_epsilon(Sums(sampling, 200, 20.0, 1.0, 1.0, 20))
        low, high = (updates_epsilon(Sums(sampling, 200, 20.0, 1.0, z, 20)) for z in (0.6, 4.0))
        none, one = (updates_epsilon(Sums(sampling, 200, 20.0, 1.0, 1.0, t)) for t in (0, 1))
        assert low > common > high and common > one > none == 0
    # As docs/privacy.md has it.
    assert round(updates_epsilon(Sums("fixed", 1000, 100, 1.0, 1.1, 100)), 1) == 53.7
    assert Sums("fixed", 10**6, 100, 1.0, 1.0, 1).delta == pytest.approx(1e-7)
    for wrong in ({"delta": 0}, {"delta": 1.0}):
        with pytest.raises(InputError, match="between 0 and 1"):
            updates_epsilon(Sums("fixed", 10, 10, 1.0, 1.0, 1), **wrong)
    with pytest.raises(InputError, match="write fixed or poisson"):
        updates_epsilon(Sums("half", 10, 10, 1.0, 1.0, 1))


def outputs(update, *, noise=2.0, seed=0, count=4000):
    """What one client's protected update looks like, over so many runs."""
    start, sent = torch.zeros(1, dtype=torch.float64), torch.full((1, 1), update, dtype=torch.float64)
    protect = Protection(1.0, noise, 1.0, HiddenStream(bytes(32), seed))
    return [protect(start, sent, round=r).item() for r in range(count)]


DELTA = 1e-2  # of the audits, which 4,000 outputs can see


def test_an_audit_finds_wrong_noise_and_wrong_neighbors_and_nothing_else():
    """4,000 draws of each mechanism."""
    replaced = updates_epsilon(Sums("fixed", 1, 1.0, 1.0, 2.0, 1), DELTA)
    left_out = updates_epsilon(Sums("poisson", 1, 1.0, 1.0, 2.0, 1), DELTA)
    there, opposite = outputs(5.0), outputs(-5.0, seed=1)
    assert mechanisms.audit_pair(there, opposite, replaced, delta=DELTA).verdict == "consistent"
    assert mechanisms.audit_pair(there, outputs(0.0, seed=1), left_out, delta=DELTA).verdict == "consistent"
    half = mechanisms.audit_pair(outputs(5.0, noise=1.0), outputs(-5.0, noise=1.0, seed=1), replaced, delta=DELTA)
    assert half.verdict == "violated" and half.low > replaced
    # The accountant of one neighborhood taken for the other.
    assert mechanisms.audit_pair(there, opposite, left_out, delta=DELTA).verdict == "violated"


# ---- runs
PROTECTED = "--protect 'dp(clip=0.5, noise=0.8)' --rounds 4 --epochs 1 --fraction 0.25"


def trained(noisy, folder, name, more=""):
    done = succeed(f"fnlkit train {noisy} {PROTECTED} {more} --ledger none -o {name}.pt", folder)
    assert "cannot be resumed" not in done.stderr
    return Run.read(str(folder / f"{name}.pt"))


def test_one_key_one_result_and_anything_else_other_noise(noisy, tmp_path):
    """The server draws the noise; processes of clients have no part in it."""
    key = "--privacy-key mine.key --precision fp64"
    plain = trained(noisy, tmp_path, "plain", f"{key} --engine sequential")
    assert torch.equal(trained(noisy, tmp_path, "again", f"{key} --engine sequential").weights, plain.weights)
    names = {plain.meta["protection"]["release"]}
    other_engine = f"{key} --engine stacked"  # rounds otherwise, as does `fused`, which would be compiled in fp64 for this test
    for more in (other_engine, f"{key} --engine sequential --decay 0.99", "--precision fp64 --engine sequential"):
        other = trained(noisy, tmp_path, "other", more)
        moved = [w - torch.mean(w) for w in (plain.weights, other.weights)]
        assert abs(torch.nn.functional.cosine_similarity(*moved, dim=0)) < 0.9
        names.add(other.meta["protection"]["release"])
    assert len(names) == 4


def test_runs_of_one_seed_do_not_reveal_the_mean_update(noisy, tmp_path):
    """The difference of two releases is noise: its cosine with the difference of the mean updates is small."""

    def difference(noise):
        more = f"--protect 'dp(clip=0.5, noise={noise})' --fraction 1 --rounds 1 --engine stacked"
        one, other = (trained(noisy, tmp_path, "run", f"{more} --lr {lr}").weights for lr in (0.01, 0.1))
        return one - other

    assert torch.nn.functional.cosine_similarity(difference(1e-9), difference(1e-9), dim=0) > 0.999
    assert abs(torch.nn.functional.cosine_similarity(difference(20), difference(1e-9), dim=0)) < 0.1


def test_resuming_requires_the_privacy_key(noisy, tmp_path):
    whole = trained(noisy, tmp_path, "whole", "--privacy-key mine.key --selector poisson")
    trained(noisy, tmp_path, "part", "--privacy-key mine.key --selector poisson --rounds 2")
    again = f"fnlkit train {noisy} {PROTECTED} --selector poisson --ledger none --resume part.pt -o part.pt"
    refuse(f"{again} --privacy-key other.key", tmp_path, "--privacy-key")
    assert "cannot be resumed" not in succeed(f"{again} --privacy-key mine.key", tmp_path).stderr
    assert torch.equal(Run.read(str(tmp_path / "part.pt")).weights, whole.weights)


def test_the_cohort_does_not_follow_from_the_seed(noisy, tmp_path):
    """The gain from drawing clients rests on cohorts that nobody can predict."""
    runs = [trained(noisy, tmp_path, "run", f"--privacy-key {name}.key --rounds 6") for name in ("a", "b", "a")]
    cohorts = [[row["clients"] for row in run.history if row["stage"] != "final"] for run in runs]
    assert cohorts[0] == cohorts[2] != cohorts[1]


@pytest.mark.parametrize(("selector", "optimizer"), [("uniform", "feddyn"), ("poisson", "fedadam")])
def test_a_resumed_run_equals_and_costs_the_uninterrupted_run(noisy, tmp_path, selector, optimizer):
    more = f"--selector {selector} --optimizer {optimizer}"
    whole = trained(noisy, tmp_path, "whole", more)
    part = trained(noisy, tmp_path, "part", f"{more} --rounds 2")
    assert part.meta["protection"]["epsilon"] < whole.meta["protection"]["epsilon"]
    continued = trained(noisy, tmp_path, "part", f"{more} --resume part.pt")
    assert torch.equal(continued.weights, whole.weights) and continued.meta["protection"] == whole.meta["protection"]
    sampling = {"uniform": "fixed"}.get(selector, selector)
    assert whole.meta["protection"]["sums"] == Sums(sampling, 20, 5, 0.5, 0.8, 4)._asdict()
    assert whole.meta["protection"]["epsilon"] == updates_epsilon(Sums(sampling, 20, 5.0, 0.5, 0.8, 4))


@pytest.mark.parametrize("method", [name for name in registry.METHODS if cards.protection_of_replies(name) == "sum, dp"])
def test_every_method_that_can_be_protected_trains_and_pays_for_each_round(method):
    """Under the clip and without noise to speak of it is the method with clients that count alike."""

    def run(protect):
        clients, model = toy.toy(network=toy.fitting(toy.Net, method))
        found = {"protect": Protection(1e6, 1e-15, 6.0)} if protect else {"uniform_weights": True}
        opt = registry.optimizer("fedavg", Fit(epochs=1, batch_size=10, lr=0.1), **found)
        for client in clients.members:
            if "truth" in registry.needs(method):
                client.rows["input/true"] = client.given.clone()
            if "embedding" in registry.needs(method):
                client.rows["input/embedding"] = client.x.float()
        program = registry.method(method)(clients, model, opt, registry.selector("uniform", 0.5), rounds=4)
        weights = [step.model.weights for step in program][-1]
        return weights, sum(len(entry.norms) > 0 for entry in clients.log)

    (plain, count), (protected, paid) = run(False), run(True)
    assert count == paid == 4
    torch.testing.assert_close(protected, plain, rtol=0, atol=1e-7)


def test_an_update_out_of_all_proportion_is_clipped_and_a_lost_one_weighs_nothing():
    clients, model = toy.toy()
    clients.max_update_ratio, real = 0.0, clients.engine.run

    def hostile(request):
        replies = real(request)
        replies[0] = {"weights": request.weights * math.nan}
        replies[1] = {"weights": request.weights + 1e12}
        return replies

    clients.engine.run = hostile
    protect = Protection(0.5, 1e-9, 4.0)
    opt = registry.optimizer("fedavg", Fit(epochs=1, batch_size=10, lr=0.1), protect=protect)
    after, said = opt.round(clients, [0, 1, 2, 3], model)
    assert said.ids.tolist() == [1, 2, 3] and clients.rejected[0]["client"] == 0
    assert "weights" not in said  # a method sees the sum, no client's model
    start, sum_of_clipped = model.weights, 0
    clients.engine.run, clients.rounds = real, 0
    honest = clients.round([2, 3], model, opt.fit)["weights"]
    for vector in torch.cat([(model.weights + 1e12)[None], honest]):
        away = vector - start
        sum_of_clipped = sum_of_clipped + away * min(1.0, 0.5 / float(away.norm()))
    torch.testing.assert_close(after.weights, start + sum_of_clipped / 4, rtol=0, atol=1e-6)


def test_protected_methods_with_other_replies_or_weights_are_stopped():
    def tell(client, model, received):
        return {"told": torch.ones(1)}

    for more in ({"after": (tell,)}, {"weights": np.ones(12)}):
        clients, model = toy.toy()
        opt = registry.optimizer("fedavg", Fit(epochs=1), protect=Protection(1.0, 1.0, 3.0))
        with pytest.raises(InputError, match="^`protect`"):
            opt.round(clients, [0, 1, 2], model, **more)


def test_a_poisson_round_may_be_empty_and_costs_the_same(tmp_path):
    """Five clients with probability 0.1: most rounds are of nobody, and the model moves in all of them."""
    lines = "fnlkit partition --clients 5 | fnlkit train --selector poisson --fraction 0.1 --rounds 12 --epochs 1 --ledger none"
    for protect, moved in (("--protect 'dp(noise=0.01)'", 12), ("", None)):
        succeed(f"{lines} {protect} -o run.pt", tmp_path)
        run = Run.read(str(tmp_path / "run.pt"))
        sizes = [len(row["clients"]) for row in run.history if row["stage"] != "final"]
        assert len(sizes) == 12 and 0 in sizes and max(sizes) > 0
        if moved:
            assert run.meta["protection"]["sums"]["rounds"] == 12
    clients, model = toy.toy()
    opt = registry.optimizer("fedavg", Fit(epochs=1), protect=Protection(1.0, 1.0, 3.0))
    after, _ = opt.round(clients, [], model)
    assert (after.weights != model.weights).all()


def test_poisson_rounds_are_binomial_and_each_client_is_drawn_alike():
    clients, model = toy.toy(count=50)
    select, drawn = registry.selector("poisson", 0.2), np.zeros((400, 50))
    for r in range(400):
        clients.rounds = r
        drawn[r, select(clients, model)] = 1
    sizes = drawn.sum(1)
    assert sizes.mean() == pytest.approx(10, abs=4 * math.sqrt(8 / 400)) and sizes.var() == pytest.approx(8, rel=0.35)
    assert abs(drawn.mean(0) - 0.2).max() < 4.5 * math.sqrt(0.16 / 400)
    assert set(select(clients, model, np.arange(50) < 3)) <= {0, 1, 2}


def test_evaluate_report_and_ledger_print_the_privacy_cost(noisy, tmp_path):
    line = f"fnlkit train {noisy} {PROTECTED} --ledger spent"
    for name, more in (("a", ""), ("b", "--seed 1"), ("a", ""), ("a", "--resume a.pt --rounds 6")):
        done = succeed(f"{line} {more} -o {name}.pt", tmp_path)
    six = updates_epsilon(Sums("fixed", 20, 5.0, 0.5, 0.8, 6))
    both = updates_epsilon(Sums("fixed", 20, 5.0, 0.5, 0.8, 10))
    assert f"6 rounds under --protect will cost ({six:.4g}, 1e-05)-DP" in done.stderr
    assert f"10 rounds of protected updates in the ledger spent: ({both:.4g}, 1e-05)-DP per client in total" in done.stderr
    assert [one.updates["rounds"] for one in ledger.read_ledger(tmp_path / "spent")] == [4, 6]
    facts = [json.loads(row) for row in fnlkit("fnlkit evaluate a.pt b.pt --json --ledger spent", tmp_path).stdout.splitlines()]
    assert [row["update_rounds"] for row in facts] == [6, 4] and facts[0]["update_epsilon"] == six
    assert facts[0]["update_together_epsilon"] == facts[1]["update_together_epsilon"] == both
    assert "5 of 20 clients, drawn without replacement" in facts[0]["update_statement"]
    shown = fnlkit("fnlkit evaluate a.pt b.pt --ledger spent", tmp_path).stdout
    assert f"a.pt: protected updates of 6 rounds, ({six:.4g}, 1e-05)-DP of a client" in shown
    assert f"({both:.4g}, 1e-05)-DP" in shown
    done = succeed("fnlkit report a.pt -o report.html", tmp_path)
    assert f"({six:.4g}, 1e-05)-DP" in (tmp_path / "report.html").read_text()
    privately = succeed(f"fnlkit train {noisy} --method feddpcont --rounds 1 --epochs 1 --ledger spent -o c.pt", tmp_path)
    assert "(0.81, 0)-label-DP" in privately.stderr


def test_a_repetition_that_loses_other_clients_counts_again(noisy, tmp_path, monkeypatch):
    """What one lost client leaves out is the difference of two runs, so that noise and entry of the ledger differ."""
    real, path = Sequential.run, tmp_path / "spent"

    def entries(lost, **more):
        def run(self, request):
            replies = real(self, request)
            return [Failure("late", "1") if request.round == lost and j == 0 else reply for j, reply in enumerate(replies)]

        monkeypatch.setattr(Sequential, "run", run)
        about = {"protect": "dp(clip=0.5, noise=0.8)", "rounds": 3, "epochs": 1, "fraction": 0.25, "ledger": path}
        made = fnlkit_train(noisy, engine="sequential", say=None, output=tmp_path / "run.pt", **about, **more)
        together = fnlkit("fnlkit evaluate run.pt --json --ledger spent", tmp_path)
        return made.weights, len(ledger.read_ledger(path)), json.loads(together.stdout).get("update_together_runs", 1)

    with_loss, again, clean = entries(1), entries(1), entries(None)
    assert with_loss[1:] == again[1:] == (1, 1) and torch.equal(with_loss[0], again[0])
    assert clean[1:] == (2, 2) and entries(None)[1:] == (2, 2) and entries(1)[1:] == (2, 2)
    assert entries(2)[1:] == (3, 3)


def test_runs_over_other_clients_are_stated_apart(noisy, tmp_path):
    """Ten clients of one partition may be one of another: no bound on one client's data covers both."""
    line, eight = "--ledger spent -o", updates_epsilon(Sums("fixed", 20, 5.0, 0.5, 0.8, 8))
    four, apart = (updates_epsilon(Sums("fixed", n, n / 4, 0.5, 0.8, 4)) for n in (20, 4))
    other = f"fnlkit partition --clients 4 --seed 3 | fnlkit train {PROTECTED} {line} c.pt"
    runs = [f"fnlkit train {noisy} {PROTECTED} {line} a.pt", other, f"fnlkit train {noisy} {PROTECTED} --seed 1 {line} b.pt"]
    said = [fnlkit(run, tmp_path) for run in runs]
    assert [done.returncode for done in said] == [0, 0, 0], said
    assert f"4 rounds of protected updates in the ledger spent: ({apart:.4g}, 1e-05)-DP" in said[1].stderr
    assert f"4 rounds ({four:.4g}, 1e-05)-DP" in said[1].stderr
    assert f"8 rounds of protected updates in the ledger spent: ({eight:.4g}, 1e-05)-DP" in said[2].stderr
    rows = [json.loads(row) for row in fnlkit("fnlkit evaluate a.pt c.pt --json --ledger spent", tmp_path).stdout.splitlines()]
    assert rows[0]["update_together_epsilon"] == eight and "update_together_epsilon" not in rows[1]
    assert f"({apart:.4g}, 1e-05)-DP" in rows[0]["update_apart_statement"]
    assert f"8 rounds ({eight:.4g}, 1e-05)-DP" in rows[1]["update_apart_statement"]
    rows = [json.loads(row) for row in fnlkit("fnlkit evaluate a.pt c.pt --json --ledger none", tmp_path).stdout.splitlines()]
    assert all("update_together_runs" not in row and "update_apart_statement" in row for row in rows)


@pytest.mark.parametrize("wrong", [{"epsilon": "1"}, {"delta": None}, {"sums": {}}, {"sums": 3}, {"sums": {"rounds": -1}}])
def test_the_recorded_protection_of_a_file_is_checked(noisy, tmp_path, wrong):
    run = trained(noisy, tmp_path, "run", "--rounds 1")
    known = run.meta["protection"]
    if isinstance(wrong.get("sums"), dict) and wrong["sums"]:
        wrong = {"sums": known["sums"] | wrong["sums"]}
    run.meta["protection"] = known | wrong
    run.write(str(tmp_path / "run.pt"))
    refuse("fnlkit evaluate run.pt", tmp_path, "not a usable run: ", "protection")

"""What every method must hold to: what leaves a client, equal results twice, ugly clients, special cases, options."""

import re
from functools import cache, partial

import numpy as np
import pytest
import torch

from fnlkit.core import registry
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.client import Client
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines import make
from fnlkit.methods import feddpcont, fedefc, flr, na_fedavg, prestopping
from fnlkit.methods.fedavg import Round, fedavg
from tests.commands import refuse_call
from tests.toy import CLASSES, FEATURES, IN_SESSION, Net, clients, fitting, program, public, toy

SHORT = Fit(epochs=1, lr=0.1, batch_size=40)  # one step a visit
FEW, SOON = 8, 6
# Spec, and the replies beside `weights` that it must send.
RUNS = {
    "fedcorr": {"lid", "noise_level"},
    "fedcorr(group=4, mixup_in=first, code=[proximal, ranking, strict, lid])": {"lid", "noise_level"},
    "fedcorr(code=[losses, relabeled], usual_aggregator=median)": {"lid", "noise_level"},
    "fedcorr(usual_optimizer=feddyn(alpha=0.1), usual_selector=power-of-choice(d=6))":
        {"lid", "noise_level", "local_loss"},
    "flr-plus": {"lid", "noise_level"},
    "fedefc(latest=2)": {"accuracy"},
    "fedefc(latest=2, weighting=paper, accuracy=local, compare=previous, ties=reset, rule=cleanlab)": {"accuracy"},
    "fedefc(latest=2, weighting=public, clip=true, report_transition=true)": {"accuracy", "transition"},
    "forward(latest=2, report_transition=true)": {"accuracy", "transition"},
    "forward(latest=2, anchor=mean, weighting=public)": {"accuracy"},
    "confident-learning(latest=2)": {"accuracy"},
    "feddpcont": {"private_counts", "epsilon"},
    "feddpcont(release=exact)": {"exact_counts"},
    "feddpcont(expected=true, delay=0, length=0, simplex=clip)": {"private_counts", "epsilon"},
    "na-fedavg": {"scores_global", "scores_local"},
    "na-fedavg(threshold=own, weighting=public, side=above)": {"noise_level"},
    "na-fedavg(score=softmax)": {"scores_global", "scores_local"},
    "nnc(k=5)": {"noise_level"},
    "nnc(k=5, include_self=true, ties=lowest, least=0.15, usual=flr())": {"noise_level"},
    "akd(k=5)": {"noise_level", "teacher_moments"},
    "akd(k=5, scale=given)": {"noise_level"},
    "akd(k=5, scale=rms)": {"noise_level", "embedding_square"},
    "akd(source=logits)": {"scores_global", "scores_local"},
    "akd(source=logits, level=neighbors, k=5, towards=student)": {"noise_level"},
    "rhfl": {"public_prediction", "private_loss"},
    "rhfl(strength=0, batch_size=7)": {"public_prediction", "private_loss"},
    "fedrn": {"expertise", "noise_output"},
    "fedrn(warmup=3, k=1, threshold=0.9)": {"expertise", "noise_output"},
    "feddiv": {"filter"},
    "feddiv(warmup=3, prior=1, level=0)": {"filter"},
    "fednoro": {"class_losses"},
    "fednoro(warmup=3, distance=layers, end=5)": {"class_losses"},
    "fedelc": {"class_losses"},
    "fedsir": {"similarity", "subspaces", "spectra"},
    "fedsir(least_similar=3, least_reference=4, interval=1)": {"similarity", "subspaces", "spectra"},
    "maskedoptim": {"class_losses"},
    "maskedoptim(warmup=3, kept=0.5, inertia=0.5)": {"class_losses"},
    "rofl": {"centroids"},
    "rofl(start=0, forget=0.5)": {"centroids"},
}  # fmt: skip
# These send nothing else.
RUNS |= dict.fromkeys([
    "fedavg", "flr", "flr(warm=server, warmup=3)", "elr", "slr", "er", "akd(source=logits, level=all)",
    "t-revision", "t-revision(warmup=2, revision=5, lr=0.01)", "centralized", "local", "oracle", "coteaching", "fedlsr",
    "fedelr", "dividemix", "dividemix(warmup=0, views=1, threshold=0.7)", "jointopt", "jointopt(warmup=0, length=2)",
    "selfie(length=4)", "selfie(warmup=0, length=2, certain=0.5)", "coteaching-plus(start=2, agreed=all)",
], frozenset())  # fmt: skip
# Every other registered method runs with its defaults and can send any reply that it declares.
RUNS |= dict.fromkeys(sorted(set(IN_SESSION) - {spec.partition("(")[0] for spec in RUNS}))


def with_embeddings(people):
    for client in people:
        client.rows["input/embedding"] = client.x.float()
        client.rows["input/true"] = (client.given + 1) % client.classes
    return people


def run(method, *, people=None, rounds=8, optimizer="fedavg", engine="sequential", seed=0, fit=None):
    """Return (federation, last model, rounds yielded) on the toy clients, all of whom hold embeddings."""
    people = with_embeddings(people or clients())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network((fitting(Net, method) if isinstance(method, str) else Net)(), dtype=torch.float64)
    fed = make(engine, people, network, people[0].inputs, seed=seed)
    fed.public, fed.sends = public(), Plan.of(Settings(method=method)).sends if isinstance(method, str) else None
    fit, model = fit or Fit(epochs=2, lr=0.1, batch_size=20), Model(network, network.flat.clone())
    steps = list(program(method, fed, model, rounds=rounds, fit=fit, optimizer=optimizer))
    fed.close()
    return fed, steps[-1].model, steps


@cache
def once(method):
    """Return the run of a method with few clients and short visits, for tests that only look at it."""
    return run(method, people=clients(count=FEW), rounds=SOON, fit=SHORT)


def undeclared(fed, sends):
    """Return what left clients but is not in `sends` with its shape and type, as texts."""
    found = []
    for entry in fed.log:
        for name, values in entry.values.items():
            if name in sends and sends[name].sum_only:
                values = [values[0].astype(sends[name].dtype)] * len(entry.kept)  # one value, the sum in float64
            for client, value in zip(entry.kept, values, strict=True):
                if name not in sends:
                    found.append(f"{name} of {client} is not declared")
                    continue
                sent = sends[name]
                shape = sent.sides(classes=CLASSES, samples=len(fed.members[client]), width=Net.width, public=30, D=FEATURES,
                                   triangle=Net.width * (Net.width + 1) // 2)  # fmt: skip
                if value.shape != shape or value.dtype != sent.dtype:
                    found.append(f"{name} of {client} is {value.dtype} {value.shape}, declared {sent.dtype} {shape}")
    return found


@pytest.mark.parametrize("method", RUNS)
def test_only_declared_replies_leave_a_client(method):
    fed, model, steps = once(method)
    assert undeclared(fed, registry.sends(method)) == []
    assert RUNS[method] is None or set(fed.traffic.sent) == RUNS[method] | {"weights"}
    assert torch.isfinite(model.weights).all() and not fed.rejected
    assert all(isinstance(step, Round) for step in steps)
    for client in fed.members:
        assert torch.equal(client.given, clients()[client.id].given)
        assert client.y.min() >= 0 and client.y.max() < CLASSES


def test_every_method_declares_the_form_of_its_replies():
    for name in registry.METHODS:
        for sent in registry.sends(name).values():
            assert str(sent).endswith("bytes") and sent.what and sent.when and sent.shape is not None


@pytest.mark.parametrize("method", RUNS)
def test_the_budget_is_kept(method):
    # After one epoch per round, FLR+ judges only two clients clean, and its fine-tuning visits only clean clients.
    fed, _, _ = run(method, people=clients(count=FEW), rounds=SOON) if method == "flr-plus" else once(method)
    # All data on one client: a round there is as many passes as the fraction of the clients makes.
    assert fed.traffic.client_rounds == SOON * FEW / 2 * (0.5 if method == "centralized" else 1)


# Methods with their defaults are in the products of test_engines.py; these change what a client computes.
STACKED = [
    "fedcorr(group=4, mixup_in=first, code=[proximal, ranking, strict, lid])", "flr(warm=server, warmup=3)",
    "feddpcont(expected=true, delay=0, length=0, simplex=clip)", "akd(k=5, scale=rms)",
    "akd(source=logits, level=neighbors, k=5, towards=student)", "rofl(start=0, forget=0.5)",
    "dividemix(warmup=0, views=1, threshold=0.7)", "coteaching-plus(start=2, agreed=all)",
    "jointopt(warmup=0, length=2)", "fedefc(latest=2, weighting=public, clip=true, report_transition=true)",
]  # fmt: skip


@pytest.mark.parametrize("method", STACKED)
def test_a_stacked_cohort_ends_where_single_clients_do(method):
    fed, single, _ = once(method)
    stacked_fed, stacked, _ = run(method, people=clients(count=FEW), rounds=SOON, engine="stacked", fit=SHORT)
    assert torch.allclose(single.weights, stacked.weights, rtol=1e-9, atol=1e-11)
    assert all(torch.equal(x.y, y.y) for x, y in zip(fed.members, stacked_fed.members, strict=True))
    assert stacked_fed.notes == fed.notes


@pytest.mark.parametrize("method", RUNS)
def test_a_program_replays_on_its_log_without_any_client(method):
    """What a resumed run does first: the same questions in the same order, the same reports, no weights at hand."""
    fed, _, steps = once(method)
    again = make("sequential", with_embeddings(clients(count=FEW)), fed.network, fed.inputs)
    again.replay(fed.log)
    again.public = public()
    again.engine.run = None
    replayed = list(program(method, again, Model(fed.network, fed.network.flat.clone()), rounds=SOON, fit=SHORT))
    assert len(replayed) == len(steps) and not again.unread
    for old, new in zip(steps, replayed, strict=True):
        assert new.stage == old.stage
        assert np.array_equal(new.replies.ids, old.replies.ids) and new.report.keys() == old.report.keys()
        for key in old.report:
            assert np.array_equal(old.report[key], new.report[key], equal_nan=True)


def ugly():
    """One sample; two equal samples; one class; a class nobody else has; all labels right."""
    rng = np.random.default_rng(3)
    inputs, out = Inputs(False, dtype=torch.float64), []
    for i, labels in enumerate(([2], [0, 1], [1] * 9, [3, 3, 0, 0, 1, 2], list(rng.integers(0, 3, 12)), [0] * 3)):
        y = torch.tensor(labels)
        x = torch.from_numpy(rng.normal(size=(len(y), FEATURES)))
        if i == 1:
            x[1] = x[0]
        out.append(Client(i, x, y.clone(), y, CLASSES, inputs, secret=bytes(32)))
    return out


# Without --slow, the first of the specs of each method.
FIRST = {spec.partition("(")[0]: spec for spec in reversed(RUNS)}.values()


@pytest.mark.parametrize("method", [pytest.param(spec, marks=() if spec in FIRST else pytest.mark.slow) for spec in RUNS])
def test_ugly_clients_give_finite_results(method):
    fed, model, steps = run(method, people=ugly(), rounds=SOON, fit=SHORT)
    assert torch.isfinite(model.weights).all() and not fed.rejected, fed.rejected
    for step in steps:
        for name, value in step.report.items():
            assert np.isfinite(np.asarray(value, np.float64)).all(), (step.stage, name)


# ---- FLR's special cases
@cache
def end(method):
    return run(method, people=clients(count=6), fit=SHORT)[1].weights


def elr_by_hand(logits, batch, *, strength, momentum, start):
    """Liu 2020, eq. 6: t <- b t + (1 - b) p; CE + lambda log(1 - <p, t>)."""
    p = logits.softmax(-1)
    t = momentum * batch.rows["t"] + (1 - momentum) * p.detach()
    if start == "prediction":
        t = torch.where(batch.rows["t"].sum(-1, keepdim=True) == 0, p.detach(), t)
    value = -logits.log_softmax(-1).gather(-1, batch.y[..., None])[..., 0]
    return value + strength * (1 - (p * t).sum(-1)).clamp_min(1e-4).log(), {"t": t}


def make_t(client, model, received):
    client.rows.setdefault("t", torch.zeros(len(client), CLASSES, dtype=torch.float64))


@pytest.mark.parametrize("start", ["prediction", "zero"])
def test_flr_with_alpha_0_is_elr(start):
    def liu(fed, model, opt, select, *, rounds):
        loss = partial(elr_by_hand, strength=3.0, momentum=0.7, start=start)
        return (yield from fedavg(fed, model, opt, select, rounds=rounds, before=(make_t,), loss=loss))

    expected = end(liu)
    assert torch.allclose(end(f"elr(start={start}, clamp=0)"), expected, rtol=1e-9, atol=1e-10)
    spelt = f"flr(strength=3, alpha=0, gamma=0.7, warmup=0, rates=constant, start={start})"
    assert torch.allclose(end(spelt), expected, rtol=1e-9, atol=1e-10)
    assert torch.equal(end("elr"), end("elr(start=zero, clamp=1e-4)"))  # its own public code's
    fed, _, _ = once("elr")
    assert not any("mixture_server" in c.rows for c in fed.members)  # ELR keeps no global average


def slr_by_hand(logits, batch):
    p, server = logits.softmax(-1), batch.teacher.softmax(-1)
    value = -logits.log_softmax(-1).gather(-1, batch.y[..., None])[..., 0]
    return value + 2.0 * (1 - (p * server).sum(-1)).clamp_min(1e-4).log()


def er_by_hand(logits, batch):
    p = logits.softmax(-1)
    value = -logits.log_softmax(-1).gather(-1, batch.y[..., None])[..., 0]
    return value + 2.0 * (1 - (p * p.detach()).sum(-1)).clamp_min(1e-4).log()


@pytest.mark.parametrize(("name", "spelt", "by_hand", "teacher"), [
    ("slr(warmup=0)", "flr(alpha=1, beta=0, warmup=0, rates=constant)", slr_by_hand, True),
    ("er(warmup=0)", "flr(alpha=0, beta=0, gamma=0, warmup=0, rates=constant)", er_by_hand, False),
])  # fmt: skip
def test_flr_with_only_one_average(name, spelt, by_hand, teacher):
    def alone(fed, model, opt, select, *, rounds):
        return (yield from fedavg(fed, model, opt, select, rounds=rounds, loss=by_hand, teacher=teacher))

    expected = end(alone)
    assert torch.allclose(end(name), expected, rtol=1e-9, atol=1e-10)
    assert torch.allclose(end(spelt), expected, rtol=1e-9, atol=1e-10)


def test_flr_rates_follow_appendix_e5():
    rates = {"alpha": 0.9, "beta": 0.7, "gamma": 0.5, "warmup": 50, "rates": "published"}
    assert flr.rates_at(0, 1000, **rates) == (0, 0, 0)
    assert flr.rates_at(49, 1000, **rates) == (pytest.approx(0.0441), 0, 0)
    assert flr.rates_at(50, 1000, **rates) == (pytest.approx(0.045), 0, 0.5)
    assert flr.rates_at(499, 1000, **rates)[1] == 0 and flr.rates_at(500, 1000, **rates)[1] == 0.7
    assert flr.rates_at(999, 1000, **rates)[0] == pytest.approx(0.8991)
    found = [flr.warmup_rounds(-1, rounds) for rounds in (1000, 200, 199, 100, 3)]
    assert found == [50, 50, 49, 25, 0] and flr.warmup_rounds(0, 1000) == 0
    rates["rates"] = "alpha-constant"
    assert [flr.rates_at(r, 1000, **rates) for r in (0, 50, 500)] == [(0.9, 0, 0), (0.9, 0, 0.5), (0.9, 0.7, 0.5)]
    _, _, steps = once("flr(rates=alpha-constant, warmup=1)")
    assert [step.report["alpha"] for step in steps[1:]] == [0.9] * (len(steps) - 1)
    assert {step.report["beta"] for step in steps[1:]} == {0, 0.7} and {s.report["gamma"] for s in steps[1:]} == {0.5}


def test_flr_plus_is_fedcorr_with_the_regularizer():
    assert torch.equal(end("flr-plus"), end("fedcorr(regularizer=flr(strength=3))"))
    assert not torch.equal(end("flr-plus"), end("fedcorr"))
    assert not torch.equal(end("fedcorr(usual=flr(strength=3))"), end("fedcorr"))


def test_flr_plus_acts_in_all_stages_once_its_warm_up_is_over():
    """The clock counts communication rounds: R = 2 x 12 visits + 3 + 3 = 30, of which a quarter, 7, is warm-up."""
    method = "flr-plus(iterations=2, finetune_rounds=3, usual_rounds=3)"
    fed, _, steps = run(method, rounds=200, fit=SHORT)
    acting = [step.report.get("alpha") for step in steps]
    assert len(steps) == 30 and acting[:7] == [None] * 7
    assert acting[7:] == pytest.approx([0.9 * r / 30 for r in range(7, 30)])
    assert {step.stage for step in steps[7:]} == {"pre-processing", "fine-tuning", "usual training"}
    assert [step.report["beta"] for step in steps[7:]] == [0] * 8 + [0.7] * 15
    assert all(client.rows["mixture_seen"].all() for client in fed.members)  # mixup is on in the first stage


# ---- FedEFC
def prestops(accuracies, **watch):
    """Return the round at which a made-up course of A(t) stops phase 1."""

    class Said(dict):
        ids = np.arange(1)

    class Opt:
        course = iter(accuracies)

        def round(self, fed, ids, model, **step):
            return model, Said(accuracy=torch.tensor([next(self.course)], dtype=torch.float64))

    steps = prestopping.prestop(None, None, Opt(), lambda fed, model: [0], rounds=len(accuracies), **watch)
    found = [step.report.get("prestopping_round") for step in steps]
    return next((t for t in found if t is not None), None)


def test_the_prestopping_round():
    course = [0.1, 0.2, 0.3, 0.25, 0.24, 0.26, 0.25, 0.24, 0.23, 0.22]
    assert prestops(course, start=0, patience=3) == 5  # never above 0.3 again
    assert prestops(course, start=0, patience=2) == 4
    # The best is remembered from `start` on: 0.24, then 0.26; the 0.3 of round 2 was not watched.
    assert prestops(course, start=4, patience=2) == 7
    assert prestops(course, start=0, patience=9) is None
    assert prestops(course, start=0, patience=9, latest=6) == 6
    flat = [0.1, 0.2, 0.2, 0.2, 0.2]
    assert prestops(flat, start=0, patience=3) == 4  # Algorithm 1: an equal accuracy counts
    assert prestops(flat, start=0, patience=3, ties="reset") is None  # the prose: it does not
    assert prestops(flat, start=3, patience=1) == 4


def test_the_prestopping_round_as_printed():
    course = [0.1, 0.2, 0.3, 0.25, 0.24, 0.26, 0.25, 0.24, 0.23, 0.22]
    printed = partial(prestops, compare="previous")
    assert printed(course, start=0, patience=3) == 8  # falls at 3, 4; a rise at 5; falls at 6, 7, 8
    assert printed(course, start=0, patience=2) == printed(course, start=4, patience=1) == 4
    assert printed([0.1, 0.2, 0.2, 0.2, 0.2], start=3, patience=2) == 4


def test_transitions_are_always_valid_and_invertible():
    rng = np.random.default_rng(0)
    swapped, one = np.eye(3)[[1, 0, 2]], np.eye(3)[[0, 0, 0]]
    for counts in (np.zeros((3, 3)), np.ones((3, 3)), swapped, one, rng.integers(0, 9, (3, 3))):
        for weighting in ("off", "paper"):
            t, identity = fedefc.transition_of(counts, np.array([0.5, 0.5, 0.0]), weighting=weighting, limit=100)
            assert (t >= 0).all() and t.sum(1) == pytest.approx(np.ones(3)) and np.linalg.cond(t) <= 100
            assert 0 <= identity <= 1
    assert fedefc.transition_of(np.zeros((3, 3)), np.ones(3) / 3)[0] == pytest.approx(np.eye(3))
    assert fedefc.transition_of(np.eye(3)[[1, 0, 2]], np.ones(3) / 3) == (pytest.approx(np.eye(3)[[1, 0, 2]]), 0)
    assert fedefc.transition_of(np.ones((3, 3)), np.ones(3) / 3, limit=100)[1] == 0.1


@pytest.mark.parametrize(("classes", "samples", "limit"), [(10, 60, 1e3), (80, 60, 5.0), (80, 900, 1e3), (80, 900, 5.0)])
def test_the_identity_is_blended_in_by_the_condition_number_of_the_whole(classes, samples, limit):
    rng = np.random.default_rng(0)
    counts = np.zeros((classes, classes))
    true = rng.integers(0, classes, samples)
    np.add.at(counts, (true, np.where(rng.random(samples) < 0.6, true, rng.integers(0, classes, samples))), 1)
    transition, share = fedefc.transition_of(counts, np.ones(classes) / classes, limit=limit)
    plain, _ = fedefc.transition_of(counts, np.ones(classes) / classes, limit=np.inf)
    shares = np.arange(11) / 10
    fit = [np.linalg.cond((1 - a) * plain + a * np.eye(classes)) <= limit for a in shares]
    assert share == shares[np.argmax(fit)]
    np.testing.assert_allclose(transition, (1 - share) * plain + share * np.eye(classes))


# ---- FedDPCont
def test_labels_are_released_once_however_often_they_are_asked_for():
    fed, _, _ = run("feddpcont", rounds=2)
    client = fed.members[0]
    first = client.state["released_counts"].clone()
    client.begin_round(99, 0)
    said = feddpcont.release_labels(client, None, {}, epsilon=8.0)
    assert torch.equal(said["private_counts"], first) and said["epsilon"].item() == pytest.approx(0.81)
    assert first.sum() == len(client)


def test_the_ramp():
    cores = [feddpcont.ramp(r, 300, strength=1.0, delay=-1, length=-1) for r in range(300)]
    assert cores[29] == 0 and 0 < cores[30] < cores[60] < 1 and cores[120:] == [1.0] * 180
    assert all(feddpcont.ramp(r, 10, strength=0.5, delay=0, length=0) == 0.5 for r in range(10))
    _, _, steps = once("feddpcont")  # the paper has none
    assert [step.report["contrast"] for step in steps] == [1.0] * len(steps)
    _, _, steps = once("feddpcont(delay=2, length=3)")
    assert [step.report["contrast"] for step in steps][:6] == [0, 0, 0.25, 0.5, 0.75, 1]
    assert feddpcont.published_epsilon(10) == 0.81 and feddpcont.published_epsilon(100) == 3.21
    assert feddpcont.published_epsilon(14) == 1.17 and feddpcont.published_epsilon(2) > 0
    from fnlkit.federated.privacy import keep_probability

    assert keep_probability(feddpcont.published_epsilon(47), 47) == pytest.approx(0.2)


# ---- NA-FedAvg
def test_noise_aware_weights_are_positive():
    sizes, levels = [40, 60, 50, 30], [0.5, 0.0, 1.0, 0.1]
    assert na_fedavg.noise_aware_weights(sizes, levels) == pytest.approx([20, 60, 0.5, 27])
    public = na_fedavg.noise_aware_weights(sizes, levels, weighting="public")
    assert public == pytest.approx([4, 60, 0.5, 30])


def test_the_estimation_round_weighs_itself():
    fed, _, steps = once("na-fedavg(at=3)")
    estimation = steps[2]
    assert estimation.stage == "estimation" and len(estimation.replies.ids) == len(fed)
    weights = torch.as_tensor(estimation.report["aggregation_weights"])
    merged = (weights[:, None] * estimation.replies["weights"]).sum(0) / weights.sum()
    assert torch.allclose(estimation.model.weights, merged, rtol=1e-12)


# ---- mistakes
@pytest.mark.parametrize(("method", "says"), [
    ("flr(warm=cold)", "plain, server or schedule"),
    ("forward(anchor=line)", "point, mean or confident"),
    ("na-fedavg(at=8)", "raise `rounds`"),
    ("fedcorr(code=[strickt])", "did you mean 'strict'"),
    ("fedcorr(code=[all, lid])", "all"),
    ("fedcorr(code=[mixup])", "mixup in all stages is the default; write mixup_in=first"),
    ("fedcorr(usual=none)", "'usual' is none; write a method"),
    ("fedcorr(regularizer=0.5)", "'regularizer' is 0.5; write a regularizer"),
    ("fedavg(usual=flr)", "method 'fedavg' has no parameter 'usual'"),
    ("flr(of=[elr, er])", "method 'flr' has no parameter 'of'"),
    ("elr(usual_selector=uniform)", "method 'elr' has no parameter 'usual_selector'"),
    ("fedcorr(iterations=0, finetune_rounds=0, usual_rounds=0)", "all three stages are left out"),
    ("fedcorr(usual=flr, regularizer=flr)", "a regularizer has no effect on the last stage"),
])  # fmt: skip
def test_mistakes_are_named(method, says):
    refuse_call(re.escape(says), run, method)


def test_a_missing_embedding_is_named():
    refuse_call("embedding", next, program("nnc", *toy(), rounds=2, fit=SHORT))


def test_requirements_of_methods():
    assert registry.needs("nnc") == registry.needs("fedcorr(usual=nnc())") == {"embedding"}
    assert registry.needs("akd") == {"embedding", "head"}
    assert registry.needs("akd(source=logits)") == registry.needs("flr") == set()
    assert registry.needs("akd(source=logits, level=neighbors)") == {"embedding"}

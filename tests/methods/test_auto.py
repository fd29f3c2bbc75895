"""Method auto: folds, weights, the committee, runs after a stop, refusals; and that it is not behind where a method fails."""

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch

from fnlkit.datasets.groups import assign_folds, without
from fnlkit.experiment import Experiment
from fnlkit.experiment.crossfit import CrossFit, make_experiment
from fnlkit.experiment.network import load_trained
from fnlkit.experiment.scale import Scale
from fnlkit.federated.client.failure import Failure
from fnlkit.kernels import committees
from fnlkit.kernels.committees import correct_agreement, find_weights, sum_products, usable_inverse
from fnlkit.models.committee import Committee
from fnlkit.results.evaluation import summary
from tests.commands import refuse_call
from tests.experiment import test_experiment as experiment
from tests.experiment.test_experiment import problem, reread, same, settings

TWO = "auto(of=[fedavg, flr(strength=2)], folds=3)"


def finish(given, chosen, **options):
    return experiment.finish(*given, chosen, make=CrossFit, **options)


@cache
def whole_run():
    """Return a run that nobody stopped."""
    return finish(problem(), settings(TWO, rounds=6))


def test_weights_are_those_of_a_bootstrap_of_the_samples():
    rng = np.random.default_rng(5)
    base = rng.random(400)
    hits = np.stack([base < 0.6, (base < 0.6) ^ (rng.random(400) < 0.05), rng.random(400) < 0.6]).astype(float)
    best = [hits[:, rng.integers(0, 400, 400)].mean(1) for _ in range(4000)]
    naive = np.bincount([means.argmax() for means in best], minlength=3) / 4000
    assert naive.min() > 0.05  # no method is left out
    assert find_weights(sum_products(hits), np.random.default_rng(0)) == pytest.approx(naive, abs=0.03)
    refuse_call("no samples", find_weights, sum_products(np.zeros((2, 0))), np.random.default_rng(0))
    many = find_weights(sum_products(np.ones((30, 5))), np.random.default_rng(0))  # 3 % each
    assert many.sum() == pytest.approx(1) and many.max() > 0


def noisy_labels(matrix, n=20_000, seed=0):
    rng = np.random.default_rng(seed)
    true = rng.integers(0, len(matrix), n)
    return true, (rng.random(n)[:, None] > np.cumsum(matrix, 1)[true]).sum(1), rng


def fit_transition(p, given):
    matrix = committees.first_transition(p.shape[1])
    for _ in range(committees.PASSES):
        matrix = committees.next_transition(committees.count_expected(p, given, matrix))
    return matrix


def test_the_transition_of_labels_is_found_from_an_imperfect_classifier():
    matrix = np.array([[0.65, 0.35, 0.0], [0.0, 0.7, 0.3], [0.1, 0.0, 0.9]])
    true, given, rng = noisy_labels(matrix)
    logits = 2.0 * np.eye(3)[true] + rng.normal(size=(len(true), 3))
    p = np.exp(2 * logits) / np.exp(2 * logits).sum(1, keepdims=True)  # calibrated for this normal noise
    assert np.abs(fit_transition(p, given) - matrix).max() < 0.05


def test_corrected_agreement_estimates_accuracy_where_plain_agreement_misleads():
    """The second classifier repeats the given labels of the first class, and is worse."""
    matrix = np.array([[0.55, 0.45], [0.0, 1.0]])
    true, given, rng = noisy_labels(matrix)
    good = np.where(rng.random(len(true)) < 0.9, true, 1 - true)
    bad = np.where((true == 0) & (rng.random(len(true)) < 0.45), 1, true)
    guesses = np.stack([good, bad])
    plain, right = (guesses == given).mean(1), (guesses == true).mean(1)
    assert plain[1] > plain[0] and right[0] > right[1]
    assert correct_agreement(guesses, given, usable_inverse(matrix)).mean(1) == pytest.approx(right, abs=0.02)
    assert np.array_equal(correct_agreement(guesses, given, np.eye(2)), guesses == given)
    assert usable_inverse(np.full((2, 2), 0.5)) is None and usable_inverse([[0.51, 0.49], [0.49, 0.51]]) is None


def test_folds_are_stratified_and_leave_every_client_samples():
    federation = problem(count=6, size=23)[0]
    fold = assign_folds(federation, 5, 0)
    for part in federation.clients:
        sizes = np.bincount(fold[part], minlength=5)
        assert sizes.max() - sizes.min() <= 1
        for label in np.unique(federation.given[part]):
            counts = np.bincount(fold[part][federation.given[part] == label], minlength=5)
            assert counts.max() - counts.min() <= 1
    assert not np.array_equal(fold, assign_folds(federation, 5, 1))
    rest = without(federation, np.flatnonzero(fold == 2))
    assert min(np.diff(rest.client_offsets)) > 0 and not (fold[rest.client_indices] == 2).any()


def test_labels_of_one_sample_are_in_one_fold_and_a_lone_sample_always_trains():
    federation = problem(count=4, size=12)[0]
    federation.extra["sample_of"] = np.arange(48) % 12  # the four clients label the same samples
    fold = assign_folds(federation, 3, 0)
    assert all(len(set(fold[federation.extra["sample_of"] == i])) == 1 for i in range(12)) and set(fold) == {0, 1, 2}
    lone = dataclasses.replace(problem(count=2, size=8)[0], client_offsets=np.array([0, 1, 16]))
    assert assign_folds(lone, 3, 0)[lone.client_indices[0]] == -1
    refuse_call("no client has two samples", assign_folds, problem(count=4, size=1)[0], 3, 0)


def test_a_committee_predicts_with_the_weighted_mean_of_probabilities():
    torch.manual_seed(0)
    x, shares = torch.randn(9, 5), [0.7, 0.1, 0.2]
    networks = [torch.nn.Linear(5, 3) for _ in shares]
    mean = sum(share * network(x).softmax(-1) for share, network in zip(shares, networks, strict=True))
    assert torch.allclose(Committee(networks, shares)(x).softmax(-1), mean, atol=1e-6)


def test_agreements_and_the_committee_equal_those_of_single_experiments():
    """Every training is done again by hand, with the scale of all samples."""
    federation, data = problem()
    chosen = settings(TWO, rounds=6)
    run = finish((federation, data), chosen)
    fold, names = assign_folds(federation, 3, 0), ["fedavg", "flr(strength=2)"]
    whole = Experiment(federation, data, settings(rounds=1), engine="sequential").inputs
    scale, finals = Scale(whole.mean, whole.std, from_clients=False), []
    guesses, sums = np.zeros((2, len(fold)), int), np.zeros((len(fold), 4))
    for i, name in enumerate(names):
        for k in (0, 1, 2, None):
            part = federation if k is None else without(federation, np.flatnonzero(fold == k))
            one = Experiment(part, data, settings(name, rounds=6), engine="sequential", scale=scale).run()
            if k is None:
                finals.append(load_trained(one, data).logits(data.x_test).double().softmax(-1))
            else:
                here = np.flatnonzero(fold == k)
                guesses[i, here] = load_trained(one, data).logits(data.x_train[here]).argmax(-1).numpy()
                sums[here] += load_trained(one, data).logits(data.x_train[here]).double().softmax(-1).numpy() / 2
    last = run.history[-1]
    assert np.array_equal(run.memory["rows/guesses"].numpy(), guesses[:, federation.client_indices].T)
    assert np.allclose(run.memory["rows/sums"].numpy(), 2 * sums[federation.client_indices])
    assert [last[f"agreement_{name}"] for name in names] == pytest.approx((guesses == federation.given).mean(1))
    values = correct_agreement(guesses, federation.given, usable_inverse(fit_transition(sums, federation.given)))
    weights = [last[f"weight_{name}"] for name in names]
    assert min(weights) > 0 and weights == pytest.approx(find_weights(sum_products(values), np.random.default_rng(9)), abs=0.03)
    found = load_trained(run, data).logits(data.x_test).double().softmax(-1)
    assert torch.allclose(found, sum(w * p for w, p in zip(weights, finals, strict=True)), atol=1e-6)
    assert last["accuracy"] == (found.argmax(-1).numpy() == data.y_test).mean()
    assert "auto weights methods by their predictions for held-out samples: " in summary(run)["choice"]


def test_traffic_and_rows_are_those_of_all_trainings(tmp_path):
    run = whole_run()
    assert len(run.history) == 6 * (6 + 2) + 1 and [row["round"] for row in run.history] == list(range(49))
    assert run.history[-2]["client_rounds"] == run.traffic.client_rounds == 8 * 6 * 2
    assert run.history[-2]["bytes_up"] == run.traffic.bytes_up
    assert run.traffic.sent["expected"] == 8 * 4**2 * 10 * 8
    assert run.traffic.sent["products"] == 8 * 3**2 * 8 and run.traffic.sent["agreed"] == 8 * 2 * 8
    assert [row["stage"] for row in run.history[::6]][:2] == ["fold 1 of 3, fedavg", "fold 1 of 3, flr(strength=2)"]
    assert "several trainings" in reread(run, tmp_path).budget()


def test_a_stopped_run_ends_like_one_never_stopped(tmp_path):
    given, chosen, whole, run = problem(), settings(TWO, rounds=6), whole_run(), None
    for stop in (2, 23, 46):
        left = finish(given, chosen, stop_after=stop, resume=run)
        assert left is None or len(left.history) == stop - stop % 6  # finished trainings
        run = left and reread(left, tmp_path)
    same(finish(given, chosen, resume=run), whole)
    again = finish(given, chosen, resume=reread(whole, tmp_path))
    assert torch.equal(again.weights, whole.weights) and again.history == whole.history


def test_degenerate_federations_train():
    """A single client, clients with one class, and one round."""
    for count in (1, 3):
        given = problem(count=count)
        given[0].given[:] = 1
        run = finish(given, settings(TWO.replace("folds=3", "folds=2"), rounds=1, fraction=1.0))
        assert torch.isfinite(run.weights).all() and not run.rejected


def test_a_single_method_with_weight_is_a_run_with_one_network():
    given = problem()
    run = finish(given, settings(TWO, rounds=3))
    assert run.history[-1]["weight_fedavg"] == 1 and run.meta["committee"] == 0
    alone = Experiment(*given, settings("fedavg", rounds=3), engine="sequential").run()
    assert torch.equal(run.weights, alone.weights)


def test_a_method_whose_training_fails_has_no_weight():
    """With this strength, updates of flr become ten thousand times as long as those of the first rounds."""
    notes = []
    chosen = settings("auto(of=[fedavg, flr(strength=1e6)], folds=2)", rounds=12, fraction=1.0)
    experiment = CrossFit(*problem(), chosen, engine="sequential")
    run = experiment.run(on_round=lambda row: notes.extend(experiment.clients.notes))
    assert run.history[-1]["weight_fedavg"] == 1
    assert any("flr(strength=1000000.0)" in note and "a training failed" in note for note in notes), notes


@pytest.mark.parametrize(("method", "options", "message"), [
    ("auto(of=[fedavg])", {}, "at least two methods"),
    ("auto(of=[fedavg, fedavg])", {}, "each once"),
    ("auto(of=[fedavg, coteaching])", {}, "coteaching in `of` requires pair"),
    ("auto(of=[fedavg, oracle])", {}, "requires truth"),
    ("auto(of=fedavg)", {}, "write a list of methods"),
    ("auto(of=[fedavg, fedme])", {}, "fedem"),
    (TWO, {"select": "label-wave"}, "omit `select`"),
    (TWO, {"memorization": True}, "omit `memorization`"),
    (TWO, {"protect": "secagg"}, "omit `protect`"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(method, options, message):
    refuse_call(message, CrossFit, *problem(), settings(method, **options), engine="sequential")


@pytest.mark.parametrize("missing", ["predict_fold", "_count_expected", "_count_agreements"])
def test_a_client_that_misses_a_step_costs_no_more_than_this_client(missing):
    experiment = CrossFit(*problem(), settings(TWO, rounds=6), engine="sequential")
    run_all = experiment.clients.engine.run

    def lossy(request):
        lost = any(getattr(step, "func", step).__name__ == missing for step in request.steps)
        replies = run_all(request)
        return [Failure("failed", "Lost") if lost and i == 1 else r for i, r in zip(request.ids, replies, strict=True)]

    experiment.clients.engine.run = lossy
    run, whole = experiment.run(), whole_run()
    assert {entry["client"] for entry in run.rejected} == {1} and not whole.rejected
    for name in ("fedavg", "flr(strength=2)"):
        last = [each.history[-1] for each in (run, whole)]
        assert abs(last[0][f"agreement_{name}"] - last[1][f"agreement_{name}"]) < 0.1
    assert sum(value for name, value in run.history[-1].items() if name.startswith("weight_")) == pytest.approx(1)


def test_auto_as_a_stage_of_another_method_is_refused():
    for method in ("fedcorr(usual=auto)", "nnc(usual=fedcorr(usual=auto))", "auto(of=[auto, fedavg])"):
        refuse_call("use it as `method`|requires folds", make_experiment, *problem(), settings(method), engine="sequential")


def test_with_the_defaults_auto_reads_the_methods_that_it_names(tmp_path):
    run = reread(finish(problem(), settings("auto(folds=2)", rounds=2, epochs=1)), tmp_path)
    names = {name.removeprefix("weight_") for name in run.history[-1] if name.startswith("weight_")}
    assert names == {"fedavg", "rofl", "fedefc", "confident-learning", "fedem"}
    assert "fedem" in summary(run)["choice"]

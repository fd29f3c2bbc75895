"""Agreement and accuracy, calibration and likelihood of predictions, and the cost of a target accuracy."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import classification_report, log_loss, roc_auc_score

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts.run import Run
from fnlkit.estimators.intervals import clopper_pearson, wilson
from fnlkit.experiment import Experiment, Settings
from fnlkit.results import evaluation, grouping
from fnlkit.results.calibration import BINS, probability_scores
from fnlkit.results.scores import Independence, measure_run, summarize_counts
from fnlkit.results.true_accuracy import ASSUMES, MEASURES, correct_scores, figures, scale_matrix
from tests.commands import refuse_call, succeed


# ---- two kinds of agreement and accuracy are three things: names, numbers, and how far an estimate can be believed
def matrix(level, classes):
    """Return T (C, C) with equal probabilities for all wrong labels."""
    return (1 - level) * np.eye(classes) + level / (classes - 1) * (1 - np.eye(classes))


def simulated(rng, repeats, level, accuracy, sites=5, samples=60, classes=10):
    """Return the arguments of `corrected` and the model's accuracy on the same samples."""
    counts, T, levels, low, high, right = np.zeros((sites, classes, classes)), [], [], [], [], 0
    for k in range(sites):
        true = rng.integers(0, classes, samples)
        given, predicted = true.copy(), true.copy()
        wrong, errs = rng.random(samples) < level * (k % 2), rng.random(samples) > accuracy
        given[wrong] = (true[wrong] + rng.integers(1, classes, wrong.sum())) % classes
        predicted[errs] = (true[errs] + rng.integers(1, classes, errs.sum())) % classes
        copied = wrong & (rng.random(samples) < repeats)
        predicted[copied] = given[copied]
        np.add.at(counts[k], (given, predicted), 1)
        right += (predicted == true).sum()
        seen = rng.binomial(240, level * (k % 2)) / 240
        half = 1.96 * np.sqrt(max(seen * (1 - seen), 1e-4) / 240)
        for values, value in ((levels, seen), (low, max(0, seen - half)), (high, seen + half), (T, matrix(seen, classes))):
            values.append(value)
    return (counts, np.array(T), levels, low, high), right / (sites * samples)


def coverage(repeats, level, accuracy, repetitions, seed=0):
    """Return how often the interval contains the accuracy, its mean width, and the mean error."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(repetitions):
        evidence, truth = simulated(rng, repeats, level, accuracy)
        value, low, high = correct_scores(*evidence)["share"]
        found.append((low <= truth <= high, high - low, value - truth))
    return np.mean(found, 0)


def test_figures_by_hand():
    # rows true: 3 of 4 and 1 of 2; columns 4 and 2.  F1: 2*3/(4+4) = 0.75, 2*1/(2+2) = 0.5.
    found = figures(np.array([[3.0, 1, 0], [1, 1, 0], [0, 0, 0]]))
    assert found["share"] == pytest.approx(4 / 6) and found["macro_f1"] == pytest.approx(0.625)
    assert found["balanced"] == pytest.approx(0.625) and np.isnan(found["per_class"][2])


def test_coverage_of_the_exact_interval():
    """By summing the binomial distribution: at any share, the interval misses at most 5 times of 100."""
    from scipy.stats import binom

    low, high = clopper_pearson(np.arange(21), 20)
    for share in np.linspace(0.01, 0.99, 25):
        assert binom.pmf(np.arange(21), 20, share)[(low <= share) & (share <= high)].sum() >= 0.95
    assert low[0] == 0 and high[-1] == 1


def test_without_noise_in_numbers_the_correction_is_exact():
    """Expected counts T' Q give Q back, to the last digit that counts."""
    T, Q = matrix(0.3, 3), np.array([[50.0, 5, 0], [2, 30, 8], [0, 1, 4]])
    counts = np.round(1e6 * T.T @ Q)
    found = correct_scores(counts[None], T[None], [0.3], [0.3], [0.3])
    assert found["share"][0] == pytest.approx(0.84, abs=1e-6) and found["per_class"][1][0] == pytest.approx(0.75, abs=1e-5)
    assert found["sites"][0][0] == pytest.approx(0.84, abs=1e-6)


@pytest.mark.parametrize(
    ("share", "level", "accuracy", "least", "most"),
    [(0, 0.1, 0.95, 22, 25), (0, 0.4, 0.7, 22, 25), (0.5, 0.4, 0.7, 0, 3)],
    ids=["few wrong labels", "many", "the model makes the labels' mistakes"],
)
def test_where_the_interval_covers_and_where_not(share, level, accuracy, least, most):
    assert least <= round(25 * coverage(share, level, accuracy, 25)[0]) <= most


def test_the_interval_of_a_perfect_agreement_has_the_exact_width():
    """72 of 72 right: 1 - 0.025 ** (1 / 72) is the exact bound; no draw of the bootstrap has a mistake."""
    counts = np.array([np.diag([40, 32]), np.diag([0, 0])])
    found = correct_scores(counts, np.array([matrix(0.1, 2)] * 2), [0.1] * 2, [0.05] * 2, [0.15] * 2)
    assert found["share"][0] == found["share"][2] == 1 and found["share"][1] == pytest.approx(0.025 ** (1 / 72))
    assert found["sites"][0] == found["share"] and found["sites"][1] is None
    assert all(one[1] < found["share"][1] for one in found["per_class"])
    for name in ("balanced", "macro_f1"):
        assert 0.8 < found[name][1] < found["share"][1] and found[name][2] == 1


def test_no_accuracy_is_estimated_from_too_noisy_labels():
    assert correct_scores(np.ones((1, 2, 2)), np.array([[[0.1, 0.9], [0, 1]]]), [0.4], [0.3], [0.5]) is None
    assert correct_scores(np.zeros((1, 2, 2)), np.eye(2)[None], [0.0], [0.0], [0.0]) is None


def test_noise_is_scaled_within_bounds():
    found = scale_matrix(matrix(0.2, 4), 0.2, np.array([0.0, 0.1, 5.0]))
    assert np.allclose(found[0], np.eye(4)) and np.allclose(np.diag(found[1]), 0.9) and np.diag(found[2]).min() > 0.19
    assert np.allclose(scale_matrix(np.eye(4), 0.0, np.array([0.3])), matrix(0.3, 4))


def test_an_estimate_that_shared_errors_mislead_is_not_called_accuracy():
    """Two pairs of classes are exchanged at all sites, and the model has learned them: 100 % agreement, 60 % accuracy."""
    true = np.repeat(np.arange(10), 20)
    labels = np.array([0, 1, 3, 2, 9, 5, 6, 7, 8, 4])[true]
    counts = np.stack([np.bincount(10 * labels + labels, minlength=100).reshape(10, 10)] * 5)
    found = correct_scores(counts, np.stack([np.eye(10)] * 5), [0.0] * 5, [0.0] * 5, [0.02] * 5)
    assert found["share"][1] > 0.95 > (labels == true).mean() + 0.3
    assert "accuracy" not in MEASURES and "other sites" in MEASURES
    assert ASSUMES[0].startswith("most sites are nearly clean")


def test_a_group_counts_as_one_observation():
    """Ten groups of five and ten of one: 60 samples are 60^2 / (10 * 25 + 10) = 13.85 observations."""
    groups = np.concatenate([np.repeat(np.arange(10), 5), np.arange(10, 20)])
    owner = np.repeat([0, 1], [50, 10])
    share = Independence.of(groups, owner, 2)
    assert share.groups == 20 and share.total * 60 == pytest.approx(3600 / 260)
    assert share.sites.tolist() == [pytest.approx(0.2), 1.0]
    counts = np.array([[[30, 10], [0, 10]], [[5, 5], [0, 0]]])
    found = summarize_counts(counts, wilson, "Wilson", ["a", "b"], share)
    assert np.allclose((found["low"], found["high"]), wilson(45 * share.total, 60 * share.total))
    assert np.allclose([found["sites"][0][name] for name in ("low", "high")], wilson(8, 10))
    assert found["groups"] == 20 and "group" in found["interval"] and found["share"] == 0.75
    alone = summarize_counts(counts, wilson, "Wilson", ["a", "b"])
    assert "groups" not in alone and alone["interval"] == "95 %, Wilson" and alone["high"] < found["high"]


def test_the_estimated_agreement_with_groups_has_a_wider_interval():
    counts, T = np.array([[[400.0, 60], [40, 500]]]), matrix(0.1, 2)[None]
    plain, grouped = (
        correct_scores(counts, T, [0.1], [0.1], [0.1], independence=share, together=share)["share"] for share in (1.0, 0.1)
    )
    width = [high - low for _, low, high in (plain, grouped)]
    assert plain[0] == grouped[0] and 2.5 < width[1] / width[0] < 4  # sqrt(10) = 3.2


@pytest.fixture(scope="module")
def with_gold():
    """A federation with held-out samples, some of them verified."""
    fed = fnlkit.inject_noise(fnlkit.partition("digits", clients=5, holdout=0.3, say=None), say=None)
    verified = np.concatenate([part[:4] for part in fed.held_out])
    fed.extra["gold_label"] = np.full(len(fed.given), -1)
    fed.extra["gold_label"][verified] = fed.true[verified]
    return fed


SMALL = {"fraction": 1.0, "epochs": 1, "batch_size": 60, "model": "mlp(hidden=[8])", "engine": "sequential", "say": None}


@pytest.mark.parametrize(
    "options", [{"select": "best-holdout"}, {"method": "auto(of=[fedavg, fedlsr], folds=2)"}, {"measure": "holdout"}]
)
def test_stored_predictions_equal_those_of_the_network(with_gold, options, tmp_path):
    """Also for the model of a chosen round and for a committee; with `measure` holdout, training reads no test sample."""
    run = fnlkit.train(with_gold, **SMALL | {"rounds": 2} | options)
    run.write(tmp_path / "run.pt")
    stored = Run.read(tmp_path / "run.pt", state=False)
    assert set(stored.predicted) == {"held_out", "gold"} | ({"test"} if options != {"measure": "holdout"} else set())
    for name, values in stored.predicted.items():
        assert values.tolist() == run.predicted[name].tolist()
    data = datasets.load("digits")
    found, again = measure_run(stored, data), measure_run(replace(run, predicted={}, logits={}), data)
    assert found.keys() == again.keys() == {"test", "held_out", "held_out_true", "gold"}
    assert all(np.array_equal(found[name].pop("confusion"), again[name].pop("confusion")) for name in found)
    parts = [(found[name], again[name]) for name in found]
    parts += [pair for name in found for pair in zip(found[name].pop("sites"), again[name].pop("sites"), strict=True)]
    for one, other in parts:  # blocks of another size differ in rounding
        assert one.keys() == other.keys()
        for name in ("auc", "ece", "nll"):
            assert one.pop(name) == pytest.approx(other.pop(name), abs=1e-5)
        assert np.allclose(one.pop("reliability", 0), other.pop("reliability", 0), atol=1e-5)
    assert [one for one, _ in parts] == [other for _, other in parts]
    assert stored.weights_bytes() == run.weights_bytes() and torch.equal(stored.weights, run.weights)


def test_a_run_whose_clients_have_own_models_and_an_unfinished_run_store_no_predictions(with_gold):
    saved = []
    run = fnlkit.train(with_gold, rounds=1, method="local", say=None)
    settings = Settings(rounds=2, fraction=1.0)
    Experiment(with_gold, datasets.load("digits"), settings).run(checkpoint=saved.append, checkpoint_every=1)
    assert not run.predicted and [sorted(each.predicted) for each in saved] == [[], [], ["gold", "held_out", "test"]]


@pytest.mark.parametrize("change", ["count", "class", "shape", "name", "logits", "numbers"])
def test_predictions_that_cannot_be_of_the_run_are_refused(with_gold, change, tmp_path):
    run = fnlkit.train(with_gold, rounds=1, say=None)
    test = run.predicted["test"]
    wrong = {"count": test[:-1], "class": test + 5, "shape": test[:, None]}.get(change, test)
    logits = {"logits": {"test": run.logits["test"][:, 1:]}, "numbers": {"gold": run.logits["gold"]}}.get(change, {})
    replace(run, predicted={"other" if change == "name" else "test": wrong}, logits=logits).write(tmp_path / "run.pt")
    refuse_call("predict", fnlkit.evaluate, tmp_path / "run.pt", say=None)


def test_the_evaluation_of_a_run_states_the_groups(tmp_path):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 9, 120)
    y = rng.integers(0, 2, 120).repeat(sizes)
    x = (y[:, None] + rng.normal(size=(120, 3)).repeat(sizes, 0) + 0.1 * rng.normal(size=(len(y), 3))).astype(np.float32)
    groups = np.arange(120).repeat(sizes)
    test = groups >= 100
    np.savez(tmp_path / "a.npz", x_train=x[~test], y_train=y[~test], groups_train=groups[~test], x_test=x[test],
             y_test=y[test], groups_test=groups[test])  # fmt: skip
    fed = fnlkit.partition(tmp_path / "a.npz", clients=4, holdout=0.3, say=None)
    run = fnlkit.train(fed, rounds=1, fraction=1.0, model="mlp(hidden=4)", say=None, engine="sequential")
    run.write(tmp_path / "run.pt")
    found = measure_run(Run.read(tmp_path / "run.pt"), datasets.load(tmp_path / "a.npz"))
    held = np.concatenate(fed.held_out)
    assert found["held_out"]["groups"] == len(np.unique(groups[held])) and found["test"]["groups"] == 20
    n = np.unique(groups[held], return_counts=True)[1]
    hits = found["held_out"]["share"] * n.sum()
    scale = n.sum() / (n**2).sum()
    assert np.allclose([found["held_out"][name] for name in ("low", "high")], wilson(hits * scale, n.sum() * scale))


# ---- AUC, calibration error and likelihood: compared with scikit-learn, numbers by hand, and labels without some classes
@pytest.mark.parametrize(("classes", "absent"), [(2, []), (5, []), (5, [1, 4])], ids=str)
def test_measures_equal_those_of_scikit_learn(classes, absent):
    rng = np.random.default_rng(0)
    labels = rng.choice(np.setdiff1d(np.arange(classes), absent), 200)
    logits = 2 * rng.normal(size=(200, classes)) + np.eye(classes)[labels]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = probability_scores(logits, labels)
    assert found["nll"] == pytest.approx(log_loss(labels, p, labels=range(classes)))
    areas = {c: roc_auc_score(labels == c, p[:, c]) for c in np.unique(labels)}
    assert found["per_class_auc"] == [pytest.approx(areas[c]) if c in areas else None for c in range(classes)]
    assert found["auc"] == pytest.approx(np.mean(list(areas.values())))
    if not absent:
        together = p[:, 1] if classes == 2 else p
        assert found["auc"] == pytest.approx(roc_auc_score(labels, together, multi_class="ovr"))
    ours = figures(np.histogram2d(labels, p.argmax(1), np.arange(classes + 1))[0])
    theirs = classification_report(labels, p.argmax(1), output_dict=True, zero_division=0)
    assert [ours["per_class_f1"][c] for c in areas] == pytest.approx([theirs[str(c)]["f1-score"] for c in areas])
    assert [ours["per_class"][c] for c in areas] == pytest.approx([theirs[str(c)]["recall"] for c in areas])
    assert np.isnan(ours["per_class_f1"][absent]).all()


def test_calibration_error_by_hand():
    """Bins of 1/15: 0.6 lies in (8/15, 9/15], twice, one right: |1 - 1.2|; 0.7 in (10/15, 11/15], wrong: 0.7; 0.9 of 4."""
    p = np.array([[0.6, 0.4], [0.6, 0.4], [0.3, 0.7], [0.9, 0.1]])
    found = probability_scores(np.log(p), np.array([0, 1, 0, 0]))
    assert found["ece"] == pytest.approx((0.2 + 0.7 + 0.1) / 4) and BINS == 15
    assert np.array(found["reliability"]) == pytest.approx(np.array([[2, 0.6, 0.5], [1, 0.7, 0], [1, 0.9, 1]]))
    uniform = probability_scores(np.zeros((3, 15)), np.array([0, 1, 2]))  # a confidence on a border, one prediction right
    assert uniform["ece"] == pytest.approx(1 / 3 - 1 / 15) and uniform["nll"] == pytest.approx(np.log(15))
    assert uniform["auc"] == 0.5


def test_measures_of_labels_that_do_not_define_them():
    one = probability_scores(np.array([[800.0, 0], [0, 800]]), np.array([0, 0]))
    assert "auc" not in one and one["per_class_auc"] == [None, None] and one["nll"] == 400 and one["ece"] == 0.5
    assert probability_scores(np.zeros((2, 3)), np.array([-1, -1])) == {} == probability_scores(np.zeros((0, 3)), np.zeros(0))
    assert probability_scores(np.array([[np.nan, 0]]), np.array([0])) == {}
    known = probability_scores(np.array([[1.0, 0], [9, 0]]), np.array([1, -1]))
    assert known == probability_scores(np.array([[1.0, 0]]), np.array([1]))


def test_a_run_has_them_in_json_tables_and_pages(tmp_path):
    fed = fnlkit.partition("digits", clients=3, holdout=0.2, say=None)
    fnlkit.inject_noise(fed, say=None).write(tmp_path / "noisy.npz")
    succeed("fnlkit train noisy.npz --rounds 2 --epochs 1 --fraction 1 -o run.pt", tmp_path)
    row = json.loads(succeed("fnlkit evaluate run.pt --json --tidy a.csv", tmp_path).stdout)
    test, held = row["measured"]["test"], row["measured"]["held_out_true"]
    assert [row[name] for name in ("auc", "ece", "nll")] == [test[name] for name in ("auc", "ece", "nll")]
    assert row["class_f1"] == test["per_class_f1"] and np.mean(row["class_f1"]) == pytest.approx(row["macro_f1"])
    history = [json.loads(line) for line in (tmp_path / "run.metrics.jsonl").read_text().splitlines()]
    assert row["nll"] == pytest.approx(history[-1]["loss"], rel=1e-5)
    assert len(held["sites"]) == 3 and all({"auc", "ece", "nll", "macro_f1"} <= site.keys() for site in held["sites"])
    # Sites of equal size: the likelihood of all samples is the mean of the sites'.
    weights = [site["samples"] for site in held["sites"]]
    assert np.average([site["nll"] for site in held["sites"]], weights=weights) == pytest.approx(held["nll"])
    assert "auc_percent" in (tmp_path / "a.csv").read_text() and "nll_nats" in (tmp_path / "a.csv").read_text()
    shown = succeed("fnlkit evaluate run.pt", tmp_path).stdout
    assert "AUC" in shown and f"{100 * row['auc']:.1f} %" in shown
    assert f"F1 {100 * row['class_f1'][9]:.1f} %" in succeed("fnlkit evaluate run.pt -v", tmp_path).stdout
    found = fnlkit.evaluate(tmp_path / "run.pt", tmp_path / "run.pt", test=True, say=None).rows[0]
    assert found["ece"] == row["ece"]
    succeed("fnlkit report run.pt -o report.html", tmp_path)
    assert f"{100 * row['ece']:.1f} %" in (tmp_path / "report.html").read_text()


# ---- what a target accuracy cost: client-rounds, bytes and seconds at the first evaluation that reached it
@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    for method, lr in (("fedavg", 0.03), ("slow", 1e-6)):
        for seed in (0, 1):
            fed = fnlkit.partition("digits", clients=5, seed=seed)
            run = fnlkit.train(fed, rounds=6, fraction=0.4, epochs=1, lr=lr, seed=seed, say=None)
            run.write(folder / f"{method}-{seed}.pt")
    return folder


def test_each_row_of_the_history_has_its_time_also_after_a_resume(folder, tmp_path):
    fed = fnlkit.partition("digits", clients=5)
    first = fnlkit.train(fed, rounds=2, fraction=0.4, epochs=1, output=tmp_path / "run.pt", say=None)
    whole = fnlkit.train(fed, rounds=4, fraction=0.4, epochs=1, resume=tmp_path / "run.pt", say=None)
    before, after = (run.meta["machine"]["row_seconds"] for run in (first, whole))
    assert len(before) == len(first.history) == 2 and len(after) == len(whole.history) == 4
    assert after[:2] == before and np.all(np.diff([0.0, *after, whole.meta["machine"]["seconds"]]) >= 0) and after[0] > 0
    old = replace(first, meta=first.meta | {"machine": {k: v for k, v in first.meta["machine"].items() if k != "row_seconds"}})
    old.write(tmp_path / "old.pt")  # a run of before there were such times
    assert evaluation.summary(fnlkit.load(tmp_path / "old.pt"), target=0.01)["target_seconds"] is None
    continued = fnlkit.train(fed, rounds=4, fraction=0.4, epochs=1, resume=tmp_path / "old.pt", say=None)
    assert continued.meta["machine"]["row_seconds"][:2] == [None, None] and continued.meta["machine"]["row_seconds"][2] > 0


def test_times_that_do_not_fit_are_refused(folder, tmp_path):
    run = fnlkit.load(folder / "fedavg-0.pt")
    for times, says in (([1.0], "row_seconds has 1 entries for 6 rows"), (["soon"] * 6, "row_seconds")):
        replace(run, meta=run.meta | {"machine": run.meta["machine"] | {"row_seconds": times}}).write(tmp_path / "bad.pt")
        refuse_call(says, fnlkit.load, tmp_path / "bad.pt")


def test_the_target_is_the_first_row_that_reached_it(folder):
    run = fnlkit.load(folder / "fedavg-0.pt")
    scores = [row["accuracy"] for row in run.history]
    target = sorted(scores)[3]
    place = next(i for i, score in enumerate(scores) if score >= target)
    found = evaluation.summary(run, target=target)
    assert found["target_seconds"] == run.meta["machine"]["row_seconds"][place]
    for name in ("client_rounds", "bytes_up", "bytes_down"):
        assert found[f"target_{name}"] == run.history[place][name] > 0
    never = evaluation.summary(run, target=1.0)
    assert [never[f"target_{name}"] for name in ("client_rounds", "bytes_up", "bytes_down", "seconds")] == [None] * 4


def test_differences_to_the_first_are_over_the_seeds_of_which_both_came_there(folder):
    runs = [fnlkit.load(folder / f"fedavg-{seed}.pt") for seed in (0, 1)]
    rows = [evaluation.summary(run, target=0.3) for run in runs]
    more = [row | {"target_client_rounds": row["target_client_rounds"] + 2 * (row["seed"] + 1)} for row in rows]
    more[1]["target_client_rounds"] = None
    others = [replace(run, settings=run.settings | {"method": "flr"}) for run in runs]
    _, two = grouping.groups([*runs, *others], [*rows, *more], ["method"])
    assert two["reached"] == 1 and two["ahead"]["target_client_rounds"] == {
        "mean": 2, "spread": None, "half": None, "pairs": 1, "clear": False, "p": None, "holm": None,
    }  # fmt: skip

"""The plan divides the budget, prefers sites where more wrong labels are expected, and states sums that add up."""

from dataclasses import replace

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.audits.guarantees import draw_reviews, find_guaranteed_list
from fnlkit.audits.planning import calibrate, count_removed, divide, expected_gain, expected_list
from fnlkit.datasets import partitioning
from fnlkit.errors import InputError
from fnlkit.kernels.streams import stream
from tests.commands import fnlkit, succeed
from tests.tables import parse_csv


def test_calibrated_scores_have_the_mean_of_the_level_and_keep_their_order():
    scores = stream(0, "scores").random(200)
    p = calibrate(scores, 0.1)
    assert p.mean() == pytest.approx(0.1, abs=1e-6) and (np.argsort(p) == np.argsort(scores)).all()
    assert calibrate(scores, None) == pytest.approx(np.clip(scores, 1e-3, 1 - 1e-3))
    assert calibrate(np.array([]), 0.3).shape == (0,)


def test_the_expected_list_is_about_the_mean_list():
    """Probabilities 0.95 and 0.05: the list of a simulated review has about the expected length."""
    p = np.repeat([0.95, 0.05], [80, 120])
    listed, wrong = expected_list(p, 40, 0.2, candidates=150)
    rng, lengths, found = stream(1, "lists"), [], []
    for _ in range(200):
        true, reviewed = rng.random(150) < p[:150], draw_reviews(150, 40, rng)
        made = find_guaranteed_list(-np.arange(150), reviewed, true).listed
        lengths.append(made.sum())
        found.append((made & true).sum())
    assert listed.sum() == pytest.approx(np.mean(lengths), rel=0.1) and wrong.sum() == pytest.approx(np.mean(found), rel=0.1)
    assert not expected_list(p, 0, 0.2)[0].any() and not expected_list(p, 200, 0.2, candidates=200)[0].any()


def test_the_budget_goes_where_wrong_labels_are_expected():
    rng = stream(2, "sites")
    noisy, clean = np.sort(rng.random(300))[::-1], np.full(300, 0.02)
    given = rng.integers(0, 3, 300)
    rows = divide([(clean, given), (noisy, given)], 60)
    spent = [sum(row.reviews for row in rows if row.site == k) for k in (0, 1)]
    assert sum(spent) == pytest.approx(60) and spent[1] > 45
    total = sum(row.found + row.listed for row in rows)
    assert total >= count_removed(noisy, 60, 0.2)[0] - 1e-9 >= np.sort(noisy)[-60:].sum() - 1e-9
    equal = sum(count_removed(np.sort(p)[::-1], 30, 0.2)[0] for p in (clean, noisy))
    assert total > equal


def test_reviews_for_ranges_are_proportional_to_the_spread():
    sites = [(np.full(400, 0.5), np.zeros(400, int)), (np.full(100, 0.5), np.zeros(100, int))]
    rows = divide(sites, 100, ranges=1.0)
    assert [(row.site, row.purpose, round(row.reviews, 6)) for row in rows] == [(0, "range", 80.0), (1, "range", 20.0)]


def test_plans_of_any_size_spend_at_most_the_budget():
    rng = stream(3, "sizes")
    for budget in (1, 7, 41, 1000):
        sites = [(rng.random(n), rng.integers(0, 2, n)) for n in (1, 5, 60)]
        rows = divide(sites, budget, ranges=0.3)
        assert sum(row.reviews for row in rows) <= min(budget, 66) + 1e-9
        assert all(row.found <= row.reviews + 1e-9 for row in rows)
    for wrong in ({"budget": 0}, {"budget": 5, "ranges": 2}, {"budget": 5, "q": 1}):
        with pytest.raises(InputError, match="a plan needs"):
            divide([(np.ones(3), np.zeros(3))], **wrong)


def test_the_gain_is_positive_if_corrections_matter():
    rng = stream(4, "gain")
    true = rng.integers(0, 2, 600)
    x = rng.normal(size=(600, 2)) + 2 * true[:, None]
    given = np.where((rng.random(600) < 0.45) & (true == 1), 0, true)
    p = np.where(given == true, 0.02, 0.98)
    gains = [expected_gain(x, given, true, p, np.full(600, share), classes=2, rng=stream(0, "gain")) for share in (0.0, 1.0)]
    assert gains[0] == 0 and gains[1] > 0.05


def test_the_command_writes_the_plan(tmp_path):
    data, rng = datasets.load("digits"), np.random.default_rng(0)
    clean = partitioning.federation(data, clients=3, labels="observed")
    given, wrong = clean.given.copy(), rng.permutation(clean.clients[1])[:100]
    given[wrong] = (given[wrong] + 1) % 10
    score = rng.random(len(given)) * 0.3
    score[wrong] += 0.6
    arrays = {"issue_score": score, "flagged": score > 0.5, "suggested_label": data.y_train.copy()}
    level = np.array([0.01, 0.2, 0.01])
    extra = {f"estimate_{name}": values for name, values in arrays.items()} | {"estimate_client_level": level}
    replace(clean, given=given, extra=extra).write(tmp_path / "judged.npz")
    done = succeed("fnlkit review plan judged.npz --dataset digits --budget 60 --for-ranges 0.2 -o plan.csv", tmp_path)
    assert "60 decisions: about" in done.stderr
    rows = parse_csv(tmp_path / "plan.csv")
    assert rows[-1]["site"] == "all" and float(rows[-1]["reviews"]) == pytest.approx(60)
    assert sum(float(row["reviews"]) for row in rows[:-1]) == pytest.approx(60, abs=1)
    spent = {row["site"] for row in rows if row["purpose"] in ("find", "certify")}
    assert spent == {"client 1"} and {row["site"] for row in rows if row["purpose"] == "range"} == {
        f"client {k}" for k in range(3)
    }
    done = fnlkit("fnlkit review plan judged.npz --dataset digits --guarantee 3 -o again.csv", tmp_path)
    assert done.returncode == 2 and not (tmp_path / "again.csv").exists()

"""Different inputs or classes are named as such, and a site is accused of wrong labels only where a model can judge them."""

from dataclasses import replace

import numpy as np
import pytest
import threadpoolctl

from benchmarks import audit as simulated
from fnlkit.audits.audit import audit
from fnlkit.audits.changes import Change, possible
from fnlkit.audits.records import ColumnDifference, skill_of
from fnlkit.audits.server import column_differences, input_differences, statistics, verdict
from fnlkit.audits.site import inputs, judging, own_model, summaries
from fnlkit.audits.site.samples import Samples
from fnlkit.kernels import nearby
from fnlkit.kernels.neighbors import blas_threads


def Site(x, y, classes):
    return Samples(np.asarray(x), np.asarray(y), classes, np.ndim(x) == 4)


def gaussian(rng, shares, size=400, centers=None):
    """Return (x (n, 6) float32, y) of three classes in the units of a laboratory."""
    centers = 2.0 * np.eye(3, 6) if centers is None else centers
    y = rng.choice(3, size, p=shares)
    return (100 + 10 * (centers[y] + rng.normal(size=(size, 6)))).astype(np.float32), y


def differences(sites, classes=3):
    """Return the Compared inputs of (x, y) of several sites, as the audit computes them."""
    members = [Site(x, y, classes) for x, y in sites]
    counts = np.array([np.bincount(y, minlength=classes) for _, y in sites])
    replies = [inputs.describe_columns(member) for member in members]
    columns, by_class = (np.stack([reply[name] for reply in replies]) for name in ("columns", "class_columns"))
    found, fits = column_differences.differing_columns(columns, by_class, counts)
    image = members[0].image
    changes = possible("image" if image else "vector", tuple(members[0].x.shape[1:]))
    told = {"center": column_differences.reference(columns), "suspects": column_differences.suspects(found),
            "tone": np.median(columns[:, :2, 0], 0)}  # fmt: skip
    described = [
        inputs.describe_inputs(member, {**told, "fits": fit}, changes=changes, width=60, seed=0)
        for member, fit in zip(members, fits, strict=True)
    ]
    replies = {name: np.stack([reply[name] for reply in described]) for name in ("class_means", "covariances")}
    auc = input_differences.compare_inputs(replies, counts, [range(len(changes))] * len(members))
    return input_differences.Compared(changes, auc, column_differences.seen(found, auc[:, 0])), members, told


def test_units_and_missing_columns_are_named_and_class_shares_are_not_inputs():
    rng = np.random.default_rng(0)
    sites = [gaussian(rng, [1 / 3] * 3) for _ in range(3)]
    sites += [gaussian(rng, [0.8, 0.1, 0.1]), gaussian(rng, [1 / 3] * 3), gaussian(rng, [1 / 3] * 3)]
    sites[4][0][:, [1, 5]] *= 18
    sites[5][0][:, 3] = 100
    found, _, _ = differences(sites)
    assert found.differ.tolist() == [False] * 4 + [True] * 2
    assert [(c.column, c.kind) for c in found.columns[4]] == [(1, "units"), (5, "units")]
    assert [c.factor for c in found.columns[4]] == pytest.approx([18, 18], rel=0.15)
    assert [(c.column, c.kind) for c in found.columns[5]] == [(3, "missing")]
    assert found.auc[4, 1] < input_differences.DIFFERENT < found.auc[4, 0]  # the change of the columns undoes the difference


def clinical(seed, missing, *, columns=8, size=1500, standard=False, sites=5):
    """Return (x, y) of sites: numbers with marks of missing values, and a category with rare levels, one-hot."""
    rng = np.random.default_rng(seed)
    y, parts = rng.integers(0, 3, size), []
    centers = 1.4 * rng.normal(size=(3, columns))
    for number in (50 + 7 * (centers[y] + rng.normal(size=(size, columns)))).T:
        absent = rng.random(size) < missing
        parts += [np.where(absent, number[~absent].mean(), number), absent]
    parts += list(np.eye(6)[rng.choice(6, size, p=[0.5, 0.3, 0.1, 0.06, 0.03, 0.01])].T)
    x = np.stack(parts, 1)
    x = (x - x.mean(0)) / x.std(0) if standard else x
    return [(x[part].astype(np.float32), y[part]) for part in np.array_split(rng.permutation(size), sites)]


@pytest.mark.parametrize(("missing", "standard"), [(0.04, False), (0.05, False), (0.1, False), (0.04, True)])
def test_marks_of_missing_values_and_categories_have_no_unit(missing, standard):
    for seed in range(4):
        assert not differences(clinical(seed, missing, standard=standard))[0].differ.any()


@pytest.mark.parametrize(("columns", "factor"), [(4, 1000), (25, 10)])
def test_units_of_a_number_beside_marks_are_named(columns, factor):
    sites = clinical(5, 0.05, columns=columns)
    sites[2][0][:, 4] *= factor
    found, _, _ = differences(sites)
    assert found.differ.tolist() == [False, False, True, False, False]
    assert [(row.column, row.kind) for row in found.columns[2]] == [(4, "units")]
    assert found.columns[2][0].factor == pytest.approx(factor, rel=0.3)


def test_a_constant_column_among_many_is_named():
    """Missing cells have the mean of all sites, which differs from the constant."""
    sites = clinical(6, 0.05, columns=25)
    sites[1][0][:, 8] = np.where(sites[1][0][:, 9] > 0.5, 52, 50)
    assert [(row.column, row.kind) for row in differences(sites)[0].columns[1]] == [(8, "missing")]


def test_columns_that_no_classifier_recognizes_do_not_differ():
    rows = [[ColumnDifference(3, "units", 2.0)], [ColumnDifference(1, "offset", 1.0)], []]
    assert column_differences.seen(rows, np.array([0.5, 0.6, 0.5])) == [[], rows[1], []]
    assert column_differences.suspects(rows).tolist() == [3, 1] + [-1] * 6


def test_classes_of_a_few_samples_are_not_described():
    """The mean of one sample is the sample."""
    rng = np.random.default_rng(1)
    x, y = gaussian(rng, [0.5, 0.5, 0.0])
    y[0], x[0] = 2, 12345
    member = Site(x, y, 3)
    by_class = inputs.describe_columns(member)["class_columns"]
    told = {"center": np.array([[100.0] * 6, [10.0] * 6]), "fits": np.array([[1.0] * 6, [0.0] * 6]),
            "suspects": np.full(8, -1)}  # fmt: skip
    changes = possible("vector", (6,))
    described = inputs.describe_inputs(member, told, changes=changes, width=60, seed=0)
    kept = np.bincount(y).argmax()  # the smaller class is left out as well, because a single sample would remain
    assert np.flatnonzero(by_class[0].any(1)).tolist() == [kept]
    without = inputs.describe_inputs(Site(x[y == kept], y[y == kept], 3), told, changes=changes, width=60, seed=0)
    assert not by_class[:, 2].any() and not described["class_means"][:, 2].any()
    for name in described:
        np.testing.assert_allclose(described[name], without[name])
    alone = Site(x[:1], y[:1], 3)
    assert not any(values.any() for values in inputs.describe_columns(alone).values())
    statistics, counts = np.array([[1.0, 2], [5, 6], [0, 0]]), np.array([[3, 4], [9, 0], [1, 0]])
    assert input_differences.fill_missing(statistics, counts).tolist() == [[1, 2], [5, 6], [3, 4]]
    assert not any(values.any() for values in inputs.describe_inputs(alone, told, changes=changes, width=60, seed=0).values())


def test_inputs_that_differ_between_most_sites_have_no_reference():
    rng = np.random.default_rng(2)
    sites = [gaussian(rng, [1 / 3] * 3) for _ in range(5)]
    for k in range(1, 5):
        sites[k][0][:, k] *= 18
    found, _, _ = differences(sites)
    assert found.common and all(found.at(k, np.zeros(5, int)).common for k in range(5))
    sites[2:] = [gaussian(rng, [1 / 3] * 3) for _ in range(3)]
    assert not differences(sites)[0].common


def test_wrong_labels_are_no_difference_of_inputs():
    rng = np.random.default_rng(1)
    sites = [gaussian(rng, [1 / 3] * 3) for _ in range(5)]
    x, y = sites[2]
    sites[2] = x, np.where(rng.random(len(y)) < 0.5, rng.integers(0, 3, len(y)), y)
    assert not differences(sites)[0].differ.any()


@pytest.mark.parametrize(("undo", "apply"), [
    (Change("mirrored"), lambda x: x[:, :, ::-1]), (Change("upside down"), lambda x: x[:, ::-1]),
    (Change("rotated by 90 degrees"), lambda x: x.transpose(0, 2, 1, 3)[:, ::-1]),
    (Change(tone="intensities look inverted"), lambda x: 255 - x),
    (Change("mirrored", "intensities look inverted"), lambda x: 255 - x[:, :, ::-1]),
])  # fmt: skip
def test_the_change_that_undoes_a_difference_of_images_is_found(undo, apply):
    rng = np.random.default_rng(2)
    ramp = np.linspace(0, 150, 12) * np.linspace(0.2, 1, 12)[:, None] ** 2

    def images(n=300):
        y = rng.integers(0, 2, n)
        x = ramp + 60 * y[:, None, None] * (np.arange(12) > 7) + rng.normal(0, 15, (n, 12, 12))
        return np.clip(x, 0, 255).astype(np.uint8)[..., None], y

    sites = [images() for _ in range(4)]
    x, y = images()
    sites.append((np.ascontiguousarray(apply(x)), y))
    found, members, told = differences(sites, classes=2)
    assert found.differ.tolist() == [False] * 4 + [True]
    best = found.changes[found.likely(4)]
    assert (best.turn, best.tone) == (undo.turn, undo.tone) and best.words
    back = inputs.apply_change(members[4], best, told) * 255
    assert np.corrcoef(back.reshape(-1), x.reshape(-1))[0, 1] > 0.99


def test_degenerate_sites_have_no_difference():
    rng = np.random.default_rng(3)
    x, y = gaussian(rng, [1 / 3] * 3)
    constant = (np.full((20, 6), 5, np.float32), np.zeros(20, int))
    one = (x[:1], y[:1])
    for sites in ([constant] * 3, [(x, y), one, (x, y)], [one] * 2):
        assert not differences(sites)[0].differ[1]


def test_adapted_probabilities_have_the_shares_of_the_site():
    rng = np.random.default_rng(4)
    y = (rng.random(4000) < 0.1).astype(int)
    z = rng.normal(np.where(y == 1, 1.0, -1.0))
    p = 1 / (1 + np.exp(-2 * z))  # calibrated for equal shares
    out = judging.adapt_probabilities(np.column_stack([1 - p, p]), np.array([0.5, 0.5]))
    assert out[:, 1].mean() == pytest.approx(y.mean(), abs=0.02) and out.sum(1) == pytest.approx(1)


def within(x, y, rng, groups=None):
    """Return the probabilities of the model of a site with a table."""
    near = nearby.nearest(x, min(20, len(x) - 1))[1]
    return own_model.best_of(own_model.cross_fitted(x, y, 3, rng, groups=groups, near=near, table=x), y)


def test_own_model_learns_nothing_from_the_group_of_a_sample():
    """All 5 rows of a patient have the same random label and nearly equal values."""
    rng = np.random.default_rng(0)
    groups, labels = np.repeat(np.arange(60), 5), np.repeat(rng.integers(0, 3, 60), 5)
    x = np.repeat(rng.normal(size=(60, 4)), 5, 0) + 0.01 * rng.normal(size=(300, 4))
    apart, together = (within(x, labels, np.random.default_rng(1), of).argmax(1) == labels for of in (groups, None))
    assert apart.mean() < 0.55 < 0.9 < together.mean()


def test_own_model_predicts_without_the_sample():
    rng = np.random.default_rng(5)
    x, y = gaussian(rng, [1 / 3] * 3, centers=4.0 * np.eye(3, 6))
    p = within(x.astype(float), y, rng)
    assert p.sum(1) == pytest.approx(1) and (p.argmax(1) == y).mean() > 0.95
    noise = within(rng.normal(size=(300, 6)), rng.integers(0, 3, 300), rng)
    labels = rng.integers(0, 3, 300)
    assert skill_of(np.bincount(noise.argmax(1) * 3 + labels, minlength=9).reshape(3, 3)).low < 0.1
    for x, y in ((np.zeros((30, 4)), np.arange(30) % 3), (rng.normal(size=(4, 2)), np.arange(4) % 3),
                 (rng.normal(size=(30, 2)), np.zeros(30, int))):  # fmt: skip
        p = within(x, y, rng)
        assert np.isfinite(p).all() and p.sum(1) == pytest.approx(1)


def test_missed_positives_are_a_confusion_and_other_class_shares_are_not():
    """Counts by predicted class and given label: 40 % of 40 positives labeled negative; a site with 10 % positives."""
    usual = np.array([[1955, 4], [5, 36]])
    missed = np.array([[1955, 2], [21, 22]])
    more = np.array([[1795, 20], [5, 180]])
    tables = np.stack([usual, usual, usual, missed, more])
    expected = np.stack([[[1960, 0], [0, 40]]] * 3 + [[[1957, 0], [19, 24]], [[1800, 0], [0, 200]]]).astype(float)
    assert np.argwhere(statistics.confuses_beyond_chance(tables, expected)[0]).tolist() == [[3, 1, 0]]
    weak = np.stack([usual, usual, usual, [[1960, 5], [14, 21]], more])
    assert np.argwhere(statistics.confuses_beyond_chance(weak, expected)[0]).tolist() == [[3, 1, 0]]
    assert not statistics.confuses_beyond_chance(weak, expected * np.eye(2))[0].any()
    shares = statistics.shares_differ(np.array([[1960, 40]] * 4 + [[1800, 200]]))
    assert shares.tolist() == [False] * 4 + [True]


def test_more_than_others_ignores_one_noisy_site_among_the_others():
    p, _ = statistics.more_than_others(np.array([5, 6, 4, 60, 50]), np.full(5, 200))
    assert (p[3:] < 1e-6).all() and (p[:3] > 0.05).all()
    assert (statistics.more_than_others(np.array([0, 0]), np.array([0, 10]))[0] == 1).all()


@pytest.mark.parametrize("shift", ["inverted", pytest.param("mirrored", marks=pytest.mark.slow)])
def test_a_clean_site_with_other_images_is_not_accused_and_the_noisy_one_is(shift):
    sites = simulated.once("image", shift, "random", False, seed=5)
    assert [one["row"].noisier for one in sites] == [False, False, False, True, False]
    row = sites[simulated.SHIFTED]["row"]
    assert row.inputs.differ and shift in " ".join(row.words) and row.low == 0 and row.next


def test_a_clean_table_with_other_units_is_not_accused_and_few_rows_are_not_judged(few_trees):
    made, data = simulated.federation("table", "units", "random", False, seed=5)
    parts = [*made.clients[:4], made.clients[4][:3]]
    few = replace(made, client_offsets=np.cumsum([0, *map(len, parts)]), client_indices=np.concatenate(parts))
    rows = {row.client: row for row in audit(few, data, detectors=(), seed=5).sites}
    assert {k for k, row in rows.items() if row.noisier} == {simulated.NOISY}
    row = rows[simulated.SHIFTED]
    assert row.inputs.differ and "units" in " ".join(row.words) and row.low == 0 and row.next
    assert rows[4].finding == verdict.UNKNOWN and rows[4].withheld and not rows[4].copies


def test_no_site_is_accused_and_no_estimate_is_shown_if_the_features_are_noise():
    sites = simulated.once("noise", "none", "random", False, seed=6)
    for one in sites:
        row = one["row"]
        assert row.finding == verdict.UNKNOWN and not row.noisier and row.level is None
        assert row.low <= one["wrong"] <= row.high


def test_sums_and_models_of_a_site_use_one_thread(monkeypatch):
    """Two threads that wait for each other beside a busy process took a hundred times the CPU seconds."""
    import sklearn.ensemble  # noqa: F401 - loads OpenMP

    with blas_threads(1):
        import faiss  # noqa: F401 - loads a BLAS of its own, after the others were found

    seen, features = [], summaries.features

    def threads_of(kind):
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == kind}

    class Model:
        classes_ = np.array([0, 1])

        def fit(self, points, labels):
            seen.append(threads_of("openmp"))

        def predict_proba(self, points):
            return np.full((len(points), 2), 0.5)

    monkeypatch.setattr(summaries, "features", lambda *given: seen.append(threads_of("blas")) or features(*given))
    with threadpoolctl.threadpool_limits(2):
        own_model.predict_by_folds(np.zeros((20, 1)), np.arange(20) % 2, 2, np.arange(20) % 5, Model())
        summaries.summarize(Site(np.zeros((40, 3), np.float32), np.arange(40) % 2, 2))
        assert seen == [{1}] * 6 and threads_of("openmp") == threads_of("blas") == {2}

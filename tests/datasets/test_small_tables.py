"""Small tables of scikit-learn: sizes, skew, shift, repeated draws, and the recipe that uses them."""

import re

import numpy as np
import pytest
from scipy import stats

from fnlkit.datasets import load
from fnlkit.datasets.small_tables import SOURCES
from fnlkit.errors import InputError
from fnlkit.recipes import recipe, reproduce


def shares(data):
    """Return the class shares (sites, C) of the sites."""
    sites = data.fields["site"]
    counts = [np.bincount(data.y_train[sites == site], minlength=data.classes) for site in np.unique(sites)]
    return np.array(counts) / np.sum(counts, 1, keepdims=True)


@pytest.mark.parametrize("source", SOURCES)
def test_a_table_has_all_sites_and_classes_and_can_be_loaded_by_its_name(source):
    rows = 20 if source == "iris" else 25  # 150 rows in all
    data = load(f"small-table(source={source}, sites=4, rows={rows}, number=3)")
    names, counts = np.unique(data.fields["site"], return_counts=True)
    assert len(names) == 4 and counts.min() >= 8 and abs(counts.sum() - 4 * rows) < 10
    assert set(np.unique(data.y_train)) == set(np.unique(data.y_test)) == set(range(data.classes))
    assert len(data.y_test) >= 50 and np.isfinite(data.x_train).all()
    assert load(data.name).checksum == data.checksum
    assert load(f"small-table(source={source}, sites=4, rows={rows}, number=4)").checksum != data.checksum


def test_no_row_is_in_training_and_test():
    data = load("small-table(source=wine, sites=4, rows=25)")
    rows = np.concatenate([data.x_train, data.x_test])
    assert len(rows) == 178 and len(np.unique(rows, axis=0)) == 178


def test_skew_and_shift_make_sites_differ():
    plain, skewed, shifted = (load(f"small-table(source=clusters, sites=6, rows=60{more})") for more in
                              ("", ", skew=1", ", shift=1"))  # fmt: skip
    assert shares(plain).std(0).max() < 0.02 < 0.1 < shares(skewed).std(0).min()

    def means(data):
        return np.array([data.x_train[data.fields["site"] == site].mean(0) for site in np.unique(data.fields["site"])])

    assert means(plain).std(0).mean() < 0.3 and means(shifted).std(0).mean() > 0.7


def test_the_rows_of_a_site_do_not_depend_on_its_number_if_a_class_runs_out():
    # Sites that were filled one after another had 100, 100, 90, 68 and 41 rows on average.
    name, tables, sites = "small-table(source=breast-cancer, rows=100, sizes=0, skew=1", 60, 5
    rows = []
    for number in range(tables):
        site = load(f"{name}, number={number})").fields["site"]
        rows.append([(site == f"site-{k:02d}").sum() for k in range(sites)])
    rows = np.array(rows)
    assert rows.min() < 90
    squares = tables * ((rows.mean(0) - rows.mean()) ** 2).sum()
    # Exchangeable numbers, but for the sum: the covariance is that of the deviations from the mean of a table.
    spread = ((rows - rows.mean(1, keepdims=True)) ** 2).mean() * sites / (sites - 1)
    assert stats.chi2.sf(squares / spread, sites - 1) > 1e-3


def user_table(path):
    """Write a table of 200 rows: class a has a first feature below 0."""
    x = np.random.default_rng(0).normal(size=(200, 3))
    rows = [f"{a:.6f},{b:.6f},{c:.6f},{'a' if a < 0 else 'b'}" for a, b, c in x]
    path.write_text("\n".join(["one,two,three,label", *rows]), encoding="utf-8")
    return x


def test_sites_are_drawn_from_a_table_of_the_user(tmp_path):
    """Without shift a standardized feature keeps its order: the class is known from the first feature."""
    x = user_table(tmp_path / "mine.csv")
    data = load(f'small-table(source="{tmp_path}/mine.csv", sites=4, rows=30)')
    assert data.class_names == ["a", "b"] and len(np.unique(data.fields["site"])) == 4
    rows, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    expected = (x - x.mean(0)) / x.std(0)
    order, wanted = np.lexsort(rows.T), np.lexsort(expected.astype(np.float32).T)
    np.testing.assert_allclose(rows[order], expected[wanted], atol=1e-4)
    assert (y[order] == (x[wanted, 0] >= 0)).all() and (data.truth == data.y_train).all()
    assert load(data.name).checksum == data.checksum
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine.csv").rename(tmp_path / "elsewhere" / "other.csv")
    moved = load(f'small-table(source="{tmp_path}/elsewhere/other.csv", sites=4, rows=30)')
    assert (moved.x_train == data.x_train).all() and (moved.fields["site"] == data.fields["site"]).all()


def test_the_true_labels_of_a_source_are_used(tmp_path):
    y = np.arange(100) % 2
    x = np.random.default_rng(0).normal(size=(100, 2)) + 9 * y[:, None]
    arrays = {"x_train": x[:80], "y_train": 1 - y[:80], "y_train_true": y[:80], "x_test": x[80:], "y_test": y[80:]}
    np.savez(tmp_path / "noisy.npz", **{name: a.astype(np.float32) if a.ndim == 2 else a for name, a in arrays.items()})
    data = load(f'small-table(source="{tmp_path}/noisy.npz", sites=2, rows=20)')
    assert ((data.x_train[:, 0] > 0) == data.y_train).all() and ((data.x_test[:, 0] > 0) == data.y_test).all()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("cluster", "no source 'cluster'; did you mean 'clusters'"),
        ("spoken-digits", "spoken-digits is no table with one class per row"),
        ("votes(data={here}/votes.csv)", "is no table with one class per row"),
        ("missing.csv", "no such file"),
        ("{here}/mine.csv, sites=9", r"has 200 rows, too few for 9 sites of 20 rows and 50 test rows"),
    ],
)
def test_an_unusable_source_is_refused(tmp_path, source, text):
    user_table(tmp_path / "mine.csv")
    votes = "".join(f"q{i // 2},{i % 2},{i % 4 // 2},{i // 2 % 7}.5\n" for i in range(40))
    (tmp_path / "votes.csv").write_text(f"id,annotator,label,age\n{votes}")
    source = re.sub(r"{here}/(\w+\.csv)", rf'"{tmp_path}/\1"', source)
    with pytest.raises(InputError, match=text):
        load(f"small-table(source={source}, rows=20)")


def test_the_tables_of_the_recipe_can_be_drawn():
    jobs = reproduce.jobs(recipe.load_recipe("league"), seeds=1)
    # Tables in files, of which the repository has none, are checked by hand.
    tables = {job.dataset for job in jobs if job.dataset.startswith("small-table") and ".csv" not in job.dataset}
    assert len(tables) > 15
    for name in tables:
        data = load(name)
        counts = np.unique(data.fields["site"], return_counts=True)[1]
        assert 4 <= len(counts) <= 20 and counts.min() >= 8 and counts.max() <= 350

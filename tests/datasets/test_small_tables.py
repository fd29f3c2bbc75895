"""Small tables of scikit-learn: sizes, skew, shift, repeated draws, and the recipe that uses them."""

import numpy as np
import pytest

from fnlkit.datasets import load
from fnlkit.errors import InputError
from fnlkit.reproduce import recipe, reproduce
from tests.commands import succeed

SOURCES = (
    "breast-cancer",
    "wine",
    "digits",
    "iris",
    "diabetes",
    "clusters",
    "shells",
    "hastie",
    "moons",
    "blobs",
    "friedman",
    "swiss-roll",
    "circles",
    "friedman-2",
    "friedman-3",
    "s-curve",
    "plane",
    "sparse",
)


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


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match="wine has 178 rows, too few for 10 sites of 30 rows and 50 test rows"):
        load("small-table(source=wine, sites=10, rows=30)")


def test_a_user_trains_on_a_small_table(tmp_path):
    done = succeed(
        "fnlkit partition --dataset 'small-table(source=wine, sites=4, rows=30)' --scheme sites -o fed.npz", tmp_path
    )
    assert "4 clients" in done.stderr
    succeed("fnlkit train fed.npz --model 'mlp(hidden=[8])' --rounds 3 --epochs 1 --ledger none -o run.pt", tmp_path)


def test_the_tables_of_the_recipe_can_be_drawn():
    jobs = reproduce.jobs(recipe.load_recipe("league-real"), seeds=1)
    tables = {job.dataset for job in jobs if job.dataset.startswith("small-table")}
    assert len(tables) > 15
    for name in tables:
        data = load(name)
        counts = np.unique(data.fields["site"], return_counts=True)[1]
        assert 4 <= len(counts) <= 20 and counts.min() >= 8 and counts.max() <= 350

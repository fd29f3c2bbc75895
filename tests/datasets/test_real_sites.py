"""The embedded data of real sites: tables, ratings, missing values, sites of training, and sites that took no part."""

import numpy as np
import pytest

from fnlkit.datasets import load
from fnlkit.errors import InputError

RATERS = ("rater_1", "rater_2", "rater_3")
BINARY = {"exclude": "exclude", "doubtful": "accept", "accept": "accept"}


pytestmark = pytest.mark.usefixtures("no_connection")


def names_of(data, labels):
    return np.array(data.class_names)[labels]


@pytest.mark.parametrize(
    ("name", "checksum"),
    [
        ("mriqc", "e78c6b869e21ea6b93e9f82d0b478780ec7e70bca2cb62a4b1ffd4f3e209acf1"),
        ("mriqc(label=rater_3)", "1572bfaf"),
        ("heart", "0f8fd84f"),
        ("heart(flamby=true)", "151d44b6"),
    ],
)
def test_the_content_is_fixed(name, checksum):
    data = load(name)
    assert data.name == name and data.kind == "vector" and data.checksum.startswith(checksum)
    assert np.isfinite(data.x_train).all() and np.isfinite(data.x_test).all()


def test_mriqc_has_the_published_sizes():
    data = load("mriqc")
    assert data.x_train.shape == (1101, 68) and data.x_test.shape == (265, 68) and data.columns[0] == "cjv"
    assert len(np.unique(data.fields["site"])) == 17 and len(set(data.ids)) == 1101
    assert np.bincount(data.y_test).tolist() == [190, 75]  # accept, exclude; the published test set
    assert data.observed and data.truth is None and not data.test_verified


def test_a_scan_keeps_the_ratings_of_three_raters():
    data = load("mriqc")
    given = np.array([data.fields[rater] != "" for rater in RATERS])
    assert given.sum(1).tolist() == [600, 600, 1101] and (given.sum(0) == 3).sum() == 99
    label = names_of(data, data.y_train)
    first, second = ([BINARY.get(vote) for vote in data.fields[rater]] for rater in RATERS[:2])
    assert all(own in pair for own, *pair in zip(label, first, second, strict=True))
    assert {label[i] == first[i] for i in np.flatnonzero(given.all(0))} == {True, False}  # either rater, where both rated


@pytest.mark.parametrize("rater", RATERS)
def test_one_rater_can_be_the_label(rater):
    data, whole = load(f"mriqc(label={rater})"), load("mriqc")
    votes = data.fields[rater]
    assert names_of(data, data.y_train).tolist() == [BINARY[vote] for vote in votes]
    rest = whole.fields[rater] == ""
    assert (len(data.unlabeled) if rest.any() else 0) == rest.sum()
    np.testing.assert_array_equal(data.y_test, whole.y_test)
    np.testing.assert_array_equal(data.x_train, whole.x_train[~rest])
    if rest.any():
        assert data.unlabeled.ids == whole.ids[rest].tolist() and data.unlabeled.sites == whole.fields["site"][rest].tolist()
        np.testing.assert_array_equal(data.unlabeled.samples(), whole.x_train[rest])


def test_heart_has_the_patients_of_uci_and_the_test_set_of_flamby():
    data, small = load("heart"), load("heart(flamby=true)")
    assert (len(data.y_train), len(data.y_test), len(small.y_train), len(small.y_test)) == (666, 254, 486, 254)
    sites, counts = np.unique(small.fields["site"], return_counts=True)
    assert dict(zip(sites.tolist(), counts.tolist(), strict=True)) == {
        "cleveland": 199, "hungarian": 172, "switzerland": 30, "va": 85,
    }  # fmt: skip
    np.testing.assert_array_equal(data.y_test, small.y_test)
    for one in (data, small):
        assert not one.observed and one.test_verified
        assert (names_of(one, one.y_train) == np.where(one.fields["num"] == "0", "no disease", "disease")).all()
    assert not any("missing" in name or name.partition(":")[0] in ("slope", "ca", "thal") for name in small.columns)


def test_missing_values_are_marked_and_filled_as_in_a_table_of_the_user():
    data, small = load("heart"), load("heart(flamby=true)")
    at = data.columns.index
    for name in ("trestbps", "chol", "thalach", "oldpeak", "ca"):
        absent = data.x_train[:, at(f"{name} (missing)")] == 1
        assert 0 < absent.sum() < len(absent)
        values = data.x_train[:, at(name)]
        np.testing.assert_allclose(values[absent], values[~absent].mean(dtype=np.float64), rtol=1e-5)
    for name in ("fbs", "restecg", "exang", "slope", "thal"):
        levels = [i for i, feature in enumerate(data.columns) if feature.startswith(f"{name}: ")]
        assert (data.x_train[:, levels].sum(1) == 1).all() and data.x_train[:, at(f"{name}: (missing)")].any()
    # A cholesterol of 0 is unknown, and a number for FLamby.
    assert data.x_train[:, at("chol")].min() > 50 and (small.x_train[:, small.columns.index("chol")] == 0).any()
    swiss = data.fields["site"] == "switzerland"
    assert data.x_train[swiss, at("chol (missing)")].all() and not data.x_train[swiss, at("trestbps (missing)")].all()


@pytest.mark.parametrize(
    ("name", "parameter"), [("mriqc(label=rater_4)", "label"), ("mriqc(rater=1)", "rater"), ("heart(flamby=2)", "flamby")]
)
def test_a_wrong_parameter_is_named(name, parameter):
    with pytest.raises(InputError, match=parameter):
        load(name)

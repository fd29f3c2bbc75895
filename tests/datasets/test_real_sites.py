"""The embedded data of real sites: tables, ratings, missing values, sites of training, and sites that took no part."""

from functools import cache

import numpy as np
import pytest

from fnlkit import datasets
from tests.commands import refuse_call

BINARY = {"exclude": "exclude", "doubtful": "accept", "accept": "accept"}
load = cache(datasets.load)


@pytest.mark.parametrize(
    ("name", "checksum"),
    [
        ("mriqc", "e78c6b869e21ea6b93e9f82d0b478780ec7e70bca2cb62a4b1ffd4f3e209acf1"),
        ("mriqc(label=rater_1)", "372c8d96"),
        ("heart", "0f8fd84f"),
        ("heart(flamby=true)", "151d44b6"),
    ],
)
def test_the_samples_and_labels_are_fixed(name, checksum, no_connection):
    data = load(name)
    assert data.name == name and data.kind == "vector" and data.checksum.startswith(checksum)


def test_mriqc_has_the_published_sizes():
    data = load("mriqc")
    assert data.x_train.shape == (1101, 68) and data.x_test.shape == (265, 68) and data.columns[0] == "cjv"
    assert len(np.unique(data.fields["site"])) == 17 and len(set(data.ids)) == 1101
    assert data.class_names == ["accept", "exclude"] and np.bincount(data.y_test).tolist() == [190, 75]  # as published
    assert data.observed and data.truth is None and not data.test_verified


def test_one_rater_can_be_the_label_of_the_scans_that_he_rated():
    data, whole = load("mriqc(label=rater_1)"), load("mriqc")
    rated = [(whole.fields[f"rater_{number}"] != "").sum() for number in (1, 2, 3)]
    assert rated == [600, 600, 1101] and len(data.unlabeled) == 501
    assert np.array(data.class_names)[data.y_train].tolist() == [BINARY[vote] for vote in data.fields["rater_1"]]
    rest = whole.fields["rater_1"] == ""
    np.testing.assert_array_equal(data.y_test, whole.y_test)
    np.testing.assert_array_equal(data.x_train, whole.x_train[~rest])
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
        assert [one.class_names[y] == "disease" for y in one.y_train] == (one.fields["num"] != "0").tolist()
    assert not any("missing" in name or name.partition(":")[0] in ("slope", "ca", "thal") for name in small.columns)
    # A cholesterol of 0 is unknown, and a number for FLamby.
    assert "chol (missing)" in data.columns and (small.x_train[:, small.columns.index("chol")] == 0).any()


@pytest.mark.parametrize(
    ("name", "parameter"), [("mriqc(label=rater_4)", "label"), ("mriqc(rater=1)", "rater"), ("heart(flamby=2)", "flamby")]
)
def test_a_wrong_parameter_is_named(name, parameter):
    refuse_call(parameter, load, name)

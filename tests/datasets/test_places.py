"""Known data sets: where they lie, pathmnist and CrowdTruth from made files, and the embedded data of real sites."""

import csv
import hashlib
import io
import json
import sys
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.datasets import crowdtruth, load, places
from fnlkit.datasets.public_sets import PATHMNIST_CLASSES
from tests.commands import fnlkit, refuse, refuse_call, succeed


# ---- known data sets: where they lie, for readers and `data list` alike; pathmnist and CrowdTruth from made files
@pytest.mark.parametrize("name", ["mnist", "speechcommands"])
def test_half_a_data_set_is_none(name, tmp_path):
    """A download that broke off leaves some files: neither the list nor the reader takes them for the whole."""
    folder = places.first(name, tmp_path)
    folder.mkdir(parents=True)
    *some, last = places.PLACES[name][1]
    for file in some:
        (folder / file).write_bytes(b"")
    assert not datasets.present(name, cache=tmp_path)
    refuse_call(f"{name} is not on this machine", datasets.load, name, cache=tmp_path)
    (folder / last).write_bytes(b"")
    assert datasets.present(name, cache=tmp_path)


@pytest.mark.parametrize(
    ("name", "torch_name", "left", "error"),
    [
        ("fashion-mnist", "FashionMNIST", "FashionMNIST/raw/train-images-idx3-ubyte", KeyboardInterrupt()),
        ("cifar10", "CIFAR10", "cifar-10-batches-py/data_batch_1", OSError("connection reset")),
        ("eurosat", "EuroSAT", "eurosat/2750/AnnualCrop/AnnualCrop_1.jpg", OSError("connection reset")),
    ],
)
def test_a_get_that_breaks_off_leaves_nothing_here(name, torch_name, left, error, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("FNLKIT_CACHE", str(cache))
    # Debian's Fashion-MNIST, where this machine has it, would need no download.
    monkeypatch.setitem(places.PLACES, name, (places.PLACES[name][0][:1], places.PLACES[name][1]))

    def download(root, **_):
        (cache / left).parent.mkdir(parents=True)
        (cache / left).write_bytes(b"the first bytes of many")
        raise error

    monkeypatch.setattr(
        "fnlkit.datasets.public_sets.torchvision", lambda: SimpleNamespace(datasets=SimpleNamespace(**{torch_name: download}))
    )
    done = fnlkit(f"fnlkit data get {name}", tmp_path)
    assert done.returncode == (130 if isinstance(error, KeyboardInterrupt) else 2)
    if done.returncode == 2:
        assert f"{name}: the download failed (OSError: connection reset); try again" in done.stderr
    assert not (cache / left).exists()
    listed = [json.loads(line) for line in fnlkit("fnlkit data list --json", tmp_path).stdout.splitlines()]
    assert [row["here"] for row in listed if row["name"] == name] == [False]
    refuse(f"fnlkit partition --dataset {name} -o fed.npz", tmp_path, f"{name} is not on this machine")


def test_a_failed_download_keeps_the_old_file_and_names_an_alternative(tmp_path, monkeypatch, capfd):
    mine = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"put here by hand")

    def download(root, **_):
        print("trying ...")
        raise OSError("no\nnetwork")

    sets = SimpleNamespace(datasets=SimpleNamespace(MNIST=download))
    monkeypatch.setattr("fnlkit.datasets.public_sets.torchvision", lambda: sets)
    refuse_call(r"failed \(OSError: no network\).*MNIST/raw yourself", datasets.load, "mnist", cache=tmp_path, download=True)
    assert capfd.readouterr().out == ""  # talk goes to stderr: stdout is data
    assert mine.read_bytes() == b"put here by hand"
    refuse_call("the download failed", datasets.load, "mnist", cache=tmp_path / "empty", download=True)


# ---- `pathmnist`
def put(path, *, size=28, labels=9, **more):
    """Write a file as medmnist's: {train,val,test}_images (n, H, W, 3) uint8 and {train,val,test}_labels (n, 1) uint8."""
    rng, arrays = np.random.default_rng(0), {}
    for part, n in (("train", 40), ("val", 5), ("test", 10)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (n, size, size, 3), np.uint8)
        arrays[f"{part}_labels"] = (np.arange(n, dtype=np.uint8) % labels)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays | more)
    return arrays


def test_a_file_is_read_with_its_classes_and_without_validation_images(tmp_path):
    arrays = put(tmp_path / "pathmnist.npz")
    data = datasets.load("pathmnist", cache=tmp_path)
    assert data.name == "pathmnist" and data.class_names == PATHMNIST_CLASSES and not data.observed
    assert np.array_equal(data.x_train, arrays["train_images"]) and np.array_equal(data.x_test, arrays["test_images"])
    assert data.y_train.tolist() == [i % 9 for i in range(40)] and data.y_train.dtype == np.int64 and len(data.y_test) == 10


@pytest.mark.parametrize(
    "more",
    [{"size": 32}, {"labels": 10}, {"test_images": np.zeros((0, 28, 28, 3), np.uint8), "test_labels": np.zeros((0, 1), int)}],
)
def test_a_file_of_another_data_set_is_refused(more, tmp_path):
    put(tmp_path / "pathmnist.npz", **more)
    refuse_call("pathmnist.npz", datasets.load, "pathmnist", cache=tmp_path)


def test_the_package_downloads_into_the_cache_folder(tmp_path, monkeypatch):
    class PathMNIST:
        def __init__(self, *, split, root, size, download):
            assert (split, root, size, download) == ("train", str(tmp_path / "cache"), 28, True)
            put(tmp_path / "cache" / "pathmnist.npz")

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "medmnist", None)
    refuse_call(r"pip install 'fnlkit\[medmnist\]'", datasets.load, "pathmnist", cache=tmp_path / "cache", download=True)
    monkeypatch.setitem(sys.modules, "medmnist", SimpleNamespace(PathMNIST=PathMNIST))
    assert datasets.load("pathmnist", cache=tmp_path / "cache", download=True).classes == 9


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Return a function that writes the file of a relation into the cache folder and declares its checksum."""
    monkeypatch.setenv("FNLKIT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "Medical-Relation-Extraction"
    folder.mkdir(parents=True)

    def write(relation, verdicts):
        names = ("baseline", "crowd", "expert", "test_partition")
        words = {"sentence": "aspirin treats a headache", "term1": "aspirin", "term2": "headache"}
        out = io.StringIO()
        writer = csv.DictWriter(out, ["SID", *words, *names])
        writer.writeheader()
        writer.writerows({"SID": i, **words, **dict(zip(names, row, strict=True))} for i, row in enumerate(verdicts))
        (folder / f"ground_truth_{relation}.csv").write_text(out.getvalue(), encoding="utf-8")
        monkeypatch.setitem(crowdtruth.SHA256, relation, hashlib.sha256(out.getvalue().encode()).hexdigest())
        return folder

    return write


def test_crowdtruth_has_adjudicated_sentences_and_three_labelers(publish):
    """The third adjudicated sentence is tested; sentence 1 is unclear and sentence 3 has no verdict."""
    verdicts = [("1", "-0.8", "-1", "-1"), ("1", "0.9", "1", "0"), ("-1", "0.6", "1", "1"), ("1", "0.7", "NA", "NA"),
                ("1", "-0.9", "1", "-1"), ("-1", "-0.9", "-1", "-1")]  # fmt: skip
    publish("treat", verdicts)
    data = load("crowdtruth(relation=treat)")
    assert data.class_names == ["other", "treat"] and data.ids.tolist() == ["0", "2", "5"]
    assert data.y_train.tolist() == [1, 0, 0] and data.truth.tolist() == [0, 1, 0] and data.y_test.tolist() == [0]
    assert data.annotators == ["baseline", "crowd", "expert"] and data.votes.tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert load("crowdtruth(relation=treat, labels=crowd)").y_train.tolist() == [0, 1, 0]
    rows = load("votes(data=crowdtruth(relation=treat))")
    assert len(rows.y_train) == 9 and rows.truth.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]


def test_missing_and_changed_files_and_unknown_names_are_one_line(publish, tmp_path):
    assert not datasets.present("crowdtruth", cache=tmp_path)
    refuse("fnlkit data get crowdtruth", tmp_path, f"git clone {crowdtruth.URL}", "no ground_truth_cause.csv")
    folder = publish("cause", [("1", "1", "1", "1"), ("-1", "1", "-1", "-1")] * 4)
    assert "0.0 % of the training labels" in succeed("fnlkit -v data get crowdtruth", tmp_path).stdout
    facts = json.loads(succeed("fnlkit data info 'crowdtruth(labels=crowd)' --json", tmp_path).stdout)
    assert (facts["wrong_labels"], facts["annotators"], facts["sites"]) == (0.5, 3, None)
    (folder / "ground_truth_cause.csv").write_text("changed")
    refuse("fnlkit data get crowdtruth", tmp_path, "SHA-256", "checkout")
    refuse(f"fnlkit data get 'crowdtruth(path=\"{tmp_path}/none\")'", tmp_path, "no ground_truth_cause.csv")
    refuse("fnlkit data get 'crowdtruth(relation=cures)'", tmp_path, "cause or treat")
    refuse("fnlkit data get crowdtruht", tmp_path, "did you mean 'crowdtruth'")


# ---- the embedded data of real sites: tables, ratings, missing values, sites of training, and sites that took no part
BINARY = {"exclude": "exclude", "doubtful": "accept", "accept": "accept"}
load_once = cache(datasets.load)


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
    data = load_once(name)
    assert data.name == name and data.kind == "vector" and data.checksum.startswith(checksum)


def test_mriqc_has_the_published_sizes():
    data = load_once("mriqc")
    assert data.x_train.shape == (1101, 68) and data.x_test.shape == (265, 68) and data.columns[0] == "cjv"
    assert len(np.unique(data.fields["site"])) == 17 and len(set(data.ids)) == 1101
    assert data.class_names == ["accept", "exclude"] and np.bincount(data.y_test).tolist() == [190, 75]  # as published
    assert data.observed and data.truth is None and not data.test_verified


def test_one_rater_can_be_the_label_of_the_scans_that_he_rated():
    data, whole = load_once("mriqc(label=rater_1)"), load_once("mriqc")
    rated = [(whole.fields[f"rater_{number}"] != "").sum() for number in (1, 2, 3)]
    assert rated == [600, 600, 1101] and len(data.unlabeled) == 501
    assert np.array(data.class_names)[data.y_train].tolist() == [BINARY[vote] for vote in data.fields["rater_1"]]
    rest = whole.fields["rater_1"] == ""
    np.testing.assert_array_equal(data.y_test, whole.y_test)
    np.testing.assert_array_equal(data.x_train, whole.x_train[~rest])
    assert data.unlabeled.ids == whole.ids[rest].tolist() and data.unlabeled.sites == whole.fields["site"][rest].tolist()
    np.testing.assert_array_equal(data.unlabeled.samples(), whole.x_train[rest])


def test_heart_has_the_patients_of_uci_and_the_test_set_of_flamby():
    data, small = load_once("heart"), load_once("heart(flamby=true)")
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
    refuse_call(parameter, load_once, name)

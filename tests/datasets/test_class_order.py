"""Classes have one order in all kinds of data: numbers by value."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fnlkit
from fnlkit import datasets
from fnlkit.datasets.dataset import must_be

NAMES = [str(c) for c in range(12)]


def write(folder, route):
    for c in NAMES:
        for part in ("train", "test") if route == "split" else ("A", "B"):
            home = folder / (c if route == "class" else f"{part}/{c}")
            home.mkdir(parents=True, exist_ok=True)
            for i in range(3):
                image = np.random.default_rng(100 * int(c) + 10 * (part == "B") + i).integers(0, 256, (6, 6))
                Image.fromarray(image.astype(np.uint8)).save(home / f"{part}{i}.png")
    if route == "files":
        rows = [(str(p.relative_to(folder)), p.parent.name, p.parent.parent.name) for p in sorted(folder.rglob("*.png"))]
        pd.DataFrame(rows, columns=["path", "label", "site"]).to_csv(folder / "t.csv", index=False)
        return str(folder / "t.csv")
    return f'folder(path="{folder}", label={2 if route == "site" else 1})' if route in ("class", "site") else str(folder)


@pytest.mark.parametrize("route", ["class", "site", "split", "files"])
def test_numbers_are_ordered_by_value_and_a_matrix_hits_the_named_class(route, tmp_path):
    fed = fnlkit.partition(write(tmp_path, route), clients=2, holdout=0, say=None)
    data = datasets.load(fed.dataset)
    assert data.class_names == fed.meta["class_names"] == NAMES
    assert [path.split("/")[-2] for path in data.paths] == [NAMES[label] for label in data.y_train]
    matrix = np.eye(12)
    matrix[2, 2:4] = 0, 1
    np.savetxt(tmp_path / "T.csv", matrix, delimiter=",")
    noisy = fnlkit.inject_noise(fed, f'matrix(path="{tmp_path / "T.csv"}")', say=None)
    assert (noisy.true != noisy.given).any() and set(noisy.true[noisy.true != noisy.given]) == {2}
    assert set(noisy.given[noisy.true != noisy.given]) == {3}
    np.save(tmp_path / "labels.npy", np.array([int(path.split("/")[-2]) for path in data.paths]))
    assert (fnlkit.inject_noise(fed, f'labels(path="{tmp_path / "labels.npy"}")', say=None).given == fed.given).all()


@pytest.mark.parametrize("route", ["class", "files"])
def test_files_of_earlier_versions_keep_their_order_of_classes(route, tmp_path):
    """Earlier versions ordered class folders as texts; their federations and runs store this order and a checksum of it."""
    name = write(tmp_path, route)
    fed, before = fnlkit.partition(name, clients=2, say=None), datasets.load(name)
    before.order_classes(sorted(NAMES))
    number = np.array([sorted(NAMES).index(c) for c in NAMES])
    fed.given = number[fed.given]
    fed.meta |= {"class_names": sorted(NAMES), "dataset_checksum": before.checksum}
    again = datasets.load(name)
    assert before.checksum != again.checksum
    assert must_be(again, fed.meta, len(fed.given), what="the federation") is None
    assert again.class_names == sorted(NAMES) and (again.y_train == fed.given).all()
    run = fnlkit.train(fed, rounds=1, fraction=1.0, model="mlp", backbone="none", say=None)
    assert run.meta["samples"]["class_names"] == sorted(NAMES)
    must_be(datasets.load(name), run.meta, len(fed.given), what="the run")

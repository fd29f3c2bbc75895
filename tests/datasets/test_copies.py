"""Equal samples are never on both sides of a split, in every kind of data set."""

import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fnlkit
from fnlkit import datasets
from fnlkit.datasets.copies import find_copies, merge
from fnlkit.experiment import Settings
from fnlkit.sites import flower_app
from fnlkit.sites.samples import load_for_task
from tests.commands import refuse_call

ROUTES = ("table", "npz", "npy", "npz per site", "folder", "files")


def sixty(kind="vectors"):
    """Sixty samples, of which the last 20 equal the first 20, and labels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5)) if kind == "vectors" else rng.integers(0, 256, (40, 16, 16, 3)).astype(np.uint8)
    return np.concatenate([x, x[:20]]), np.arange(60) % 2


def write(folder, route, tested):
    """Write a data set in which `tested` (60,) are test samples; return its spec."""
    images = route in ("folder", "files")
    x, y = sixty("images" if images else "vectors")
    words = np.where(tested, "test", "train")
    if images:
        for i, image in enumerate(x):
            path = folder / "photos" / words[i] / "pq"[y[i]] / f"{i:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        if route == "folder" and tested.any():
            return str(folder / "photos")
        if route == "folder":
            shutil.move(folder / "photos/train", folder / "site")
            return f'folder(path="{folder}", label=2)'
    if route == "files":
        names = [f"photos/{words[i]}/{'pq'[y[i]]}/{i:02}.png" for i in range(60)]
        pd.DataFrame({"path": names, "label": y, "split": words}).to_csv(folder / "t.csv", index=False)
    if route == "table":
        pd.DataFrame(x, columns=list("abcde")).assign(label=y, split=words).to_csv(folder / "t.csv", index=False)
    if route in ("files", "table"):
        return str(folder / "t.csv")
    arrays = {"x_train": x[~tested], "y_train": y[~tested]}
    arrays |= {"x_test": x[tested], "y_test": y[tested]} if tested.any() else {}
    if route == "npz per site":
        (folder / "sites").mkdir()
        for name, part in (("A", slice(0, 40)), ("B", slice(40, 60))):
            np.savez(folder / "sites" / f"{name}.npz", x=x[part], y=y[part], split=words[part])
        return str(folder / "sites")
    if route == "npy":
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        return str(folder)
    np.savez(folder / "own.npz", **arrays)
    return str(folder / "own.npz")


def keys(x):
    return {row.tobytes() for row in np.asarray(x[:])}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("duplicates", ["together", "drop"])
def test_no_copy_is_on_both_sides(route, duplicates, tmp_path):
    """Copies in the test set are left out of training; copies in training are held out together, at one client, or once."""
    notes = []
    name = write(tmp_path, route, np.arange(60) >= 40)
    fed = fnlkit.partition(name, clients=2, duplicates=duplicates, say=notes.append)
    data = datasets.load(name)
    assert not keys(data.x_train[fed.client_indices]) & keys(data.x_test) and len(fed.client_indices) == 20
    assert fed.meta["copies"]["test"] == 20 and any("20 of 20 test samples have a copy" in note for note in notes)

    (tmp_path / "whole").mkdir()
    name = write(tmp_path / "whole", route, np.zeros(60, bool))
    fed = fnlkit.partition(name, clients=3, holdout=0.3, duplicates=duplicates, say=notes.append)
    data = datasets.load(name)
    parts = [*(keys(data.x_train[part]) for part in fed.clients), keys(data.x_train[np.concatenate(fed.held_out)])]
    assert not any(a & b for i, a in enumerate(parts) for b in parts[:i])
    assert sum(map(len, fed.clients)) + sum(map(len, fed.held_out)) == (60 if duplicates == "together" else 40)
    assert fed.meta["copies"]["training"] == 20


def test_allowed_copies_are_counted(tmp_path):
    notes = []
    fed = fnlkit.partition(write(tmp_path, "npz", np.arange(60) >= 40), clients=2, duplicates="allow", say=notes.append)
    assert len(fed.client_indices) == 40 and fed.meta["copies"]["test"] == 20 and any("too good" in note for note in notes)
    refuse_call("`duplicates`", fnlkit.partition, write(tmp_path, "npz", np.arange(60) >= 40), duplicates="no", say=None)


def test_a_training_set_that_is_the_test_set_is_kept_with_a_note(tmp_path):
    x, y = sixty()
    np.savez(tmp_path / "own.npz", x_train=x[:40], y_train=y[:40], x_test=x[:40], y_test=y[:40])
    notes = []
    fed = fnlkit.partition(tmp_path / "own.npz", clients=2, say=notes.append)
    assert len(fed.client_indices) == 40 and any("40 of 40 test samples have a copy in training; scores" in n for n in notes)


def test_sites_that_share_rows_are_counted_and_hold_them_out_together(tmp_path):
    x, y = sixty()
    d = pd.DataFrame(x, columns=list("abcde")).assign(label=y, site=np.repeat(["A", "B", "C"], 20))
    d.to_csv(tmp_path / "t.csv", index=False)
    facts = {}
    fed = fnlkit.partition(tmp_path / "t.csv", "sites", holdout=0.3, say=None, report=facts.update)
    assert facts["copies"]["sites"] == 2 and len(fed) == 3
    held, trained = (np.concatenate(part) for part in (fed.held_out, fed.clients))
    assert len(held) and not keys(x[held]) & keys(x[trained])


def test_groups_and_copies_are_joined(tmp_path):
    x, y = sixty()
    d = pd.DataFrame(x, columns=list("abcde")).assign(label=y, patient=[f"p{i // 2}" for i in range(60)])
    d.to_csv(tmp_path / "t.csv", index=False)
    fed = fnlkit.partition(tmp_path / "t.csv", clients=2, holdout=0.3, say=None)
    group = fed.extra["group"]
    assert (group[:20] == group[40:]).all() and (group[::2] == group[1::2]).all() and len(np.unique(group)) == 20
    assert merge(np.array([0, 0, 1, 2, 3]), np.array([0, 1, 1, 2, 3]), links=np.array([[3, 4]])).tolist() == [0, 0, 0, 1, 1]


def test_rows_that_are_equal_by_chance_are_no_copies(tmp_path):
    """Four columns of two values have 16 different rows, of which most repeat."""
    rng = np.random.default_rng(0)
    values, notes = rng.integers(0, 2, (500, 4)), []
    pd.DataFrame(values, columns=list("abcd")).assign(label=rng.integers(0, 2, 500)).to_csv(tmp_path / "t.csv", index=False)
    fed = fnlkit.partition(tmp_path / "t.csv", clients=10, say=notes.append)
    assert "group" not in fed.extra and sum(map(len, fed.clients)) + sum(map(len, fed.held_out)) == 500
    assert fed.meta["copies"] | {"by_chance": 0} == {
        "test": 0, "training": 0, "sites": 0, "by_chance": 0, "left_out": 0, "duplicates": "together"
    }  # fmt: skip
    assert any("as expected for columns with few values" in note for note in notes)


@pytest.mark.parametrize("content", ["noise", "gradient"])
def test_images_in_another_size_or_format_are_copies(content, tmp_path):
    """Ten of 20 test images are training images in another size or format; others of the same kind are none."""
    rng = np.random.default_rng(0)

    def draw():
        if content == "noise":
            return rng.integers(0, 256, (48, 48, 3)).astype(np.uint8)
        angle, place = rng.uniform(0, 2 * np.pi), np.linspace(-1, 1, 48)
        wave = np.sin(rng.uniform(2, 9) * (np.cos(angle) * place[:, None] + np.sin(angle) * place) + rng.uniform(0, 6))
        return np.repeat((127 + 100 * wave)[..., None], 3, 2).astype(np.uint8)

    for c in "ab":
        for part in ("train", "test"):
            (tmp_path / part / c).mkdir(parents=True)
        for i in range(10):
            image = Image.fromarray(draw())
            image.save(tmp_path / "train" / c / f"{i}.png")
            if i < 3:
                image.resize((36, 36)).save(tmp_path / "test" / c / f"{i}.png")
            elif i < 5:
                image.save(tmp_path / "test" / c / f"{i}.jpg", quality=90)
            else:
                Image.fromarray(draw()).resize((40, 40)).save(tmp_path / "test" / c / f"{i}.png")
    found = find_copies(datasets.load(f'folder(path="{tmp_path}", size=32)'))
    assert found.facts()["test"] == 10 and found.in_test.reshape(2, 10)[:, :5].all() and found.in_test.sum() == 10


def test_votes_on_a_sample_are_no_copies(tmp_path):
    x, _ = sixty()
    votes = np.random.default_rng(0).integers(0, 2, (40, 3))
    np.savez(tmp_path / "own.npz", x_train=x[:40], votes_train=votes)
    fed = fnlkit.partition(tmp_path / "own.npz", "annotators", say=None)
    assert "copies" not in fed.meta and "group" not in fed.extra


def test_a_site_does_not_train_on_its_test_samples(tmp_path):
    name = write(tmp_path, "npz", np.arange(60) >= 50)
    task = flower_app.describe(datasets.load(name), Settings(), names=["a", "b"], keys=[], tasks=["train"])
    data = load_for_task(name, task)
    assert len(data.y_train) == 40 and not keys(data.x_train) & keys(data.x_test)
    assert (data.groups[:10] == data.groups[30:]).all() and len(np.unique(data.groups)) == 30


def test_published_data_sets_keep_their_rows():
    fed = fnlkit.partition("heart", clients=3, say=None)
    assert "copies" not in fed.meta and sum(map(len, fed.clients)) == 666

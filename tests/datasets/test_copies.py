"""Equal samples, and rows of one patient, are never on both sides of a split, whatever the route of the data."""

import shutil
from collections import Counter

import numpy as np
import pandas
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import InputError
from fnlkit.datasets.class_folders import split
from fnlkit.datasets.copies import find_copies, merge
from fnlkit.datasets.groups import as_texts, assign_folds, class_of_groups, repeats_like_groups
from fnlkit.experiment import Settings
from fnlkit.simulate import partitioning
from fnlkit.simulate.holdout import set_apart
from fnlkit.sites import flower_app
from fnlkit.sites.samples import load_for_task
from tests.commands import refuse_call, succeed
from tests.simulate.test_partitioning import SPECS

# ---- equal samples are never on both sides of a split, in every kind of data set
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


# ---- groups: rows of one patient are never divided, on whatever route the data come and whatever divides them
SIZES = np.random.default_rng(0).integers(1, 9, 60)
PATIENTS = np.repeat(np.arange(60), SIZES)  # of 60 patients with 1 to 8 rows
LABELS = np.random.default_rng(1).integers(0, 3, 60)[PATIENTS]


def table_of(path, name="patient_id", values=None, more=""):
    values = [f"p{i:03d}" for i in PATIENTS] if values is None else values
    rng = np.random.default_rng(2)
    lines = [f"{name},age,label{more and ',site'}"]
    lines += [f"{v},{rng.normal():.3f},{'abc'[y]}{more and f',{more[i % len(more)]}'}" for i, (v, y) in
              enumerate(zip(values, LABELS, strict=True))]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return path


def divided(groups, *parts):
    """Return the number of groups with samples in several of the parts (lists of positions)."""
    owned = np.concatenate([np.unique(groups[part]) for part in parts])
    return len(owned) - len(np.unique(owned))


def toy(groups=PATIENTS, labels=LABELS, clients=None):
    clients = [np.arange(len(labels))] if clients is None else clients
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in clients])])
    return Federation("x", 3, offsets, np.concatenate(clients), labels, extra={"group": groups})


# ---- numbers and classes of groups
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(-1, 4)), min_size=1, max_size=40))
def test_the_class_of_a_group_is_its_most_frequent_label_and_of_ties_the_lowest(pairs):
    groups, labels = np.array(pairs).T
    names, group, classes = class_of_groups(labels, groups)
    assert names.tolist() == sorted(set(groups.tolist())) and (names[group] == groups).all()
    for name, label in zip(names, classes, strict=True):
        counts = Counter(labels[groups == name].tolist())
        assert label == min(counts, key=lambda y: (-counts[y], y))


# ---- routes
def test_a_table_has_groups_by_the_name_of_a_column_or_by_option(tmp_path):
    data = datasets.load(table_of(tmp_path / "a.csv"))
    assert data.groups.tolist() == PATIENTS.tolist() and data.columns == ["age"]
    assert any("60 groups" in note for note in data.notes)
    named = table_of(tmp_path / "b.csv", name="mrn")
    assert datasets.load(named).groups is None
    fed = fnlkit.partition(named, clients=3, group="mrn", say=None)
    assert fed.extra["group"].tolist() == PATIENTS.tolist() and 'group="mrn"' in fed.dataset
    assert datasets.load(f'manifest(file="{tmp_path / "a.csv"}", group="-", categorical=[patient_id])').groups is None


def test_a_name_with_other_meanings_is_a_group_only_with_many_values(tmp_path):
    assert datasets.load(table_of(tmp_path / "a.csv", name="group")).groups is not None
    arms = table_of(tmp_path / "b.csv", name="group", values=["arm A" if i % 2 else "arm B" for i in range(len(PATIENTS))])
    data = datasets.load(arms)
    assert data.groups is None and "group: arm A" in data.columns


def test_equal_names_at_different_sites_are_different_groups(tmp_path):
    data = datasets.load(table_of(tmp_path / "a.csv", more=["x", "y"]))
    key = [(p, i % 2) for i, p in enumerate(PATIENTS)]
    assert len(np.unique(data.groups)) == len(set(key))


def test_npz_npy_and_an_npz_per_site_have_groups(tmp_path):
    x, n = np.random.default_rng(3).normal(size=(len(PATIENTS), 4)).astype(np.float32), len(PATIENTS)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=LABELS, groups_train=PATIENTS)
    assert datasets.load(tmp_path / "a.npz").groups.tolist() == PATIENTS.tolist()
    np.savez(tmp_path / "b.npz", x_train=x, y_train=LABELS, scanner_train=PATIENTS)
    fed = fnlkit.partition(tmp_path / "b.npz", clients=3, group="scanner", say=None)
    assert divided(PATIENTS, *fed.clients) == 0
    refuse_call("no field 'scaner'", fnlkit.partition, tmp_path / "b.npz", group="scaner")
    (tmp_path / "npy").mkdir()
    for name, values in (("x_train", x), ("y_train", LABELS), ("groups_train", PATIENTS)):
        np.save(tmp_path / "npy" / f"{name}.npy", values)
    assert datasets.load(tmp_path / "npy").groups.tolist() == PATIENTS.tolist()
    (tmp_path / "sites").mkdir()
    for k, rows in enumerate((np.arange(0, n // 2), np.arange(n // 2, n))):
        np.savez(tmp_path / "sites" / f"s{k}.npz", x=x[rows], y=LABELS[rows], groups=PATIENTS[rows] % 20)
    data = datasets.load(tmp_path / "sites")
    assert len(np.unique(data.groups)) == 2 * 20 and divided(data.groups, np.arange(n // 2), np.arange(n // 2, n)) == 0


def test_groups_of_test_samples_are_read_from_tables_and_arrays(tmp_path):
    rows = "".join(f"p{i // 4},{i}.5,{'ab'[i % 2]},{'test' if i < 12 else 'train'}\n" for i in range(40))
    (tmp_path / "a.csv").write_text("patient,age,label,split\n" + rows)
    table = datasets.load(tmp_path / "a.csv")
    arrays = {"x": np.zeros((40, 2), np.float32), "y": np.arange(40) % 2, "groups": np.arange(40) // 4}
    parts = {f"{name}_{part}": values[rows] for name, values in arrays.items()
             for part, rows in (("train", slice(12, None)), ("test", slice(12)))}  # fmt: skip
    np.savez(tmp_path / "a.npz", **parts)
    for data in (table, datasets.load(tmp_path / "a.npz")):
        assert [len(np.unique(groups)) for groups in (data.groups, data.groups_test)] == [7, 3]
        assert not np.intersect1d(data.groups, data.groups_test).size and not any("too good" in note for note in data.notes)
    np.savez(tmp_path / "b.npz", **parts | {"groups_test": np.arange(12)})
    assert any("7 groups have" in note and "too good" in note for note in datasets.load(tmp_path / "b.npz").notes)
    np.savez(tmp_path / "b.npz", **parts | {"groups_test": np.arange(11)})
    refuse_call("`groups_test`", datasets.load, tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (("Patient_ID_train", PATIENTS[1:]), "`Patient_ID_train`.*each of the"),
        (("ids_train", PATIENTS[1:]), "`ids_train`.*each of the"),
        (("site_train", PATIENTS[None]), "`site_train`.*each of the"),
        (("patient_id_train", np.stack([PATIENTS, PATIENTS], 1)), "`patient_id_train`.*each of the"),
        (("ids_train", np.array("p1")), "`ids_train`.*each of the"),
        (("site_train", np.where(PATIENTS == 3, "", "a")), "every sample needs a site"),
        (("site_train", np.where(PATIENTS == 3, np.nan, 1)), "every sample needs a site"),
    ],
)
def test_an_array_without_a_value_for_each_sample_is_refused(array, problem, tmp_path):
    """Arrays of another length were ignored, so that patients were divided."""
    np.savez(tmp_path / "a.npz", x_train=np.zeros((len(LABELS), 2), np.float32), y_train=LABELS, **dict([array]))
    refuse_call(problem, datasets.load, tmp_path / "a.npz")


def test_a_column_of_an_npz_has_the_groups_and_nan_is_a_group_of_its_own(tmp_path):
    """Arrays (n, 1) were ignored, and all samples without a patient were one group."""
    x = np.zeros((len(LABELS), 2), np.float32)
    groups = np.where(PATIENTS == 3, np.nan, PATIENTS)
    columns = {"groups_train": groups[:, None], "site_train": PATIENTS[:, None] % 2, "document_train": x.astype(int)}
    np.savez(tmp_path / "a.npz", x_train=x, y_train=LABELS, **columns)  # a document can be numbers of words, no group
    data = datasets.load(tmp_path / "a.npz")
    assert len(np.unique(data.groups[PATIENTS == 3])) == (PATIENTS == 3).sum() > 1 and set(data.fields["site"]) == {"0", "1"}
    (tmp_path / "sites").mkdir()
    np.savez(tmp_path / "sites" / "a.npz", x=x, y=LABELS, groups=groups)
    assert len(np.unique(datasets.load(tmp_path / "sites").groups)) == 59 + (PATIENTS == 3).sum()


@pytest.mark.parametrize(
    ("sites_of_test", "shared"),
    [(np.array(["Clinic  a", "b"] * 6), 6), (None, 12), (np.full(12, ""), 12), (np.array(["Clinic A", ""] * 6), 12)],
)
def test_groups_at_sites_are_compared_with_those_of_the_test_samples(sites_of_test, shared, tmp_path):
    """`site_test` was ignored, and no group had training and test samples."""
    arrays = {"x_train": np.zeros((40, 2), np.float32), "y_train": np.arange(40) % 2, "groups_train": np.arange(40) // 2,
              "x_test": np.zeros((12, 2), np.float32), "y_test": np.arange(12) % 2, "groups_test": np.arange(12)}  # fmt: skip
    arrays |= {"site_train": np.full(40, "Clinic A")} | ({} if sites_of_test is None else {"site_test": sites_of_test})
    np.savez(tmp_path / "a.npz", **arrays)
    data = datasets.load(tmp_path / "a.npz")
    notes = [note for note in data.notes if f"{shared} groups have" in note]
    assert len(notes) == 1 and ("add the sites" in notes[0]) == (shared == 12) and set(data.fields["site"]) == {"Clinic A"}


def test_arrays_that_are_no_value_per_sample_are_ignored_unless_they_have_the_groups_of_test_samples(tmp_path):
    """An embedding of each speaker and the names of test samples that are not there were refused."""
    arrays = {"x_train": np.zeros((40, 2), np.float32), "y_train": np.arange(40) % 2, "speaker_train": np.zeros((40, 16)),
              "group_train": np.array(["treated", "control"]), "case_train": np.array("S01"), "patient_train": np.array(5),
              "Subject_train": np.arange(40) // 2, "site_train": np.full(40, "Clinic A")}  # fmt: skip
    np.savez(tmp_path / "a.npz", **arrays, ids_test=np.arange(3), site_test=np.full(80, "clinic a"))
    data = datasets.load(tmp_path / "a.npz")
    assert len(np.unique(data.groups)) == 20 and set(data.fields) == {"Subject", "site"}
    arrays |= {"x_test": np.zeros((12, 2), np.float32), "y_test": np.arange(12) % 2, "speaker_test": np.zeros((12, 16))}
    np.savez(tmp_path / "a.npz", **{key: arrays[key] for key in arrays if key != "site_train"}, ids_test=np.arange(3),
             site_test=np.array("a"))  # fmt: skip
    assert len(np.unique(datasets.load(tmp_path / "a.npz").groups)) == 20
    for groups in (np.arange(11), np.zeros((12, 2))):
        np.savez(tmp_path / "a.npz", **arrays, Subject_test=groups)
        refuse_call("`Subject_test` has the shape", datasets.load, tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("names", "texts"),
    [
        (np.array(["a", None, float("nan"), pandas.NA, "a"], dtype=object), ["a", "", "", "", "a"]),
        (np.array(["Ä", "b", "Ä"]).astype("U1"), ["Ä", "b", "Ä"]),
        (np.array(["Ä".encode(), "Ä".encode("latin-1"), b"b"]), ["Ä", "\\xc4", "b"]),
        (np.float32([0.1, float("nan")]), ["0.1", ""]),
    ],
)
def test_names_of_groups_as_texts(names, texts):
    """NA of pandas and bytes beyond ASCII were internal errors, and all samples with None were one group."""
    assert as_texts(names) == texts


def test_labels_missing_in_an_npz_leave_the_groups_in_place(tmp_path):
    y = LABELS.copy()
    y[::3] = -1
    x = np.zeros((len(y), 2), np.float32)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, group_id_train=PATIENTS)
    assert datasets.load(tmp_path / "a.npz").groups.tolist() == PATIENTS[y >= 0].tolist()


@pytest.mark.parametrize(("form", "label", "group"), [("{p}/{c}/{i}.png", 2, 1), ("{s}/{c}/{p}/{i}.png", 2, 3)])
def test_a_level_of_folders_is_the_group(tmp_path, form, label, group):
    rng = np.random.default_rng(4)
    for p in range(24):
        for i in range(rng.integers(1, 5)):
            file = tmp_path / form.format(c="ab"[(p + i) % 2], p=f"p{p}", s=f"site{p % 2}", i=f"{p}-{i}")
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 255, (4, 5), np.uint8)).save(file)
    refuse_call("level", datasets.load, f'folder(path="{tmp_path}", label=1, group=1)')
    data = datasets.load(f'folder(path="{tmp_path}", label={label}, group={group})')
    patients = np.array([text.rpartition("/")[2].partition("-")[0] for text in data.ids])
    assert len({*zip(data.groups, patients, strict=True)}) == len({*data.groups}) == len({*patients})
    assert ("site" in data.fields) == (group == 3) and data.class_names == ["a", "b"]
    fed = fnlkit.partition(f'folder(path="{tmp_path}", label={label})', clients=2, group=str(group), say=None)
    assert divided(data.groups, *fed.clients, *fed.held_out) == 0


def test_the_fixed_split_of_a_folder_keeps_groups_together():
    train, test = split(LABELS, groups=PATIENTS)
    assert divided(PATIENTS, train, test) == 0 and np.array_equal(np.sort(np.r_[train, test]), np.arange(len(LABELS)))
    assert 0.1 < len(test) / len(LABELS) < 0.3


# ---- simulated clients
@pytest.mark.parametrize("scheme", SPECS)
def test_no_scheme_divides_a_group(scheme):
    sizes = np.random.default_rng(5).integers(1, 6, 400)
    groups, rng = np.repeat(np.arange(400), sizes), np.random.default_rng(6)
    labels = rng.integers(0, 10, 400)[groups]
    order = rng.permutation(len(groups))
    parts = partitioning.partition(labels[order], 10, scheme, clients=5, seed=1, groups=groups[order])
    assert divided(groups[order], *parts) == 0
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(groups)))


def test_a_public_share_consists_of_whole_groups(tmp_path):
    fed = fnlkit.partition(table_of(tmp_path / "a.csv"), clients=3, public=0.3, holdout=0, say=None)
    rest = np.setdiff1d(np.arange(len(PATIENTS)), fed.client_indices)
    assert len(rest) and divided(PATIENTS, rest, *fed.clients) == 0 and len(np.unique(PATIENTS[rest])) == 18


# ---- held-out samples and folds
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=4, max_size=60), st.floats(0.05, 0.9),
       st.integers(1, 3), st.booleans())  # fmt: skip
def test_hold_out_and_folds_never_divide_a_group(pairs, share, clients, follow):
    groups, labels = np.array(pairs).T
    owner = groups % clients if follow else np.arange(len(groups)) % clients  # or groups with samples at several clients
    parts = [np.flatnonzero(owner == k) for k in range(clients) if (owner == k).any()]
    fed = toy(groups, labels, parts)
    out = set_apart(fed, holdout=share, seed=1)
    assert divided(groups, out.client_indices, np.concatenate(out.held_out)) == 0
    assert all(map(len, out.clients))
    try:
        fold = assign_folds(fed, 3, 1)
    except InputError:
        return
    for g in np.unique(groups):
        assert len(np.unique(fold[groups == g])) == 1
    for part in parts:  # a client trains on something, whichever fold is left out
        assert all((fold[part] != f).any() for f in range(3))


def test_the_held_out_share_is_that_of_groups_by_class():
    counts = []
    for seed in range(60):
        out = set_apart(toy(), holdout=0.25, seed=seed)
        counts.append([len(np.unique(PATIENTS[out.held_out[0]][LABELS[out.held_out[0]] == y])) for y in range(3)])
    _, _, classes = class_of_groups(LABELS, PATIENTS)
    expected = np.bincount(classes) / 4
    assert (np.abs(np.array(counts) - expected) < 1 + 1e-9).all()
    assert np.allclose(np.mean(counts, 0), expected, atol=0.25)


def test_verified_samples_hold_out_their_groups():
    out = set_apart(toy(), gold=(np.array([0, 20]), np.array([1, 1])))
    expected = np.flatnonzero(np.isin(PATIENTS, PATIENTS[[0, 20]]))
    assert out.held_out[0].tolist() == expected.tolist()
    assert (out.extra["gold_label"] >= 0).sum() == 2


def test_votes_on_samples_of_one_group_stay_together(tmp_path):
    n, rng = len(PATIENTS), np.random.default_rng(7)
    votes = np.where(rng.random((n, 4)) < 0.6, LABELS[:, None], -1)
    votes[:, 0] = LABELS
    np.savez(tmp_path / "a.npz", x_train=rng.normal(size=(n, 3)).astype(np.float32), votes_train=votes, groups_train=PATIENTS)
    fed = fnlkit.partition(tmp_path / "a.npz", "annotators", say=None)
    groups = fed.extra["group"]
    assert len(groups) == (votes >= 0).sum()
    assert divided(groups, fed.client_indices, np.concatenate(fed.held_out)) == 0 and len(np.concatenate(fed.held_out))


def test_a_file_with_groups_is_read_again_and_bad_groups_are_refused(tmp_path):
    fed = fnlkit.partition(table_of(tmp_path / "a.csv"), clients=3, say=None)
    fed.write(tmp_path / "fed.npz")
    again = Federation.read(tmp_path / "fed.npz")
    assert (again.extra["group"] == PATIENTS).all() and "60" in again.facts()["groups"]
    assert " of 60 groups, " in succeed("fnlkit info fed.npz", tmp_path).stdout
    refuse_call("`group`", toy(PATIENTS.astype(float)).check)
    refuse_call("`group`", fnlkit.partition, fed, group="age")
    refuse_call("federation", fnlkit.partition, fed, label="age")


# ---- notes
@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("mrn", np.repeat(np.arange(100231, 100261), 4), True),
        ("who", [f"p{i:02d}" for i in np.repeat(np.arange(30), 4)], True),
        ("age", np.repeat(np.arange(20, 50), 4), False),
        ("patient_no", np.arange(120), False),
        ("ward_id", np.arange(120) % 3, False),
        ("city", np.repeat([f"town {chr(97 + i)}" for i in range(20)], 6), False),
    ],
)
def test_columns_that_repeat_like_identifiers_of_groups(name, values, expected):
    assert repeats_like_groups(name, [str(v) for v in values]) == expected

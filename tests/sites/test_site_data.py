"""Samples of sites become those of the task: tables by the names of their columns, an npz of one site as it lies."""

import re

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.experiment import Experiment, Settings
from fnlkit.simulate.partitioning import federation
from fnlkit.sites import flower_app
from fnlkit.sites.samples import samples_like
from fnlkit.sites.site.preview import describe_data
from tests.commands import refuse_call
from tests.sites.deployed import DeployedProject

HEAD = "age,crp,ward,stage,label"


def patients(count, seed, wards=("north", "south", "east")):
    """Return rows of a table whose features have very different scales."""
    rng = np.random.default_rng(seed)
    ill = rng.integers(0, 2, count)
    age, crp = 60 + 12 * rng.standard_normal(count), 2000 + 300 * ill + 200 * rng.standard_normal(count)
    ward, stage = rng.choice(wards, count), 0.001 * (ill + rng.standard_normal(count))
    return [
        f"{a:.1f},{c:.2f},{w},{s:.6f},{('well', 'ill')[i]}" for a, c, w, s, i in zip(age, crp, ward, stage, ill, strict=True)
    ]


def write(path, rows, head=HEAD):
    path.write_text("\n".join([head, *rows]) + "\n")
    return str(path)


@pytest.fixture
def tables(tmp_path):
    """The coordinator's table, and those of three sites; one site has fewer wards, one the columns in another order."""
    write(tmp_path / "ours.csv", patients(90, 0))
    write(tmp_path / "site-0.csv", patients(80, 1, wards=("north",)))
    write(tmp_path / "site-1.csv", [",".join(row.split(",")[::-1]) for row in patients(70, 2)], ",".join(HEAD.split(",")[::-1]))
    write(tmp_path / "site-2.csv", [f"{row},x{i}" for i, row in enumerate(patients(60, 3))], f"{HEAD},comment")
    return tmp_path


def deployed(folder, **settings):
    """Return a project over the tables."""
    common = {"rounds": 6, "fraction": 1.0, "epochs": 3, "model": "mlp(hidden=8)", "precision": "fp64", "method": "fedavg"}
    data, paths = datasets.load(str(folder / "ours.csv")), [folder / f"site-{k}.csv" for k in range(3)]
    return DeployedProject(folder, data, Settings(**(common | settings)), paths)


def pool_sites(parts, classes, statistics=None):
    """Return (Federation, Dataset) of a simulation with the vectors (x, y) of each site."""
    x, y = (np.concatenate([np.asarray(values) for values in each]) for each in zip(*parts, strict=True))
    sites = np.repeat([*"abc"[: len(parts)]], [len(given) for _, given in parts])
    whole = datasets.dataset.Dataset("all", "vector", y, y[:0], list(classes), lambda: (x, x[:0]), statistics=statistics,
                                     fields={"site": sites}, observed=True)  # fmt: skip
    return federation(whole, "sites", holdout=0), whole


def test_a_deployment_over_tables_ends_where_a_simulation_does(tables, capsys):
    """Same columns, categories and scale; the simulation takes them from the coordinator's table too."""
    found = deployed(tables, rounds=3)
    run, task, settings = found.train(), found.project, found.task.settings
    parts = [samples_like(str(tables / f"site-{k}.csv"), task) for k in range(3)]
    # Classes are sorted in each table alike: ill, well.
    scale = tuple(task.mean), tuple(task.std)
    by_site, whole = pool_sites([(part.x_train, part.y_train) for part in parts], task.classes, scale)
    plain = Experiment(by_site, whole, settings, engine="sequential").run()
    assert torch.equal(run.weights, plain.weights) and whole.x_train.shape[1] == 6
    assert run.meta["samples"]["columns"] == task.columns and len(task.mean) == 6


def test_units_of_columns_are_compared(tables):
    """Another unit is refused by the name of the column; a unit that only one side states is noted."""
    head = HEAD.replace("age", "age [years]").replace("crp", "crp [ng/ml]")
    write(tables / "ours.csv", patients(90, 0), head)
    project = deployed(tables)
    task = project.project
    site = write(tables / "site.csv", patients(20, 5), HEAD.replace("age", "age[years]"))
    plain = samples_like(write(tables / "same.csv", patients(20, 5), head), task)
    found = samples_like(site, task)
    assert np.array_equal(found.x_train, plain.x_train)
    noted = [note for note in found.notes if "unit" in note]
    assert len([note for note in noted if "'crp'" in note]) == 1 and not [note for note in plain.notes if "no unit" in note]
    for wrong in ("age [months]", "age [Years]"):
        write(tables / "site.csv", patients(20, 5), HEAD.replace("age", wrong))
        refuse_call("site.csv: column 'age'.*years", project.site, data=site)


def test_a_unit_that_the_partners_do_not_state_is_noted(tables):
    task = deployed(tables).project
    site = write(tables / "site.csv", patients(20, 5), HEAD.replace("age", "age [months]"))
    found = samples_like(site, task)
    assert [note for note in found.notes if "'age'" in note and "months" in note]


@pytest.mark.parametrize(
    ("head", "change", "named"),
    [
        ("age,CRP,ward,stage,label", None, "crp"),
        ("a,b,c,d,label", None, "age"),
        (HEAD, ("north", "nowhere"), "'nowhere', .*correct the cell, or, if it is right, .* the coordinator"),
        (HEAD, ("well", "healthy"), "healthy"),
        (HEAD, (",well", ",wel"), "'wel' .*did you mean 'well'"),
        (HEAD, (r"\.", ",5,"), "row 2"),
        (HEAD, (",(north|south|east),", ",3,"), "column 'ward'"),
        (HEAD, (r"^[\d.]+,", "old,"), "column 'age'"),
    ],
)
def test_a_site_with_other_columns_is_refused(head, change, named, tables):
    project = deployed(tables)
    rows = [re.sub(*change, row, count=1) if change else row for row in patients(20, 5)]
    project.nodes[100]["data"] = write(tables / "other.csv", rows, head)
    refuse_call(f"other.csv.*{named}", project.site)


@pytest.mark.parametrize("form", ["npz", "folder", "manifest of files"])
def test_samples_of_another_form_are_no_table(form, tables):
    project = deployed(tables)
    np.savez(tables / "v.npz", x_train=np.zeros((4, 6), np.float32), y_train=[0, 1, 0, 1], class_names=["ill", "well"])
    np.save(tables / "a.npy", np.zeros(6, np.float32))
    write(tables / "files.csv", ["a.npy,ill", "a.npy,well"], "path,label")
    path = {"npz": "v.npz", "folder": "project", "manifest of files": "files.csv"}[form]
    refuse_call(path, project.site, data=str(tables / path))


@pytest.mark.parametrize("split", [False, True])
def test_an_npz_of_one_site_is_taken(split, tmp_path, capsys):
    """x, y and groups, as in a folder of sites: "" for no label, a class that is left out, rows for test left out."""
    x, groups, kept = np.random.default_rng(0).random((40, 5)).astype(np.float32), np.arange(40) // 5, np.arange(40) % 4 < 2
    np.savez(tmp_path / "ours.npz", x_train=x, y_train=np.arange(40) % 2, class_names=np.array(["ill", "well"]))
    more = {"split": np.array(["test"] * 4 + ["train"] * 36)} if split else {}
    kept[: len(more) * 4] = False
    np.savez(tmp_path / "Aix.npz", x=x, y=np.array(["ill", "well", "", "odd"] * 10), groups=groups, **more)
    settings = Settings(method="fedavg", model="mlp(hidden=4)", rounds=1, fraction=1.0)
    project = DeployedProject(tmp_path, datasets.load(str(tmp_path / "ours.npz")), settings, [tmp_path / "Aix.npz"])
    client = project.site(leave_out="odd").client
    client.arrive()
    assert client.given.tolist() == [0, 1] * (kept.sum() // 2) and client.rows["input/group"].tolist() == groups[kept].tolist()
    np.savez(tmp_path / "Aix.npz", x=x, y=np.arange(3))
    refuse_call("Aix.npz", project.site)


def test_the_check_of_a_table_counts_empty_cells(tables):
    rows = ["60,2000,,0.1,ill", *patients(39, 2)]
    found = describe_data(write(tables / "theirs.csv", rows), str(deployed(tables).agreed))
    assert found["missing"] == {"ward": 1} and found["samples"] == 40 and set(found["classes"]) == {"ill", "well"}


def test_a_site_uses_the_groups_of_its_data(tables):
    """Of a table by the name of the column, and of an npz: the classes that are left out and missing labels leave no gap."""
    rows = [f"{row},p{i // 3}" for i, row in enumerate(patients(60, 3))]
    write(tables / "site-2.csv", rows, f"{HEAD},patient_id")
    found = deployed(tables)
    for task in ("train", "audit"):
        client = found.site(2, task).client
        client.arrive()
        assert client.rows["input/group"].tolist() == [i // 3 for i in range(60)]
    client = found.site(0).client
    client.arrive()
    assert "input/group" not in client.rows


def test_a_project_records_the_columns_of_a_table(tables):
    """No row of the table is in the project: names, levels, two numbers a feature."""
    found, data = deployed(tables).project, datasets.load(str(tables / "ours.csv"))
    kinds = {column["name"]: column["kind"] for column in found.columns}
    assert kinds == {"age": "number", "crp": "number", "ward": "one-hot", "stage": "number"}
    assert found.columns[2]["levels"] == ["east", "north", "south"]
    x, terms = np.asarray(data.x_train, np.float64), {"names": ["a"], "keys": [], "tasks": ["train"]}
    assert np.allclose(found.mean, x.mean(0)) and np.allclose(found.std, x.std(0))
    assert flower_app.describe(data, Settings(standardize="none"), **terms).mean == []

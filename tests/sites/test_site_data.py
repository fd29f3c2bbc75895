"""Samples of sites become those of the task, and sites compute scales and features themselves; predictions elsewhere."""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artifacts.run import Run
from fnlkit.experiment import Experiment, Settings
from fnlkit.experiment.scale import scale_of
from fnlkit.federated.client import private_counts, scaling
from fnlkit.federated.engines import travel
from fnlkit.federated.engines.flower import visits
from fnlkit.simulate.partitioning import federation
from fnlkit.sites import flower_app, folders, project, samples, scale
from fnlkit.sites.network import network_of
from fnlkit.sites.samples import samples_like
from fnlkit.sites.server import scale as pooling
from fnlkit.sites.site import ledger, steps
from fnlkit.sites.site.preview import describe_data
from tests.commands import refuse_call, succeed
from tests.sites.deployed import RUN, DeployedProject, about, sent, told
from tests.sites.test_site_commands import start_review

# ---- samples of sites become those of the task: tables by the names of their columns, an npz of one site as it lies
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


def test_files_of_a_class_that_is_left_out_are_not_used(tmp_path):
    for i in range(40):
        np.save(tmp_path / f"{i}.npy", np.full((8, 8, 1), i, np.uint8))
    ours = write(tmp_path / "ours.csv", [f"{i}.npy,{'iw'[i % 2]}" for i in range(30)], "path,label")
    theirs = write(tmp_path / "theirs.csv", [f"{i}.npy,{'iwx'[i % 2 + (i > 29)]}" for i in range(40)], "path,label")
    settings = Settings(method="fedavg", model="mlp(hidden=4)", rounds=1, fraction=1.0)
    site = DeployedProject(tmp_path, datasets.load(str(ours)), settings, [theirs]).site(leave_out="x")
    assert len(site.client) == 35


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


# ---- features that sites compute themselves: scale from sums of the sites, backbones for images, predictions elsewhere
TRAIN = {"rounds": 2, "fraction": 1.0, "epochs": 1, "model": "mlp(hidden=8)", "precision": "fp64", "method": "fedavg"}


def gaps(rows, every, column=1):
    """Return rows whose cell of a column is empty in every k-th row."""
    return [
        ",".join("" if j == column and i % every == 0 else cell for j, cell in enumerate(row.split(",")))
        for i, row in enumerate(rows)
    ]


@pytest.fixture
def gap_tables(tmp_path):
    """The coordinator's table and those of four sites with missing cells; the last site has three rows."""
    write(tmp_path / "ours.csv", gaps(patients(90, 0), 9))
    for k, (count, every) in enumerate([(80, 7), (70, 5), (60, 50), (3, 9)]):
        write(tmp_path / f"site-{k}.csv", gaps(patients(count, k + 1), every))
    return tmp_path


def deploy(folder, data, names, **about):
    """Return a project of tables or images over sites in this process."""
    about = {"scaling": "project"} | about
    return DeployedProject(folder, data, Settings(**TRAIN), [folder / name for name in names], **about)


def hand_over(deployed, folder, k=0):
    """Write the files of a site of the project to the folder."""
    parts = folders.parts(("localhost", 8000), deployed.project.names, deployed.agreed.read_bytes())
    for name in (folders.SITE, "project.json"):
        (folder / name).write_bytes(parts[f"sites/site-{k}/{name}"])


def of_tables(gap_tables, sites=4):
    data = datasets.load(str(gap_tables / "ours.csv"))
    return deploy(gap_tables, data, [f"site-{k}.csv" for k in range(sites)], scaling="sites")


def known_values(gap_tables, column, sites):
    cells = [row.split(",")[column] for k in sites for row in (gap_tables / f"site-{k}.csv").read_text().splitlines()[1:]]
    return np.array([float(cell) for cell in cells if cell], np.float32).astype(np.float64)


def test_the_scale_is_that_of_all_known_values(gap_tables, monkeypatch, capsys):
    """A site of three rows contributes nothing, and missing cells get the mean."""
    deployed, seen, right = of_tables(gap_tables), [], pooling.scale_of_replies
    monkeypatch.setattr(pooling, "scale_of_replies", lambda replies, task: seen.append(replies) or right(replies, task))
    found = deployed.run("scale")
    rows = {row["name"]: row for row in found["rows"]}
    for name, column in (("age", 0), ("crp", 1), ("stage", 3)):
        values = known_values(gap_tables, column, range(3))
        assert rows[name]["known"] == len(values)
        assert np.isclose(rows[name]["mean"], values.mean(), rtol=1e-12)
        assert np.isclose(rows[name]["std"], values.std(), rtol=1e-9)
    assert all((values[3] == 0).all() for values in seen[0].values())
    task = project.task_of(deployed.project, "train", found["scale"]).project
    fills = {column["name"]: column["fill"] for column in task.columns if "fill" in column}
    assert fills == {name: rows[name]["mean"] for name in fills} and len(fills) == 3
    left = [ledger.read_ledger(str(gap_tables / f"memory-{k}/left.jsonl"))[-1]["arrays"] for k in range(4)]
    assert all(set(arrays) == set(scaling.SENDS) for arrays in left)


@pytest.mark.parametrize("count", [4, 5])
def test_values_known_less_than_five_times_are_not_replied(count):
    x = torch.full((20, 2), torch.nan)
    x[:count, 0], x[:, 1] = torch.arange(count).float() + 3, 1.0
    reply = scaling.reply_moments(SimpleNamespace(x=x), None, {})
    assert reply["known"].tolist() == [count if count >= 5 else 0, 20]
    assert reply["total"].tolist() == [25.0 if count >= 5 else 0.0, 20.0]
    assert reply["squares"].tolist() == [10.0 if count >= 5 else 0.0, 0.0]


def test_sums_before_and_after_an_added_sample_reveal_the_sample():
    """A limit that docs/deployment-protection.md states."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((21, 3)))
    before, after = (scaling.reply_moments(SimpleNamespace(x=part), None, {})["total"] for part in (x[:20], x))
    assert torch.allclose(after - before, x[20])


def test_models_that_differ_in_their_scale_are_different_models(gap_tables, monkeypatch):
    """A scale that the server names moves the inputs as another model would; it was not part of the count of models."""
    monkeypatch.setattr(steps, "MODELS", 2)
    deployed, codes = of_tables(gap_tables, 3), []
    for factor in (1, 1, 2, 3, 1):
        places, width = len(scale.number_places(deployed.project.columns)), deployed.project.shape[0]
        text = ";".join(",".join([str(value)] * count) for value, count in ((0.0, places), (0.0, width), (factor, width)))
        model = network_of(project.task_of(deployed.project, "evaluate", text), deployed.project.input_shape)
        asked = visits.request(run=RUN, round=0, seed=0, weights=model.flat, broadcast={}, visits=[(1, -1, -1, {})],
                               steps=[travel.pack(private_counts.reply_tested)])  # fmt: skip
        codes.append(told(sent(deployed, asked, facts=about(deployed, "evaluate", scale=text))))
    counted = ["tested", "wrong"]
    assert codes == [counted, counted, counted, "request", counted]


def test_a_scale_of_more_features_than_usual_leaves(tmp_path):
    """A site refused the sums of more than 4,096 features, to which it had agreed."""
    x = np.random.default_rng(0).normal(size=(12, 5000)).astype(np.float32)
    np.savez(tmp_path / "site.npz", x_train=x, y_train=np.arange(12) % 2)
    data = datasets.load(str(tmp_path / "site.npz"))
    deployed = deploy(tmp_path, data, ["site.npz"], scaling="sites")
    asked = visits.request(run=RUN, round=0, seed=0, weights=torch.zeros(0), broadcast={}, visits=[(0, -1, -1, {})],
                           steps=[travel.pack(scaling.reply_moments)])  # fmt: skip
    assert told(sent(deployed, asked, node=100, task="scale")) == ["known", "squares", "total"]


def test_without_missing_cells_the_scale_is_that_of_the_simulation(gap_tables, capsys):
    for k, name in enumerate(["ours", *(f"site-{k}" for k in range(3))]):
        write(gap_tables / f"{name}.csv", patients(60 + k, k))
    deployed = of_tables(gap_tables, 3)
    found = deployed.run("scale")
    task = project.task_of(deployed.project, "train", found["scale"]).project
    parts = [samples.load_for_task(node["data"], task) for node in deployed.nodes.values()]
    by_site, whole = pool_sites([(part.x_train, part.y_train) for part in parts], task.classes)
    plain = scale_of(by_site, whole, whole.x_train)
    assert (plain.mean, plain.std) == (tuple(task.mean), tuple(task.std))
    run = deployed.run("train", scale=found["scale"])
    assert torch.equal(run.weights, Experiment(by_site, whole, Settings(**TRAIN), engine="sequential").run().weights)


def test_masked_updates_use_the_scale_of_the_sites(gap_tables, capsys):
    """Messages of secure aggregation before the update contain no scale; a site starts a process for each."""
    deployed = of_tables(gap_tables, 3)
    found = deployed.run("scale")["scale"]
    plain = deployed.run("train", scale=found, output=str(gap_tables / "plain.pt"))
    deployed.agree(settings=deployed.project.settings | {"protect": "secagg"})
    exchange = deployed.grid.push_messages
    deployed.grid.push_messages = lambda messages: deployed.restart_sites() or exchange(messages)
    masked = deployed.run("train", scale=found, output=str(gap_tables / "masked.pt"))
    assert not masked.rejected and 0 < (masked.weights - plain.weights).abs().max() < 1e-3


def test_a_task_without_the_scale_is_refused(gap_tables, capsys):
    deployed = of_tables(gap_tables)
    refuse_call("scale", deployed.run, "train")
    found = deployed.run("scale")["scale"]
    fills, mean, std = found.split(";")
    for wrong in ("x", f"{fills};{mean}", f"{fills};{mean},1;{std},1", f"{fills};{mean};{std.replace(std[:5], '-1', 1)}",
                  f"{fills};{mean};nan{std[3:]}"):  # fmt: skip
        refuse_call("scale", deployed.site, scale=wrong)
    other = gap_tables / "other"
    other.mkdir()
    shutil.copy(gap_tables / "site-0.csv", other)
    fixed = deploy(other, datasets.load(str(gap_tables / "ours.csv")), ["site-0.csv"])
    refuse_call("scale", fixed.site, scale=found)


def test_labels_reviewed_before_the_scale_are_used_after_it(gap_tables, capsys):
    """Missing cells get other values, and the data are the same."""
    from fnlkit.sites.site import labels

    deployed = of_tables(gap_tables)
    found = deployed.run("scale")["scale"]
    task = deployed.project
    reviewed = labels.fresh(samples.load_for_task(deployed.nodes[100]["data"], task), "site-0")
    reviewed.given[:5] = 1 - reviewed.given[:5]
    labels.store_review(str(gap_tables / "memory-0"), reviewed)
    client = deployed.site(scale=found).client
    assert len(client) == 80 and client.y.tolist() == reviewed.given.tolist()


@pytest.mark.parametrize("seen", [True, False])
def test_a_site_predicts_with_the_run_whether_it_took_part_or_not(seen, gap_tables, capsys):
    """The unseen site has the project, the run and another order of columns; numbers are in the ranges of the evaluation."""
    deployed = of_tables(gap_tables)
    found = deployed.run("scale")["scale"]
    deployed.run("train", scale=found)
    rows = deployed.run("evaluate", scale=found, run=str(gap_tables / "train.out"))["sites"]
    hand_over(deployed, gap_tables, 1)
    if not seen:
        reverse = [",".join(row.split(",")[::-1]) for row in (gap_tables / "site-1.csv").read_text().splitlines()]
        write(gap_tables / "unseen.csv", reverse[1:], reverse[0])
    source = "site-1.csv" if seen else "unseen.csv"
    told = json.loads(succeed(f"fnlkit site predict train.out {source} --project . --json -o guesses.csv", gap_tables).stdout)
    assert told["samples"] == rows[1]["samples"] and rows[1]["low"] <= told["agreement"] <= rows[1]["high"]
    assert abs(told["agreement"] - rows[1]["agreement"]) <= 5 / told["samples"]  # the evaluation sends ranges
    guesses = (gap_tables / "guesses.csv").read_text().splitlines()[1:]
    truth = [row.split(",")[4] for row in (gap_tables / "site-1.csv").read_text().splitlines()[1:]]
    assert np.isclose(np.mean([g.split(",")[2] == t for g, t in zip(guesses, truth, strict=True)]), told["agreement"])


# ---- features of images
@pytest.fixture
def images(tmp_path):
    digits = datasets.load("digits")
    names = np.array(list(map(str, range(10))))
    for k, name in enumerate(["ours", "site-0", "site-1", "new"]):
        part = slice(60 * k, 60 * k + 60)
        np.savez(tmp_path / f"{name}.npz", x_train=digits.x_train[part], y_train=digits.y_train[part], class_names=names)
    return tmp_path


def of_images(images, spec="pixels(normalize=true)"):
    data = datasets.load(str(images / "ours.npz"))
    return deploy(images, data, ["site-0.npz", "site-1.npz"], backbone=spec)


def test_images_of_a_site_become_the_features_of_the_project(images, monkeypatch, capsys):
    """The run over sites equals a simulation with the same features; features are computed once."""
    monkeypatch.setenv("FNLKIT_CACHE", str(images / "cache"))
    deployed = of_images(images)
    deployed.run("train")
    assert len(list(images.glob("cache/features/*/shapes.json"))) == 2
    monkeypatch.setattr("fnlkit.encoders.features.embed_parts", None)
    deployed.run("evaluate", run=str(images / "train.out"))
    task = deployed.project
    sites, parts = [np.load(images / f"site-{k}.npz") for k in (0, 1)], []
    for site in sites:
        x = (site["x_train"].reshape(60, -1) / np.float32(255)).astype(np.float32)
        parts.append((x / np.linalg.norm(x, axis=1, keepdims=True), site["y_train"].astype(np.int64)))
    by_site, whole = pool_sites(parts, task.classes, ((), ()))
    plain = Experiment(by_site, whole, deployed.task.settings, engine="sequential").run()
    assert torch.equal(Run.read(str(images / "train.out")).weights, plain.weights) and task.shape == [64]


def test_other_weights_are_refused(images, monkeypatch):
    monkeypatch.setenv("FNLKIT_CACHE", str(images / "cache"))
    deployed = of_images(images)
    deployed.agree(backbone_checksum="0" * 64)
    refuse_call("weights", deployed.site)
    assert not (images / "cache" / "features").exists()


@pytest.mark.parametrize(
    ("spec", "named"),
    [("pca", "pca"), ("mine.py:f", "mine.py"), ("torchvision(weights='/tmp/w.pt')", "/tmp/w.pt"), ("none-such", "none-such")],
)
def test_a_backbone_that_sites_cannot_share_is_refused(spec, named, images):
    refuse_call(named, of_images, images, spec)
    deployed = of_images(images)
    deployed.agree(backbone=spec)
    if spec != "none-such":
        refuse_call(named, project.read, deployed.agreed)


def test_vectors_are_no_images_for_a_backbone(images):
    deployed = of_images(images)
    np.savez(images / "vectors.npz", x=np.zeros((9, 64), np.float32), y=np.arange(9) % 2)
    refuse_call("vectors.npz", deployed.site, data=str(images / "vectors.npz"))


def test_a_site_checks_computes_and_predicts_features(images, capsys):
    """`site check` stores the features, and an unseen site predicts its images with the run."""
    deployed = of_images(images)
    hand_over(deployed, images)
    found = json.loads(succeed("fnlkit site check new.npz --project . --json", images).stdout)
    assert any("pixels" in note for note in found["notes"]) and found["samples"] == 60
    deployed.run("train")
    assert json.loads(succeed("fnlkit site predict train.out new.npz --project . --json", images).stdout)["samples"] == 60


def test_images_of_a_project_with_a_backbone_are_reviewed_as_images(images):
    deployed = of_images(images)
    hand_over(deployed, images)
    start_review(images, images / "site-0.npz")
    succeed("fnlkit site review site-0.npz --project . -o review --budget 5", images)
    assert "data:image/" in (images / "review/review.html").read_text()

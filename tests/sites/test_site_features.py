"""Features that sites compute themselves: scale from sums of the sites, backbones for images, predictions elsewhere."""

import json
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
from fnlkit.sites import folders, project, samples, scale
from fnlkit.sites.network import network_of
from fnlkit.sites.server import scale as pooling
from fnlkit.sites.site import ledger, steps
from tests.commands import refuse_call, succeed
from tests.sites.deployed import RUN, DeployedProject, about, sent, told
from tests.sites.test_site_commands import start_review
from tests.sites.test_site_data import patients, pool_sites, write

TRAIN = {"rounds": 2, "fraction": 1.0, "epochs": 1, "model": "mlp(hidden=8)", "precision": "fp64", "method": "fedavg"}


def gaps(rows, every, column=1):
    """Return rows whose cell of a column is empty in every k-th row."""
    return [
        ",".join("" if j == column and i % every == 0 else cell for j, cell in enumerate(row.split(",")))
        for i, row in enumerate(rows)
    ]


@pytest.fixture
def tables(tmp_path):
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


def of_tables(tables, sites=4):
    data = datasets.load(str(tables / "ours.csv"))
    return deploy(tables, data, [f"site-{k}.csv" for k in range(sites)], scaling="sites")


def known_values(tables, column, sites):
    cells = [row.split(",")[column] for k in sites for row in (tables / f"site-{k}.csv").read_text().splitlines()[1:]]
    return np.array([float(cell) for cell in cells if cell], np.float32).astype(np.float64)


def test_the_scale_is_that_of_all_known_values(tables, monkeypatch, capsys):
    """A site of three rows contributes nothing, and missing cells get the mean."""
    deployed, seen, right = of_tables(tables), [], pooling.scale_of_replies
    monkeypatch.setattr(pooling, "scale_of_replies", lambda replies, task: seen.append(replies) or right(replies, task))
    found = deployed.run("scale")
    rows = {row["name"]: row for row in found["rows"]}
    for name, column in (("age", 0), ("crp", 1), ("stage", 3)):
        values = known_values(tables, column, range(3))
        assert rows[name]["known"] == len(values)
        assert np.isclose(rows[name]["mean"], values.mean(), rtol=1e-12)
        assert np.isclose(rows[name]["std"], values.std(), rtol=1e-9)
    assert all((values[3] == 0).all() for values in seen[0].values())
    task = project.task_of(deployed.project, "train", found["scale"]).project
    fills = {column["name"]: column["fill"] for column in task.columns if "fill" in column}
    assert fills == {name: rows[name]["mean"] for name in fills} and len(fills) == 3
    left = [ledger.read_ledger(str(tables / f"memory-{k}/left.jsonl"))[-1]["arrays"] for k in range(4)]
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


def test_models_that_differ_in_their_scale_are_different_models(tables, monkeypatch):
    """A scale that the server names moves the inputs as another model would; it was not part of the count of models."""
    monkeypatch.setattr(steps, "MODELS", 2)
    deployed, codes = of_tables(tables, 3), []
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


def test_without_missing_cells_the_scale_is_that_of_the_simulation(tables, capsys):
    for k, name in enumerate(["ours", *(f"site-{k}" for k in range(3))]):
        write(tables / f"{name}.csv", patients(60 + k, k))
    deployed = of_tables(tables, 3)
    found = deployed.run("scale")
    task = project.task_of(deployed.project, "train", found["scale"]).project
    parts = [samples.load_for_task(node["data"], task) for node in deployed.nodes.values()]
    by_site, whole = pool_sites([(part.x_train, part.y_train) for part in parts], task.classes)
    plain = scale_of(by_site, whole, whole.x_train)
    assert (plain.mean, plain.std) == (tuple(task.mean), tuple(task.std))
    run = deployed.run("train", scale=found["scale"])
    assert torch.equal(run.weights, Experiment(by_site, whole, Settings(**TRAIN), engine="sequential").run().weights)


def test_masked_updates_use_the_scale_of_the_sites(tables, capsys):
    """Messages of secure aggregation before the update contain no scale; a site starts a process for each."""
    deployed = of_tables(tables, 3)
    found = deployed.run("scale")["scale"]
    plain = deployed.run("train", scale=found, output=str(tables / "plain.pt"))
    deployed.agree(settings=deployed.project.settings | {"protect": "secagg"})
    exchange = deployed.grid.push_messages
    deployed.grid.push_messages = lambda messages: deployed.restart_sites() or exchange(messages)
    masked = deployed.run("train", scale=found, output=str(tables / "masked.pt"))
    assert not masked.rejected and 0 < (masked.weights - plain.weights).abs().max() < 1e-3


def test_a_task_without_the_scale_is_refused(tables, capsys):
    deployed = of_tables(tables)
    refuse_call("scale", deployed.run, "train")
    found = deployed.run("scale")["scale"]
    fills, mean, std = found.split(";")
    for wrong in ("x", f"{fills};{mean}", f"{fills};{mean},1;{std},1", f"{fills};{mean};{std.replace(std[:5], '-1', 1)}",
                  f"{fills};{mean};nan{std[3:]}"):  # fmt: skip
        refuse_call("scale", deployed.site, scale=wrong)
    other = tables / "other"
    other.mkdir()
    shutil.copy(tables / "site-0.csv", other)
    fixed = deploy(other, datasets.load(str(tables / "ours.csv")), ["site-0.csv"])
    refuse_call("scale", fixed.site, scale=found)


def test_labels_reviewed_before_the_scale_are_used_after_it(tables, capsys):
    """Missing cells get other values, and the data are the same."""
    from fnlkit.sites.site import labels

    deployed = of_tables(tables)
    found = deployed.run("scale")["scale"]
    task = deployed.project
    reviewed = labels.fresh(samples.load_for_task(deployed.nodes[100]["data"], task), "site-0")
    reviewed.given[:5] = 1 - reviewed.given[:5]
    labels.store_review(str(tables / "memory-0"), reviewed)
    client = deployed.site(scale=found).client
    assert len(client) == 80 and client.y.tolist() == reviewed.given.tolist()


@pytest.mark.parametrize("seen", [True, False])
def test_a_site_predicts_with_the_run_whether_it_took_part_or_not(seen, tables, capsys):
    """The unseen site has the project, the run and another order of columns; numbers are in the ranges of the evaluation."""
    deployed = of_tables(tables)
    found = deployed.run("scale")["scale"]
    deployed.run("train", scale=found)
    rows = deployed.run("evaluate", scale=found, run=str(tables / "train.out"))["sites"]
    hand_over(deployed, tables, 1)
    if not seen:
        reverse = [",".join(row.split(",")[::-1]) for row in (tables / "site-1.csv").read_text().splitlines()]
        write(tables / "unseen.csv", reverse[1:], reverse[0])
    source = "site-1.csv" if seen else "unseen.csv"
    told = json.loads(succeed(f"fnlkit site predict train.out {source} --project . --json -o guesses.csv", tables).stdout)
    assert told["samples"] == rows[1]["samples"] and rows[1]["low"] <= told["agreement"] <= rows[1]["high"]
    assert abs(told["agreement"] - rows[1]["agreement"]) <= 5 / told["samples"]  # the evaluation sends ranges
    guesses = (tables / "guesses.csv").read_text().splitlines()[1:]
    truth = [row.split(",")[4] for row in (tables / "site-1.csv").read_text().splitlines()[1:]]
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

"""Training on frozen features, and what becomes of a trained model: predictions and files for other programs."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artifacts import files, large
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.artifacts.stored import Stored
from fnlkit.cli import main
from fnlkit.datasets.batches import Batches
from fnlkit.datasets.embed import embed, embed_parts
from fnlkit.datasets.features import with_features
from fnlkit.estimators.rows import read_rows
from fnlkit.experiment.network import network_of
from fnlkit.results.evaluation import test_predictions
from fnlkit.results.export import Deployed, describe_samples, export, probabilities
from tests.tables import parse_csv


def call(*arguments):
    """Run a command in this process; return its exit code."""
    with pytest.raises(SystemExit) as end:
        main(list(map(str, arguments)))
    return end.value.code


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A noisy federation over digits, embeddings of its samples and of new ones, a run on them and one on the images."""
    place = tmp_path_factory.mktemp("features")
    np.savez(place / "new.npz", x=datasets.load("digits").x_test[:7])
    frozen = ["--features", place / "emb.npz", "--model", "mlp(hidden=12)"]
    short = ["--rounds", "4", "--fraction", "0.5", "--epochs", "2"]
    for arguments in (
        ["partition", "--dataset", "digits", "--clients", "8", "-o", place / "fed.npz"],
        ["inject-noise", place / "fed.npz", "-o", place / "noisy.npz"],
        ["embed", place / "noisy.npz", "--backbone", "pca(dim=20)", "--new", place / "new.npz", "-o", place / "emb.npz"],
        ["train", place / "noisy.npz", *frozen, *short, "-o", place / "head.pt"],
        ["train", place / "noisy.npz", *short, "-o", place / "run.pt"],
    ):  # fmt: skip
        assert call(*arguments) == 0, arguments
    return place


def test_embeddings_are_of_training_test_and_new_samples(made):
    found = files.read(made / "emb.npz").arrays
    data = datasets.load("digits")
    np.testing.assert_array_equal(found["embeddings"], embed(data, "pca(dim=20)"))
    assert found["test"].shape == (359, 20)
    np.testing.assert_allclose(found["new"], found["test"][:7], atol=1e-5)


def test_a_run_on_features_trains_them_on_every_engine_and_is_judged(made, capsys):
    run = Run.read(made / "head.pt")
    assert run.meta["machine"]["engine"] == "fused" and run.meta["input_shape"] == [20]
    assert run.meta["features"]["backbone"] == "pca(dim=20)" and len(run.weights) == 20 * 12 + 12 + 12 * 10 + 10
    other = made / "other.pt"
    again = ["train", made / "noisy.npz", "--features", made / "emb.npz", "--model", "mlp(hidden=12)", "--rounds", "4"]
    assert call(*again, "--fraction", "0.5", "--epochs", "2", "--engine", "sequential", "-o", other) == 0
    torch.testing.assert_close(Run.read(other).weights, run.weights, rtol=0, atol=1e-4)
    capsys.readouterr()
    assert call("evaluate", made / "head.pt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["accuracy_last"] == run.history[-1]["accuracy"] > 0.3


def test_features_are_scaled_on_request(made, capsys):
    """As auto does for a data set of vectors; the run is judged and predicts with the same scale."""
    target, common = made / "scaled.pt", ["--features", made / "emb.npz", "--model", "mlp(hidden=[])", "--rounds", "3"]
    assert call("train", made / "noisy.npz", *common, "--standardize", "always", "-o", target) == 0
    run, x = Run.read(target), files.read(made / "emb.npz").arrays["embeddings"]
    np.testing.assert_allclose(run.meta["samples"]["std"], x.std(0), rtol=1e-4)
    assert run.traffic.sent["moments"] == 8 * (8 + 16 * 20)
    capsys.readouterr()
    assert call("evaluate", target, "--json") == 0
    assert json.loads(capsys.readouterr().out)["accuracy_last"] == run.history[-1]["accuracy"] > 0.5
    assert call("predict", target, made / "emb.npz", "--all", "-o", made / "scaled.csv") == 0
    rows = parse_csv(made / "scaled.csv")
    data = datasets.load("digits")
    expected = test_predictions(run, with_features(data, str(made / "emb.npz")))
    assert [int(row["class"]) for row in rows] == expected[: len(rows)].tolist()


@pytest.mark.parametrize("method", ["nnc(k=5)", "akd(k=5)"])
def test_methods_that_need_an_embedding_take_the_features(made, method):
    target = made / "method.pt"
    options = ["--model", "mlp(hidden=20)", "--rounds", "2", "--method", method]
    assert call("train", made / "noisy.npz", "--features", made / "emb.npz", *options, "-o", target) == 0
    assert Run.read(target).meta["embedding"] is not None


def test_a_linear_head_resumes_bit_for_bit_and_only_on_its_features(made, capfd):
    options = ["--features", made / "emb.npz", "--model", "mlp(hidden=[])", "--fraction", "0.5"]
    whole, half = made / "whole.pt", made / "half.pt"
    assert call("train", made / "noisy.npz", *options, "--rounds", "4", "-o", whole) == 0
    assert call("train", made / "noisy.npz", *options, "--rounds", "2", "-o", half) == 0
    assert call("train", made / "noisy.npz", *options, "--rounds", "4", "--resume", half, "-o", half) == 0
    assert torch.equal(Run.read(whole).weights, Run.read(half).weights)
    assert call("embed", "--dataset", "digits", "--backbone", "pca(dim=20, whiten=true)", "-o", made / "white.npz") == 0
    options[1] = made / "white.npz"
    assert call("train", made / "noisy.npz", *options, "--rounds", "5", "--resume", half, "-o", half) == 2
    assert "other --features" in capfd.readouterr().err


def test_features_of_another_data_set_are_refused(made, capfd, tmp_path):
    artifact = files.read(made / "emb.npz")
    artifact.meta["checksum"] = "0" * 64
    files.write(artifact, tmp_path / "other.npz")
    assert call("train", made / "noisy.npz", "--features", tmp_path / "other.npz") == 2
    assert "checksums differ" in capfd.readouterr().err
    del artifact.arrays["test"]
    files.write(artifact, tmp_path / "train.npz")
    assert call("train", made / "noisy.npz", "--features", tmp_path / "train.npz") == 2
    assert "contains no test samples" in capfd.readouterr().err


def test_interrupted_embeddings_continue_with_the_same_bytes(tmp_path):
    rows = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    first = Batches(tmp_path / "p", 10, 4)
    first.put(8, rows[8:])
    del first
    second = Batches(tmp_path / "p", 10, 4)
    assert list(second.missing()) == [0, 4]
    for start in (4, 0):
        second.put(start, rows[start : start + 4])
    third = Batches(tmp_path / "p", 10, 4)
    assert not list(third.missing()) and third.done == 10
    np.testing.assert_array_equal(third.whole()[:], rows)


@pytest.mark.parametrize("backbone", ["pixels", "pca(dim=6)", "torchvision(weights=random, size=32)"])
def test_an_embedding_cut_off_ends_with_the_same_bytes(backbone, tmp_path, monkeypatch):
    """What was done before the interruption is not done again."""
    train, test, seen = datasets.load("digits").x_train[:90], datasets.load("digits").x_test[:20], []
    monkeypatch.setattr("fnlkit.datasets.batches.BLOCK", train[:16].nbytes)
    monkeypatch.setattr("fnlkit.datasets.pca._MOST_HELD", 0)
    settings = {"device": "cpu", "batch_size": 16}
    make = partial(embed_parts, SimpleNamespace(x_train=train, kind="image"), {"embeddings": train, "test": test}, backbone)

    def stop(done, total):
        seen.append(done)
        if len(seen) == 3:
            raise KeyboardInterrupt

    whole = make(**settings, place=tmp_path / "whole", progress=lambda done, total: seen.append(done))
    every = len(seen)
    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        make(**settings, place=tmp_path / "cut", progress=stop)
    again = make(**settings, place=tmp_path / "cut", progress=lambda done, total: seen.append(done))
    assert every <= len(seen) <= every + 2  # of a network two batches may be under way
    for name, rows in whole.items():
        assert np.array_equal(again[name][:], rows[:]) and rows[:].dtype == np.float32


OPEN = large.open_arrays


def test_embeddings_that_stay_in_their_file_give_the_same(made, tmp_path, monkeypatch):
    """Estimators and methods see the same numbers by rows; an artifact of such rows is written with the same bytes."""
    federation = Federation.read(str(made / "noisy.npz"))
    at_once, found = files.read(made / "emb.npz"), {}
    for limit in (large.SMALL, 100_000):
        monkeypatch.setattr(large, "open_arrays", partial(OPEN, small=limit))
        monkeypatch.setattr(large, "SMALL", limit)
        rows = read_rows(str(made / "emb.npz"), "embeddings", federation)
        assert isinstance(rows, Stored) == (limit == 100_000)
        np.testing.assert_array_equal(rows[:], at_once.arrays["embeddings"])
        for name, arguments in {
            "judged.npz": ["estimate-noise", made / "noisy.npz", "--estimator", "knn"],
            "nnc.pt": ["train", made / "noisy.npz", "--method", "nnc(k=5)", "--rounds", "2"],
        }.items():
            assert call(*arguments, "--embeddings", made / "emb.npz", "-o", tmp_path / name) == 0
            arrays = files.read(tmp_path / name).arrays
            found.setdefault(name, []).append({key: np.asarray(value) for key, value in arrays.items()})
    opened = large.open_artifact(
        made / "emb.npz", kinds=["fnlkit.embeddings"], decoded=tmp_path, remember=lambda _, make: make()
    )
    files.write(opened, tmp_path / "copy.npz")
    assert (tmp_path / "copy.npz").read_bytes() == (made / "emb.npz").read_bytes()
    for first, second in found.values():
        assert first.keys() == second.keys()
        for key in first.keys() - {"log", "body"}:  # these hold times
            np.testing.assert_array_equal(first[key], second[key], err_msg=key)


@pytest.mark.parametrize("which", ["run", "head"])
def test_predictions_are_those_of_the_evaluation(made, which, tmp_path, capsys):
    data = "emb.npz" if which == "head" else "new.npz"
    assert call("predict", made / f"{which}.pt", made / data, "--all", "-o", tmp_path / "p.csv") == 0
    rows = parse_csv(tmp_path / "p.csv")
    expected = test_predictions(Run.read(made / f"{which}.pt"), datasets.load("digits"))[:7]
    assert [int(row["class"]) for row in rows] == expected.tolist() and rows[3]["name"] == str(expected[3])
    assert all(abs(sum(float(row[str(c)]) for c in range(10)) - 1) < 1e-4 for row in rows)
    capsys.readouterr()
    assert call("predict", made / f"{which}.pt", made / data) == 0
    assert capsys.readouterr().out.startswith("sample,class,name,probability\n0,")


def test_samples_of_another_shape_are_refused(made, tmp_path, capfd):
    np.save(tmp_path / "x.npy", np.zeros((3, 9, 9), np.uint8))
    assert call("predict", made / "run.pt", tmp_path / "x.npy") == 2
    assert "are (8, 8, 1)" in capfd.readouterr().err
    assert call("predict", made / "head.pt", tmp_path / "x.npy") == 2


def test_an_export_that_fails_leaves_the_file_that_was_there(made, tmp_path, monkeypatch):
    target = tmp_path / "m.pt2"
    target.write_bytes(b"old")

    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.export, "load", fails)
    with pytest.raises(KeyboardInterrupt):
        export(Run.read(made / "run.pt"), str(target))
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("which", ["run", "head"])
def test_exports_equal_the_network(made, which, tmp_path):
    run = Run.read(made / f"{which}.pt")
    assert export(run, str(tmp_path / "m.pt")) is None
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    module = network_of(run).module
    assert sum(v.numel() for v in state.values()) == len(run.weights) and state.keys() == module.state_dict().keys()
    assert export(run, str(tmp_path / "m.pt2")) < 1e-5
    program = torch.export.load(tmp_path / "m.pt2").module()
    x = datasets.load("digits").x_test[:7]
    if which == "run":
        _, found = probabilities(run, str(made / "new.npz"))
        x = torch.from_numpy(x).movedim(-1, 1).float() / 255
        np.testing.assert_allclose(program(x).double().softmax(-1).numpy(), found, atol=1e-5)
    assert Deployed(module, describe_samples(run)).scaled == (which == "run")


def test_onnx_equals_the_network(made, tmp_path):
    pytest.importorskip("onnxscript", reason="needs onnxscript (extra `export`)")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime (extra `export`)")
    assert export(Run.read(made / "run.pt"), str(tmp_path / "m.onnx")) < 1e-5


def test_an_unknown_format_is_named(made, capfd):
    assert call("export", made / "run.pt", "-o", "model.h5") == 2
    assert "write .onnx, .pt2, .pt" in capfd.readouterr().err

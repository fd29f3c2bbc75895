"""Training on frozen features, and what becomes of a trained model: predictions and files for other programs."""

import json
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from fnlkit import datasets
from fnlkit.artifacts import files, large
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.artifacts.stored import Stored
from fnlkit.encoders.embed import embed
from fnlkit.encoders.encoding import weights_of
from fnlkit.encoders.features import with_backbone
from fnlkit.estimators.rows import read_rows
from fnlkit.experiment.assembly import digest_of_rows
from fnlkit.experiment.network import network_of
from fnlkit.models.vision import torchvision
from fnlkit.results.evaluation import test_predictions
from fnlkit.results.export import export
from fnlkit.results.predicted import probabilities
from tests.commands import call, refuse_call
from tests.tables import parse_csv

# A network without pretrained weights, which is on every machine.
BACKBONE = "torchvision(name=shufflenet_v2_x0_5, weights=random, size=32)"


def few(place):
    return datasets.load(place / "data.npz")


@cache
def encoded(place):
    return embed(few(place), BACKBONE, device="cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A noisy federation over some digits, vectors of its samples, new samples, a run with a backbone and one on images."""
    place, digits = tmp_path_factory.mktemp("features"), datasets.load("digits")
    parts = {"x_train": digits.x_train[:240], "x_test": digits.x_test[:60]}
    np.savez(place / "data.npz", **parts, y_train=digits.y_train[:240], y_test=digits.y_test[:60])
    data = few(place)
    np.savez(place / "new.npz", x=data.x_test[:7])
    about = {"dataset": data.name, "checksum": data.checksum}
    files.write(files.Artifact("fnlkit.embeddings/1", {"embeddings": embed(data, "pca(dim=20)")}, about), place / "emb.npz")
    frozen = ["--backbone", BACKBONE, "--model", "mlp(hidden=12)"]
    short = ["--rounds", "4", "--fraction", "0.5", "--epochs", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FNLKIT_CACHE", str(place / "cache"))
        for arguments in (
            ["partition", "--dataset", data.name, "--labels", "true", "--clients", "8", "-o", place / "fed.npz"],
            ["inject-noise", place / "fed.npz", "-o", place / "noisy.npz"],
            ["train", place / "noisy.npz", *frozen, *short, "-o", place / "head.pt"],
            ["train", place / "noisy.npz", *short, "-o", place / "run.pt"],
        ):
            assert call(*arguments) == 0, arguments
        yield place


def test_a_run_with_a_backbone_trains_on_every_engine_and_is_evaluated(made, capsys):
    run = Run.read(made / "head.pt")
    assert run.meta["machine"]["engine"] == "fused" and run.meta["input_shape"] == [1024]
    assert run.meta["features"]["backbone"] == BACKBONE and run.meta["features"]["weights"] == weights_of(BACKBONE)
    assert len(run.weights) == 1024 * 12 + 12 + 12 * 10 + 10
    np.testing.assert_allclose(run.meta["samples"]["mean"], encoded(made).mean(0), rtol=1e-4, atol=1e-7)
    assert run.traffic.sent["moments"] == 8 * (8 + 16 * 1024)
    other = made / "other.pt"
    again = ["train", made / "noisy.npz", "--backbone", BACKBONE, "--model", "mlp(hidden=12)", "--rounds", "4"]
    assert call(*again, "--fraction", "0.5", "--epochs", "2", "--engine", "sequential", "-o", other) == 0
    torch.testing.assert_close(Run.read(other).weights, run.weights, rtol=0, atol=1e-4)
    capsys.readouterr()
    assert call("evaluate", made / "head.pt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["accuracy_last"] == run.history[-1]["accuracy"]


def test_features_are_computed_once_and_resume_after_an_interruption(made, tmp_path, monkeypatch):
    """A second call reads the cache; an interrupted one continues; another process that computes the same waits."""
    monkeypatch.setenv("FNLKIT_CACHE", str(tmp_path))
    data, counted = few(made), []

    def stop(done, total):
        counted.append((done, total))
        if len(counted) == 4:
            raise KeyboardInterrupt

    refuse_call("", with_backbone, data, BACKBONE, device="cpu", progress=stop, error=KeyboardInterrupt)
    assert [path.suffix for path in (tmp_path / "features").iterdir() if path.is_dir()] == [".part"]
    seen = []
    found = with_backbone(data, BACKBONE, device="cpu", progress=lambda done, total: seen.append(done))
    assert seen[0] > 3 * 16 - 1 and seen[-1] == 300 and found.checksum == data.checksum
    assert [path.suffix for path in (tmp_path / "features").iterdir() if path.is_dir()] == [""]
    again = with_backbone(data, BACKBONE, device="cpu", progress=lambda *_: pytest.fail("computed twice"))
    np.testing.assert_array_equal(again.x_train, found.x_train)
    np.testing.assert_array_equal(found.x_train, encoded(made))
    assert with_backbone(found, BACKBONE) is found


@pytest.mark.parametrize("method", ["nnc(k=5)", "akd(k=5)"])
def test_methods_that_need_an_embedding_take_the_features(made, method):
    target = made / "method.pt"
    options = ["--model", "mlp(hidden=20)", "--rounds", "2", "--method", method]
    assert call("train", made / "noisy.npz", "--backbone", BACKBONE, *options, "-o", target) == 0
    assert Run.read(target).meta["embedding"] == digest_of_rows(encoded(made))


def test_a_linear_head_resumes_bit_for_bit_and_only_on_its_features(made, capfd):
    options = ["--backbone", BACKBONE, "--model", "mlp(hidden=[])", "--fraction", "0.5"]
    whole, half = made / "whole.pt", made / "half.pt"
    assert call("train", made / "noisy.npz", *options, "--rounds", "4", "-o", whole) == 0
    assert call("train", made / "noisy.npz", *options, "--rounds", "2", "-o", half) == 0
    # Without the option, a resumed run uses its backbone.
    assert call("train", made / "noisy.npz", *options[2:], "--rounds", "4", "--resume", half, "-o", half) == 0
    assert torch.equal(Run.read(whole).weights, Run.read(half).weights)
    options[1] = BACKBONE.replace("32", "40")
    assert call("train", made / "noisy.npz", *options, "--rounds", "5", "--resume", half, "-o", half) == 2
    assert "another --backbone" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("efficientnet", "did you mean 'efficientnet-lite0'"),
        ("pca(dim=4)", "no pretrained network"),
        ("torchvision(weights='missing.pth')", "no weights at missing.pth"),
        ("wordllama", "needs texts but the samples are images" if find_spec("wordllama") else "is not installed"),
    ],
)
def test_a_wrong_backbone_ends_in_one_line(made, option, words, capfd):
    assert call("train", made / "noisy.npz", "--backbone", option, "-o", made / "none.pt") == 2
    error = capfd.readouterr().err
    assert words in error and "Traceback" not in error and not (made / "none.pt").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--backbone", "timm"], "`backbone` timm: timm is not installed; run: pip install timm"),
        (["--backbone", "wordllama"], "run: pip install 'fnlkit[text]'"),
        (["--backbone", BACKBONE, "--method", "oracle"], "trains on true labels"),
    ],
)
def test_refused_before_samples_are_encoded(made, options, words, monkeypatch, tmp_path, capfd):
    missing = {"timm", "wordllama"}
    monkeypatch.setattr("fnlkit.encoders.features.find_spec", lambda name: None if name in missing else True)
    monkeypatch.setattr("fnlkit.pipeline.inputs.with_backbone", pytest.fail)
    unknown = replace(Federation.read(str(made / "fed.npz")), true=None)
    unknown.write(str(tmp_path / "unknown.npz"))
    assert call("train", tmp_path / "unknown.npz", *options, "-o", tmp_path / "x.pt") == 2
    assert words.replace("`backbone`", "--backbone") in capfd.readouterr().err


@pytest.mark.parametrize("command", ["audit", "estimate-noise"])
def test_a_missing_backbone_is_named_before_the_work_starts(made, command, monkeypatch, capfd):
    monkeypatch.setattr("fnlkit.encoders.features.find_spec", lambda name: None)
    for module in ("audit", "estimate_noise"):
        monkeypatch.setattr(f"fnlkit.cli.{module}.bar", pytest.fail)
    assert call(command, made / "noisy.npz", "--backbone", "timm", "-o", made / "none.npz") == 2
    assert "--backbone timm: timm is not installed" in capfd.readouterr().err


def test_changed_weights_are_refused(made, tmp_path, capfd):
    """A run names its weights by checksum; predictions and exports need the same ones."""
    torch.save(torchvision().models.shufflenet_v2_x0_5(weights=None).state_dict(), tmp_path / "net.pth")
    backbone = f"torchvision(name=shufflenet_v2_x0_5, weights='{tmp_path / 'net.pth'}', size=32)"
    run = tmp_path / "run.pt"
    assert call("train", made / "noisy.npz", "--backbone", backbone, "--rounds", "1", "-o", run) == 0
    assert call("predict", run, made / "new.npz", "-o", tmp_path / "p.csv") == 0
    torch.save(torchvision().models.shufflenet_v2_x0_5(weights=None).state_dict(), tmp_path / "net.pth")
    capfd.readouterr()
    for command in (["predict", run, made / "new.npz"], ["export", run, "-o", tmp_path / "m.pt2"]):
        assert call(*command) == 2 and "are not those of the run" in capfd.readouterr().err


def texts_file(place, rows=60):
    """Write a table of texts with two classes and return its path."""
    words = [["rain and wind today", "a cold storm comes"], ["bake bread in the oven", "slice the fresh tomato"]]
    lines = [f'"{words[i % 2][i // 2 % 2]} number {i}",{"weather kitchen".split()[i % 2]}' for i in range(rows)]
    (place / "texts.csv").write_text("note,label\n" + "\n".join(lines) + "\n")
    (place / "new.csv").write_text('note\n"wind and rain, a storm"\n"fresh bread and tomato"\n')
    return f'manifest(file="{place / "texts.csv"}", text=[note])'


def test_texts_are_encoded_and_new_texts_predicted(tmp_path, monkeypatch, capsys):
    for name in ("wordllama", "tokenizers", "safetensors"):
        pytest.importorskip(name, reason="needs wordllama (extra `text`)")
    monkeypatch.setenv("FNLKIT_CACHE", str(tmp_path / "cache"))
    source = texts_file(tmp_path)
    data = datasets.load(source)
    encoded = with_backbone(data, "wordllama")
    assert data.x_train.shape == encoded.x_train.shape == (60, 256) and encoded.checksum == data.checksum
    assert encoded.table[0]["encoder"] == "wordllama" and not np.array_equal(data.x_train, encoded.x_train)
    np.testing.assert_allclose(np.linalg.norm(encoded.x_train, axis=1), 1, rtol=1e-5)
    fed, run = tmp_path / "fed.npz", tmp_path / "run.pt"
    assert call("partition", "--dataset", source, "--clients", "3", "-o", fed) == 0
    assert call("train", fed, "--rounds", "5", "--fraction", "1", "-o", run) == 0
    assert "texts are encoded by wordllama" in " ".join(capsys.readouterr().err.split())
    assert call("predict", run, tmp_path / "new.csv", "-o", tmp_path / "p.csv") == 0
    assert [row["name"] for row in parse_csv(tmp_path / "p.csv")] == ["weather", "kitchen"]
    stored = Run.read(run)
    stored.meta["samples"]["columns"][0]["weights"] = "0" * 64
    stored.write(str(run))
    assert call("predict", run, tmp_path / "new.csv") == 2
    assert "are not those of the run" in capsys.readouterr().err


@pytest.mark.parametrize("like", ["WAV2VEC2_BASE", "HUBERT_LARGE", "WAVLM_LARGE"])
def test_sounds_are_encoded_as_by_the_pipeline_and_new_sounds_predicted(like, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torchaudio", reason="needs torchaudio")
    pipelines, rng = pytest.importorskip("torchaudio.pipelines"), np.random.default_rng(0)
    monkeypatch.setenv("FNLKIT_CACHE", str(tmp_path / "cache"))
    bundle = getattr(pipelines, like)
    small = {"encoder_embed_dim": 32, "encoder_num_layers": 2, "encoder_num_heads": 2, "encoder_ff_interm_features": 32}
    convolutions = {"extractor_conv_layer_config": [(16, 10, 5), (16, 8, 8), (16, 8, 8)]}
    bundle = replace(bundle, _params=bundle._params | small | convolutions)
    monkeypatch.setattr(pipelines, like, bundle)
    weights = tmp_path / bundle._path
    weights.parent.mkdir(exist_ok=True)
    models = pytest.importorskip("torchaudio.models")
    make = models.wavlm_model if like.startswith("WAVLM") else models.wav2vec2_model
    torch.save(make(**bundle._params).state_dict(), weights)
    waves = np.sin(np.arange(8000) * 2 * np.pi * np.repeat([[0.02], [0.2]], 8, 0)) * rng.uniform(0.01, 0.9, (16, 1))
    for i, wave in enumerate(waves):
        folder = tmp_path / ("new" if i % 8 > 5 else f"sounds/{'low' if i < 8 else 'high'}")
        folder.mkdir(parents=True, exist_ok=True)
        wavfile.write(folder / f"{i:02d}.wav", 16000, (wave * 32767).astype(np.int16))
    backbone, run = f"torchaudio(name={like}, weights='{weights}')", tmp_path / "run.pt"
    data = datasets.load(tmp_path / "sounds")
    pipeline = bundle.get_model(dl_kwargs={"model_dir": str(weights.parent), "file_name": weights.name})
    x = torch.from_numpy(np.asarray(data.x_train))
    with torch.inference_mode():  # one recording in a batch
        expected = torch.cat([pipeline.extract_features(wave[None])[0][-1].mean(1) for wave in x])
    found = embed(data, backbone.replace(")", ", normalize=false)"), device="cpu")
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert call("partition", "--dataset", tmp_path / "sounds", "--clients", "2", "-o", tmp_path / "fed.npz") == 0
    assert call("train", tmp_path / "fed.npz", "--backbone", backbone, "--rounds", "5", "--fraction", "1", "-o", run) == 0
    assert call("predict", run, tmp_path / "new", "-o", tmp_path / "p.csv") == 0
    assert [row["name"] for row in parse_csv(tmp_path / "p.csv")] == ["low", "low", "high", "high"]


OPEN = large.open_arrays


def test_embeddings_that_stay_in_their_file_give_the_same(made, tmp_path, monkeypatch):
    """Estimators and methods see the same numbers by rows; an artifact of such rows is written with the same bytes."""
    federation = Federation.read(str(made / "noisy.npz"))
    at_once, found = files.read(made / "emb.npz"), {}
    for limit in (large.SMALL, 10_000):
        monkeypatch.setattr(large, "open_arrays", partial(OPEN, small=limit))
        monkeypatch.setattr(large, "SMALL", limit)
        rows = read_rows(str(made / "emb.npz"), "embeddings", federation)
        assert isinstance(rows, Stored) == (limit == 10_000)
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
    assert call("predict", made / f"{which}.pt", made / "new.npz", "--all", "-o", tmp_path / "p.csv") == 0
    rows = parse_csv(tmp_path / "p.csv")
    expected = test_predictions(Run.read(made / f"{which}.pt"), few(made))[:7]
    assert [int(row["class"]) for row in rows] == expected.tolist() and rows[3]["name"] == str(expected[3])
    assert all(abs(sum(float(row[str(c)]) for c in range(10)) - 1) < 1e-4 for row in rows)
    capsys.readouterr()
    assert call("predict", made / f"{which}.pt", made / "new.npz") == 0
    assert capsys.readouterr().out.startswith("sample,class,name,probability\n0,")


def test_an_export_that_fails_leaves_the_file_that_was_there(made, tmp_path, monkeypatch):
    target = tmp_path / "m.pt2"
    target.write_bytes(b"old")

    def fails(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.export, "export", fails)
    refuse_call("", export, Run.read(made / "run.pt"), str(target), error=KeyboardInterrupt)
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("which", ["run", "head"])
def test_exports_equal_the_network(made, which, tmp_path, request):
    """The second one is not converted, which takes seconds: what is compared is the module with its backbone."""
    modules = request.getfixturevalue("exported") if which == "head" else None
    run = Run.read(made / f"{which}.pt")
    assert export(run, str(tmp_path / "m.pt")) is None
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    module = network_of(run).module
    assert sum(v.numel() for v in state.values()) == len(run.weights) and state.keys() == module.state_dict().keys()
    assert export(run, str(tmp_path / "m.pt2")) < 1e-4
    program = modules[0] if modules else torch.export.load(tmp_path / "m.pt2").module()
    _, found = probabilities(run, str(made / "new.npz"))
    x = torch.from_numpy(few(made).x_test[:7]).movedim(-1, 1).float() / 255
    np.testing.assert_allclose(program(x).double().softmax(-1).numpy(), found, atol=1e-4)


@pytest.mark.parametrize("which", ["run", "head"])
def test_onnx_equals_the_network(made, which, tmp_path):
    pytest.importorskip("onnxscript", reason="needs onnxscript (extra `export`)")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime (extra `export`)")
    assert export(Run.read(made / f"{which}.pt"), str(tmp_path / "m.onnx")) < 1e-4

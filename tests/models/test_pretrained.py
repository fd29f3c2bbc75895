"""Networks that start from a backbone: what is trained, sent and stored."""

import numpy as np
import pytest
import torch
from torch import nn

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts.run import Run
from fnlkit.encoders.encoding import open_encoder
from fnlkit.encoders.pretrained import LowRank, freeze, train_lora
from fnlkit.experiment import Experiment
from fnlkit.experiment.network import load_trained
from fnlkit.experiment.probing import warm_head
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.network import Network
from fnlkit.models import build
from fnlkit.models.encoder import Encoder
from fnlkit.models.split import blocks_of, count_values, first_trained
from tests.commands import refuse_call

BACKBONE = "torchvision(name=mobilenet_v3_small, weights=random, size=32)"
PARTS = ("last(n=1)", "lora(rank=2)", "all")


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Small photographs of four clients."""
    place, rng = tmp_path_factory.mktemp("photos") / "photos.npz", np.random.default_rng(0)
    y = np.arange(40) % 4
    x = (40 * y[:, None, None, None] + rng.integers(0, 60, (40, 32, 32, 3))).astype(np.uint8)
    np.savez(place, x_train=x[:32], y_train=y[:32], x_test=x[32:], y_test=y[32:])
    return fnlkit.partition(str(place), clients=4, labels="true", say=None)


def model(train):
    return f"pretrained(backbone={BACKBONE}, train={train})"


def run(federation, train, **more):
    options = {"rounds": 2, "fraction": 0.5, "epochs": 1, "lr": 0.01, "precision": "fp64", "say": None}
    return fnlkit.train(federation, model=model(train), **options | more)


def network(train):
    return Network(build(model(train), input_shape=(3, 32, 32), classes=4))


@pytest.mark.parametrize("train", [*PARTS[:2], pytest.param("all", marks=pytest.mark.slow)])
def test_engines_agree_and_only_the_trainable_part_is_sent(federation, train):
    parts = run(federation, train, engine="sequential", rounds=1)
    size = network(train).size
    assert len(parts.weights) == size and parts.traffic.sent["weights"] == 2 * size * 8 == parts.traffic.bytes_up
    stacked = run(federation, train, engine="stacked", rounds=1)
    torch.testing.assert_close(stacked.weights, parts.weights, rtol=1e-8, atol=1e-10)
    assert parts.meta["frozen"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("train", PARTS)
def test_workers_and_resumed_runs_have_the_same_bytes(federation, train, tmp_path):
    whole = run(federation, train, engine="sequential", warmup_head=1, precision="fp32")
    workers = run(federation, train, engine="workers", workers=2, warmup_head=1, precision="fp32")
    assert torch.equal(whole.weights, workers.weights)
    half = run(federation, train, engine="sequential", warmup_head=1, precision="fp32", rounds=1)
    half.write(tmp_path / "half.pt")
    resumed = run(federation, train, engine="sequential", warmup_head=1, precision="fp32", resume=str(tmp_path / "half.pt"))
    assert torch.equal(whole.weights, resumed.weights) and whole.traffic == resumed.traffic


@pytest.fixture(scope="module")
def once(federation, tmp_path_factory):
    """A run in which the part before the trained block is computed once per sample, and its file."""
    place = tmp_path_factory.mktemp("once") / "run.pt"
    made = run(federation, "last(n=1)", augment="none", backbone="auto", engine="sequential", warmup_head=1)
    made.write(place)
    return made, place


def test_without_augmentation_the_frozen_part_is_computed_once(federation, once):
    made, _ = once
    assert made.meta["features"]["backbone"].startswith("frozen-part(") and made.meta["input_shape"] == [96]
    options = {"augment": "none", "engine": "sequential", "warmup_head": 1}
    images = run(federation, "last(n=1)", backbone="none", **options)
    assert images.meta["features"] is None and images.meta["input_shape"] == [3, 32, 32]
    assert images.history[-1]["accuracy"] == made.history[-1]["accuracy"] and images.traffic == made.traffic
    assert run(federation, "all", augment="none", rounds=1, engine="sequential").meta["features"] is None


def test_a_frozen_part_that_is_computed_in_each_batch_is_noted(federation, monkeypatch):
    monkeypatch.setattr("fnlkit.encoders.pretrained.MOST_BYTES", 100)
    notes = []
    made = run(federation, "last(n=1)", augment="none", rounds=1, say=notes.append, engine="sequential")
    assert made.meta["features"] is None and [note for note in notes if "computed again in each batch" in note]


def test_a_run_behind_the_frozen_part_resumes_predicts_and_exports_images(federation, once, exported, tmp_path):
    made, place = once
    run(federation, "last(n=1)", augment="none", engine="sequential", warmup_head=1, rounds=1).write(tmp_path / "half.pt")
    resumed = run(federation, "last(n=1)", augment="none", engine="stacked", warmup_head=1, resume=str(tmp_path / "half.pt"))
    torch.testing.assert_close(made.weights, resumed.weights, rtol=1e-8, atol=1e-10)
    data = datasets.load(federation.dataset)
    np.savez(tmp_path / "new.npz", x=data.x_test)
    rows = fnlkit.predict(place, tmp_path / "new.npz").rows
    assert np.mean([row[1] for row in rows] == data.y_test) == made.history[-1]["accuracy"]
    assert fnlkit.export(place, tmp_path / "m.pt2") < 1e-4 and classes_of(exported[0], data) == [row[1] for row in rows]


def classes_of(module, data):
    """Return the classes that an exported module predicts for the test images."""
    return module(torch.from_numpy(data.x_test).movedim(-1, 1).float() / 255).argmax(1).tolist()


def test_parts_of_a_network_compute_what_it_computes():
    """A network whose last layer reads the input of the first one cannot be split."""

    class Small(nn.Module):
        def __init__(self, skips):
            super().__init__()
            self.first, self.skips = nn.Conv2d(3, 3, 1), skips
            self.blocks = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(4))

        def forward(self, x):
            out = first = self.first(x)
            for block in self.blocks:
                out = block(out)
            return (out + first if self.skips else out).mean((2, 3))

    for skips, values in ((False, 3 * 8 * 8), (True, 0)):
        encoders = [Encoder(Small(skips), 8, (0.5,) * 3, (0.2,) * 3, normalize=True) for _ in range(2)]
        encoders[1].load_state_dict(encoders[0].state_dict())
        assert blocks_of(encoders[0]) == [f"module.blocks.{i}" for i in range(4)]
        encoders[0].requires_grad_(False).module.blocks[2].requires_grad_(True)
        assert first_trained(encoders[0]) == "module.blocks.2"
        assert count_values(*encoders, "module.blocks.2") == values


def test_a_head_reads_features_only(federation):
    head = run(federation, "head", engine="sequential")
    assert head.meta["features"]["backbone"] == str(fnlkit.core.spec.parse(BACKBONE))
    assert len(head.weights) == 4 * 1024 + 4 and head.settings["model"] == "mlp(hidden=[])"


def test_a_warm_head_predicts_as_the_linear_probe(federation):
    """Before its first round, the network has the predictions of the head that was trained on features."""
    probe = run(federation, "head", rounds=3, fraction=1.0, engine="sequential")
    tuning = {"lr": 1e-6, "client_optimizer": "adam"}  # of the rounds after it
    settings = Settings(
        model=model("last(n=1)"), warmup_head=3, warmup_lr=0.01, fraction=1.0, epochs=1, precision="fp64", **tuning
    )
    net = Network(build(settings.model, input_shape=(3, 32, 32), classes=4), dtype=torch.float64)
    data = datasets.load(federation.dataset)
    traffic = warm_head(federation, data, settings, net, make=Experiment)
    x = torch.from_numpy(data.x_test).movedim(-1, 1).double() / 255
    loss = nn.functional.cross_entropy(net.module(x), torch.from_numpy(data.y_test))
    assert float(loss.detach()) == pytest.approx(probe.history[-1]["loss"], rel=1e-4)
    assert traffic.sent["moments"] == probe.traffic.sent["moments"]
    refuse_call("`warmup_head`", fnlkit.train, federation, model="lenet5", warmup_head=1, rounds=1, say=None)


def test_cufit_refuses_a_pretrained_network_without_a_trained_head(federation):
    refuse_call("`warmup_head` 0: cufit", run, federation, "last(n=1)", method="cufit", engine="sequential")


def test_statistics_of_the_backbone_stay_as_they_are():
    """No part has buffers, whose averages would be sent; training mode changes nothing."""
    for train in PARTS:
        net = network(train)
        assert net.size == net.parameters_count
        x = torch.rand(3, 3, 32, 32)
        assert torch.equal(net.module.train()(x), net.module.eval()(x))


def test_low_rank_updates_train_as_those_of_peft():
    peft = pytest.importorskip("peft", reason="needs peft (extra `bench`)")

    def layers():
        torch.manual_seed(1)
        parts = [nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.Flatten()]
        parts += [nn.Linear(24, 10), nn.GELU(), nn.Linear(10, 4)]
        return nn.Sequential(*parts).requires_grad_(False)

    ours = layers()
    train_lora(ours, rank=2)
    names = [name for name, part in ours.named_modules() if isinstance(part, LowRank)]
    assert names == ["0", "4", "6"]
    theirs = peft.get_peft_model(layers(), peft.LoraConfig(r=2, lora_alpha=2, target_modules=names))
    for name in names:
        part = theirs.get_submodule(f"base_model.model.{name}")
        ours[int(name)].down.weight.data.copy_(part.lora_A["default"].weight)
    x, y = torch.randn(8, 3, 4, 4), torch.arange(8) % 4
    for module in (ours, theirs):
        trained = [p for p in module.parameters() if p.requires_grad]
        assert len(trained) == 2 * len(names)
        optimizer = torch.optim.SGD(trained, lr=1.0, momentum=0.9)
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
    assert (ours(x) - layers()(x)).abs().max() > 0.01
    torch.testing.assert_close(ours(x), theirs.merge_and_unload()(x), rtol=1e-4, atol=1e-5)


def test_last_blocks_are_nested():
    few, more = ({name for name, p in network(f"last(n={n})").module.named_parameters() if p.requires_grad} for n in (1, 3))
    assert {"fc.weight", "fc.bias"} < few < more
    refuse_call("blocks", network, "last(n=99)")


@pytest.mark.parametrize(
    ("train", "words"),
    [("lora(rank=0)", "at least 1"), ("heads", "did you mean 'head'"), ("last(m=2)", "parameter")],
)
def test_mistakes_are_named(train, words):
    refuse_call(words, network, train)


def test_exports_and_predictions_of_a_fine_tuned_network(federation, exported, tmp_path):
    tuned = run(federation, "lora(rank=2)", precision="fp32", engine="sequential")
    tuned.write(tmp_path / "run.pt")
    assert fnlkit.export(tmp_path / "run.pt", tmp_path / "m.pt2") < 1e-4
    data = datasets.load(federation.dataset)
    np.savez(tmp_path / "new.npz", x=data.x_test)
    rows = fnlkit.predict(tmp_path / "run.pt", tmp_path / "new.npz").rows
    assert classes_of(exported[0], data) == [row[1] for row in rows]
    assert np.mean([row[1] for row in rows] == np.arange(32, 40) % 4) == tuned.history[-1]["accuracy"]


def test_auto_joins_fine_tuned_networks_on_one_backbone(federation, tmp_path):
    """The committee has one copy of the frozen parameters, and a head that each training warms on its own samples."""
    options = {"precision": "fp32", "warmup_head": 1, "engine": "sequential", "rounds": 1}
    joined = run(federation, "last(n=1)", method="auto(of=[fedavg, flr(strength=0)], folds=2)", **options)
    one = run(federation, "last(n=1)", **options)
    assert joined.meta["committee"] == 2 and joined.meta["frozen"] == one.meta["frozen"]
    assert len(joined.weights) == 2 * len(one.weights) + 2
    trained = 2 * 2 + 2  # two methods on two folds, then on all samples
    assert joined.traffic.sent["weights"] == trained * one.traffic.sent["weights"]
    joined.write(tmp_path / "run.pt")
    data = datasets.load(federation.dataset)
    loaded = load_trained(Run.read(tmp_path / "run.pt"), data)
    frozen = [p for p in loaded.network.module.parameters() if not p.requires_grad]
    assert len(frozen) == sum(not p.requires_grad for p in loaded.network.module.networks[0].parameters())
    classes = loaded.logits(loaded.x_test).argmax(-1).numpy()
    assert (classes == data.y_test).mean() == joined.history[-1]["accuracy"]


def test_a_frozen_encoder_computes_as_before():
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(freeze(open_encoder(BACKBONE))(x), open_encoder(BACKBONE)(x), rtol=0, atol=0)

"""Networks: published sizes, one seed one start, and a stacked cohort equal to its clients one by one."""

import copy
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from fnlkit import models
from fnlkit.core.errors import InputError
from fnlkit.models import vision
from fnlkit.models.dropout import Dropout, Dropout2d, replace_dropout
from fnlkit.models.spectrograms import FLOOR, LogMel, log_mel
from tests.commands import refuse_call

# Small variants: the structure is under test, not the width.
SMALL = {
    "mlp": ("mlp(hidden=[7, 5])", (3, 6, 6)),
    "fourier": ("fourier(features=8)", (2, 3)),
    "lenet5": ("lenet5", (1, 28, 28)),
    "resnet18": ("resnet18(base=4)", (3, 9, 9)),
    "resnet34": ("resnet34(base=2)", (1, 8, 8)),
    "resnet20": ("resnet20(base=4)", (3, 10, 10)),
    "cnn2": ("cnn2(base=2)", (3, 9, 10)),
    "cnn9": ("cnn9(base=8)", (1, 28, 28)),
    "vgg11": ("vgg11(base=2)", (3, 28, 28)),
    "convmixer": ("convmixer(dim=6, depth=2)", (3, 8, 8)),
    "audio": ("audio(widths=[4, 8])", (1, 16, 20)),
}
PUBLISHED = {"lenet5": 62_006, "resnet18": 11_173_962, "resnet34": 21_282_122, "resnet20": 269_722, "vgg11": 9_231_114}


def cohort(spec, shape, size=3, rows=4):
    clients = [models.build(spec, input_shape=shape, classes=5, seed=seed).double() for seed in range(size)]
    for i, network in enumerate(clients):
        models.reseed(network, 1000 + i)
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(size, rows, *shape, generator=draws, dtype=torch.float64)
    y = torch.randint(5, (size, rows), generator=draws)
    return clients, x, y


@pytest.mark.parametrize("name", SMALL)
def test_a_stacked_cohort_equals_a_loop(name):
    """Two training steps: losses, gradients, batch norm's buffers and dropout's masks, in float64."""
    clients, x, y = cohort(*SMALL[name])
    skeleton = clients[0]
    parameters, buffers = stack_module_state(clients)
    parameters = {key: value.detach().clone() for key, value in parameters.items()}
    buffers = {key: value.clone() for key, value in buffers.items()}

    def loss(p, b, x, y):
        b = {key: value.clone() for key, value in b.items()}
        logits = functional_call(skeleton, (p, b), (x,))
        return torch.nn.functional.cross_entropy(logits, y), b

    for _ in range(2):
        gradients, buffers = vmap(grad(loss, has_aux=True))(parameters, buffers, x, y)
        parameters = {key: value - 0.1 * gradients[key] for key, value in parameters.items()}

    for i in range(len(clients)):
        network = models.build(SMALL[name][0], input_shape=SMALL[name][1], classes=5, seed=i).double()
        models.reseed(network, 1000 + i)
        for _ in range(2):
            network.zero_grad()
            torch.nn.functional.cross_entropy(network(x[i]), y[i]).backward()
            with torch.no_grad():
                for p in network.parameters():
                    p -= 0.1 * p.grad
        for key, value in network.named_parameters():
            assert torch.allclose(parameters[key][i], value, rtol=0, atol=1e-12), key
        for key, value in network.named_buffers():
            assert torch.allclose(buffers[key][i], value, rtol=0, atol=1e-12), key


@pytest.mark.parametrize("name", SMALL)
def test_features_then_classify_is_forward(name):
    spec, shape = SMALL[name]
    network = models.build(spec, input_shape=shape, classes=5).eval()
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    features = network.features(x)
    assert features.shape == (2, network.width)
    assert network(x).shape == (2, 5)
    assert torch.equal(network.classify(features), network(x))


@pytest.mark.parametrize("name", SMALL)
def test_initial_weights_depend_only_on_the_seed(name):
    spec, shape = SMALL[name]

    def start(seed):
        network = models.build(spec, input_shape=shape, classes=5, seed=seed)
        return torch.cat([p.flatten() for p in network.parameters()])

    torch.manual_seed(1)
    before, first = torch.get_rng_state(), start(3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(first, start(3))
    assert not torch.equal(first, start(4))


def test_parameters_are_as_published():
    table = models.tabulate_networks()
    assert {name: table[name][2] for name in PUBLISHED} == PUBLISHED
    network = models.build("cnn2", input_shape=(1, 28, 28), classes=10)
    assert sum(p.numel() for p in network.parameters()) == 1_663_370  # McMahan 2017, section 3


def test_lenet_has_fedcorrs_parameters_in_order():
    network = models.build("lenet5", input_shape=(1, 28, 28), classes=10)
    layers = ["conv1", "conv2", "fc1", "fc2", "fc3"]
    names = [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]
    assert [name for name, _ in network.named_parameters()] == names
    assert network.fc1.weight.shape == (120, 400)


def test_lenet_refuses_small_images():
    refuse_call(r"at least 28x28.*mlp.*upsample", models.build, "lenet5", input_shape=(1, 8, 8), classes=10)
    small = models.build("lenet5(upsample=true)", input_shape=(1, 8, 8), classes=10)
    assert small(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(("shape", "kind", "name"), [
    ((64,), None, "mlp"), ((1, 8, 8), None, "mlp"), ((1, 28, 28), None, "lenet5"), ((3, 32, 32), None, "lenet5"),
    ((3, 64, 64), None, "resnet18"), ((1, 64, 64), None, "resnet18"), ((8000,), None, "audio"), ((1, 64, 98), None, "audio"),
    ((4000,), "vector", "mlp"), ((8000,), "wave", "audio"), ((1, 64, 64), "wave", "audio"), ((1, 64, 98), "image", "resnet18"),
])  # fmt: skip
def test_auto_chooses_by_input_and_by_the_declared_kind(shape, kind, name):
    assert models.auto(shape, kind) == name


@pytest.mark.parametrize(("spec", "shape", "message"), [
    ("mlp(hidden=[0])", (8,), "positive whole numbers"),
    ("audio(widths=0.1)", (1, 64, 98), "`widths` is"),
    (f"mlp(hidden={10**30})", (8,), "more than 4,294,967,296 weights"),
    ("lenet5", (64,), "needs images"),
    ("resnet20(init=zero)", (3, 8, 8), "torch, he or xavier"),
    ("tests.models.test_models:wrong", (8,), r"expected logits of shape \(2, 5\)"),
    ("tests.models.test_models:nothing", (8,), "must return a torch.nn.Module"),
    ("tests.models.test_models:with_weights", (8, 8), "gives tuple; its forward must return a tensor of logits only"),
    ("vgg11", (3, 8, 8), r"at least 28x28 .* or lenet5\(upsample=true\)"),
])  # fmt: skip
def test_mistakes_are_named(spec, shape, message):
    spec = spec.replace("tests.models.test_models", __name__)
    refuse_call(message, models.build, spec, input_shape=shape, classes=5)


def own(*, input_shape, classes, size=4):
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(math.prod(input_shape), size), torch.nn.Linear(size, classes)
    )


def wrong(*, input_shape, classes):
    return torch.nn.Linear(*input_shape, classes + 1)


def with_weights(*, input_shape, classes):
    return torch.nn.LSTM(input_shape[1], classes, batch_first=True)


def nothing(*, input_shape, classes):
    return None


def test_a_network_of_the_users_is_built_by_name():
    network = models.build(f"{__name__}:own(size=6)", input_shape=(2, 3), classes=4)
    assert network[1].out_features == 6
    assert network(torch.zeros(2, 2, 3)).shape == (2, 4)


def test_xavier_is_fedefcs_start():
    network = models.build("lenet5(init=xavier)", input_shape=(3, 32, 32), classes=10)
    assert not network.fc1.bias.any()
    assert network.fc1.weight.abs().max() <= math.sqrt(6 / (400 + 120))


def test_resnet50_stacks_and_keeps_to_the_contract():
    """One forward in training mode: so deep a network on so few pixels doubles its rounding with every step."""
    shape = (3, 64, 64)
    clients, x, _ = cohort("resnet50", shape, size=2, rows=2)
    parameters, buffers = stack_module_state(clients)
    with torch.no_grad():
        stacked = vmap(lambda p, b, x: functional_call(clients[0], (p, b), (x,)))(
            parameters, {key: value.clone() for key, value in buffers.items()}, x
        )
        for i, network in enumerate(clients):
            assert torch.allclose(stacked[i], network(x[i]), rtol=0, atol=1e-11)
        features = clients[0].eval().features(x[0])
        assert features.shape == (2, clients[0].width)
        assert torch.equal(clients[0].classify(features), clients[0](x[0]))


@pytest.mark.parametrize("kind", [Dropout, Dropout2d])
def test_dropout_drops_entries_or_channels_at_its_rate_and_by_key(kind):
    layer, x = kind(0.3, 1), torch.ones(400, 50, 2, 2)
    layer.key.fill_(7)
    first, second = layer(x), layer(x)
    assert (first == first[:, :, :1, :1]).all() == (kind is Dropout2d)
    assert set(first.unique().tolist()) <= {0.0, float(first.max())} and math.isclose(first.max(), 1 / 0.7, rel_tol=1e-6)
    assert abs((first[:, :, 0, 0] == 0).double().mean() - 0.3) < 0.01  # 20,000 draws: three deviations are 0.0097
    assert abs((first * second == 0).double().mean() - (1 - 0.7**2)) < 0.015
    layer.key.fill_(7)
    assert torch.equal(layer(x[:3]), first[:3])  # a short batch sees the masks of a full one's first rows
    layer.eval()
    assert torch.equal(layer(x), x) and layer.key == 8


def dropping(*, input_shape, classes, rate=0.3):
    """Dropout inside a nested module, one layer in two places, and dropout of whole channels."""
    shared = torch.nn.Dropout(rate)
    inner = torch.nn.Sequential(shared, torch.nn.Linear(input_shape[0], 12), torch.nn.ReLU(), shared)
    return torch.nn.Sequential(inner, torch.nn.Dropout1d(rate), torch.nn.Linear(12, classes))


class Functional(torch.nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        self.line = torch.nn.Linear(size, classes)

    def forward(self, x):
        return torch.nn.functional.dropout(self.line(x), 0.3, self.training)


def functional(*, input_shape, classes):
    return Functional(input_shape[0], classes)


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_first": True}, {"batch_first": True, "add_bias_kv": True, "add_zero_attn": True}, {"kdim": 6, "vdim": 5}],
)
def test_attention_with_keyed_dropout_is_that_of_torch_up_to_the_mask(options):
    torch.manual_seed(0)
    plain = torch.nn.MultiheadAttention(8, 2, dropout=0.5, **options).double().eval()
    inputs = [torch.randn(3, 4, size).double() for size in (8, options.get("kdim", 8), options.get("vdim", 8))]
    expected = [*plain(*inputs, average_attn_weights=False)]
    layer = replace_dropout(plain).train()
    models.reseed(layer, 3)
    outputs, weights = layer(*inputs, average_attn_weights=False)
    kept = weights != 0
    torch.testing.assert_close(weights[kept], 2 * expected[1][kept])
    assert 0.2 < kept.double().mean() < 0.8
    models.reseed(layer, 3)
    assert torch.equal(layer(*inputs)[0], outputs) and not torch.equal(layer(*inputs)[0], outputs)
    assert torch.equal(layer.eval()(*inputs)[0], expected[0])
    # The values of torch from these attention weights: without a mask, the outputs are those of torch.
    layer.train().keyed_dropout.rate = 1e-12
    torch.testing.assert_close(layer(*inputs)[0], expected[0])


def test_a_users_dropout_is_keyed_and_other_randomness_refused():
    network = models.build("tests.models.test_models:dropping", input_shape=(8,), classes=4)
    kinds = [type(part) for part in network.modules() if "ropout" in type(part).__name__]
    assert kinds == [Dropout, Dropout, Dropout2d] and network.training
    layers = [part.layer for part in network.modules() if isinstance(part, Dropout)]
    assert len(set(layers)) == 3
    alone = models.build("tests.models.test_models:dropping(rate=0.0)", input_shape=(8,), classes=4)
    assert torch.equal(alone(torch.ones(2, 8)), alone(torch.ones(2, 8)))
    refuse_call("test_models:functional", models.build, "tests.models.test_models:functional", input_shape=(8,), classes=4)


def test_audio_takes_waves_of_any_rate():
    shape = (4000,)
    network = models.build("audio(sample_rate=8000)", input_shape=shape, classes=10)
    assert network(torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)) * 1000).shape == (2, 10)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(network)))  # as workers and teachers get it
    assert twin.eval()(torch.zeros(1, *shape)).shape == (1, 10)
    assert not list(network.buffers())[4:]  # four dropout keys; the filters of the front end do not travel
    refuse_call("need at least 16", models.build, "audio", input_shape=(1000,), classes=10)


def test_imagenet_weights_are_never_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    refuse_call(r"no weights at .*resnet50", models.build, "resnet50(weights=imagenet)", input_shape=(3, 64, 64), classes=10)


def test_resnet50_starts_from_a_file(tmp_path):
    from fnlkit.models.vision import torchvision

    net = torchvision().models.resnet50(weights=None, num_classes=14)  # its last layer is not read
    torch.save(net.state_dict(), tmp_path / "net.pth")
    network = models.build(f"resnet50(weights='{tmp_path / 'net.pth'}')", input_shape=(3, 64, 64), classes=7).eval()
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    net.fc = torch.nn.Identity()
    with torch.no_grad():
        assert torch.equal(network.features(x), net.eval()(x))


def test_resnet50_names_a_file_that_does_not_fit(tmp_path):
    torch.save({"conv1.weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(InputError, match=r"weights .*other.pth do not fit the network: "):
        models.build(f"resnet50(weights='{tmp_path / 'other.pth'}')", input_shape=(3, 64, 64), classes=7)


def test_resnet50_starts_with_he_convolutions_for_any_number_of_channels():
    weight = models.build("resnet50", input_shape=(1, 64, 64), classes=2).net.conv1.weight
    assert weight.std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.1)


def test_lenet_pads_28_pixels_as_a_padded_convolution_does():
    network = models.build("lenet5", input_shape=(1, 28, 28), classes=10)
    x = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    padded = torch.nn.functional.conv2d(x, network.conv1.weight, network.conv1.bias, padding=2)
    assert torch.allclose(network.conv1(torch.nn.functional.pad(x, network.padding)), padded, atol=1e-6)


def test_no_batch_norm_counts_its_batches():
    network = models.build("resnet20(base=4)", input_shape=(3, 8, 8), classes=10)
    assert all(buffer.is_floating_point() for buffer in network.buffers())


# ---- log-Mel spectrograms against the formula, written out
def naive(wave, rate, bins=64, window=0.025, hop=0.010):
    """One frame at a time: Hann window, power spectrum, triangles on the HTK Mel scale, logarithm."""
    length, step = round(window * rate), round(hop * rate)
    size = LogMel(rate, bins=bins, window=window, hop=hop).size
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    mel = np.linspace(0, 2595 * math.log10(1 + rate / 2 / 700), bins + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    hertz = np.arange(size // 2 + 1) * rate / size
    columns = []
    for start in range(0, len(wave) - length + 1, step):
        power = np.abs(np.fft.rfft(wave[start : start + length] * hann, size)) ** 2
        bands = []
        for low, middle, high in zip(edges[:-2], edges[1:-1], edges[2:], strict=True):
            triangle = np.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle))
            bands.append((np.maximum(triangle, 0) * power).sum())
        columns.append(np.log(np.array(bands) + FLOOR))
    return np.array(columns).T


@pytest.mark.parametrize(("rate", "bins"), [(16000, 64), (8000, 64), (8000, 40), (22050, 64)])
def test_the_spectrogram_equals_the_formula(rate, bins):
    wave = np.random.default_rng(0).normal(size=rate // 5) * 0.1
    found = log_mel(wave[None], rate, bins=bins)[0, 0]
    wanted = naive(wave, rate, bins)
    assert found.dtype == np.float32 and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=2e-3)


@pytest.mark.parametrize("rate", [1000, 8000, 16000, 44100])
def test_no_band_is_empty(rate):
    assert (LogMel(rate).filters.sum(0) > 0).all()


def test_integers_and_floats_agree():
    wave = np.random.default_rng(0).integers(-3000, 3000, (3, 4000), dtype=np.int16)
    np.testing.assert_array_equal(log_mel(wave, 8000), log_mel(wave.astype(np.float32) / 32768, 8000))


def test_a_second_has_98_frames_in_batches_of_any_size():
    waves = np.random.default_rng(0).normal(size=(5, 16000)).astype(np.float32)
    seen = []
    one = log_mel(waves, 16000, batch_size=2, progress=seen.append)
    assert one.shape == (5, 1, 64, 98) and seen == [2, 4, 5]
    np.testing.assert_allclose(one, log_mel(waves, 16000), atol=1e-5)


@pytest.mark.parametrize(("waves", "rate", "message"), [
    (np.zeros((2, 3, 4)), 8000, "expected int16 or float"),
    (np.zeros((2, 100)), 8000, "less than one window of 200"),
    (np.full((2, 4000), np.nan), 8000, "not finite"),
    (np.zeros((2, 4000)), 0, "at least 1000 Hz"),
])  # fmt: skip
def test_mistakes_of_spectrograms_are_named(waves, rate, message):
    refuse_call(message, log_mel, waves, rate)


# ---- torchvision works beside the torch that is installed, matching or not
def test_torchvision_networks_and_transforms_run():
    module = vision.torchvision()
    image = torch.zeros(3, 40, 40, dtype=torch.uint8)
    assert module.transforms.Resize((8, 8))(image).shape == (3, 8, 8)
    with torch.no_grad():
        assert module.models.resnet18(weights=None).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 1000)


def test_the_module_itself_imports_no_torch():
    """That the libraries are imported without a warning is shown by the tests of this file: their warnings are errors."""
    code = "import sys, fnlkit.models.vision; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code]).returncode == 0


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(vision.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    refuse_call(r"pip install 'fnlkit\[train\]'", vision.torchvision.__wrapped__)


def test_weights_come_from_files_only(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    state = {"a": torch.ones(2)}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "net.pth")
    assert torch.equal(vision.weights_file(str(tmp_path / "net.pth"))["a"], state["a"])
    refuse_call(r"net-1.pth; fetch https://example.org/net-1.pth", vision.weights_file, "https://example.org/net-1.pth")
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(state, tmp_path / "hub" / "checkpoints" / "net-1.pth")
    assert torch.equal(vision.weights_file("https://example.org/net-1.pth")["a"], state["a"])


FILES = [(raw, "cannot read weights") for raw in (b"", b"PK\x03\x04 no zip", b"not a file of torch", {"a": print})]


@pytest.mark.parametrize(("content", "message"), [*FILES, ([torch.ones(2)], "no state dictionary")])
def test_other_files_than_tensors_by_name_are_one_line(content, message, tmp_path):
    path = tmp_path / "net.pth"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(InputError, match=message) as error:
        vision.weights_file(str(path))
    assert "\n" not in str(error.value)

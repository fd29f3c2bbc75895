"""Convolutions of stacked clients as matrix products equal those of each client's layer."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from fnlkit.federated.engines.products import Convolve, Patches, Products, SideStream, gpu_kernels, lay_out, new_images
from fnlkit.models.resnet import ResNet

K, B = 3, 2


def alone(layers, images):
    """Return (outputs, input gradients, parameter gradients by name) of K layers, client by client."""
    images = images.clone().requires_grad_()
    out = torch.stack([layer(x) for layer, x in zip(layers, images, strict=True)])
    backpropagate(out)
    each = [dict(layer.named_parameters()) for layer in layers]
    return out, images.grad, {name: torch.stack([parameters[name].grad for parameters in each]) for name in each[0]}


def backpropagate(out):
    """Backpropagate from a sum with a different weight for each output."""
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view(out.shape)).sum().backward()


def together(layers, images):
    images = images.clone().requires_grad_()
    parameters, buffers = stack_module_state(layers)

    def call(parameters, buffers, x):
        return functional_call(layers[0], (parameters, buffers), (x,))

    with Products(SideStream(images.device)):
        out = vmap(call)(parameters, buffers, images)
    backpropagate(out)
    torch.cuda.synchronize() if out.device.type == "cuda" else None
    return out, images.grad, {name: value.grad for name, value in parameters.items()}, buffers


LAYERS = [
    *((nn.Conv2d, {"kernel_size": side, "stride": stride, "padding": padding, "bias": bias})
      for side in (1, 3, 5) for stride in (1, 2) for padding in (0, 1) for bias in (False, True)),
    (nn.Conv2d, {"kernel_size": 3, "padding": "same"}), (nn.Conv2d, {"kernel_size": (1, 3), "padding": (0, 1)}),
    (nn.Conv2d, {"kernel_size": 3, "stride": (1, 2)}), (nn.Conv2d, {"kernel_size": 3, "dilation": 2}),
    (nn.Conv2d, {"kernel_size": 3, "groups": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), LAYERS)
def test_convolutions_equal_those_of_each_client(kind, options, monkeypatch):
    torch.manual_seed(0)
    layers = [kind(4, 6, **options).double() for _ in range(K)]
    images = torch.randn(K, B, 4, 7, 6, dtype=torch.float64)
    used, apply = [], Convolve.apply
    monkeypatch.setattr(Convolve, "apply", lambda *arguments: used.append(1) or apply(*arguments))
    found = together(layers, images)
    torch.testing.assert_close(found[:3], alone(layers, images), rtol=1e-12, atol=1e-12)
    plain = isinstance(options.get("padding", 0), int) and isinstance(options["kernel_size"], int)
    assert bool(used) == (plain and isinstance(options.get("stride", 1), int) and not {"groups", "dilation"} & set(options))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_equals_that_of_each_client(training, affine):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=affine), nn.ReLU()).double() for _ in range(K)]
    for layer in layers:
        layer[1].num_batches_tracked = None
        layer[1].running_mean.normal_()
        layer.train(training)
    images = torch.randn(K, B, 3, 6, 6, dtype=torch.float64)
    *found, buffers = together(layers, images)
    torch.testing.assert_close(tuple(found), alone(layers, images), rtol=1e-12, atol=1e-12)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(buffers[f"1.{name}"], torch.stack([getattr(v[1], name) for v in layers]))


def test_images_keep_the_memory_order_that_batch_norm_reads():
    """No layer of a residual block copies the images into another order."""
    layers = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(K)]
    for layer in layers:
        layer[1].num_batches_tracked = None
    parameters, buffers = stack_module_state(layers)
    x = lay_out(torch.randn(K, B, 4, 5, 5))

    def block(parameters, buffers, x):
        return x + functional_call(layers[0], (parameters, buffers), (x,))

    with Products(SideStream(x.device)):
        assert vmap(block)(parameters, buffers, x).stride() == x.stride()


def test_bfloat16_products_accumulate_in_float32():
    torch.manual_seed(0)
    layers = [nn.Conv2d(64, 8, 3, padding=1) for _ in range(K)]
    images = torch.randn(K, B, 64, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found = together(layers, images)
    for low, exact in zip(found[:2], alone(layers, images)[:2], strict=True):
        assert (low.float() - exact).norm() / exact.norm() < 1e-2
    assert found[0].dtype == torch.bfloat16 and found[2]["weight"].dtype == torch.float32


# ---- kernels on a GPU
@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "units", "side", "stride", "padding"), [
    (16, 48, 3, 1, 1), (64, 128, 3, 2, 1), (32, 16, 1, 2, 0), (256, 256, 3, 1, 0), (64, 64, 5, 1, 2),
])  # fmt: skip
def test_kernels_equal_products_in_torch(channels, units, side, stride, padding, kind, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    torch.manual_seed(0)
    options, height, width = {"dtype": kind, "device": "cuda"}, 9, 6
    x = lay_out(torch.randn(K, B, channels, height, width, **options))
    w = torch.randn(K, units, side, side, channels, **options).permute(0, 1, 4, 2, 3)
    size = [(n + 2 * padding - side) // stride + 1 for n in (height, width)]
    d, shared, found = lay_out(torch.randn(K, B, units, *size, **options)), {"stride": stride, "padding": padding}, []
    for kernels in (gpu_kernels(), Patches):
        y, back, g = new_images(x, units, *size), new_images(x, channels, height, width), torch.empty_like(w)
        kernels.convolve(x, w, y, back=False, **shared)
        kernels.convolve(d, w, back, back=True, **shared)
        kernels.weigh(x, d, g, **shared)
        found.append((y, back, g))
    for value, expected in zip(*found, strict=True):
        assert (value.float() - expected.float()).norm() / expected.float().norm() < (1e-5 if kind == torch.float32 else 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("side", [1, 5, 30])
def test_a_residual_block_on_a_gpu_equals_that_of_each_client(side, monkeypatch):
    """Channels that the kernels can read, and an image with channels that they pad."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    torch.manual_seed(0)
    layers = [ResNet(3, 5, (1, 1), 16, True).double() for _ in range(K)]
    images = torch.randn(K, 4, 3, side, side, dtype=torch.float64)
    out, _, expected = alone(layers, images)
    layers = [layer.float().cuda() for layer in layers]
    low, _, gradients, _ = together(layers, images.float().cuda())
    torch.testing.assert_close(low.cpu().double(), out, rtol=1e-3, atol=1e-3)
    for name, value in gradients.items():
        assert (value.cpu().double() - expected[name]).norm() <= 1e-3 * expected[name].norm() + 1e-4


@pytest.mark.gpu
def test_nan_passes_batch_norm_and_relu_on_a_gpu_as_in_pytorch(device="cuda"):
    """It does not become a zero of the ReLU, which would hide that a client's training diverged."""
    x = torch.linspace(-1, 1, 2800, device=device).view(40, 70).sin()
    x[7, 9] = torch.nan
    one, zero = torch.ones(70, device=device), torch.zeros(70, device=device)
    y, statistics = gpu_kernels().normalize(x, None, (one, zero, zero.clone(), one.clone()), 0.1, 1e-5, True)
    torch.testing.assert_close(y, nn.functional.batch_norm(x, None, None, training=True).relu(), equal_nan=True)
    *_, bias = gpu_kernels().normalize_back(torch.ones_like(x), y, x, one, statistics, True, False)
    assert bias[9] == 40

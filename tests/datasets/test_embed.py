"""Embeddings: exact where there is a formula, independent of batches, from local weights only."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fnlkit.datasets.embed import embed
from fnlkit.errors import InputError


def images(n=7, side=12, channels=3):
    x = np.random.default_rng(0).integers(0, 256, (n, side, side, channels), dtype=np.uint8)
    return SimpleNamespace(x_train=x, kind="image")


def test_pixels_are_the_samples_in_0_to_1():
    data = images()
    out = embed(data, "pixels")
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, data.x_train.reshape(7, -1) / 255, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(embed(data, "pixels(normalize=true)"), axis=1), 1, rtol=1e-6)
    assert data.x_train.dtype == np.uint8


@pytest.mark.parametrize(("n", "side"), [(60, 5), (20, 9), (40, 3)])
def test_pca_is_the_singular_value_decomposition(n, side):
    data = images(n, side)
    out = embed(data, "pca(dim=4)")
    flat = data.x_train.reshape(n, -1) / 255
    left, values, _ = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(out), np.abs((left * values)[:, :4]), atol=1e-4)
    np.testing.assert_array_equal(out, embed(data, "pca(dim=4)"))


@pytest.mark.parametrize("whiten", [False, True])
def test_components_of_large_data_are_fitted_on_evenly_spaced_samples(whiten, monkeypatch):
    """All samples are projected, and the fit has at least `dim` samples."""
    from sklearn.decomposition import PCA

    rng = np.random.default_rng(0)
    x = (rng.normal(size=(700, 8)) * 2.0 ** -np.arange(8) @ rng.normal(size=(8, 90)) + 3).astype(np.float32)
    data = SimpleNamespace(x_train=x, kind="vector")
    for bytes_fitted, every in ((x.nbytes, 1), (x.nbytes // 2, 2), (0, 140)):
        monkeypatch.setattr("fnlkit.datasets.pca._MOST_FITTED", max(1, bytes_fitted))
        right = PCA(5, whiten=whiten, svd_solver="full").fit(x[::every]).transform(x)
        np.testing.assert_allclose(
            embed(data, f"pca(dim=5, whiten={str(whiten).lower()})"), right, atol=2e-3 * np.abs(right).max()
        )


def test_waves_are_embedded_by_their_spectrogram(monkeypatch):
    waves = np.random.default_rng(0).integers(-99, 99, (9, 2000), dtype=np.int16)
    data = SimpleNamespace(x_train=waves, kind="wave", sample_rate=8000)
    flat = embed(data, "pixels")
    assert flat.shape == (9, 64 * 23)
    as_vectors = SimpleNamespace(x_train=flat, kind="vector")
    for bytes_fitted in (flat.nbytes, flat.nbytes // 3):
        monkeypatch.setattr("fnlkit.datasets.pca._MOST_FITTED", bytes_fitted)
        wanted = embed(as_vectors, "pca(dim=3)")
        np.testing.assert_allclose(embed(data, "pca(dim=3)"), wanted, atol=1e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_gives_unit_rows_whatever_the_batch(channels):
    data, seen, before = images(channels=channels), [], torch.get_rng_state()
    spec = "torchvision(name=resnet18, weights=random, size=32)"
    out = embed(data, spec, device="cpu", batch_size=3, progress=lambda done, total: seen.append((done, total)))
    assert out.shape == (7, 512) and seen == [(3, 7), (6, 7), (7, 7)] and torch.equal(before, torch.get_rng_state())
    np.testing.assert_allclose(np.linalg.norm(out, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(out, embed(data, spec, device="cpu", batch_size=7), atol=1e-5)
    as_floats = SimpleNamespace(x_train=(data.x_train / 255).astype(np.float32), kind="image")
    np.testing.assert_allclose(out, embed(as_floats, spec, device="cpu"), atol=1e-5)


def test_torchvision_reads_a_local_file(tmp_path):
    from fnlkit.models.vision import torchvision

    net = torchvision().models.resnet18(weights=None).eval()
    torch.save(net.state_dict(), tmp_path / "net.pth")
    data = images(2, 32)
    out = embed(data, f"torchvision(weights='{tmp_path / 'net.pth'}', size=32, normalize=false)", device="cpu")
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    x = (torch.from_numpy(data.x_train).movedim(-1, 1) / 255 - mean) / std
    net.fc = torch.nn.Identity()
    with torch.no_grad():
        np.testing.assert_allclose(out, net(x).numpy(), rtol=1e-3, atol=1e-4)


def test_timm_gives_pooled_features():
    pytest.importorskip("timm", reason="needs timm (extra `embed`)")
    assert embed(images(2), "timm(name=resnet18, weights=random, size=32)", device="cpu").shape == (2, 512)
    with pytest.raises(InputError, match="does not accept images of 32 pixels"):
        embed(images(2), "timm(name=vit_tiny_patch16_224, weights=random, size=32)", device="cpu")


def test_open_clip_gives_image_embeddings():
    pytest.importorskip("open_clip", reason="needs open_clip_torch (extra `embed`)")
    assert embed(images(2), "open-clip(name=ViT-B-32, weights=random)", device="cpu").shape == (2, 512)


def test_efficientnet_lite0_has_real_weights():
    x = np.zeros((3, 16, 16, 3), np.uint8)
    x[1, :8], x[2] = 255, np.random.default_rng(0).integers(0, 256, (16, 16, 3))
    data = SimpleNamespace(x_train=x, kind="image")
    out = embed(data, "efficientnet-lite0(size=64)", device="cpu")
    assert out.shape == (3, 1280) and (out >= 0).all()
    assert out[0] @ out[1] < 0.9  # a start without training gives nearly parallel rows
    np.testing.assert_array_equal(out, embed(data, "efficientnet-lite0(size=64)", device="cpu"))


def own(dataset, forward, *, scale=1.0):
    return dataset.x_train.reshape(len(dataset.x_train), -1)[:, :2] * scale


def broken(dataset, forward):
    return np.full((len(dataset.x_train), 2), np.nan)


def short(dataset, forward):
    return np.zeros((1, 2))


def test_a_backbone_of_the_users_is_called_by_name():
    assert embed(images(), f"{__name__}:own(scale=2)").shape == (7, 2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pcaa", "did you mean 'pca'"),
        ("pca(dims=3)", "did you mean 'dim'"),
        ("pca(dim=0)", "at least 1"),
        ("pca(dim=8)", "1 to 7"),
        ("torchvision(name=resnet19)", "did you mean 'resnet1"),
        ("torchvision", r"no weights at .*resnet18-.*\.pth"),
        ("torchvision(weights='missing.pth')", "no weights at missing.pth"),
        ("test_embed:broken", "not finite"),
        ("test_embed:short", "expected \\(n, d\\)"),
    ],
)
def test_mistakes_are_named(spec, message, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(InputError, match=message):
        embed(images(), spec.replace("test_embed", __name__), device="cpu")


def test_optional_networks_name_the_missing_extra(tmp_path, monkeypatch):
    pytest.importorskip("timm", reason="needs timm (extra `embed`)")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args: None)
    with pytest.raises(InputError, match=r"timm's weights of resnet18 are not on this machine.*weights=PATH"):
        embed(images(), "timm", device="cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_embeddings():
    spec = "torchvision(weights=random, size=32)"
    here, there = (embed(images(), spec, device=device) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(here, there, atol=1e-3)


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "net.pth")
    with pytest.raises(InputError, match="do not fit"):
        embed(images(), f"torchvision(weights='{tmp_path / 'net.pth'}')", device="cpu")

"""Embeddings: exact where there is a formula, independent of batches, from local weights only."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fnlkit.core.errors import InputError
from fnlkit.encoders.embed import embed
from tests.commands import refuse_call


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


def test_components_do_not_depend_on_the_number_of_blas_threads():
    threads = pytest.importorskip("threadpoolctl").threadpool_limits
    x = np.random.default_rng(0).normal(size=(1797, 64)).astype(np.float32)
    results = []
    for count in (1, 2, 4):
        with threads(count):
            results.append(embed(SimpleNamespace(x_train=x, kind="vector"), "pca(dim=64)"))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("whiten", [False, True])
def test_components_of_large_data_are_fitted_on_evenly_spaced_samples(whiten, monkeypatch):
    """All samples are projected, and the fit has at least `dim` samples."""
    from sklearn.decomposition import PCA

    rng = np.random.default_rng(0)
    x = (rng.normal(size=(700, 8)) * 2.0 ** -np.arange(8) @ rng.normal(size=(8, 90)) + 3).astype(np.float32)
    data = SimpleNamespace(x_train=x, kind="vector")
    for bytes_fitted, every in ((x.nbytes, 1), (x.nbytes // 2, 2), (0, 140)):
        monkeypatch.setattr("fnlkit.encoders.pca._MOST_FITTED", max(1, bytes_fitted))
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
        monkeypatch.setattr("fnlkit.encoders.pca._MOST_FITTED", bytes_fitted)
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


@pytest.fixture
def tiny_models(tmp_path):
    """Untrained models of transformers, saved as folders: a vision transformer and a BERT."""
    library = pytest.importorskip("transformers", reason="needs transformers (extra `transformers`)")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    library.ViTModel(library.ViTConfig(image_size=16, patch_size=8, **small)).save_pretrained(tmp_path / "vit")
    processor = {"do_resize": True, "size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    processor |= {"image_processor_type": "ViTImageProcessor", "resample": 2, "do_normalize": True, "do_rescale": True}
    (tmp_path / "vit/preprocessor_config.json").write_text(json.dumps(processor))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "sleeps"]
    (tmp_path / "words.txt").write_text("\n".join(words))
    config = library.BertConfig(vocab_size=len(words), max_position_embeddings=12, **small)
    library.BertModel(config).save_pretrained(tmp_path / "bert")
    library.BertTokenizer(str(tmp_path / "words.txt")).save_pretrained(tmp_path / "bert")
    config = library.RobertaConfig(vocab_size=len(words), max_position_embeddings=12, pad_token_id=1, **small)
    library.RobertaModel(config).save_pretrained(tmp_path / "roberta")
    library.BertTokenizer(str(tmp_path / "words.txt")).save_pretrained(tmp_path / "roberta")
    library.T5Model(library.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(tmp_path / "t5")
    return tmp_path


def test_transformers_gives_pooled_features_of_images(tiny_models):
    from transformers import ViTModel

    data = images(3, side=16)
    out = embed(data, f"transformers(name='{tiny_models}/vit', normalize=false)", device="cpu")
    x = (torch.from_numpy(data.x_train).movedim(-1, 1) / 255 - 0.5) / 0.25
    with torch.no_grad():
        right = ViTModel.from_pretrained(tiny_models / "vit")(pixel_values=x).pooler_output
    np.testing.assert_allclose(out, right.numpy(), atol=1e-5)
    form = tiny_models / "vit/preprocessor_config.json"
    form.write_text(form.read_text().replace('"do_normalize": true', '"do_normalize": false'))
    raw = embed(data, f"transformers(name='{tiny_models}/vit', normalize=false)", device="cpu")
    with torch.no_grad():
        right = ViTModel.from_pretrained(tiny_models / "vit")(pixel_values=x * 0.25 + 0.5).pooler_output
    np.testing.assert_allclose(raw, right.numpy(), atol=1e-5)


def test_transformers_gives_the_mean_over_the_tokens_of_a_text(tiny_models):
    from transformers import BertModel

    texts = SimpleNamespace(x_train=np.array(["the cat", "the dog sleeps " * 9, ""], object), kind="text")
    out = embed(texts, f"transformers(name='{tiny_models}/bert', normalize=false)", device="cpu")
    with torch.no_grad():
        right = BertModel.from_pretrained(tiny_models / "bert")(torch.tensor([[2, 5, 6, 3]])).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(out[0], right.numpy(), atol=1e-5)
    assert out.shape == (3, 8) and np.isfinite(out).all()  # the second text is longer than the model allows
    # RoBERTa's positions begin behind that of padding, so that fewer tokens fit.
    assert np.isfinite(embed(texts, f"transformers(name='{tiny_models}/roberta')", device="cpu")).all()
    refuse_call("an encoder with a decoder", embed, texts, f"transformers(name='{tiny_models}/t5')", device="cpu")
    refuse_call("finds no ImageProcessor in", embed, images(), f"transformers(name='{tiny_models}/bert')", device="cpu")


def test_models_that_are_not_in_the_cache_of_hugging_face_are_named(tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="needs transformers (extra `transformers`)")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"some/model \(v2\) are not on this machine.*transformers\(name=FOLDER\)"):
        embed(images(), "transformers(name=some/model, revision=v2)", device="cpu")


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


@pytest.mark.parametrize(("spec", "message"), [
    ("pcaa", "did you mean 'pca'"),
    ("pca(dims=3)", "did you mean 'dim'"),
    ("pca(dim=0)", "at least 1"),
    ("pca(dim=8)", "1 to 7"),
    ("torchvision(name=resnet19)", "did you mean 'resnet1"),
    ("torchvision", r"no weights at .*resnet18-.*\.pth"),
    ("torchvision(weights='missing.pth')", "no weights at missing.pth"),
    ("test_embed:broken", "not finite"),
    ("test_embed:short", "expected \\(n, d\\)"),
])  # fmt: skip
def test_mistakes_are_named(spec, message, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    refuse_call(message, embed, images(), spec.replace("test_embed", __name__), device="cpu")


def test_optional_networks_name_the_missing_extra(tmp_path, monkeypatch):
    pytest.importorskip("timm", reason="needs timm (extra `embed`)")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args: None)
    refuse_call(r"timm's weights of resnet18 are not on this machine.*weights=PATH", embed, images(), "timm", device="cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_embeddings():
    spec = "torchvision(weights=random, size=32)"
    here, there = (embed(images(), spec, device=device) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(here, there, atol=1e-3)


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "net.pth")
    refuse_call("do not fit", embed, images(), f"torchvision(weights='{tmp_path / 'net.pth'}')", device="cpu")

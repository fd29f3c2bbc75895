"""Images whose channels come first, as PyTorch has them: moved last and stated, or asked about."""

import base64
import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from fnlkit import datasets, pipeline
from fnlkit.audits.page import view
from fnlkit.datasets import layout, local, manifest
from fnlkit.errors import InputError

SHAPES = [
    ((3, 32, 32), True), ((1, 28, 20), True), ((4, 32, 32), True), ((2, 20, 24), True), ((13, 64, 64), True), ((3, 4, 4), True),
    ((32, 32, 3), False), ((28, 20, 1), False), ((32, 32, 4), False), ((20, 24, 2), False), ((64, 64, 13), False),
    ((4, 5, 3), False), ((7, 7, 512), False), ((1, 1, 1), False), ((3, 20, 5), True), ((5, 20, 3), False),
]  # fmt: skip


def sources(folder, x, **more):
    """Return the data sets that hold images x (12, ...): an npz, one npz per site, npy files in a table, and in memory."""
    y = np.arange(12) % 2
    (folder / "sites").mkdir()
    np.savez(folder / "d.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3], **more)
    np.savez(folder / "sites" / "a.npz", x=x, y=y, **more)
    for i in range(12):
        np.save(folder / f"{i}.npy", x[i])
    (folder / "t.csv").write_text("\n".join(["path,label", *(f"{i}.npy,{i % 2}" for i in range(12))]))
    option = f", layout={more['layout']}" if more else ""
    memory = datasets.Dataset("m", "image", y, y[:3], ["a", "b"], lambda: (x, x[:3]), layout=str(more.get("layout", "")))
    return [*(lambda name=name: datasets.load(name) for name in (
        folder / "d.npz", folder / "sites", f'manifest(file="{folder}/t.csv"{option})')), lambda: memory]  # fmt: skip


@pytest.mark.parametrize(("shape", "first"), SHAPES)
def test_channels_become_the_last_dimension(shape, first, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (12, *shape), dtype=np.uint8)
    expected = np.moveaxis(x, 1, -1) if first else x
    for source in sources(tmp_path, x):
        data = source()
        np.testing.assert_array_equal(np.asarray(data.x_train), expected)
        assert data.x_test.shape[1:] == data.x_train.shape[1:] and len(data.mean) == expected.shape[-1]
        assert any("channels first" in note for note in data.notes) == first


@pytest.mark.parametrize("shape", [(3, 32, 3), (1, 28, 1), (3, 3, 3), (16, 16, 16), (1, 64, 3)])
def test_a_shape_that_fits_both_layouts_is_asked_about(shape, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (12, *shape), dtype=np.uint8)
    for source in sources(tmp_path, x):
        with pytest.raises(InputError, match="channels can be first or last; declare layout"):
            np.asarray(source().x_train)
    for word in layout.LAYOUTS:
        (tmp_path / word).mkdir()
        for source in sources(tmp_path / word, x, layout=np.array(word)):
            expected = np.moveaxis(x, 1, -1) if word == "channels-first" else x
            np.testing.assert_array_equal(np.asarray(source().x_train), expected)


def test_a_layout_is_one_of_two_words(tmp_path):
    x = np.zeros((12, 8, 8, 3), np.uint8)
    for source in sources(tmp_path, x, layout=np.array("first"))[:3]:
        with pytest.raises(InputError, match="`layout` is"):
            source()


def test_partition_states_that_channels_were_moved(tmp_path):
    said = []
    for source in sources(tmp_path, np.zeros((12, 3, 32, 32), np.uint8)):
        said.clear()
        pipeline.partition(source(), clients=2, say=said.append)
        assert any("channels first" in text for text in said)


def test_new_samples_may_have_either_layout(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (12, 3, 4, 3), dtype=np.uint8)
    like = datasets.Dataset(
        "m", "image", np.arange(12) % 2, np.zeros(0, int), ["a", "b"], lambda: (x, x[:0]), layout="channels-last"
    )
    for name, new in (("last", x), ("first", np.moveaxis(x, -1, 1))):
        np.save(tmp_path / f"{name}.npy", new)
        np.testing.assert_array_equal(datasets.new_samples(like, str(tmp_path / f"{name}.npy"))[1], x)


# Upright pixels of the stored block [[0, 80, 160], [240, 40, 120]] for each EXIF orientation (EXIF 2.3, table 6).
ORIENTED = {
    1: [[0, 80, 160], [240, 40, 120]],
    2: [[160, 80, 0], [120, 40, 240]],
    3: [[120, 40, 240], [160, 80, 0]],
    4: [[240, 40, 120], [0, 80, 160]],
    5: [[0, 240], [80, 40], [160, 120]],
    6: [[240, 0], [40, 80], [120, 160]],
    7: [[120, 160], [40, 80], [240, 0]],
    8: [[160, 120], [80, 40], [0, 240]],
}


@pytest.mark.parametrize("orientation", ORIENTED)
def test_the_exif_orientation_of_a_photo_is_applied(tmp_path, orientation):
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.array(ORIENTED[1], np.uint8))
    for i, name in enumerate("ab" * 5):
        (tmp_path / name).mkdir(exist_ok=True)
        stored.save(tmp_path / name / f"{i}.png", exif=exif)
    found = datasets.load(str(tmp_path)).x_train
    assert np.asarray(found[:1])[0, :, :, 0].tolist() == ORIENTED[orientation]


BLOCK = np.kron(np.array(ORIENTED[1], np.uint8), np.ones((16, 16), np.uint8))  # JPEG compresses blocks of 8 x 8


def save_turned(path, orientation, **how):
    """Save a photo of 48 x 32 pixels with an EXIF orientation."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(BLOCK).save(path, exif=exif, **how)


def means(image):
    """Return the means (h, w) of the blocks of 16 x 16 pixels of a gray image."""
    image = np.asarray(image, float)
    return image.reshape(image.shape[0] // 16, 16, image.shape[1] // 16, 16).mean((1, 3))


@pytest.mark.parametrize("orientation", ORIENTED)
@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
def test_photos_are_upright_in_each_format_and_on_each_route(tmp_path, ending, orientation):
    """In a folder, a table with paths, the new images of `predict`, and on the page of a review."""
    how = {"jpg": {"quality": 95}, "webp": {"lossless": True}}.get(ending, {})
    for i, label in enumerate("ab" * 5):
        save_turned(tmp_path / "photos" / label / f"{i}.{ending}", orientation, **how)
    data = datasets.load(str(tmp_path / "photos"))
    rows = "".join(f"photos/{label}/{i}.{ending},{label}\n" for i, label in enumerate("ab" * 5))
    (tmp_path / "table.csv").write_text("path,label\n" + rows)
    table = datasets.load(str(tmp_path / "table.csv"))
    new = datasets.new_samples(data, str(tmp_path / "photos"))[1]
    upright = np.array(ORIENTED[orientation], float)
    for x in (data.x_train, table.x_train, new):
        np.testing.assert_allclose(means(np.asarray(x[:1])[0, :, :, 0]), upright, atol=3)
    shown = Image.open(io.BytesIO(base64.b64decode(view(data, 0)["image"].partition(",")[2]))).convert("L")
    rows, columns = upright.shape
    centers = [[(int((c + 0.5) * shown.width / columns), int((r + 0.5) * shown.height / rows)) for c in range(columns)]
               for r in range(rows)]  # fmt: skip
    np.testing.assert_allclose([[shown.getpixel(center) for center in row] for row in centers], upright, atol=3)


def test_the_checksum_of_photos_that_were_decoded_as_stored_is_another_one(tmp_path, monkeypatch):
    """Embeddings and results of pixels that were not upright must not be used for the upright ones."""
    for name, orientation in (("plain", 1), ("turned", 6)):
        for i, label in enumerate("ab" * 5):
            save_turned(tmp_path / name / label / f"{i}.jpg", orientation)
        rows = "".join(f"{name}/{label}/{i}.jpg,{label}\n" for i, label in enumerate("ab" * 5))
        (tmp_path / f"{name}.csv").write_text("path,label\n" + rows)
    sources = [str(tmp_path / name) for name in ("plain", "turned", "plain.csv", "turned.csv")]
    now = [datasets.load(source).checksum for source in sources]
    for module in (local, manifest):
        monkeypatch.setattr(module, "digest_of", lambda path: hashlib.sha256(path.read_bytes()).digest())  # as in 0.2
    before = [datasets.load(source).checksum for source in sources]
    assert [a == b for a, b in zip(now, before, strict=True)] == [True, False, True, False]

"""Images whose channels come first, as PyTorch has them: moved last and stated, or asked about."""

import base64
import hashlib
import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import fnlkit
from fnlkit import datasets
from fnlkit.audits.page import view
from fnlkit.core.errors import InputError
from fnlkit.datasets import decoding, layout
from fnlkit.datasets.scales import match_scale, scale_of
from tests.commands import refuse_call

SHAPES = [
    ((3, 32, 32), True), ((1, 28, 20), True), ((13, 64, 64), True), ((3, 4, 4), True), ((3, 20, 5), True),
    ((32, 32, 3), False), ((64, 64, 13), False), ((7, 7, 512), False), ((1, 1, 1), False), ((5, 20, 3), False),
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


@pytest.mark.parametrize("shape", [(3, 32, 3), (16, 16, 16), (1, 64, 3)])
def test_a_shape_that_fits_both_layouts_is_asked_about(shape, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (12, *shape), dtype=np.uint8)
    for source in sources(tmp_path, x):
        refuse_call("channels can be first or last; declare layout", lambda source=source: source().x_train)
    for word in layout.LAYOUTS:
        (tmp_path / word).mkdir()
        for source in sources(tmp_path / word, x, layout=np.array(word)):
            expected = np.moveaxis(x, 1, -1) if word == "channels-first" else x
            np.testing.assert_array_equal(np.asarray(source().x_train), expected)


def test_new_samples_may_have_either_layout(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (12, 3, 4, 3), dtype=np.uint8)
    y = np.arange(12) % 2
    like = datasets.Dataset("m", "image", y, y[:0], ["a", "b"], lambda: (x, x[:0]), layout="channels-last")
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


BLOCK = np.kron(np.array(ORIENTED[1], np.uint8), np.ones((16, 16), np.uint8))  # JPEG compresses blocks of 8 x 8


def save_turned(path, orientation, **how):
    """Save a photo of 48 x 32 pixels with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(BLOCK).save(path, exif=exif, **how)


def means(image):
    """Return the means (h, w) of the blocks of 16 x 16 pixels of a gray image."""
    image = np.asarray(image, float)
    return image.reshape(image.shape[0] // 16, 16, image.shape[1] // 16, 16).mean((1, 3))


@pytest.mark.parametrize(
    ("ending", "orientation"), [*(("jpg", number) for number in ORIENTED), ("png", 6), ("tif", 6), ("webp", 6)]
)
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


def test_the_checksum_of_a_turned_photo_is_another_one_than_that_of_its_bytes(tmp_path):
    """Embeddings and results of pixels that were not upright, as in version 0.2, must not be used for the upright ones."""
    for orientation in (1, 6):
        save_turned(tmp_path / "a.jpg", orientation)
        plain = hashlib.sha256((tmp_path / "a.jpg").read_bytes()).digest()
        assert (decoding.digest_of(tmp_path / "a.jpg") == plain) == (orientation == 1)


# ---- images of microscopes: 32 bits per pixel, and files with several pages
def pages_of(path, values):
    """Write an image with one page for each value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *others = (Image.fromarray(np.full((6, 5), value, np.uint8)) for value in values)
    first.save(path, save_all=True, append_images=others)


def deep(path, values, dtype=np.float32):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, dtype)).save(path)


def table_of(home, below):
    """Write a table that names the files of folders of classes, and return its path."""
    rows = [f"{file.relative_to(home).as_posix()},{file.parent.name}" for file in sorted((home / below).rglob("*.*"))]
    (home / "t.csv").write_text("\n".join(["path,label", *rows, ""]))
    return home / "t.csv"


@pytest.mark.parametrize("ending", ["tif", "gif"])
def test_the_first_page_is_read_and_the_others_are_counted(ending, tmp_path):
    value = {}
    for name, tone in (("clean", 10), ("ill", 100)):
        for i in range(5):
            value[f"{name}/{i}.{ending}"] = tone + i
            pages_of(tmp_path / "all" / name / f"{i}.{ending}", [tone + i, 200, 201][: 3 if i < 2 else 1])
    table = table_of(tmp_path, "all")
    for source in (tmp_path / "all", table):
        data = datasets.load(source)
        for path, x in zip(data.paths, np.asarray(data.x_train), strict=True):
            assert x.shape == (6, 5, 3 if ending == "gif" else 1) and (x == value[path.removeprefix("all/")]).all()
        (note,) = (note for note in data.notes if "pages" in note)
        assert note.startswith("4 of 10 images have several pages, of which the first is read and 8 are not: ")
        for new in (tmp_path / "all", table):
            notes = []
            names, x = datasets.new_samples(data, str(new), say=notes.append)
            assert [int(each[0, 0, 0]) for each in x] == [value[name.removeprefix("all/")] for name in names]
            assert notes == [note]
    for file in (tmp_path / "all").rglob(f"[01].{ending}"):
        pages_of(file, [7])
    assert not any("pages" in note for note in datasets.load(tmp_path / "all").notes)


def test_images_of_32_bits_are_scaled_by_the_range_of_the_data_set(tmp_path):
    values = {}
    for name, low in (("clean", 0), ("ill", 1000)):
        for i in range(5):
            values[f"{name}/{i}.tif"] = low + i + np.arange(30.0).reshape(6, 5) * 100
            deep(tmp_path / "all" / name / f"{i}.tif", values[f"{name}/{i}.tif"], np.int32 if i == 2 else np.float32)
    table = table_of(tmp_path, "all")
    sources = [f'folder(path="{tmp_path}/all", pixels="-100/4095")', f'manifest(file="{table}", pixels="-100/4095")']
    for source in sources:
        data = datasets.load(source)
        assert data.x_train.dtype == np.float32
        for path, x in zip(data.paths, np.asarray(data.x_train), strict=True):
            np.testing.assert_allclose(x[..., 0], (values[path.removeprefix("all/")] + 100) / 4195, atol=1e-6)
        assert datasets.load(data.name).checksum == data.checksum
        for new in (tmp_path / "all", table):  # the range comes from the training data
            names, x = datasets.new_samples(data, str(new))
            for name, each in zip(names, x, strict=True):
                np.testing.assert_allclose(each[..., 0], (values[name.removeprefix("all/")] + 100) / 4195, atol=1e-6)
    assert datasets.load(sources[0].replace("4095", "4096")).checksum != datasets.load(sources[0]).checksum
    for source in (tmp_path / "all", table):
        with pytest.raises(InputError, match=r"0\.tif: pixels of 32 bits from 0 to 2900, outside 0 to 1.*pixels=") as error:
            _ = datasets.load(source).x_train
        assert len(str(error.value)) < 2000


def test_values_that_are_no_numbers_are_refused(tmp_path):
    values = np.linspace(0, 1, 20).reshape(4, 5)
    deep(tmp_path / "a.tif", values)
    np.testing.assert_allclose(decoding.image(tmp_path / "a.tif")[..., 0], values, atol=1e-6)
    for odd in (np.nan, np.inf):
        values[1, 2] = odd
        deep(tmp_path / "a.tif", values)
        refuse_call(r"a\.tif: 1 pixels are NaN or infinite", decoding.image, tmp_path / "a.tif")
    for odd in ("4095", "1/0", "0/inf", "nan/1", "a/b"):
        refuse_call("pixels is", datasets.load, f'folder(path="{tmp_path}", pixels="{odd}")')


# ---- new images have the scale of the training images
BYTES = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1)).astype(np.uint8)
# Forms of the same images, and of images on a scale that is not known with certainty.
SAME = {
    "bytes": BYTES, "unit": BYTES / 255, "float32": BYTES.astype("f4"), "float64": BYTES.astype("f8"),
    "uint16": BYTES.astype("u2"), "int16": BYTES.astype("i2"), "int64": BYTES.astype("i8"),
    "uint16 of 65535": BYTES.astype("u2") * 257,
}  # fmt: skip
OTHER = {"standardized": (BYTES - 127.5) * 4 / 73, "of 1000": BYTES * 4.0, "of 5": BYTES / 50, "dark": BYTES / 255 / 1000}


def like(x):
    x = np.asarray(x, np.uint8 if x.dtype == np.uint8 else np.float32)
    return SimpleNamespace(x_train=x[:1], kind="image", sample_rate=0, name="x", table=None, **scale_of(x))


@pytest.mark.parametrize("form", SAME)
@pytest.mark.parametrize("trained", ["bytes", "unit", "float32"])
def test_bytes_in_any_type_are_on_the_scale_of_the_training_images(trained, form, tmp_path):
    np.savez(tmp_path / "new.npz", x=SAME[form])
    notes = []
    x = datasets.new_samples(like(SAME[trained]), str(tmp_path / "new.npz"), say=notes.append)[1]
    x = np.asarray(x)
    network = x / 255 if x.dtype == np.uint8 else x  # the scale that the network gets
    np.testing.assert_allclose(network, BYTES / (1 if trained == "float32" else 255), rtol=1e-4, atol=1e-4)
    if form in ("float32", "float64") and trained != "float32":
        assert any("divided by 255" in note for note in notes)


@pytest.mark.parametrize("form", OTHER)
@pytest.mark.parametrize("trained", ["bytes", "unit"])
def test_another_scale_is_refused(trained, form, tmp_path):
    np.savez(tmp_path / "new.npz", x=OTHER[form].astype("f4"))
    if form == "dark" and trained == "bytes":
        x, note = match_scale(OTHER[form].astype("f4"), "uint8", [0, 1], "new")
        assert "in 16 bits" in note  # values up to 255 / 65535 are those of a file of 16 bits
        return
    refuse_call("images have values from .* trained on", datasets.new_samples, like(SAME[trained]), str(tmp_path / "new.npz"))


def test_bytes_are_refused_where_the_training_images_had_a_small_part_of_the_range(tmp_path):
    """Photographs were predicted by a model of CT images, whose values are 0.486 to 0.518 of the range of 16 bits."""
    np.save(tmp_path / "new.npy", BYTES)
    with pytest.raises(InputError, match="values from 0 to 1, and the run was trained on 0.486 to 0.518"):
        datasets.new_samples(like(0.486 + 0.032 * SAME["unit"]), str(tmp_path / "new.npy"))
    datasets.new_samples(like(0.06 + 0.94 * SAME["unit"]), str(tmp_path / "new.npy"))  # training images without black


def test_new_images_in_color_and_arrays_without_a_known_name_get_a_remedy(tmp_path):
    for i in range(2):
        Image.fromarray(np.repeat(BYTES[i], 3, axis=2)).save(tmp_path / f"{i}.png")
    refuse_call("in color; expected .* gray; convert them", datasets.new_samples, like(BYTES), str(tmp_path))
    np.savez(tmp_path / "new.npz", x_train=BYTES, y_train=np.zeros(20))
    with pytest.raises(InputError, match="no array x, x_new or x_test, but x_train, y_train; name the new samples x"):
        datasets.new_samples(like(BYTES), str(tmp_path / "new.npz"))


def test_files_of_16_bits_with_bytes(tmp_path):
    for i, image in enumerate(BYTES[:6, ..., 0]):
        Image.fromarray(image.astype(np.uint16)).save(tmp_path / f"{i}.png")
    x = np.asarray(datasets.new_samples(like(BYTES), str(tmp_path))[1])
    np.testing.assert_allclose(x, BYTES[:6] / 255, atol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "uint16"])
def test_a_run_predicts_alike_in_every_form(dtype, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    draw = lambda: np.clip(rng.normal(60 + 100 * y[:, None, None], 40, (120, 8, 8)), 0, 255)  # noqa: E731
    np.savez(tmp_path / "im.npz", x_train=draw().astype(dtype), y_train=y)
    fed = fnlkit.partition(tmp_path / "im.npz", clients=2, say=None)
    run = fnlkit.train(fed, rounds=4, epochs=3, fraction=1.0, output=tmp_path / "run.pt", say=None)
    new = np.rint(draw())
    for form in ("uint8", "float32", "uint16") if dtype != "uint16" else ("uint16",):
        np.savez(tmp_path / "new.npz", x=new.astype(form))
        found = [row[1] for row in fnlkit.predict(run, tmp_path / "new.npz").rows]
        assert np.mean(found == y) > 0.95, form
    np.savez(tmp_path / "new.npz", x=(new - 127) / 70)
    refuse_call("convert them to the scale", fnlkit.predict, run, tmp_path / "new.npz")

"""New images have the scale of the training images: 0 to 255 in any type is converted, other scales are refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import fnlkit
from fnlkit import datasets
from fnlkit.core.errors import InputError
from fnlkit.datasets.scales import match_scale, scale_of

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
    with pytest.raises(InputError, match="the images have values from .* and the run was trained on"):
        datasets.new_samples(like(SAME[trained]), str(tmp_path / "new.npz"))


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
    with pytest.raises(InputError, match="convert them to the scale"):
        fnlkit.predict(run, tmp_path / "new.npz")

"""Folders of images as hospitals have them: 16 bits a pixel, and sites above classes."""

import numpy as np
import pytest
from PIL import Image

from fnlkit import datasets
from fnlkit.datasets import decoding, dicom
from fnlkit.errors import InputError
from fnlkit.partitioning import federation
from tests.commands import fnlkit


def image(path, value, dtype=np.uint16):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), value, dtype)).save(path)


def test_sixteen_bits_are_read_as_they_are(tmp_path):
    for i in range(10):
        for name, value in (("clean", 300 + i), ("ill", 4000 + i)):
            image(tmp_path / name / f"{i}.png", value)
    data = datasets.load(tmp_path)
    x = np.asarray(data.x_train[:])
    assert x.dtype == np.float32 and x.shape[1:] == (8, 8, 1)
    values = np.rint(x[:, 0, 0, 0] * 65535).astype(int)
    assert set(values[data.y_train == 0]) < set(range(300, 310)) and set(values[data.y_train == 1]) < set(range(4000, 4010))
    image(tmp_path / "ill" / "3.png", 7, np.uint8)
    with pytest.raises(InputError, match="3.png: has 8 bits a pixel"):
        np.asarray(datasets.load(tmp_path).x_train[:]), np.asarray(datasets.load(tmp_path).x_test[:])


def test_sixteen_bits_in_an_npz(tmp_path):
    x = np.arange(20 * 4 * 4, dtype=np.uint16).reshape(20, 4, 4)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=np.arange(20) % 2, x_test=x, y_test=np.arange(20) % 2)
    found = np.asarray(datasets.load(tmp_path / "d.npz").x_train[:])
    np.testing.assert_array_equal(np.rint(found[..., 0] * 65535), x)


def test_sites_above_classes_are_asked_about(tmp_path):
    for site in ("Basel", "Bern", "Chur"):
        for i in range(5):
            for name in ("clean", "ill"):
                image(tmp_path / site / name / f"{i}.png", i, np.uint8)
    with pytest.raises(InputError, match="classes may be Basel, Bern, Chur or, below them, clean, ill; .*label=2"):
        datasets.load(tmp_path)
    data = datasets.load(f'folder(path="{tmp_path}", label=2)')
    assert data.class_names == ["clean", "ill"] and set(data.fields["site"]) == {"Basel", "Bern", "Chur"}
    assert datasets.load(data.name).checksum == data.checksum  # the name in the federation says which level
    assert datasets.load(f'folder(path="{tmp_path}", label=1)').class_names == ["Basel", "Bern", "Chur"]


def test_folders_within_a_class_ask_nothing(tmp_path):
    for name in ("clean", "ill"):
        for i in range(5):
            image(tmp_path / name / f"patient-{name}-{i}" / "a.png", i, np.uint8)
    assert datasets.load(tmp_path).class_names == ["clean", "ill"]


def test_sites_are_clients_and_images_without_a_label_are_nobodys(tmp_path):
    for site, spare in (("Basel", 2), ("Bern", 0), ("Zürich", 3)):
        for i in range(5):
            for name in ("clean", "ill"):
                image(tmp_path / "all" / site / name / f"{i}.png", i, np.uint8)
        for i in range(spare):
            image(tmp_path / "all" / site / "_unlabelled" / f"{i}.png", 200 + i, np.uint8)
    data = datasets.load(f'folder(path="{tmp_path}/all", label=2)')
    assert data.class_names == ["clean", "ill"] and len(data.y_train) + len(data.y_test) == 30
    assert data.unlabelled.sites == ["Basel"] * 2 + ["Zürich"] * 3 and data.unlabelled.ids[0] == "Basel/_unlabelled/0.png"
    assert data.unlabelled.samples()[4, 0, 0, 0] == 202
    fed = federation(data, "sites")
    assert fed.meta["client_names"] == ["Basel", "Bern", "Zürich"] and fed.meta["client_unlabelled"] == [2, 0, 3]
    for name, part in zip(fed.meta["client_names"], fed.clients, strict=True):
        assert {text.split("/")[0] for text in fed.extra["sample_id"][part]} == {name}
    done = fnlkit("fnlkit partition --dataset 'folder(path=all, label=2)' --scheme sites -o fed.npz", tmp_path)
    assert "5 samples without a label (Basel 2, Zürich 3) belong to no client" in done.stderr
    done = fnlkit("fnlkit partition --dataset 'folder(path=all, label=2)' --clients 2 -o fed.npz", tmp_path)
    assert "from 3 sites and is mixed over clients; --scheme sites" in done.stderr
    image(tmp_path / "all" / "Chur" / "_unlabelled" / "0.png", 1, np.uint8)
    done = fnlkit("fnlkit partition --dataset 'folder(path=all, label=2)' --scheme sites -o fed.npz", tmp_path)
    assert "no client: Chur, without a single label" in done.stderr


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiff_is_read_as_png_is(dtype, tmp_path):
    values = np.arange(48).reshape(6, 8).astype(dtype) * np.iinfo(dtype).max // 48
    for ending in ("png", "tif", "tiff"):
        Image.fromarray(values).save(tmp_path / f"a.{ending}")
        found = decoding.image(tmp_path / f"a.{ending}", None, None)
        top = 1 if dtype == np.uint8 else 65535
        np.testing.assert_array_equal(np.rint(found[..., 0] * np.float32(top)).astype(dtype), values)


def test_tiff_that_is_no_single_image_is_refused(tmp_path):
    page = Image.fromarray(np.zeros((4, 4), np.uint8))
    page.save(tmp_path / "stack.tif", save_all=True, append_images=[page, page])
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "deep.tif")
    for name, found in (("stack.tif", "3 pages"), ("deep.tif", "32 bits a pixel")):
        with pytest.raises(InputError, match=f"{name}: has {found}"):
            decoding.image(tmp_path / name, None, None)


def scan(path, values, *, colours="MONOCHROME2", bits=12, signed=0, **more):
    """Write a DICOM file of a grey image."""
    pydicom = pytest.importorskip("pydicom", reason="needs pydicom (extra `dicom`)")
    header = pydicom.dataset.FileDataset(str(path), {}, preamble=b"\0" * 128, file_meta=pydicom.dataset.FileMetaDataset())
    header.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    header.file_meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    header.file_meta.MediaStorageSOPInstanceUID = header.SOPInstanceUID = "1.2.3"
    header.SOPClassUID, header.PatientName = pydicom.uid.SecondaryCaptureImageStorage, "Canary^Ann"
    header.Rows, header.Columns, header.SamplesPerPixel, header.PhotometricInterpretation = *values.shape, 1, colours
    header.BitsAllocated, header.BitsStored, header.HighBit, header.PixelRepresentation = 16, bits, bits - 1, signed
    header.PixelData = values.astype("<i2" if signed else "<u2").tobytes()
    for name, value in more.items():
        setattr(header, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    header.save_as(path, enforce_file_format=True)


def test_dicom_takes_the_full_range_of_its_bits(tmp_path):
    values = np.array([[0, 1000], [2000, 4095]])
    scan(tmp_path / "plain", values)  # no ending: known by its content
    scan(tmp_path / "inverted.dcm", values, colours="MONOCHROME1")
    plain, inverted = (decoding.image(tmp_path / name, None, None)[..., 0] for name in ("plain", "inverted.dcm"))
    np.testing.assert_allclose(plain, values / 4095, atol=1e-5)
    np.testing.assert_allclose(inverted, 1 - values / 4095, atol=1e-5)
    scan(tmp_path / "signed.dcm", values - 2048, signed=1)
    np.testing.assert_allclose(decoding.image(tmp_path / "signed.dcm", None, None)[..., 0], values / 4095, atol=1e-5)
    scan(tmp_path / "bytes.dcm", np.array([[0, 128], [200, 255]]), bits=8)
    found = decoding.image(tmp_path / "bytes.dcm", None, None)
    assert found.dtype == np.uint8 and found[..., 0].tolist() == [[0, 128], [200, 255]]


def test_a_window_of_dicom_is_in_rescaled_units(tmp_path):
    # Stored 1024 + HU: -160 HU is the low end of 40/400, 240 HU its high end; a header's own window changes nothing.
    values = np.array([[0, 1024 - 160], [1024 + 40, 3000]])
    scan(tmp_path / "ct.dcm", values, RescaleSlope=2, RescaleIntercept=-2048, WindowCenter=0, WindowWidth=1)
    found = decoding.image(tmp_path / "ct.dcm", None, None, window="40/400")[..., 0]
    np.testing.assert_allclose(found, np.clip((values * 2 - 2048 + 160) / 400, 0, 1), atol=1e-5)
    with pytest.raises(InputError, match='write centre/width, for example window="40/400"'):
        dicom.span("40")


def test_a_folder_of_dicom(tmp_path, monkeypatch):
    for i in range(5):
        for name in ("clean", "ill"):
            scan(tmp_path / name / f"{i}.dcm", np.full((8, 8), 100 * i + 2000 * (name == "ill")))
    data = datasets.load(f'folder(path="{tmp_path}", window="1000/2000")')
    x = np.asarray(data.x_train[:])
    assert x.dtype == np.float32 and (x[data.y_train == 1] == 1).all() and x[data.y_train == 0].max() < 0.21
    assert datasets.load(data.name).checksum == data.checksum
    assert datasets.load(str(tmp_path)).checksum != data.checksum  # another window, another data set
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(InputError, match=r"DICOM needs pydicom; run: pip install 'fnlkit\[dicom\]'"):
        np.asarray(datasets.load(str(tmp_path)).x_train)

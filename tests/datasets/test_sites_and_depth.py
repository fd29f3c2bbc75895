"""Sites above classes in folders of images and sounds, images of 16 bits, and a folder with an npz per site."""

import numpy as np
import pytest
from PIL import Image

from fnlkit import datasets
from fnlkit.artifacts import large
from fnlkit.core.errors import InputError
from fnlkit.datasets import decoding, dicom
from fnlkit.simulate.partitioning import federation
from tests.commands import fnlkit, refuse, refuse_call, succeed
from tests.datasets.test_manifest import tone


# ---- folders of images as hospitals have them: 16 bits a pixel, and sites above classes
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
    with pytest.raises(InputError, match="3.png: 8 x 8 pixels of 8 bits"):
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
    refuse_call("classes can be Basel, Bern, Chur or the sub-folders clean, ill; .*label=2", datasets.load, tmp_path)
    data = datasets.load(f'folder(path="{tmp_path}", label=2)')
    assert data.class_names == ["clean", "ill"] and set(data.fields["site"]) == {"Basel", "Bern", "Chur"}
    assert datasets.load(data.name).checksum == data.checksum  # the name in the federation says which level
    assert datasets.load(f'folder(path="{tmp_path}", label=1)').class_names == ["Basel", "Bern", "Chur"]


def test_sites_are_clients_and_images_without_a_label_are_nobodys(tmp_path):
    for site, spare in (("Basel", 2), ("Bern", 0), ("Zürich", 3)):
        for i in range(5):
            for name in ("clean", "ill"):
                image(tmp_path / "all" / site / name / f"{i}.png", i, np.uint8)
        for i in range(spare):
            image(tmp_path / "all" / site / "_unlabeled" / f"{i}.png", 200 + i, np.uint8)
    data = datasets.load(f'folder(path="{tmp_path}/all", label=2)')
    assert data.class_names == ["clean", "ill"] and len(data.y_train) + len(data.y_test) == 30
    assert data.unlabeled.sites == ["Basel"] * 2 + ["Zürich"] * 3 and data.unlabeled.ids[0] == "Basel/_unlabeled/0.png"
    assert data.unlabeled.samples()[4, 0, 0, 0] == 202
    fed = federation(data, "sites")
    assert fed.meta["client_names"] == ["Basel", "Bern", "Zürich"] and fed.meta["client_unlabeled"] == [2, 0, 3]
    for name, part in zip(fed.meta["client_names"], fed.clients, strict=True):
        assert {text.split("/")[0] for text in fed.extra["sample_id"][part]} == {name}
    done = fnlkit("fnlkit partition --dataset 'folder(path=all, label=2)' --scheme sites -o fed.npz", tmp_path)
    assert "5 samples without a label (Basel 2, Zürich 3) belong to no client" in done.stderr
    done = fnlkit("fnlkit partition --dataset 'folder(path=all, label=2)' --clients 2 -o fed.npz", tmp_path)
    assert "from 3 sites and is mixed over clients; --scheme sites" in done.stderr
    image(tmp_path / "all" / "Chur" / "_unlabeled" / "0.png", 1, np.uint8)
    done = fnlkit("fnlkit partition --dataset 'folder(path=all, label=2)' --scheme sites -o fed.npz", tmp_path)
    assert "no labels and become no clients: Chur" in done.stderr


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiff_is_read_as_png_is(dtype, tmp_path):
    values = np.arange(48).reshape(6, 8).astype(dtype) * np.iinfo(dtype).max // 48
    for ending in ("png", "tif", "tiff"):
        Image.fromarray(values).save(tmp_path / f"a.{ending}")
        found = decoding.image(tmp_path / f"a.{ending}")
        top = 1 if dtype == np.uint8 else 65535
        np.testing.assert_array_equal(np.rint(found[..., 0] * np.float32(top)).astype(dtype), values)


def scan(path, values, *, colors="MONOCHROME2", bits=12, signed=0, **more):
    """Write a DICOM file of a gray image."""
    pydicom = pytest.importorskip("pydicom", reason="needs pydicom (extra `dicom`)")
    header = pydicom.dataset.FileDataset(str(path), {}, preamble=b"\0" * 128, file_meta=pydicom.dataset.FileMetaDataset())
    header.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    header.file_meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    header.file_meta.MediaStorageSOPInstanceUID = header.SOPInstanceUID = "1.2.3"
    header.SOPClassUID, header.PatientName = pydicom.uid.SecondaryCaptureImageStorage, "Canary^Ann"
    header.Rows, header.Columns, header.SamplesPerPixel, header.PhotometricInterpretation = *values.shape, 1, colors
    header.BitsAllocated, header.BitsStored, header.HighBit, header.PixelRepresentation = 16, bits, bits - 1, signed
    header.PixelData = values.astype("<i2" if signed else "<u2").tobytes()
    for name, value in more.items():
        setattr(header, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    header.save_as(path, enforce_file_format=True)


def test_dicom_takes_the_full_range_of_its_bits(tmp_path):
    values = np.array([[0, 1000], [2000, 4095]])
    scan(tmp_path / "plain", values)  # no ending: known by its content
    scan(tmp_path / "inverted.dcm", values, colors="MONOCHROME1")
    plain, inverted = (decoding.image(tmp_path / name)[..., 0] for name in ("plain", "inverted.dcm"))
    np.testing.assert_allclose(plain, values / 4095, atol=1e-5)
    np.testing.assert_allclose(inverted, 1 - values / 4095, atol=1e-5)
    scan(tmp_path / "signed.dcm", values - 2048, signed=1)
    np.testing.assert_allclose(decoding.image(tmp_path / "signed.dcm")[..., 0], values / 4095, atol=1e-5)
    scan(tmp_path / "bytes.dcm", np.array([[0, 128], [200, 255]]), bits=8)
    found = decoding.image(tmp_path / "bytes.dcm")
    assert found.dtype == np.uint8 and found[..., 0].tolist() == [[0, 128], [200, 255]]


def test_a_window_of_dicom_is_in_rescaled_units(tmp_path):
    # Stored 1024 + HU: -160 HU is the low end of 40/400, 240 HU its high end; a header's own window changes nothing.
    values = np.array([[0, 1024 - 160], [1024 + 40, 3000]])
    scan(tmp_path / "ct.dcm", values, RescaleSlope=2, RescaleIntercept=-2048, WindowCenter=0, WindowWidth=1)
    found = decoding.image(tmp_path / "ct.dcm", window="40/400")[..., 0]
    np.testing.assert_allclose(found, np.clip((values * 2 - 2048 + 160) / 400, 0, 1), atol=1e-5)
    refuse_call('write center/width, for example window="40/400"', dicom.span, "40")


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
    refuse_call(r"DICOM needs pydicom; run: pip install 'fnlkit\[dicom\]'", lambda: datasets.load(str(tmp_path)).x_train)


@pytest.mark.parametrize("first", ["L", "RGB"])
def test_gray_and_color_images_become_color(first, tmp_path):
    """A gray image has three equal channels then, as Pillow converts it, whichever kind comes first."""
    rng, values = np.random.default_rng(0), {}
    for i in range(8):
        for name in ("clean", "ill"):
            mode = first if i % 2 == 0 else {"L": "RGB", "RGB": "L"}[first]
            raw = rng.integers(0, 256, (6, 5, 3) if mode == "RGB" else (6, 5), np.uint8)
            values[f"{name}/{i}.png"] = np.asarray(Image.fromarray(raw).convert("RGB"))
            (tmp_path / "all" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(raw).save(tmp_path / "all" / name / f"{i}.png")
    lines = ["path,label,split", *(f"all/{name},{name[:3]},{'test' if name[-5] == '7' else 'train'}" for name in values)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    for small in (10**6, 10):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fnlkit.artifacts.large.SMALL", small)
            for source in (tmp_path / "all", tmp_path / "t.csv"):
                data = datasets.load(source)
                x = np.asarray(data.x_train[:])
                assert x.shape[1:] == data.x_test.shape[1:] == (6, 5, 3)
                for path, image_ in zip(data.paths, x, strict=True):
                    np.testing.assert_array_equal(image_, values[path.removeprefix("all/")])


def test_every_unreadable_file_is_named_before_work_begins(tmp_path):
    for name in ("clean", "ill"):
        for i in range(10):
            image(tmp_path / "all" / name / f"{i}.png", i, np.uint8)
    whole = (tmp_path / "all/ill/3.png").read_bytes()
    (tmp_path / "all/ill/3.png").write_bytes(whole[:-30])  # cut off: its header is right
    (tmp_path / "all/clean/1.png").write_bytes(b"<html>404</html>")
    image(tmp_path / "all/clean/8.png", 1, np.uint16)
    lines = ["path,label", *(f"all/{name}/{i}.png,{name}" for name in ("clean", "ill") for i in range(10))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    for source in ("all", "t.csv"):
        named = "3 of 20 files", "ill/3.png", "clean/1.png", "clean/8.png", "16 or 32 bits"
        done = refuse(f"fnlkit partition --dataset {source} --clients 2 -o fed.npz", tmp_path, *named)
        assert done.stderr.count("\n") == 1 and not (tmp_path / "fed.npz").exists()


def test_files_are_known_by_their_content(tmp_path):
    """Archives of hospitals write IM000123; what is no image is counted and named, a site without any is named."""
    for site in ("Aix", "Bonn", "Cork"):
        for i in range(5):
            for name in ("clean", "ill"):
                image(tmp_path / site / name / f"{i}.png", i, np.uint8)
                if site != "Aix":
                    (tmp_path / site / name / f"{i}.png").rename(tmp_path / site / name / f"IM00012{i}")
    (tmp_path / "Bonn/clean/notes").write_text("not an image")
    (tmp_path / "Bonn/DICOMDIR").write_bytes(b"\0" * 128 + b"DICM")
    (tmp_path / "Cork/clean/DICOMDIR").write_bytes(b"\0" * 128 + b"DICM")
    (tmp_path / "Aix/ill/._0.png").write_bytes(b"of a Mac")
    (tmp_path / "read me.txt").write_text("hello")
    (tmp_path / "Delft/ill").mkdir(parents=True)
    (tmp_path / "Delft/ill/scan.xyz").write_bytes(b"12345")
    data = datasets.load(f'folder(path="{tmp_path}", label=2)')
    assert np.unique(data.fields["site"], return_counts=True)[1].tolist() == [10, 10, 10]
    assert data.x_train.shape == (30, 8, 8, 1) and len(data.checksum) == 64
    skipped = next(note for note in data.notes if "skipped" in note)
    assert skipped.startswith("6 files") and "Bonn/clean/notes" in skipped and "read me.txt" in skipped
    assert any("Delft" in note and "no image" in note for note in data.notes)


def test_sounds_in_folders_of_sites(tmp_path):
    for k, site in enumerate(("Aix", "Bonn")):
        for name in ("cough", "speech"):
            (tmp_path / "all" / site / name).mkdir(parents=True)
            for i in range(4):
                tone(tmp_path / "all" / site / name / f"{i}{'.wav' if i else ''}", 4000 + 500 * k)
    refuse_call("8 of 16 .*Bonn.*seconds=1.0", lambda: datasets.load(f'folder(path="{tmp_path}/all", label=2)').x_train)
    spec = f'folder(path="{tmp_path}/all", label=2, seconds=0.5)'
    data = datasets.load(spec)
    assert (data.kind, data.sample_rate, data.x_train.shape) == ("wave", 8000, (16, 4000))
    assert datasets.load(data.name).kind == "wave"
    succeed(f"fnlkit partition --dataset '{spec}' --scheme sites -o fed.npz", tmp_path)
    succeed("fnlkit train fed.npz --rounds 1 --fraction 1 -o run.pt", tmp_path)
    assert succeed("fnlkit predict run.pt all/Aix", tmp_path).stdout.count("\n") == 9
    image(tmp_path / "all/Aix/cough/spectrum.png", 1, np.uint8)
    refuse_call("1 images such as .*spectrum.png and 16 waves", datasets.load, spec)


# Ways to store one physical value: slope, intercept, sign, bits, or a table.
STORED = {
    "plain": {}, "slope": {"RescaleSlope": 0.1, "RescaleIntercept": 0}, "signed": {"signed": 1},
    "intercept": {"RescaleSlope": 1, "RescaleIntercept": -1024}, "12 bits": {"bits": 12}, "table": {"table": 2},
}  # fmt: skip


def store(path, physical, *, bits=16, table=0, **more):
    """Write physical values, with a slope and an intercept, or with a table that multiplies by `table`."""
    slope, intercept = more.get("RescaleSlope", table or 1), more.get("RescaleIntercept", 0)
    if table:
        pydicom = pytest.importorskip("pydicom", reason="needs pydicom (extra `dicom`)")
        item = pydicom.Dataset()
        item.LUTDescriptor, item.ModalityLUTType = [2000, 0, 16], "US"
        item.LUTData = (table * np.arange(2000)).astype("<u2").tobytes()
        more["ModalityLUTSequence"] = pydicom.Sequence([item])
    scan(path, np.rint((physical - intercept) / slope).astype(int), bits=bits, **more)


@pytest.mark.parametrize("route", ["folder", "sites", "files"])
def test_equal_physical_values_are_equal_intensities(route, tmp_path):
    """Also in files that are read later: the name of the data set has the range."""
    rng, rows = np.random.default_rng(0), []
    for i, how in enumerate(STORED.values()):
        for label, value in (("low", 300.0), ("high", 500.0)):
            physical = np.array([[value, 100.0], [200.0, 2 * rng.integers(0, 500)]])
            home = tmp_path / "all" / (f"site-{i}/{label}" if route == "sites" else label)
            for copy in range(3):
                store(home / f"{i}-{copy}.dcm", physical + np.array([[0, 0], [0, 2 * copy]]), **how)
                rows.append(f"{(home / f'{i}-{copy}.dcm').relative_to(tmp_path)},{label}")
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    spec = {"folder": "folder(path=all, label=1)", "sites": "folder(path=all, label=2)", "files": "manifest(file=t.csv)"}[route]
    spec = spec.replace("all", f'"{tmp_path}/all"').replace("t.csv", f'"{tmp_path}/t.csv"')
    data = datasets.load(spec)
    x, text = np.concatenate([np.asarray(data.x_train), np.asarray(data.x_test)])[..., 0], " ".join(data.notes)
    assert len(np.unique(x[:, 0, 1])) == len(np.unique(x[:, 1, 0])) == 1 and len(np.unique(x[:, 0, 0])) == 2
    assert "different ranges" in text and x.min() >= 0 and x.max() <= 1
    again = datasets.load(data.name)
    assert again.checksum == data.checksum and again.name == data.name
    store(tmp_path / "new" / "0.dcm", np.array([[500.0, 100], [200, 0]]), RescaleSlope=0.5, RescaleIntercept=-500)
    new = np.asarray(datasets.new_samples(again, str(tmp_path / "new"))[1])[0, ..., 0]
    np.testing.assert_allclose(new.ravel()[:3], [x[:, 0, 0].max(), x[0, 0, 1], x[0, 1, 0]], atol=2e-7)


def test_physical_values_of_a_file(tmp_path):
    for name, how in STORED.items():
        store(tmp_path / f"{name}.dcm", np.full((2, 2), 500.0), **how)
        assert dicom.pixels(tmp_path / f"{name}.dcm").tolist() == [[500, 500], [500, 500]]
        np.testing.assert_allclose(dicom.pixels(tmp_path / f"{name}.dcm", "500/2000"), 0.5)


def test_files_in_other_units_are_named(tmp_path):
    for i in range(6):
        for name in ("clean", "ill"):
            unit = "OD" if (name, i) == ("ill", 3) else "HU"
            store(tmp_path / name / f"{i}.dcm", np.full((2, 2), 10.0 * i), RescaleType=unit, RescaleSlope=1, RescaleIntercept=0)
    refuse_call(r"several units cannot be compared: HU, OD; most have HU, but not .*ill/3.dcm", datasets.load, tmp_path)
    datasets.load(f'folder(path="{tmp_path}", window="30/60")')


def test_a_site_names_the_window(tmp_path):
    for i in range(3):
        store(tmp_path / "clean" / f"{i}.dcm", np.full((2, 2), 10.0 * i), RescaleSlope=0.5, RescaleIntercept=0)
    refuse_call('write window="center/width", the same at all sites', datasets.load, tmp_path, of_site=True)
    assert np.asarray(datasets.load(f'folder(path="{tmp_path}", window="30/60")', of_site=True).x_train).max() <= 1


@pytest.mark.parametrize("route", ["folder", "files"])
@pytest.mark.parametrize("shape", [(200, 200), (90, 150)])
def test_resized_images_keep_their_borders_unless_they_are_cropped(route, shape, tmp_path):
    red, rows = np.array([255, 0, 0]), []
    for name in "ab":
        for i in range(4):
            picture = np.full((*shape, 3), 90 + i, np.uint8)
            edge = shape[0] // 20
            picture[:edge] = picture[-edge:] = picture[:, :edge] = picture[:, -edge:] = red
            (tmp_path / "all" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(tmp_path / "all" / name / f"{i}.png")
            rows.append(f"all/{name}/{i}.png,{name}")
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    spec = f'folder(path="{tmp_path}/all", label=1' if route == "folder" else f'manifest(file="{tmp_path}/t.csv"'
    whole, cropped = datasets.load(f"{spec}, size=64)"), datasets.load(f"{spec}, size=64, crop=true)")
    assert whole.x_train.shape[1:] == cropped.x_train.shape[1:] == (64, 64, 3)
    assert (np.asarray(whole.x_train)[:, [0, 0, -1, -1], [0, -1, 0, -1]] == red).all()
    assert (np.asarray(cropped.x_train)[:, 0, 0] != red).any() and whole.checksum != cropped.checksum
    for data in (whole, cropped):
        assert data.whole(0).shape == (*shape, 3)  # a review shows the whole file
        new = np.asarray(datasets.new_samples(data, str(tmp_path / "all" / "a"))[1])
        np.testing.assert_array_equal(new[0], decoding.image(tmp_path / "all/a/0.png", size=64, crop=data is cropped))


# ---- A folder with an npz per site, and labels that are missing in an npz
def site(folder, name, start, labels, **more):
    folder.mkdir(exist_ok=True)
    x = np.arange(start, start + len(labels), dtype=np.float32)[:, None] * np.ones(40, np.float32)
    np.savez(folder / f"{name}.npz", **{"x": x, "y": np.array(labels), **more})


@pytest.fixture(params=[False, True], ids=["in memory", "in files"])
def cache(request, monkeypatch, tmp_path):
    """A cache folder; arrays above 300 bytes count as large when they are to stay in their files."""
    if request.param:
        monkeypatch.setattr(large.open_arrays, "__kwdefaults__", {**large.open_arrays.__kwdefaults__, "small": 300})
    return tmp_path / "cache"


def test_sites_become_clients(cache, tmp_path):
    site(tmp_path / "all", "Bonn", 0, [0, 1, -1, 2], split=np.array(["train", "test", "test", "train"]))
    site(tmp_path / "all", "Aix", 10, [2, -1, 0], ids=np.array(["a", "b", "c"]))
    data = datasets.load(tmp_path / "all", cache=cache)
    assert data.kind == "vector" and data.class_names == ["0", "1", "2"] and data.observed
    assert np.asarray(data.x_train)[:, 0].tolist() == [10, 12, 0, 3] and np.asarray(data.x_test)[:, 0].tolist() == [1]
    assert data.y_train.tolist() == [2, 0, 0, 2] and data.y_test.tolist() == [1]
    assert data.ids.tolist() == ["a", "c", "Bonn.npz x[0]", "Bonn.npz x[3]"]
    assert (data.unlabeled.ids, data.unlabeled.sites) == (["b", "Bonn.npz x[2]"], ["Aix", "Bonn"])
    assert np.asarray(data.unlabeled.samples())[:, 0].tolist() == [11, 2]
    fed = federation(data, "sites")
    assert fed.meta["client_names"] == ["Aix", "Bonn"] and fed.meta["client_unlabeled"] == [1, 1]
    assert [part.tolist() for part in fed.clients] == [[0, 1], [2, 3]]
    assert datasets.load(data.name, cache=cache).checksum == data.checksum


@pytest.mark.parametrize(
    ("numbers", "texts"), [([-1, -1], ["no", "yes"]), ([0, 1], ["0", "NA"]), ([7, 8], ["007", "8"]), ([0, 1], ["?", "NaN"])]
)
def test_texts_at_one_site_can_be_the_numbers_of_another(tmp_path, numbers, texts):
    """They were refused, also beside a site without labels."""
    site(tmp_path / "all", "a", 0, numbers)
    site(tmp_path / "all", "b", 0, texts)
    site(tmp_path / "all", "c", 0, texts[::-1])
    assert len(datasets.load(tmp_path / "all").y_train) == 4 + 2 * (numbers[0] >= 0)


def test_truth_is_declared_by_all_or_none(tmp_path):
    site(tmp_path / "all", "a", 0, [0, 1], y_true=np.array([1, 1]))
    site(tmp_path / "all", "b", 0, [1, 0], y_true=np.array([1, 0]))
    assert datasets.load(tmp_path / "all").truth.tolist() == [1, 1, 1, 0]
    site(tmp_path / "all", "b", 0, [1, 0])
    refuse_call("b.npz: with truth is False here, but True in a.npz", datasets.load, tmp_path / "all")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"x": np.zeros((2, 4), np.float32)}, r"b.npz: shape is \(4,\) here, but \(40,\) in a.npz; all sites"),
        ({"x": np.zeros((3, 40), np.float32)}, "b.npz: `y` has 2 entries but `x` 3 samples"),
        ({"y": np.array([0.5, 1])}, r"b.npz: `y` is float64 of shape \(2,\); expected whole numbers or texts"),
        ({"y": np.array([-2, 1])}, "b.npz: `y` has labels -2 to 1"),
        ({"split": np.array(["train", "val"])}, "b.npz: `split` contains 'val'; write train or test"),
        ({"ids": np.array(["p", "p"])}, "b.npz: `ids` contains p twice"),
        ({"x": np.full((2, 3), np.nan)}, "b.npz: `x` contains NaN"),
        ({"y": np.array(["no", "yes"])}, "a.npz: `y` has numbers, but texts in b.npz; add `class_names`"),
        ({"y_true": np.array([], int)}, "b.npz: `y_true` has 0 entries but `x` 2 samples"),
    ],
)
def test_mistakes_name_the_file(more, message, tmp_path):
    site(tmp_path / "all", "a", 0, [0, 1])
    site(tmp_path / "all", "b", 0, [0, 1], **more)
    refuse_call(message, datasets.load, tmp_path / "all")


def test_a_file_without_labels(tmp_path):
    (tmp_path / "all").mkdir()
    np.savez(tmp_path / "all" / "a.npz", x=np.zeros((2, 3)))
    refuse_call("a.npz: has no y; expected x and y", datasets.load, tmp_path / "all")


def test_minus_one_means_no_label(cache, tmp_path):
    x = np.arange(6, dtype=np.float32)[:, None] * np.ones(40, np.float32)
    arrays = {"x_train": x, "y_train": np.array([0, -1, 1, 1, -1, 0]), "x_test": x, "y_test": np.arange(6) % 2}
    np.savez(tmp_path / "d.npz", **arrays, site_train=np.array(list("aabbbb")), y_train_true=np.array([1, 0, 1, 1, 0, 0]))
    data = datasets.load(tmp_path / "d.npz", cache=cache)
    assert data.y_train.tolist() == [0, 1, 1, 0] and data.truth.tolist() == [1, 1, 1, 0] and data.classes == 2
    assert np.asarray(data.x_train)[:, 0].tolist() == [0, 2, 3, 5]
    assert data.unlabeled.ids == ["x_train[1]", "x_train[4]"] and data.unlabeled.sites == ["a", "b"]
    assert np.asarray(data.unlabeled.samples())[:, 0].tolist() == [1, 4]
    assert federation(data, "sites").meta["client_unlabeled"] == [1, 1]
    for labels, message in ((np.array([0, -2, 1, 1, 0, 0]), "-1 is a missing label"), (np.full(6, -1), "no label, only -1")):
        np.savez(tmp_path / "d.npz", **{**arrays, "y_train": labels})
        refuse_call(message, datasets.load, tmp_path / "d.npz")


# ---- labels of arrays as texts, booleans, floats and columns, in an npz, npy files, an npz per site and a loader of the user
X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.arange(12) % 2
WORDS = np.array(["ill", "well"])[Y]


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (Y.astype(bool), ["0", "1"]),
        (Y.astype(np.float32)[:, None], ["0", "1"]),
        (WORDS[:, None], ["ill", "well"]),
        (np.array(["10", "9"])[Y], ["9", "10"]),
    ],
)
def test_types_of_labels_on_each_route(y, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = Y if names[0] != "9" else 1 - Y
    np.savez(tmp_path / "a.npz", x_train=X, y_train=y, x_test=X[:4], y_test=y[:4])
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "x_train.npy", X)
    np.save(tmp_path / "npy" / "y_train.npy", y)
    (tmp_path / "sites").mkdir()
    np.savez(tmp_path / "sites" / "aix.npz", x=X, y=y)
    (tmp_path / "own.py").write_text("import numpy as np\ndef read():\n    return dict(np.load('a.npz'))\n")
    for source in (tmp_path / "a.npz", tmp_path / "npy", tmp_path / "sites", "own.py:read"):
        data = datasets.load(source)
        assert data.class_names == names and data.y_train.tolist() == wanted.tolist(), source
    assert datasets.load(tmp_path / "a.npz").y_test.tolist() == wanted[:4].tolist()


def test_missing_labels_and_names_in_another_order(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x_train=X, y_train=np.where(np.arange(12) == 3, np.nan, Y))
    assert datasets.load(path).y_train.tolist() == [0, 1, 0, *Y[4:]]
    words = np.where(np.arange(12) == 3, "", WORDS)
    np.savez(path, x_train=X, y_train=words, class_names=["well", "ill", "dead"])
    data = datasets.load(path)
    assert data.class_names == ["well", "ill", "dead"] and data.y_train.tolist() == [1, 0, 1, *(1 - Y[4:])]
    assert len(data.unlabeled) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"y_train": Y + 0.5}, "float64"),
        ({"y_train": np.stack([Y, Y], 1)}, "shape"),
        ({"y_train": WORDS, "y_train_true": Y}, "one form"),
        ({"y_train": WORDS, "class_names": ["well", "sick"]}, "'ill'"),
        ({"y_train": WORDS, "class_names": ["well", "ill", "ill"]}, "'ill' names two of the `class_names`; rename one"),
        ({"y_train": np.where(Y, np.inf, 0.0)}, "float64"),
    ],
)
def test_labels_that_are_no_classes(more, message, tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, **more)
    refuse_call(message, datasets.load, tmp_path / "a.npz")

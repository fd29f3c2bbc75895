"""Croissant metadata of the included data sets: required properties, references, checksums."""

import hashlib
import io
import json

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.datasets.croissant import CONFORMS, SOURCES, croissant
from tests.commands import refuse, succeed
from tests.test_versions import ROOT

# https://docs.mlcommons.org/croissant/docs/croissant-spec.html, "Required" of a Dataset and of a FileObject.
REQUIRED = ("@context", "@type", "conformsTo", "description", "license", "name", "url", "datePublished")
OF_A_FILE = ("@type", "@id", "name", "contentUrl", "encodingFormat", "sha256")


def test_every_included_data_set_has_metadata():
    included = {path.stem for path in (ROOT / "data").glob("*.npz")}
    assert set(SOURCES) == included <= set(datasets.registry())


@pytest.mark.parametrize("name", SOURCES)
def test_the_description_has_the_required_properties_and_describes_the_file(name, tmp_path):
    found = json.loads(succeed(f"fnlkit data info {name} --croissant", tmp_path).stdout)
    assert not [key for key in REQUIRED if not found.get(key)] and found["conformsTo"] == CONFORMS
    (file,) = found["distribution"]
    raw = (ROOT / "data" / file["contentUrl"]).read_bytes()
    assert not [key for key in OF_A_FILE if not file.get(key)] and file["sha256"] == hashlib.sha256(raw).hexdigest()
    (records,) = found["recordSet"]
    arrays = np.load(io.BytesIO(raw), allow_pickle=False)
    assert [field["name"] for field in records["field"]] == arrays.files
    for field in records["field"]:
        assert field["source"] == {"fileObject": {"@id": file["@id"]}, "extract": {"column": field["name"]}}
        assert str(arrays[field["name"]].dtype.name) in field["description"] and field["dataType"].startswith("sc:")
    assert "CC" not in found["citeAs"] or "creativecommons" in found["license"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOURCES)
def test_the_library_of_the_format_accepts_the_description(name, tmp_path):
    library = pytest.importorskip("mlcroissant", reason="needs mlcroissant: pip install mlcroissant")
    path = tmp_path / "croissant.json"
    path.write_text(json.dumps(croissant(name)))
    metadata = library.Dataset(jsonld=path).metadata
    assert metadata.name == name and not metadata.ctx.issues.errors


def test_other_data_sets_are_refused(tmp_path):
    refuse("fnlkit data info digit --croissant", tmp_path, "did you mean 'digits'")

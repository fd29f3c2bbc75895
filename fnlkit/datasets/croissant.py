"""Croissant metadata (version 1.0, https://docs.mlcommons.org/croissant) of the data sets that are included in this package."""

import hashlib
import io
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from fnlkit.errors import InputError, nearest

CONFORMS = "http://mlcommons.org/croissant/1.0"
_BY = "https://creativecommons.org/licenses/by/4.0/"


@dataclass(frozen=True)
class Source:
    """Source of an included data set: page, license, and the day on which its npz file was made."""

    url: str
    license: str
    made: str


SOURCES = {
    "digits": Source("https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits", _BY, "2026-11-21"),
    "spoken-digits": Source(
        "https://github.com/Jakobovski/free-spoken-digit-dataset",
        "https://creativecommons.org/licenses/by-sa/4.0/",
        "2026-11-24",
    ),
    "heart": Source("https://archive.ics.uci.edu/dataset/45/heart+disease", _BY, "2026-11-22"),
    "mriqc": Source("https://github.com/nipreps/mriqc-learn", "https://www.apache.org/licenses/LICENSE-2.0", "2026-11-22"),
}
_TYPES = {"U": "sc:Text", "S": "sc:Text", "f": "sc:Float", "i": "sc:Integer", "u": "sc:Integer", "b": "sc:Boolean"}
# The vocabulary that the specification prescribes, with the terms that are used here.
_CONTEXT = {
    "@language": "en", "@vocab": "https://schema.org/", "citeAs": "cr:citeAs", "column": "cr:column",
    "conformsTo": "dct:conformsTo", "cr": "http://mlcommons.org/croissant/", "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"}, "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty", "rai": "http://mlcommons.org/croissant/RAI/",
    "samplingRate": "cr:samplingRate",
    "examples": {"@id": "cr:examples", "@type": "@json"}, "extract": "cr:extract", "field": "cr:field",
    "fileObject": "cr:fileObject", "fileProperty": "cr:fileProperty", "fileSet": "cr:fileSet", "format": "cr:format",
    "includes": "cr:includes", "isLiveDataset": "cr:isLiveDataset", "jsonPath": "cr:jsonPath", "key": "cr:key", "md5": "cr:md5",
    "parentField": "cr:parentField", "path": "cr:path", "recordSet": "cr:recordSet", "references": "cr:references",
    "regex": "cr:regex", "repeated": "cr:repeated", "replace": "cr:replace", "sc": "https://schema.org/",
    "separator": "cr:separator", "source": "cr:source", "subField": "cr:subField", "transform": "cr:transform",
}  # fmt: skip


def croissant(name: str) -> dict[str, Any]:
    """Return the Croissant description (JSON-LD) of an included data set.

    Each array of the npz file is a field. Croissant 1.0 has no reader for npz files: programs read the file with
    ``numpy.load``, and the description names it, its arrays, types and checksum.

    Parameters
    ----------
    name : str
        digits, spoken-digits, heart or mriqc.

    Returns
    -------
    dict

    Raises
    ------
    InputError
        If the data set is not included in this package.
    """
    if name not in SOURCES:
        known = ", ".join(SOURCES)
        raise InputError(f"{name!r} is not included in this package{nearest(name, SOURCES)}; included: {known}")
    source, folder = SOURCES[name], resources.files("fnlkit.data")
    raw, card = folder.joinpath(f"{name}.npz").read_bytes(), folder.joinpath(f"{name}.md").read_text(encoding="utf-8")
    title, _, text = card.partition("\n")
    cited = next(part for part in text.split("\n\n") if part.startswith("**Source.**"))
    file = f"{name}.npz"
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        fields = [_field(name, file, key, arrays[key]) for key in arrays.files]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": name,
        "description": f"{title.removeprefix('# ')}. {_plain(text.strip().split(chr(10) * 2)[0])}",
        "conformsTo": CONFORMS,
        "citeAs": _plain(cited.removeprefix("**Source.**")),
        "license": source.license,
        "url": source.url,
        "datePublished": source.made,
        "version": "1.0.0",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": file,
                "name": file,
                "description": "Arrays of NumPy, included in the Python package fnlkit",
                "contentUrl": file,
                "contentSize": f"{len(raw)} B",
                "encodingFormat": "application/x-npz",
                "sha256": hashlib.sha256(raw).hexdigest(),
            }
        ],
        "recordSet": [{"@type": "cr:RecordSet", "@id": "arrays", "name": "arrays", "field": fields}],
    }


def _field(name, file, key, values):
    """Return the description of an array."""
    return {
        "@type": "cr:Field",
        "@id": f"arrays/{key}",
        "name": key,
        "description": f"Array of shape ({', '.join(map(str, values.shape))}), {values.dtype.name}",
        "dataType": _TYPES[values.dtype.kind],
        "source": {"fileObject": {"@id": file}, "extract": {"column": key}},
    }


def _plain(text):
    return " ".join(text.replace("`", "").split())

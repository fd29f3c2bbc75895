"""The review page: one self-contained HTML file in which a person decides on each sample, with the keyboard."""

import base64
import io
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment
from PIL import Image

from fnlkit.artifacts.federation import Federation
from fnlkit.datasets.columns import decode_row
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.targets import words
from fnlkit.estimators.judgment import PREFIX

if TYPE_CHECKING:
    from fnlkit.audits.suspects import Selection


SIDE = 128  # pixels of a thumbnail
LARGE = 1024  # most pixels of a side of the enlarged picture of a sample under review
DEEP = 512  # most pixels of a side of a picture of 16 bits, which the page shows with window and level
MOST_COPIES = 60  # pairs shown at the end of the page
POINTS = 240  # of a drawn wave


def page(
    federation: Federation, dataset: Dataset, client: int, selection: "Selection", near: list[np.ndarray], title: str
) -> str:
    """Write the page as text.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
        With issue scores and suggested labels.
    dataset : fnlkit.datasets.Dataset
    client : int
    selection : fnlkit.audits.suspects.Selection
    near : list of int arrays
        Neighbors shown next to each sample.
    title : str
        The site's name.

    Notes
    -----
    The samples, given and suggested labels, scores, neighbors and copies at the site are embedded.  The page loads no
    external files. Decisions leave the page only as the file that the reviewer saves.  Score and suggestion are hidden until
    the reviewer shows them, and the page does not reveal which samples were drawn at random.
    """
    score, suggested = (np.asarray(federation.extra[PREFIX + name]) for name in ("issue_score", "suggested_label"))
    sure, names = federation.extra.get(f"{PREFIX}confidence"), list(map(str, dataset.class_names))

    def to_entry(position: int) -> dict[str, Any]:
        sample = federation.ids_of([position])[0]
        given = words(names, federation.given[[position]])[0]
        return {"sample": sample, "given": given, "view": view(dataset, position)}

    items, copies, far = [], copies_of(federation, client), federation.extra.get(f"{PREFIX}far")
    for i, position in enumerate(selection.positions.tolist()):
        items.append({
            "position": position,
            **to_entry(position),
            "view": view(dataset, position, large=True),
            "part": selection.part(i),
            "suggested": words(names, suggested[[position]])[0],
            "score": round(float(score[position]), 4),
            "confidence": None if sure is None else round(float(sure[position]), 4),
            "near": [to_entry(j) for j in near[i].tolist()],
            "copies": [to_entry(j) for pair in copies if position in pair for j in pair if j != position],
            "far": far is not None and bool(far[position]),
        })  # fmt: skip
    text = resources.files("fnlkit.data").joinpath("review.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True).from_string(text)
    pairs = [list(map(to_entry, pair)) for pair in copies[:MOST_COPIES]]
    # `</script>` within a class name must not end the script.
    facts = {"client": client, "classes": names, "items": items, "pairs": pairs}
    if selection.design is not None:
        facts["guarantee"] = _promise(selection)
    body = json.dumps(facts).replace("<", "\\u003c")
    return template.render(title=title, count=len(items), copies=len(copies), shown=len(pairs), body=body)


def _promise(selection):
    """Collect the data from which the page computes the length of the list: plan, places of candidates, bounds."""
    design = selection.design
    places = {int(position): rank for rank, position in enumerate(selection.candidates)}
    return {
        "design": design.text(),
        "q": design.q,
        "candidates": design.candidates,
        "reviews": design.reviews,
        "bounds": [round(float(value), 6) for value in design.bounds()],
        "ranks": [places.get(position, -1) for position in selection.positions.tolist()],
    }


def copies_of(federation: Federation, client: int) -> list[tuple[int, int]]:
    """Find pairs of positions (original, copy) of a client's exact and near copies.

    Pairs with different labels come first. The list is empty if the federation was not audited.
    """
    of = federation.extra.get(f"{PREFIX}copy_of")
    if of is None:
        return []
    held = np.sort(federation.whole().clients[client])
    mine = held[(of[held] >= 0) & np.isin(of[held], held)]  # a sample of the pair can have been dropped since the audit
    alike = federation.given[mine] == federation.given[of[mine]]
    return [(int(of[j]), int(j)) for j in mine[np.argsort(alike, kind="stable")]]


def view(dataset: Dataset, position: int, large: bool = False) -> dict[str, Any]:
    """Collect the data from which the page draws a sample.

    Parameters
    ----------
    dataset : fnlkit.datasets.Dataset
    position : int
    large : bool
        For a picture of more than `SIDE` pixels, add ``large``: the picture with sides of at most `LARGE` pixels. For a gray
        picture of 16 bits, add ``deep`` instead: see `_deep`.

    Returns
    -------
    dict
        ``image`` (data URI), ``wave`` (points in [-1, 1]), or ``row`` ([[column, value]]; None is a missing value).
    """
    if dataset.shown is not None:
        return {"row": [[name, text or None] for name, text in dataset.shown[position]]}
    sample = np.asarray(dataset.x_train[position] if dataset.whole is None else dataset.whole(position))
    if dataset.kind == "image":
        if large and sample.dtype != np.uint8 and sample.shape[-1] == 1:
            return {"image": thumbnail(sample), "deep": _deep(sample[..., 0])}
        more = {"large": _uri(_picture(sample), LARGE)} if large and max(sample.shape[:2]) > SIDE else {}
        return {"image": thumbnail(sample), **more}
    if dataset.kind == "wave":
        top = max(1e-9, float(np.abs(sample.astype(np.float64)).max()))
        parts = np.array_split(sample.astype(np.float64) / top, min(POINTS, len(sample)))
        return {"wave": [[round(float(p.min()), 3), round(float(p.max()), 3)] for p in parts]}
    if dataset.table:
        return {"row": [list(cell) for cell in decode_row(dataset.table, sample)]}
    columns = getattr(dataset, "columns", None) or []
    names = columns if len(columns) == len(sample) else range(len(sample))
    return {"row": [[str(name), f"{float(value):.6g}"] for name, value in zip(names, sample, strict=True)]}


def thumbnail(image: np.ndarray) -> str:
    """Convert an image (H, W, channels) to a PNG data URI with sides of at most SIDE pixels; small images are enlarged."""
    picture = _picture(image)
    scale = SIDE / max(picture.size)
    size = tuple(max(1, round(side * scale)) for side in picture.size)
    return _uri(picture.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.LANCZOS))


def _picture(image):
    """Convert an image to a Pillow image; values that are not bytes are stretched to their range."""
    image = np.asarray(image)
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = np.round(255 * (image - low) / max(1e-12, high - low)).astype(np.uint8)
    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def _deep(image):
    """Convert a gray image (H, W) to a PNG data URI with 16 bits: the high byte is red, the low byte is green."""
    low, high = float(image.min()), float(image.max())
    values = (np.asarray(image, np.float32) - low) / max(1e-12, high - low)
    scale = DEEP / max(values.shape)
    if scale < 1:
        size = tuple(max(1, round(side * scale)) for side in values.shape[::-1])
        values = np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BOX))
    values = np.round(65535 * np.clip(values, 0, 1)).astype(np.uint16)
    return _uri(Image.fromarray(np.stack([values >> 8, values & 255, 0 * values], -1).astype(np.uint8)))


def _uri(picture, most=None):
    """Convert a picture to a data URI: PNG, or a JPEG of high quality with sides of at most `most` pixels."""
    buffer, form = io.BytesIO(), "png"
    if most is None:
        picture.save(buffer, "PNG")
    else:
        form = "jpeg"
        picture.thumbnail((most, most))
        picture.save(buffer, "JPEG", quality=92, subsampling=0)
    return f"data:image/{form};base64," + base64.b64encode(buffer.getvalue()).decode("ascii")

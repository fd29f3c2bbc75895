"""The review page: one self-contained HTML file in which a person decides sample by sample, with the keyboard."""

import base64
import io
import json
from importlib import resources

import numpy as np

from fnlkit.estimators.judgement import PREFIX

SIDE = 128  # pixels of a thumbnail
POINTS = 240  # of a drawn wave


def page(federation, dataset, client, selection, near, title):
    """Return the page as text.

    Parameters
    ----------
    federation : fnlkit.artefacts.federation.Federation
        With issue scores and suggested labels.
    dataset : fnlkit.datasets.Dataset
    client : int
    selection : fnlkit.review.suspects.Selection
    near : int (b, count)
        Neighbours shown beside each sample.
    title : str
        The site's name.

    The samples, given and suggested label, score and neighbours are embedded; nothing is loaded from anywhere, and the
    decisions leave the page only as the file that its user saves.
    """
    from jinja2 import Environment

    score, suggested = (np.asarray(federation.extra[PREFIX + name]) for name in ("issue_score", "suggested_label"))
    names = list(map(str, dataset.class_names))
    items = []
    for i, position in enumerate(selection.positions.tolist()):
        items.append({
            "position": position,
            "sample": federation.ids_of([position])[0],
            "part": "suspect" if selection.suspect[i] else "random",
            "given": names[federation.given[position]],
            "suggested": names[suggested[position]],
            "score": round(float(score[position]), 4),
            "view": view(dataset, position),
            "near": [{"given": names[federation.given[j]], "view": view(dataset, j)} for j in near[i].tolist()],
        })  # fmt: skip
    text = resources.files("fnlkit.data").joinpath("review.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True).from_string(text)
    # `</script>` within a class name must not end the script.
    body = json.dumps({"client": client, "classes": names, "items": items}).replace("<", "\\u003c")
    return template.render(title=title, count=len(items), body=body)


def view(dataset, position):
    """Return how a sample is shown: {"image": data URI}, {"wave": points in [-1, 1]} or {"row": [[name, value]]}."""
    sample = np.asarray(dataset.x_train[position])
    if dataset.kind == "image":
        return {"image": thumbnail(sample)}
    if dataset.kind == "wave":
        top = max(1e-9, float(np.abs(sample.astype(np.float64)).max()))
        parts = np.array_split(sample.astype(np.float64) / top, min(POINTS, len(sample)))
        return {"wave": [[round(float(p.min()), 3), round(float(p.max()), 3)] for p in parts]}
    columns = getattr(dataset, "columns", None) or []
    names = columns if len(columns) == len(sample) else range(len(sample))
    return {"row": [[str(name), round(float(value), 4)] for name, value in list(zip(names, sample, strict=True))[:24]]}


def thumbnail(image):
    """Return an image (H, W, channels) as a PNG data URI with sides of at most SIDE pixels; small ones grow."""
    from PIL import Image

    image = np.asarray(image)
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = np.round(255 * (image - low) / max(1e-12, high - low)).astype(np.uint8)
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    scale = SIDE / max(picture.size)
    size = tuple(max(1, round(side * scale)) for side in picture.size)
    picture = picture.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode("ascii")

"""Drawings of requested and achieved noise as small SVGs in the colors of the page."""

import html
import re
import shlex

import numpy as np

from fnlkit import datasets, noise
from fnlkit.datasets import partitioning

SIDE = 13  # size of a cell in drawing units
MARK = re.compile(r"^<!-- noise: (.+?) -->$", re.MULTILINE)


def drawn(markdown):
    """Return a page with each line ``<!-- noise: SPEC -->`` replaced by a drawing (digits, 20 clients, seed 0)."""
    if not MARK.search(markdown):
        return markdown
    data = datasets.load("digits")
    clean = partitioning.federation(data, clients=20)
    return MARK.sub(lambda found: _drawing(clean, data, found[1]), markdown)


def _drawing(clean, data, spec):
    noisy = noise.inject(clean, spec, seed=0, x=data.x_train)
    asked, achieved = noise.requested(noisy), noisy.achieved_transition()
    each = noisy.noise_transition if noisy.noise_transition is not None and noisy.noise_transition.ndim == 3 else None
    figures = [] if asked is None else [(_matrix(asked), "asked")]
    if each is not None:
        worst = int(np.argmax(noisy.noise_client_level))
        figures[0] = (figures[0][0], "asked, all clients together")
        figures.append((_matrix(each[worst]), f"asked, client {worst} alone"))
    figures.append((_matrix(achieved), "came out"))
    figures.append((_levels(noisy.noise_client_level), "share of wrong labels, client by client"))
    drawn = "".join(f"<figure>{svg}<figcaption>{text}</figcaption></figure>" for svg, text in figures)
    said = f'<p class="spec"><code>--noise {html.escape(shlex.quote(spec))}</code></p>'
    return f'{said}<div class="matrices" role="group" aria-label="{html.escape(spec)}">{drawn}</div>'


def _matrix(T):
    """Return an SVG of T[true, given]: true classes in rows, given classes in columns, opacity = root of probability."""
    size, cells = len(T) * SIDE, []
    for row, column in zip(*np.nonzero(T > 0.0005), strict=True):
        p = T[row, column]
        kind = "stays" if row == column else "wrong"
        cells.append(
            f'<rect class="{kind}" x="{column * SIDE}" y="{row * SIDE}" width="{SIDE - 1}" height="{SIDE - 1}" '
            f'fill-opacity="{p**0.5:.2f}"><title>{row} given as {column}: {p:.2f}</title></rect>'
        )
    frame = f'<rect class="frame" x="-1" y="-1" width="{size + 1}" height="{size + 1}"/>'
    labels = [
        f'<text x="{i * SIDE + 6}" y="{size + 9}">{i}</text><text x="-6" y="{i * SIDE + 9}">{i}</text>' for i in range(len(T))
    ]
    return _svg(
        f"-12 -3 {size + 16} {size + 16}", frame + "".join(cells + labels), "transition matrix, rows true, columns given"
    )


def _levels(levels):
    """Return an SVG with a bar per client, from 0 to all labels wrong."""
    high, bars = 10 * SIDE, []
    for k, level in enumerate(levels):
        bars.append(
            f'<rect class="wrong" x="{k * 9}" y="{high * (1 - level):.1f}" width="7" height="{max(high * level, 0.5):.1f}">'
            f"<title>client {k}: {level:.2f}</title></rect>"
        )
    wide = len(levels) * 9
    axes = f'<path class="frame" d="M-3,0V{high}H{wide}"/><text x="-10" y="6">1</text><text x="-10" y="{high}">0</text>'
    axes += f'<text x="4" y="{high + 9}">0</text><text x="{wide - 6}" y="{high + 9}">{len(levels) - 1}</text>'
    return _svg(f"-16 -3 {wide + 20} {high + 16}", axes + "".join(bars), "share of wrong labels of each client")


def _svg(box, inside, title):
    return f'<svg viewBox="{box}" role="img"><title>{title}</title>{inside}</svg>'

"""`fnlkit embed`: compute a vector for each sample."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fnlkit import datasets
from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from fnlkit.cli.plumbing import (
    Listing,
    caution,
    console,
    data_of,
    dataset_option,
    device_option,
    emit,
    keeps,
    output_option,
    printable,
    provenance,
)
from fnlkit.cli.progress import bar
from fnlkit.cli.source import need_input, refuse_unread
from fnlkit.components.spec import parse
from fnlkit.datasets.embed import BACKBONES


def _backbones():
    return BACKBONES


@click.command(cls=Listing, title="Backbones", parts=_backbones)
@click.argument("file", required=False, metavar="[FILE]")
@dataset_option
@click.option(
    "--backbone",
    default="pca",
    show_default=True,
    metavar="SPEC",
    help="Backbone that computes the vectors, from the list above, or FILE.py:NAME.",
)
@device_option
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Images per batch. Default: 16 on a CPU and 256 on a GPU.",
)
@click.option("--new", metavar="FILE", default=None, help="Also embed new samples for `predict`: npy or npz.")
@output_option("EMB.npz")
def command(
    file: str | None, dataset: str | None, backbone: str, device: str, batch_size: int | None, new: str | None, output: str
) -> None:
    """Compute embeddings of training and test samples, for estimate-noise, distillation and train --features.

    The data set is that of the federation FILE, of the pipe, or of --dataset. Weights are read from a file or from the caches
    of libraries; nothing is downloaded. A repeated call continues an interrupted one.

    \b
    Example:
      fnlkit embed --dataset digits --backbone 'pca(dim=16)' -o EMB.npz
    """
    from fnlkit.datasets.embed import embed_parts, place_of

    spec = parse(backbone, "--backbone")
    if file is None and dataset is not None:
        data = datasets.load(dataset)
    else:
        need_input(file or "-")
        keeps(file, output, "federation")
        federation = Federation.read(file or "-")
        data = data_of(federation, dataset)
    parts = {"embeddings": data.x_train} | ({"test": data.x_test} if len(data.y_test) else {})
    if new:
        parts["new"] = datasets.new_samples(data, new, say=lambda note: caution(printable(note)))[1]
    place = place_of(data, spec, device=device, batch_size=batch_size, new=parts.get("new", ()))
    with bar(f"{data.name}, {spec}") as progress, resumable(place) as kept:
        found = embed_parts(data, parts, spec, device=device, batch_size=batch_size, progress=progress, place=kept)
        made = provenance("embed", dataset=data.name, backbone=str(spec), batch_size=batch_size, checksum=data.checksum)
        meta = {"dataset": data.name, "checksum": data.checksum, "backbone": str(spec), "provenance": [made]}
        if dataset is not None:
            refuse_unread(file)
        emit(files.Artifact("fnlkit.embeddings/1", found, meta), output)
    width, counts = found["embeddings"].shape[1], ", ".join(f"{len(rows):,} {_WORDS[name]}" for name, rows in found.items())
    console().print(f"{data.name}: embeddings of {width:,} values by {spec}: {counts}", style="dim")


_WORDS = {"embeddings": "training", "test": "test", "new": "new"}


@contextmanager
def resumable(place: Path) -> Iterator[Path | None]:
    """Yield a folder for unfinished work, removed after success; None if it cannot be created."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        yield None
        return
    yield place
    shutil.rmtree(place, ignore_errors=True)

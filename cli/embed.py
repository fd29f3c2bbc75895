"""`fnlkit embed`: a data set in, one vector a sample out."""

from contextlib import contextmanager

import click

from fnlkit.cli.plumbing import console, data_of, dataset_option, device_option, emit, output_option, provenance
from fnlkit.cli.source import need_input, refuse_both


@click.command()
@click.argument("file", required=False, metavar="[FILE]")
@dataset_option
@click.option(
    "--backbone",
    default="pca",
    show_default=True,
    metavar="SPEC",
    help="What turns a sample into a vector; one of the backbones above.",
)
@device_option
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="How many images go through the network at once; 16 on a CPU and 256 on a GPU without it.",
)
@output_option("EMB.npz")
def command(file, dataset, backbone, device, batch_size, output):
    """Compute embeddings of a data set's training samples, for estimate-noise and distillation.

    The data set is the one of the federation FILE or in the pipe, or the one --dataset names. Backbones: pixels, pca(dim=64),
    efficientnet-lite0, torchvision(name=resnet18), timm(name=...), open-clip(name=..., weights=PATH), or
    FILE.py:NAME. Weights come from a file or from the libraries' caches; nothing is downloaded.

    \b
    Example:
      fnlkit embed --dataset digits --backbone 'pca(dim=16)' -o EMB.npz
    """
    from fnlkit import datasets
    from fnlkit.artefacts import files
    from fnlkit.embed import embed
    from fnlkit.spec import parse

    spec = parse(backbone, "--backbone")
    if file is None and dataset is not None:
        data = datasets.load(dataset)
    else:
        from fnlkit.artefacts.federation import Federation

        need_input(file or "-")
        federation = Federation.read(file or "-")
        data = data_of(federation, dataset)
    with bar(f"{data.name}, {spec}") as progress:
        vectors = embed(data, spec, device=device, batch_size=batch_size, progress=progress)
    refuse_both(file, dataset)
    console().print(f"{data.name}: {len(vectors):,} embeddings of {vectors.shape[1]:,} values by {spec}", style="dim")
    made = provenance("embed", dataset=data.name, backbone=str(spec), checksum=data.checksum)
    meta = {"dataset": data.name, "checksum": data.checksum, "backbone": str(spec), "provenance": [made]}
    emit(files.Artefact("fnlkit.embeddings/1", {"embeddings": vectors}, meta), output)


@contextmanager
def bar(title):
    """Yield a function (done, total) that moves a bar on a terminal, or does nothing elsewhere."""
    talk = console()
    if not talk.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    # A path may hold what looks like markup.
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=talk, transient=True) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)

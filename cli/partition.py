"""`fnlkit partition`: a data set in, a federation out."""

from collections import Counter
from functools import partial

import click

from fnlkit.cli.plumbing import (
    Listing,
    console,
    data_of,
    dataset_option,
    emit,
    output_option,
    printable,
    provenance,
    seed_option,
)
from fnlkit.cli.source import chosen, need_input, refuse_both


def _schemes():
    from fnlkit.partitioning import SCHEMES

    return SCHEMES


@click.command(cls=Listing, title="Schemes", parts=_schemes, given=("fields",))
@click.argument("file", required=False, metavar="[FILE]")
@dataset_option
@click.option(
    "--scheme", default="iid", show_default=True, metavar="SPEC", help="Who gets which samples; one of the schemes above."
)
@click.option(
    "--clients",
    type=click.IntRange(min=1),
    default=None,
    help="How many clients; 20 below 10,000 samples and 100 above without it.",
)
@click.option("--labels", default="auto", show_default=True, metavar="WORD",
              help="observed: nobody knows which labels are wrong; true: none is; auto: as the data set declares.")  # fmt: skip
@click.option(
    "--min-samples",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Draw again until every client has so many samples.",
)
@seed_option
@output_option("FED.npz")
def command(file, dataset, scheme, clients, labels, min_samples, seed, output):
    """Split a data set over clients and write a federation.

    It starts from --dataset, or from digits. With FILE, or from a pipe, it splits an unpartitioned federation whose
    labels `inject-noise --dataset` corrupted, by the labels that clients will see; --dataset beside `-` or FILE then
    says where the samples lie.

    \b
    Example:
      fnlkit partition --dataset digits --clients 10 --scheme 'dirichlet(alpha=0.5)' --seed 1 -o fed.npz
    """
    from fnlkit import datasets, partitioning
    from fnlkit.artefacts.federation import Federation

    source, noisy = chosen(file, dataset), None
    if source is None:
        data = datasets.load(dataset or "digits")
    else:
        need_input(source)
        noisy = Federation.read(source)
        data = data_of(noisy, dataset)
    options = {"scheme": scheme, "clients": clients, "min_samples": min_samples, "labels": labels}
    federation = partitioning.federation(data, seed=seed, noisy=noisy, **options)
    record = provenance("partition", seed, dataset=data.name, **options)
    federation.meta = {**federation.meta, "provenance": [*federation.meta.get("provenance", []), record]}
    sizes = [len(part) for part in federation.clients]
    rest = len(federation.given) - sum(sizes)
    refuse_both(file, dataset)
    say = partial(console().print, style="dim", soft_wrap=True)
    for note in [*data.notes, *_unlabelled(data, federation), *_sites_left(data, scheme)]:
        say(printable(note))
    say(
        f"{printable(data.name)}: {sum(sizes):,} samples over {len(sizes):,} clients, {min(sizes):,} to {max(sizes):,} each"
        f"{f', {rest:,} left out' if rest else ''}"
        f"{'; the labels are observed ones: nobody knows which are wrong' if federation.true is None else ''}"
    )
    emit(federation, output)


def _unlabelled(data, federation):
    """Yield a sentence where samples came without a label."""
    if data.unlabelled is None:
        return
    where = ""
    if data.unlabelled.sites is not None:
        where = f" ({', '.join(f'{site} {n:,}' for site, n in sorted(Counter(data.unlabelled.sites).items()))})"
    yield f"{len(data.unlabelled):,} samples without a label{where} belong to no client; `fnlkit predict` reads them"
    names = federation.meta.get("client_names", [])
    bare = sorted(set(data.unlabelled.sites or []) - set(names)) if "client_unlabelled" in federation.meta else []
    if bare:
        yield f"no client: {', '.join(bare)}, without a single label"


def _sites_left(data, scheme):
    """Yield a sentence where the data names sites and another scheme splits it."""
    count = len(set(data.fields["site"])) if "site" in data.fields else 0
    if count > 1 and scheme == "iid":
        yield f"the data comes from {count:,} sites and is mixed over clients; --scheme sites makes each of them a client"

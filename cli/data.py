"""`fnlkit data`: list, download and describe data sets."""

import json
import sys
from typing import Any

import click

from fnlkit import datasets
from fnlkit.cli.group import Group
from fnlkit.cli.plumbing import Table, json_option, out_console, printable, suggest, verbose
from fnlkit.core.errors import list_names

_MOST = 8  # data sets that are listed with their descriptions


@click.group(cls=Group)
def command() -> None:
    """List, download and describe data sets.

    Data sets are stored in the folder FNLKIT_CACHE. Default: ~/.cache/fnlkit. Only `get` uses the network.
    crowdtruth is a copy of a public repository: `info` prints how to obtain it.

    \b
    Example:
      fnlkit data list
    """


@command.command("list")
@json_option
def list_sets(as_json: bool) -> None:
    """List the known data sets, and whether their files are on this machine.

    \b
    Example:
      fnlkit data list --json
    """
    rows: list[dict[str, Any]] = [
        {"name": name, "description": line, "here": datasets.present(name)} for name, line in datasets.registry().items()
    ]
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(row) + "\n")
        return
    present, console = [row for row in rows if row["here"]], out_console()
    console.print(f"{len(rows)} data sets, {len(present)} on this machine (cache folder {datasets.cache_folder()})")
    if verbose():
        cells = [(row["name"], "yes" if row["here"] else "no", row["description"]) for row in rows]
        console.print(Table("name", "here", "description", rows=cells))
    else:
        console.print(Table("name", "description", rows=[(row["name"], row["description"]) for row in present[:_MOST]]))
        if len(present) > _MOST:
            console.print(f"also here: {', '.join(row['name'] for row in present[_MOST:])}")
        if missing := [row["name"] for row in rows if not row["here"]]:
            console.print(f"not here: {', '.join(missing)} (-v: descriptions; fnlkit data info NAME: how to get one)")
        suggest("partition", "--dataset", present[0]["name"], "-o", "fed.npz")


@command.command()
@click.argument("name")
def get(name: str) -> None:
    """Download a data set into the cache folder and check it.

    \b
    Example:
      fnlkit data get digits
    """
    facts = _facts(datasets.load(name, download=True))
    _show(facts)
    suggest("partition", "--dataset", name, *_scheme(facts), "-o", "fed.npz")


@command.command()
@click.argument("name", metavar="NAME|PATH")
@json_option
def info(name: str, as_json: bool) -> None:
    """Print the card, sizes, classes and checksum of a data set.

    \b
    Example:
      fnlkit data info digits --json
    """
    known = name in datasets.registry()
    if known and not as_json:
        _print_card(datasets.card(name))
    if known and not datasets.present(name):
        if as_json:
            sys.stdout.write(json.dumps({"name": name, "here": False}) + "\n")
        return
    if known and (needs := datasets.required_parameters(name)):
        if as_json:
            sys.stdout.write(json.dumps({"name": name, "needs": needs}) + "\n")
        return
    facts = _facts(datasets.load(name))
    if as_json:
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        _show(facts)
        suggest("partition", "--dataset", name, *_scheme(facts), "-o", "fed.npz")


def _print_card(card):
    """Print a card; if it is long and without -v: its title, its first paragraph, its source, and where its files are."""
    say = out_console()
    if verbose():
        say.print(card, soft_wrap=True)
        return
    title, first, *rest = (" ".join(part.split()) for part in card.split("\n\n"))
    say.print(title.removeprefix("# "))
    for part in (first, *(part for part in rest if part.startswith(("**Source.**", "**Files.**", "**License.**")))):
        say.print(part.replace("**", ""))


def _scheme(facts):
    return ["--scheme", "sites"] if facts["sites"] else []


def wrong_share(data: datasets.Dataset) -> float | None:
    """Share of training labels that differ from declared true labels, or None without separate true labels."""
    return None if data.y_train_true is None else float((data.y_train != data.y_train_true).mean())


def _facts(data):
    return {
        "name": data.name,
        "here": True,
        "kind": data.kind,
        "classes": data.classes,
        "class_names": data.class_names,
        "train": len(data.y_train),
        "test": len(data.y_test),
        "wrong_labels": wrong_share(data),
        "sites": len(set(data.fields["site"].tolist())) if "site" in data.fields else None,
        "annotators": len(data.annotators) or None,
        "shape": list(data.x_train.shape[1:]),
        "dtype": str(data.x_train.dtype),
        "mean": list(data.mean),
        "std": list(data.std),
        "sample_rate": data.sample_rate or None,
        "fields": list(data.fields),
        "checksum": data.checksum,
    }


def _show(facts):
    if not verbose():
        shape = " x ".join(map(str, facts["shape"])) or "one value"
        line = f"{facts['name']}: {facts['train']:,} training and {facts['test']:,} test samples ({facts['kind']}, {shape})"
        line += f", {facts['classes']} classes: {list_names(facts['class_names'] or range(facts['classes']))}"
        line += f"; {facts['sites']} sites" if facts["sites"] else ""
        line += f"; {facts['annotators']} annotators" if facts["annotators"] else ""
        line += f"; {100 * facts['wrong_labels']:.1f} % of the training labels wrong" if facts["wrong_labels"] else ""
        out_console().print(printable(line))
        return
    table = Table("", "", heads=False)
    for key, value in facts.items():
        if value is None or value == [] or key == "here":
            continue
        if key == "shape":
            value = " x ".join(map(str, value))
        if isinstance(value, list):
            value = ", ".join(f"{v:.4f}" if isinstance(v, float) else str(v) for v in value[:20])
        if key == "wrong_labels":
            value = f"{100 * value:.1f} % of the training labels"
        table.add_row(key.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    out_console().print(table)

"""`fnlkit data`: list, download and describe data sets."""

from __future__ import annotations

import json
import sys

import click

from fnlkit import datasets
from fnlkit.cli.plumbing import Table, json_option, out_console


@click.group()
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
    rows = [{"name": name, "description": line, "here": datasets.present(name)} for name, line in datasets.registry().items()]
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(row) + "\n")
        return
    table = Table("name", "here", "description")
    for row in rows:
        table.add_row(row["name"], "yes" if row["here"] else "no", row["description"])
    console = out_console()
    console.print(table)
    console.print(f"cache folder: {datasets.cache_folder()}", soft_wrap=True)


@command.command()
@click.argument("name")
def get(name: str) -> None:
    """Download a data set into the cache folder and check it.

    \b
    Example:
      fnlkit data get digits
    """
    data = datasets.load(name, download=True)
    _show(_facts(data))


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
        out_console().print(datasets.card(name), soft_wrap=True)
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


def wrong_share(data: datasets.Dataset) -> float | None:
    """Return the share of training labels that differ from declared true labels, or None without separate true labels."""
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

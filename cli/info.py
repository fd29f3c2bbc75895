"""`fnlkit info`: print the content of a file of fnlkit."""

import json
import sys

import click

from fnlkit.artifacts import files, large
from fnlkit.cli.artifact_tables import describe, show
from fnlkit.cli.plumbing import file_argument, json_option, suggest, verbose


@click.command()
@file_argument
@json_option
def command(file: str, as_json: bool) -> None:
    """Print the content of a file: arrays, clients, noise, estimates, and the commands that created it.

    Without FILE stdin is read.

    \b
    Example:
      fnlkit partition | fnlkit info --json
    """
    artifact, digest = large.heads(file)
    if artifact.kind.startswith("fnlkit.federation/") and any(isinstance(v, large.Head) for v in artifact.arrays.values()):
        artifact, digest = files.read(file), None  # for the labels
    if as_json:
        sys.stdout.write(json.dumps(describe(artifact, file, digest)) + "\n")
    else:
        show(artifact, file, digest, everything=verbose() > 0)
        if file != "-" and not verbose() and (words := _FOLLOWING.get(artifact.kind.partition("/")[0])):
            suggest(*(file if word is None else word for word in words))


# Next command by the kind of a file; None stands for the file.
_FOLLOWING = {"fnlkit.federation": ("train", None, "-o", "run.pt"), "fnlkit.run": ("evaluate", None)}

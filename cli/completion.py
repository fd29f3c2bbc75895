"""Shell completion: commands and options by click, values from the registries, and files for all other values."""

from __future__ import annotations

import sys
from functools import partial

import click
from click.shell_completion import CompletionItem, shell_complete


def complete(group: click.Group, instruction: str) -> None:
    """Print the completion of the words in the environment, or the script of a shell; exit with 0, or 1 if unknown.

    Parameters
    ----------
    group : click.Group
    instruction : str
        For example ``bash_source`` or ``bash_complete``.
    """
    sys.exit(shell_complete(group, {}, "fnlkit", "_FNLKIT_COMPLETE", instruction))


def complete_values(command: click.Command) -> None:
    """Let the text parameters of a command be completed by `values`."""
    for parameter in command.params:
        if isinstance(parameter.type, click.types.StringParamType):
            vars(parameter)["shell_complete"] = partial(_complete_parameter, parameter)


def values(parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the values of an option or an argument that begin with `incomplete`, or a request for files."""
    names = [name for name in _names(parameter) if name.startswith(incomplete)]
    return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]


def _complete_parameter(parameter, context, incomplete):
    return values(parameter, incomplete)


def _names(parameter):
    from fnlkit.cli import parts

    if parameter.name in parts.KINDS:
        return parts.KINDS[parameter.name].parts()
    if parameter.name == "engine":
        from fnlkit.engines import ENGINES

        return ["auto", *ENGINES]
    if parameter.name == "preset":
        from fnlkit.components import presets

        return presets.names()
    if parameter.name == "recipe":
        from fnlkit.recipes import published, recipe

        return [*recipe.names(), *published.tables()]
    if parameter.name == "dataset" or parameter.metavar == "NAME|PATH":
        from fnlkit import datasets

        return datasets.registry()
    if parameter.metavar == "[NAME]":  # of `fnlkit methods`
        return parts.all_names()
    # A metavar such as auto|cpu|cuda lists the values.
    return [word for word in (parameter.metavar or "").split("|") if word.islower()]

"""Flags in messages: the library names parameters in backticks, and a command prints its flags instead."""

from __future__ import annotations

import ast
import re
import shlex

import click

from fnlkit.errors import InputError, WorkStopped

# `name`, `name=value`, or `fnlkit.function(...)`; a name is not part of a longer text in backticks.
_NAMED = re.compile(r"`(?:(?P<name>[a-z][a-z_]*)(?:=(?P<value>[^`]+))?|(?P<call>fnlkit\.[a-z_]+\([^`]*\)))`")


class FlagContext(click.Context):
    """Context of a command; it puts the command's flags into the messages of errors."""

    def __exit__(self, kind, error, trace):
        if isinstance(error, (InputError, WorkStopped)):
            error.args = (name_flags(str(error), self.command),)
        return super().__exit__(kind, error, trace)


def name_flags(text: str, command: click.Command | None = None) -> str:
    """Replace parameters in backticks by flags of a command.

    A name that is no option of the command stays as it is. A call of the Python interface becomes the command of the same name.

    Parameters
    ----------
    text : str
    command : click.Command, optional
        Default: the running command, if there is one.

    Examples
    --------
    >>> from fnlkit.cli.train import command
    >>> name_flags("`lr` is -1.0; write `engine='stacked'`, or `usual`", command)
    '--lr is -1.0; write --engine stacked, or `usual`'
    >>> name_flags("make the federation with `fnlkit.partition(holdout=0.1)`", command)
    'make the federation with `fnlkit partition --holdout 0.1`'
    """
    if "`" not in text:
        return text
    if command is None:
        context = click.get_current_context(silent=True)
        command = context.command if context else click.Command(None)

    def to_flag(match: re.Match[str]) -> str:
        if match["call"]:
            return _shell(match["call"]) or match[0]
        return _flag(command, match["name"], match["value"]) or match[0]

    return _NAMED.sub(to_flag, text)


def _flag(command, name, value):
    """Return `--name value` for an option of a command, or None."""
    options = {option.name: option for option in command.params if isinstance(option, click.Option)}
    options |= {flag.lstrip("-").replace("-", "_"): option for option in options.values() for flag in option.opts}
    option = options.get(name)
    if option is None:
        return None
    if value is None or option.is_flag:
        return option.opts[0]
    return f"{option.opts[0]} {_word(value)}"


def _word(value):
    """Return a Python value as a word of a shell; a name in capitals stays as it is."""
    try:
        return shlex.quote(str(ast.literal_eval(value)))
    except (ValueError, SyntaxError):
        return value


def _shell(call):
    """Return a call of `fnlkit.NAME` as a command in backticks, or None if there is no such command."""
    from fnlkit.cli import group

    try:
        tree = ast.parse(call, mode="eval").body
    except SyntaxError:
        return None
    name = tree.func.attr
    words, command = [name.replace("_", "-")], group.get_command(None, name.replace("_", "-"))
    if command is None:  # import_review is `review import`
        words = name.split("_")[::-1]
        outer = group.get_command(None, words[0])
        command = getattr(outer, "commands", {}).get(words[-1])
    if command is None:
        return None
    words += [_word(ast.unparse(value)) for value in tree.args]
    for keyword in tree.keywords:
        value = None if ast.unparse(keyword.value) == "..." else ast.unparse(keyword.value)
        if (flag := _flag(command, keyword.arg, value)) is None:
            return None
        words.append(flag)
    return f"`{' '.join(['fnlkit', *words])}`"

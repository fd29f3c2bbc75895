"""Options and help pages of commands, derived from dataclasses whose fields are made by `fnlkit.core.options.option`."""

import re
from collections.abc import Callable
from dataclasses import Field, fields
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import click

from fnlkit.artifacts import paths
from fnlkit.core.options import about
from fnlkit.core.parameters import Range, SpecText
from fnlkit.experiment.settings import Settings, TrainOptions

# Key of --help-all in the context of a command.
ALL_OPTIONS = "fnlkit.help_all"
# Parameters that a help text can name.
NAMES = {one.name for options in (Settings, TrainOptions) for one in fields(options)}


def options_of(declared: type, *names: str, checked: bool = True, **defaults: Any) -> Callable[[Any], Any]:
    """Add fields of a dataclass to a command as options, except fields without a help text (a decorator).

    Parameters
    ----------
    declared : dataclass
    *names : str
        Fields. Default: all.
    checked : bool
        Whether the command checks ranges and choices. False: the dataclass checks them, and each default is shown.
    **defaults
        Defaults of this command that differ from the dataclass.
    """
    chosen = [option for option in fields(declared) if about(option).help and (not names or option.name in names)]

    def decorate(command: Any) -> Any:
        for entry in reversed(chosen):
            command = _option(entry, defaults.get(entry.name, entry.default), checked)(command)
        return command

    return decorate


def flag_of(name: str) -> str:
    """Flag of a parameter."""
    return "-o" if name == "output" else f"--{name.replace('_', '-')}"


def takes_file(ctx: click.Context, option: click.Parameter, target: Any) -> Any:
    """Callback of options that name files: raise before any work if the file cannot be written."""
    paths.must_take_a_file(target, option.opts[0])
    return target


def _option(field: "Field[Any]", default: Any, checked: bool) -> Callable[[Any], Any]:
    known, kind = about(field), _required(field.type)
    more: dict[str, Any] = {"metavar": known.metavar}
    callback = takes_file if known.output else None
    if kind is bool:
        more = {"is_flag": True}
    elif known.many:
        more["multiple"] = True
    elif isinstance(default, tuple):
        default, callback, more["show_default"] = ",".join(default), _words, True
    elif get_origin(kind) is Literal and checked:
        more |= {"type": click.Choice(get_args(kind)), "show_default": True}
    elif get_origin(kind) is Literal:
        more |= {"metavar": "|".join(get_args(kind)), "show_default": True}
    elif not checked:
        more |= {"type": type(default), "metavar": "SPEC" if kind is SpecText else None, "show_default": True}
    else:
        more |= {"type": _range(kind), "show_default": bool(default)}
    text = re.sub(r"`([a-z_]+)`", lambda match: flag_of(match[1]) if match[1] in NAMES else match[0], known.help)
    return click.option(known.flag or flag_of(field.name), field.name, default=default, help=text, callback=callback, **more)


def _words(ctx: click.Context, option: click.Parameter, text: str) -> list[str]:
    """Split a list separated by commas into words; none is an empty list."""
    return [] if text == "none" else [word.strip() for word in text.split(",")]


def _required(kind: Any) -> Any:
    """Type of an option without None."""
    parts = [part for part in get_args(kind) if part is not NoneType]
    return parts[0] if NoneType in get_args(kind) and len(parts) == 1 else kind


def _range(kind: Any) -> Any:
    """Type of click for an annotation: a range of numbers, a type, or text."""
    if get_origin(kind) is Annotated:
        bounds = next((bound for bound in get_args(kind)[1:] if isinstance(bound, Range)), None)
        kind = get_args(kind)[0]
        if bounds:
            number: Any = click.IntRange if kind is int else click.FloatRange
            high = None if bounds.high == float("inf") else bounds.high
            return number(bounds.low, high, min_open=bounds.open_low, max_open=bounds.open_high)
    return kind if kind in (int, float) else None


class Declared(click.Command):
    """A command whose help lists the usual options in the sections of their fields; --help-all lists all options.

    Parameters
    ----------
    declared : tuple of dataclasses
        A section can contain fields of several dataclasses, in this order.
    titles : tuple of str
        Titles of the sections, in order. All other options follow under "Options".
    """

    def __init__(self, *args: Any, declared: tuple[type, ...], titles: tuple[str, ...], **more: Any) -> None:
        super().__init__(*args, **more)
        known = {entry.name: about(entry) for options in declared for entry in fields(options)}
        self.sections = {title: [name for name, entry in known.items() if entry.section == title] for title in titles}
        self.rare = tuple(name for name, entry in known.items() if entry.rare)
        text = "Print this help with all options."
        self.params.append(
            click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_print_all, help=text)
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        left_out = () if ctx.meta.get(ALL_OPTIONS) else self.rare
        records = {p.name: record for p in options if p.name not in left_out and (record := p.get_help_record(ctx))}
        for title, names in self.sections.items():
            if shown := [records.pop(name) for name in names if name in records]:
                with formatter.section(title):
                    formatter.write_dl(shown)
        with formatter.section("Options"):
            formatter.write_dl(list(records.values()))
        if left_out:
            names = ", ".join(p.opts[-1] for p in options if p.name in left_out)
            with formatter.section("Further options, described by --help-all"):
                formatter.write_text(names)


def _print_all(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[ALL_OPTIONS] = True
        click.echo(ctx.get_help())
        ctx.exit()

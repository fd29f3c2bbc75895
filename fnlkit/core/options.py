"""Options that are declared once, as fields of a dataclass.

A field is a keyword in Python and an option of a command, and some fields are keys of a recipe. Type, default and help text are
written in the field only:

    client_timeout: NotNegative | None = option(None, "Seconds until ...", section="Run", rare=True)

`keywords_of` shows the fields in the signature of a function; `fnlkit.cli.dataclass_options` derives options and help pages.
"""

import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from types import NoneType
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_args, get_origin

P = ParamSpec("P")
First = TypeVar("First")
Result = TypeVar("Result")


@dataclass(frozen=True)
class About:
    """Use of an option outside Python.

    Attributes
    ----------
    help : str
        Help text; a command shows parameters in backticks as flags. "": no command derives this option.
    section : str
        Section of the help page. "": the last section, "Options".
    rare : bool
        Whether only --help-all describes the option.
    metavar, flag : str or None
        Placeholder of the value, and the flag if it differs from the name.
    many : bool
        Whether the option can be repeated.
    output : bool
        Whether the value names a file that must be writable before the work starts.
    recipe : bool
        Whether a recipe can set the option. False for paths.
    engines : tuple of str
        The engines that accept the option. (): all.
    """

    help: str = ""
    section: str = ""
    rare: bool = False
    metavar: str | None = None
    flag: str | None = None
    many: bool = False
    output: bool = False
    recipe: bool = False
    engines: tuple[str, ...] = ()


def option(default: Any, help: str = "", **about: Any) -> Any:
    """Make a dataclass field with a default; the other arguments are fields of `About`."""
    return field(default=default, metadata=vars(About(help, **about)))


def about(declared: "Field[Any]") -> About:
    """The `About` of a dataclass field."""
    return About(**declared.metadata)


def pick(options: type, given: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields of a dataclass from keywords and return them."""
    return {entry.name: given.pop(entry.name) for entry in fields(options) if entry.name in given}


def keywords_of(
    options: Callable[P, object],
) -> Callable[[Callable[Concatenate[First, ...], Result]], Callable[Concatenate[First, P], Result]]:
    """The decorator `show_keywords` for a dataclass; type checkers check calls against the fields."""
    return lambda function: show_keywords(function, options)


def show_keywords(function: Any, options: Any) -> Any:
    """Show the fields of a dataclass in the signature of a function with ``**keywords``, and their help in its docstring.

    Parameters that the function declares are not changed. The function is returned.
    """
    signature = inspect.signature(function)
    *declared, _ = signature.parameters.values()
    fields_of = inspect.signature(options).parameters.values()
    passed = [_keyword(parameter) for parameter in fields_of if parameter.name not in signature.parameters]
    function.__signature__ = signature.replace(parameters=[*declared, *passed])
    texts = [f"{entry.name}\n    {about(entry).help}" for entry in fields(options) if about(entry).help]
    if texts:
        function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__), "", "Options", "-------", *texts])
    return function


def _keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    """Turn a parameter into a keyword with the plain type."""
    kind, optional = parameter.annotation, False
    if len(get_args(kind)) == 2 and NoneType in get_args(kind):
        kind, optional = next(part for part in get_args(kind) if part is not NoneType), True
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=kind | None if optional else kind)

"""Specs: text `name(key=value, ...)` for a component, parsed, never evaluated."""

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_origin

from fnlkit.core import own
from fnlkit.core.errors import MOST_NAMES, InputError, list_names, nearest
from fnlkit.core.parameters import SpecText, Text, check, kinds
from fnlkit.core.retired import refuse_retired

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)(?![\w.:-]))
      | (?P<text>"[^"]*"|'[^']*')
      | (?P<word>[A-Za-z_./~][\w./:~+-]*)
      | (?P<mark>[(),=\[\]{}:])
      | (?P<other>\S)
    )""",
    re.VERBOSE,
)
_WORD = re.compile(r"[A-Za-z_./~][\w./:~+-]*")
_UNNAMED = re.compile(r"\s*([A-Za-z][\w-]*)\((?!\s*\w+\s*=)[^()=]+[,)]")  # symmetric(0.3)
_CONSTANTS = {"true": True, "false": False, "none": None}


class FileText(str):
    """Text from an untrusted file; specs in this text can name components of fnlkit only."""

    __slots__ = ()


class MessageText(FileText):
    """Text from a Flower server: as `FileText`, and specs in it read no file."""

    __slots__ = ()


def from_file(value: object, kind: type[FileText] = FileText) -> Any:
    """Mark every text of a plain value as a `FileText`, in a copy.

    Parameters
    ----------
    value : object
        Dicts and lists are copied at any depth; keys and values other than texts are unchanged.
    kind : type
        `MessageText` for values from another machine.
    """
    if isinstance(value, str):
        return kind(value)
    if isinstance(value, dict):
        return {key: from_file(inner, kind) for key, inner in value.items()}
    return [from_file(inner, kind) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Spec:
    """A component by name, with keyword parameters.

    Values are numbers, texts, true, false, none, lists, {name: value} or other specs.

    Attributes
    ----------
    name : str
    parameters : dict
    origin : type
        Type of the parsed text: str (command line or Python call), `FileText` or `MessageText`.  `find` uses it to decide
        whether a user's file can be imported.  Comparisons ignore it.
    """

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    origin: type = field(default=str, compare=False, repr=False)

    def __str__(self):
        plain = _WORD.fullmatch(self.name)
        name = self.name if plain else format_value(self.name)
        if not self.parameters:
            return self.origin(name if plain else f"{name}()")
        return self.origin(f"{name}({', '.join(f'{key}={format_value(value)}' for key, value in self.parameters.items())})")


def format_value(value: object) -> str:
    """Format a parameter's value as in a spec."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{format_value(key)}: {format_value(inner)}' for key, inner in value.items())}}}"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}'" if '"' in value else f'"{value}"'
    return str(value)


def parse(text: str | Spec, option: str = "spec") -> Spec:
    """Parse `text` and return the Spec.

    Parameters
    ----------
    text : str or Spec
        For example ``fedcorr(beta=5, usual=flr(strength=3))``.  A bare word is a name; as a parameter's value it becomes a
        Spec without parameters; quotes make it a text.  A name with spaces is also quoted: ``"my files/mine.py:x"(a=1)``.
    option : str
        Name of the option in error messages.

    Raises
    ------
    InputError
        If the text is not a spec.

    Examples
    --------
    >>> from fnlkit.core.spec import parse
    >>> parse("clients(rho=0.6, tau=0.5)").parameters
    {'rho': 0.6, 'tau': 0.5}
    """
    if isinstance(text, Spec):
        return text
    words: list[tuple[str, str]] = []

    def name(token: re.Match[str]) -> str:
        """Replace every word, number and text by a name of Python, because names of components have hyphens; keep marks."""
        kind, word = str(token.lastgroup), token[str(token.lastgroup)]
        if kind == "mark":
            return word
        if kind == "other":
            raise SyntaxError
        words.append((kind, word.removesuffix(":") if kind == "word" else word))
        return f" w{len(words) - 1}{':' if kind == 'word' and word.endswith(':') else ''}"

    origin = type(text) if isinstance(text, FileText) else str
    try:
        tree = ast.parse(_TOKEN.sub(name, text).strip(), mode="eval").body
        spec = _value(ast.Call(tree, [], []) if isinstance(tree, ast.Name) else tree, words, origin)
        if isinstance(spec, Spec):
            return spec
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # of texts that no one writes: thousands of brackets
        pass
    hint, word = "", text.strip().partition("(")[0]
    if (unnamed := _UNNAMED.match(text)) and "dataset" not in option:
        hint = f"; `fnlkit methods {unnamed[1]}` lists the keys"
    if " " in word and ".py:" in word and word[0] not in "'\"":
        hint = f'; a file name with spaces needs quotes of its own, "{word}"'
    raise InputError(f"{option}: cannot read {text!r}; write name(key=value, ...){hint}")


def _value(node, words, origin):
    """Read a node of Python's syntax tree; names are positions in `words`, pairs of (kind, text)."""
    match node:
        case ast.Name(id=at):
            kind, word = words[int(at[1:])]
            if kind == "number":
                return float(word) if re.search(r"[.eE]", word) else int(word)
            if kind == "text":
                return origin(word[1:-1])
            return _CONSTANTS[word.lower()] if word.lower() in _CONSTANTS else Spec(word, {}, origin)
        case ast.List(elts=nodes):
            return [_value(each, words, origin) for each in nodes]
        case ast.Dict(keys=keys, values=nodes) if all(isinstance(key, ast.Name) for key in keys):
            names = [words[int(key.id[1:])] for key in keys]
            names = [word[1:-1] if kind == "text" else word for kind, word in names]
            return {key: _value(each, words, origin) for key, each in zip(names, nodes, strict=True)}
        case ast.Call(func=ast.Name(id=at), args=[], keywords=pairs):
            kind, word = words[int(at[1:])]
            keys = [words[int(pair.arg[1:])] for pair in pairs]
            if kind == "number" or any(of != "word" for of, _ in keys) or len({*keys}) < len(keys):
                raise SyntaxError
            parameters = {key: _value(pair.value, words, origin) for (_, key), pair in zip(keys, pairs, strict=True)}
            return Spec(origin(word[1:-1]) if kind == "text" else word, parameters, origin)
    raise SyntaxError


def own_names(text: str | Spec) -> list[str]:
    """List the components of a spec that are not part of fnlkit, without duplicates.

    Names have the form ``FILE.py:NAME`` or ``module:NAME``.

    Parameters
    ----------
    text : str or Spec
        A text that is not a spec has no such names.
    """
    return list(dict.fromkeys(name for name, _ in _own_specs(text)))


def _own_specs(text):
    """Yield (name, spec) of the components in a spec that are not part of fnlkit."""
    left = [text]
    while left:
        value = left.pop(0)
        if isinstance(value, str):
            try:
                value = parse(value)
            except InputError:
                continue
        if isinstance(value, Spec):
            if ":" in value.name:
                yield value.name, value
            left += [inner for inner in value.parameters.values() if not isinstance(inner, str) or ":" in inner]
        elif isinstance(value, list):
            left += [inner for inner in value if not isinstance(inner, str) or ":" in inner]


def data_files(text: str | Spec, names: Iterable[str] | None = None) -> dict[str, str]:
    """Compute {name: SHA-256} of the data files that parameters of a user's components name.

    A name is relative to the folder of the component's file, else to the current folder. Names of other files are left out.

    Parameters
    ----------
    text : str or Spec
    names : iterable of str, optional
        Only of these components. Default: all.
    """
    file_digests = {}
    for component, spec in _own_specs(text):
        for value in spec.parameters.values() if names is None or component in names else ():
            for entry in value if isinstance(value, list) else [value]:
                name = entry.name if isinstance(entry, Spec) and not entry.parameters else entry
                if isinstance(name, str) and (digest := own.data_digest(component, name)):
                    file_digests[name] = digest
    return file_digests


def digests(specs: Iterable[object]) -> dict[str, str]:
    """Identify the code of users' components in specs, and their `data_files`: {name: SHA-256 of its files}.

    Code counts as it was when this process imported it.

    Parameters
    ----------
    specs : iterable of object
        Values other than texts are skipped, and so are components that this process did not import.
    """
    texts = [text for text in specs if isinstance(text, str) and ":" in text]
    code = {name: digest for text in texts for name in own_names(text) if (digest := own.digest_at_import(name))}
    return {name: digest for text in texts for name, digest in data_files(text, code).items()} | code


def rename_components(text: str, name_of: Callable[[str], str]) -> str:
    """Rename the components of a spec that are not part of fnlkit.

    Every other text is unchanged.

    Parameters
    ----------
    text : str
    name_of : callable (name) -> str
    """

    def rename_value(value: Any) -> Any:
        if isinstance(value, Spec):
            name = name_of(value.name) if ":" in value.name else value.name
            return Spec(name, {key: rename_value(inner) for key, inner in value.parameters.items()}, value.origin)
        if isinstance(value, str):
            return rename_components(value, name_of) if ":" in value else value
        return [rename_value(inner) for inner in value] if isinstance(value, list) else value

    return str(rename_value(parse(text))) if own_names(text) else text


def find(spec: str | Spec, table: Mapping[str, str], what: str) -> Callable[..., Any]:
    """Find the function that a spec names, in a table or a user's file.

    A user's file is used only if the user wrote the spec. All imports by name use this function. A text from a file
    (`FileText`) or a message can only name keys of the table.

    Parameters
    ----------
    spec : Spec or str
        A str is a key of `table`.
    table : dict of str to str
        Names to ``module:function``; the module is imported here.
    what : str
        The kind of component for messages, for example ``method``.

    Raises
    ------
    InputError
        For an unknown name, or a user's component that a file or a message names.
    """
    spec = spec if isinstance(spec, Spec) else Spec(spec, origin=FileText)
    name = spec.name
    if name in table:
        module, _, function = table[name].partition(":")
        return getattr(importlib.import_module(module), function)
    message = issubclass(spec.origin, MessageText)
    if ":" not in name and not message:
        _refuse_unknown(name, table, what)
    if message:
        refuse_retired(what, name)
        hint = nearest(name, table)
        raise InputError(f"a message or project names the {what} {name!r}, which is not in the installed fnlkit{hint}")
    if issubclass(spec.origin, FileText):
        raise InputError(
            f"{what} {name!r} is named by a file and is not part of fnlkit: using it would run that code; read the code, then "
            "add `trust=True`"
        )
    return own.load_function(name, what)


def must_exist(spec: str | Spec, table: Mapping[str, str], what: str) -> None:
    """Raise InputError as `find` for an unknown name, without importing a component of fnlkit; parameters as there."""
    name = parse(spec).name if isinstance(spec, str) else spec.name
    if name not in table and ":" not in name:
        _refuse_unknown(name, table, what)


def _refuse_unknown(name, table, what) -> NoReturn:
    """Raise with the nearest name, or with the first names of the table, and the command that lists all."""
    refuse_retired(what, name)
    near = nearest(name, table)
    listed = f"`fnlkit methods {what}` lists all" if len(table) > MOST_NAMES else ""
    known = f"{near} {listed}".rstrip() if near else f"; known: {list_names(sorted(table))}" + (f"; {listed}" if listed else "")
    raise InputError(f"unknown {what} {name!r}{known}, or write your FILE.py:NAME")


def bind(spec: Spec, function: Callable[..., Any], what: str, *, given: Collection[str] = ()) -> functools.partial[Any]:
    """Bind the spec's parameters to `function` by keyword.

    Each value is checked against the signature.

    Parameters
    ----------
    spec : Spec
    function : callable
        A spec can set keyword-only parameters; the type of a default determines the allowed values.
    what : str
        The kind of component for messages, for example ``method``.
    given : iterable of str
        Parameters that the caller supplies and a spec must not set.

    Raises
    ------
    InputError
        For a parameter that does not exist, is missing, or has a value of the wrong kind.
    """
    known = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in given
    }
    # Words without a default, such as `name: Literal["mnist", "cifar10"]`.
    words = [
        key
        for key, kind in kinds(function).items()
        if key in known and known[key].default is inspect.Parameter.empty and get_origin(kind) is Literal
    ]
    values = {}
    for key, value in spec.parameters.items():
        if key not in known:
            refuse_retired(what, f"{spec.name}({key}=)")
            near = nearest(key, known)
            names = list_names(known) or "none"
            if key in inspect.signature(function).parameters and key not in given:
                raise InputError(f"{what} {spec.name!r}: parameter {key!r} cannot be set; write it after a `*` in the function")
            raise InputError(f"{what} {spec.name!r} has no parameter {key!r}{near}; it takes: {names}")
        default = "" if known[key].annotation is Text or key in words else known[key].default
        if known[key].annotation is SpecText and isinstance(value, Spec):
            value = str(value)
        values[key] = _convert(value, default, f"{what} {spec.name!r}: parameter {key!r}")
    check(function, values, f"{what} {spec.name!r}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in values:
            raise InputError(f"{what} {spec.name!r} needs {key!r}; write {spec.name}({key}=...)")
    return functools.partial(function, **values)


def _convert(value, default, where):
    """Convert a value to the type of the default: a word to a text, an int to a float."""
    if isinstance(value, Spec) and isinstance(default, str) and not value.parameters:
        return value.origin(value.name)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InputError(f"{where} is {format_value(value)}; write true or false")
    elif isinstance(default, (int, float)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"{where} is {format_value(value)}; write a number")
        if isinstance(default, int) and isinstance(value, float):
            if not value.is_integer():  # excludes infinity
                raise InputError(f"{where} is {value}; write a whole number")
            value = int(value)
        if isinstance(value, int) and abs(value) >= 2**63:
            raise InputError(f"{where} is too large; write a number below 2^63")
        return float(value) if isinstance(default, float) else value
    elif isinstance(default, str) and not isinstance(value, str):
        raise InputError(f"{where} is {format_value(value)}; write a word")
    return value

"""Messages name parameters in Python and flags on the command line."""

import ast
import pickle
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import fnlkit
from fnlkit.cli import main
from fnlkit.cli.group import Context, name_options
from fnlkit.cli.train import command as train
from fnlkit.core.errors import InputError

LIBRARY = Path(__file__).parents[2] / "fnlkit"
# Files that write command lines: examples of components, scripts of a site, steps of a recipe, next commands of a report.
WRITERS = {
    "core/kinds.py",
    "core/retired.py",
    "sites/folders.py",
    "recipes/jobs.py",
    "recipes/published.py",
    "recipes/recipe.py",
    "recipes/running.py",
    "audits/report.py",
}
# Whole commands in backticks that have no function in Python.
SHELL = re.compile(r"`(fnlkit (flower-app|reproduce|site|sites)|ray start) [^`]*`?")
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*[a-z]|`--$|-o\b)")


def flags_of(source):
    """Return the texts with a flag in a module, except docstrings and the keyword `flag` of a declared option."""
    tree = ast.parse(source)
    left = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    left |= {id(word.value) for word in ast.walk(tree) if isinstance(word, ast.keyword) and word.arg == "flag"}
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in left)
    return [text for text in texts if isinstance(text, str) and FLAG.search(SHELL.sub("", text))]


def test_the_library_names_no_flags():
    found = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        name, source = path.relative_to(LIBRARY).as_posix(), path.read_text(encoding="utf-8")
        if name not in WRITERS and FLAG.search(source) and (texts := flags_of(source)):
            found[name] = texts
    assert not found
    assert flags_of('raise InputError(f"{x}: write --engine auto")') and not flags_of('"""Write --x."""')


@click.command()
@click.option("--probs", "probabilities")
def command(**options):
    raise InputError("has no rows; omit `usual`", parameter="probabilities")


def test_an_error_names_the_parameter_and_in_a_command_its_option(capfd):
    command.context_class = Context
    assert str(CliRunner().invoke(command).exception) == "--probs has no rows; omit `usual`"
    text = "write `probabilities=FILE`, `engine='my engine'`, `overwrite=True` or `probs`, as `a name` and `fnlkit.lid(x)`, `"
    said = "write `probabilities=FILE`, --engine 'my engine', --overwrite or `probs`, as `a name` and `fnlkit.lid(x)`, `"
    assert name_options(text, train) == name_options(said, train) == said
    calls = "`fnlkit.train(optimizer='ditto')`, `fnlkit.train(resume=...)` or `fnlkit.partition(a, b)`"
    assert name_options(calls) == "`fnlkit train --optimizer ditto`, `fnlkit train --resume` or `fnlkit.partition(a, b)`"
    error = InputError(": expected 2 rows", parameter="lr")
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == "`lr`: expected 2 rows"
    with pytest.raises(InputError, match=r"^`lr` is -1\.0; "):
        fnlkit.train("fed.npz", lr=-1.0)
    with pytest.raises(SystemExit):
        main(["train", __file__, "--lr", "-1"])
    assert "--lr is -1.0; " in capfd.readouterr().err

"""Messages name parameters in Python and flags on the command line."""

import ast
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import fnlkit
from fnlkit.cli import main
from fnlkit.cli.flags import FlagContext, name_flags
from fnlkit.errors import InputError

LIBRARY = Path(__file__).parents[2] / "fnlkit"
# Files that write command lines: shell scripts of a site, steps of a recipe, and next commands of a report.
WRITERS = {
    "retired.py",
    "sites/folders.py",
    "recipes/jobs.py",
    "recipes/published.py",
    "recipes/recipe.py",
    "recipes/running.py",
    "audits/report.py",
}
# Whole commands in backticks that have no function in Python.
SHELL = re.compile(r"`(fnlkit (flower-app|reproduce|site|sites)|ray start) [^`]*`?")
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*[a-z]|-o\b)")


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
@click.option("--client-timeout")
@click.option("--probs", "probabilities")
@click.option("--overwrite", is_flag=True)
@click.option("-o", "--output")
def command(**options):
    raise InputError("`client_timeout` is -1; omit `usual`")


@pytest.mark.parametrize(
    "text, line",
    [
        ("`client_timeout` is -1; remove `client_timeout`", "--client-timeout is -1; remove --client-timeout"),
        ("write `client_timeout=5` or `overwrite=True`", "write --client-timeout 5 or --overwrite"),
        ("`output` a.pt: write `output='a run.pt'`", "-o a.pt: write -o 'a run.pt'"),
        ("`probabilities=FILE` or `probs`", "--probs FILE or --probs"),
        ("with `fnlkit.partition(holdout=0.1)`", "with `fnlkit partition --holdout 0.1`"),
        ("`fnlkit.import_review()`, `fnlkit.train(resume=...)`", "`fnlkit review import`, `fnlkit train --resume`"),
        ("`fnlkit.partition(a b)` and `a name`", "`fnlkit.partition(a b)` and `a name`"),
        ("`fnlkit.lid(x)` and `fnlkit.partition(fnlkit=1)`", "`fnlkit.lid(x)` and `fnlkit.partition(fnlkit=1)`"),
    ],
)
def test_a_name_in_backticks_becomes_the_flag_of_the_command(text, line):
    assert name_flags(text, command) == line
    assert name_flags(line, command) == line


def test_errors_and_notes_of_a_command_name_its_flags(capfd, tmp_path):
    command.context_class = FlagContext
    done = CliRunner().invoke(command)
    assert str(done.exception) == "--client-timeout is -1; omit `usual`"
    with pytest.raises(InputError, match=r"^`lr` is -1\.0; "):
        fnlkit.train("fed.npz", lr=-1.0)
    with pytest.raises(SystemExit):
        main(["train", __file__, "--lr", "-1"])
    assert "--lr is -1.0; " in capfd.readouterr().err

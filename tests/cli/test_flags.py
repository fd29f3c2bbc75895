"""Options: messages name parameters in Python and flags of commands; each has help; removed names; files written over."""

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import pickle
import re
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

import fnlkit
from fnlkit.cli import COMMANDS, group, main
from fnlkit.cli.group import Context, name_options
from fnlkit.cli.train import command as train
from fnlkit.core import declare
from fnlkit.core.errors import InputError
from fnlkit.core.registry import loss
from fnlkit.core.retired import RETIRED
from fnlkit.experiment.settings import Settings, TrainOptions
from tests.commands import fnlkit as run
from tests.commands import refuse, refuse_call

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
    refuse_call(r"^`lr` is -1\.0; ", fnlkit.train, "fed.npz", lr=-1.0)
    refuse_call("", main, ["train", __file__, "--lr", "-1"], error=SystemExit)
    assert "--lr is -1.0; " in capfd.readouterr().err


# ---- options come from Settings, and each one has a sentence of help
def options(name):
    command = importlib.import_module(f"fnlkit.cli.{name.replace('-', '_')}").command
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    return {p.name: p for each in commands for p in each.params if isinstance(p, click.Option)}


def test_train_has_each_declared_option_in_a_section_and_with_the_default_of_python():
    taken, command = options("train"), importlib.import_module("fnlkit.cli.train").command
    placed = [name for names in command.sections.values() for name in names]
    assert sorted(placed) == sorted(one.name for kind in (TrainOptions, Settings) for one in dataclasses.fields(kind))
    for one in dataclasses.fields(TrainOptions):
        assert taken[one.name].default == one.default or one.name in ("log", "output")
    assert {one.name for one in dataclasses.fields(TrainOptions)} <= inspect.signature(fnlkit.train).parameters.keys()


def _all_options(command, line):
    """Yield (command line, option) of a command and of its subcommands, without those that were removed."""
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            yield f"{line} {option.opts[0]}", option
    for name, each in getattr(command, "commands", {}).items():
        yield from _all_options(each, f"{line} {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name):
    explained = dict(_all_options(group.get_command(None, name), name))
    assert explained and not [where for where, option in explained.items() if not option.help]


@pytest.mark.parametrize(
    ("option", "other"),
    [
        ("--ledger rows.jsonl", "--metrics"),
        ("--ledger run.pt", "-o"),
        ("--privacy-key run.pt", "-o"),
        ("--privacy-key spent --ledger spent", "--ledger"),
        ("--ledger /proc/spent", "/proc/spent"),  # where no file can be made
    ],
)
def test_two_options_may_not_name_one_file(option, other, noisy, tmp_path):
    line = f"fnlkit train {noisy} --method feddpcont --rounds 1 --metrics rows.jsonl -o run.pt {option}"
    refuse(line, tmp_path, option.split()[0], other)
    assert not list(tmp_path.glob("*.pt"))


# ---- names of earlier versions end with one line that names what to do instead
INSTEAD = "write the new name"


@pytest.mark.parametrize("kind, name, line", [
    ("command", "old", "fnlkit old --x 1"),
    ("command", "sites old", "fnlkit sites old FOLDER"),
    ("option", "train --old", "fnlkit train --old 3"),
    ("data set", "old", "fnlkit partition --dataset 'old(a=1)'"),
    ("method", "old", "fnlkit partition | fnlkit train --method 'old(a=1)'"),
    ("method", "fedcorr(old=)", "fnlkit partition | fnlkit train --method 'fedcorr(old=1)'"),
    ("estimator", "old", "fnlkit partition | fnlkit estimate-noise --estimator old"),
    ("engine", "old", "fnlkit partition | fnlkit train --engine old"),
    ("protection", "old", "fnlkit partition | fnlkit train --protect 'old(a=1)'"),
])  # fmt: skip
def test_a_removed_name_of_the_command_line(kind, name, line, tmp_path, monkeypatch):
    monkeypatch.setitem(RETIRED, kind, {name: INSTEAD})
    code, out, err = run(line, tmp_path)
    assert code == 2 and not out
    assert err.strip().splitlines()[-1] == f"fnlkit: error: the {kind} {name} was removed: {INSTEAD}"


def test_a_removed_name_of_python(monkeypatch):
    monkeypatch.setitem(RETIRED, "name", {"fnlkit.old": INSTEAD})
    monkeypatch.setitem(RETIRED, "loss", {"old": INSTEAD})
    for refused in (lambda: fnlkit.old, lambda: __import__("fnlkit", fromlist=["old"]).old):
        refuse_call(INSTEAD, refused, error=ImportError)
    with pytest.raises(ImportError, match=INSTEAD):
        from fnlkit import old  # noqa: F401
    refuse_call(INSTEAD, loss, "old(a=1)")
    refuse_call("the declaration terms was removed", declare, terms=len)


@pytest.mark.parametrize("module", ["fnlkit.noise", "fnlkit.estimators.ranges"])
def test_a_users_file_that_imports_a_moved_module_is_told_its_new_name(module, tmp_path):
    (tmp_path / "mine.py").write_text(f"import {module}\n")
    refuse_call(RETIRED["module"][module], loss, f"{tmp_path / 'mine.py'}:mine")


def test_names_that_exist_are_not_retired():
    assert not set(RETIRED["name"]) & {f"fnlkit.{name}" for name in fnlkit.__all__}
    assert all(text and "\n" not in text for names in RETIRED.values() for text in names.values())
    losses = {name: text for name, text in RETIRED["name"].items() if ".losses." in name}
    assert losses and all(
        hasattr(importlib.import_module(text.split()[-1]), name.split(".")[-1]) for name, text in losses.items()
    )


# ---- a command writes over none of its input files, and two outputs are two files
FILES = ("fed.npz", "run.pt", "votes.csv", "data.csv", "data.npz")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("audit fed.npz --html fed.npz -o judged.npz", "--html fed.npz"),
        ("audit fed.npz --html new.npz -o new.npz", "--html new.npz"),
        ("consensus fed.npz votes.csv --csv votes.csv -o agreed.npz", "--csv votes.csv"),
        ("consensus fed.npz votes.csv --csv ./agreed.npz -o agreed.npz", "--csv ./agreed.npz"),
        ("correct fed.npz --csv new.npz -o new.npz", "--csv new.npz"),
        ("review import fed.npz votes.csv --csv votes.csv -o new.npz", "--csv votes.csv"),
        ("predict run.pt data.csv -o data.csv", "-o data.csv"),
        ("predict run.pt data.csv -o run.pt", "-o run.pt"),
        ("report run.pt -o run.pt", "-o run.pt"),
        ("partition --dataset fed.npz -o fed.npz", "fed.npz"),  # before the data are read
        ("train fed.npz --metrics fed.npz -o new.pt", "--metrics fed.npz"),
        ("partition fed.npz -o fed.npz", "-o fed.npz"),
        ("inject-noise --dataset data.npz -o data.npz", "data.npz"),
        ("inject-noise fed.npz -o fed.npz", "-o fed.npz"),  # a repeated command would add noise to noise
    ],
)
def test_no_file_is_written_over(words, option, tmp_path):
    """An audit wrote its page over the federation, a consensus over the votes, a prediction over the samples."""
    for name in FILES:
        (tmp_path / name).write_bytes(name.encode())
    done = refuse(f"fnlkit {words}", tmp_path, option)
    assert len(done.stderr.splitlines()) == 1 and "choose another name" in done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: name.encode() for name in FILES}


@pytest.mark.parametrize("dataset", ["data.npz", "votes(data='data.npz')"])
def test_a_federation_is_not_written_over_its_data_set(dataset, tmp_path, monkeypatch):
    """`partition --dataset data.npz -o data.npz` replaced the samples by the federation."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("data.npz", x_train=rng.normal(size=(40, 3)), votes_train=rng.integers(0, 2, (40, 2)))
    before = Path("data.npz").read_bytes()
    federation = fnlkit.partition(dataset)
    refuse_call("contains the data set", federation.write, "data.npz")
    federation.write("fed.npz")
    federation.write("fed.npz")
    for option in ("output", "metrics"):  # the numbers of rounds replaced the data
        with pytest.raises(InputError, match="contains the data set"):
            fnlkit.train("fed.npz", "fedavg", rounds=1, say=None, **{"output": "run.pt", option: "data.npz"})
    assert not Path("run.pt").exists()
    assert Path("data.npz").read_bytes() == before

"""Options come from Settings, and every option of every command has a sentence that says what it is."""

import dataclasses
import importlib
import importlib.util
import inspect

import click
import pytest

import fnlkit
from fnlkit.cli import COMMANDS, group
from fnlkit.experiment.settings import Settings, TrainOptions
from tests.commands import refuse


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

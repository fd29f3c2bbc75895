"""Options come from Settings, and every option of every command has a sentence that says what it is."""

import dataclasses
import importlib
import importlib.util
import inspect
import re
from typing import Literal, get_args

import click
import pytest
from click.testing import CliRunner

from fnlkit import pipeline
from fnlkit.cli import COMMANDS, group, plumbing
from fnlkit.cli.dataclass_options import Declared, flag_of, options_of
from fnlkit.client.inputs import PRECISIONS
from fnlkit.components.options import keywords_of
from fnlkit.components.options import option as declare
from fnlkit.components.parameters import NotNegative, Share, SpecText
from fnlkit.datasets.partitioning import SCHEMES
from fnlkit.estimators import ESTIMATORS, WARM_UP
from fnlkit.experiment.options import TrainOptions
from fnlkit.experiment.settings import Settings
from fnlkit.noise import MODELS
from tests.commands import refuse


def options(name):
    command = importlib.import_module(f"fnlkit.cli.{name.replace('-', '_')}").command
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    return {p.name: p for each in commands for p in each.params if isinstance(p, click.Option)}


def test_train_takes_every_setting_with_its_name_default_and_help():
    taken = options("train")
    for field in dataclasses.fields(Settings):
        option = taken[field.name]
        assert option.opts == [f"--{field.name.replace('_', '-')}"]
        assert option.default == field.default and type(option.default) is type(field.default)
        assert option.help == re.sub(r"`([a-z_]+)`", lambda match: flag_of(match[1]), field.metadata["help"])


def test_a_new_setting_is_an_option_without_a_line_elsewhere(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class More(Settings):
        patience_share: Share = dataclasses.field(default=0.25, metadata={"help": "How long to wait."})
        rule: Literal["one", "two"] = dataclasses.field(default="one", metadata={"help": "Which rule."})
        part: SpecText = dataclasses.field(default="none", metadata={"help": "Which part."})
        loud: bool = dataclasses.field(default=False, metadata={"help": "Whether."})

    monkeypatch.setattr(plumbing, "Settings", More)

    @click.command()
    @plumbing.setting_options(rule="two")
    def command(**found):
        click.echo([found[name] for name in ("patience_share", "rule", "part", "loud")])

    assert CliRunner().invoke(command, ["--patience-share", "0.5", "--loud"]).output == "[0.5, 'two', 'none', True]\n"
    shown = CliRunner().invoke(command, ["--help"]).output
    assert "--rule one|two" in shown and "--part SPEC" in shown and "How long to wait." in shown


def test_an_option_of_a_run_needs_its_field_only(monkeypatch):
    """The field is the option with its section, the keyword with its type and, if it is no path, a key of recipes."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class More(TrainOptions):
        client_pause: NotNegative | None = declare(
            None, "Seconds between clients; see `at_once`.", section="Run", after="workers", recipe=True
        )

    @click.command(cls=Declared, declared=(More, Settings), titles=("Run",))
    @options_of(More)
    def command(**given):
        click.echo(given["client_pause"])

    @keywords_of(More)
    def train(federation, **options):
        """Train."""
        return More(**options).client_pause

    assert CliRunner().invoke(command, ["--client-pause", "0.5"]).output == "0.5\n"
    assert "not in the range x>=0" in CliRunner().invoke(command, ["--client-pause", "-1"]).output
    shown = CliRunner().invoke(command, ["--help-all"]).output
    assert re.search(
        r"--workers .*--client-pause FLOAT RANGE +Seconds between clients; see --at-once\..*--at-once", shown, re.S
    )
    assert train("fed", client_pause=2) == 2 and str(inspect.signature(train)).count("client_pause: float | None = None") == 1
    assert "client_pause\n    Seconds" in train.__doc__
    recipe = reload_with(monkeypatch, "fnlkit.recipes.recipe", "fnlkit.experiment.options", "TrainOptions", More)
    assert "client_pause" in recipe._TRAIN and "resume" not in recipe._TRAIN


def reload_with(monkeypatch, name, home, word, value):
    """Return a second copy of a module that was imported while a name of another module had a different value."""
    monkeypatch.setattr(importlib.import_module(home), word, value)
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_train_has_each_declared_option_in_a_section_and_with_the_default_of_python():
    taken, command = options("train"), importlib.import_module("fnlkit.cli.train").command
    placed = [name for names in command.sections.values() for name in names]
    assert sorted(placed) == sorted(one.name for kind in (TrainOptions, Settings) for one in dataclasses.fields(kind))
    for one in dataclasses.fields(TrainOptions):
        assert taken[one.name].default == one.default or one.name in ("log", "output")
    assert {one.name for one in dataclasses.fields(TrainOptions)} <= inspect.signature(pipeline.train).parameters.keys()


def test_a_wrong_setting_names_its_option():
    done = CliRunner().invoke(group, ["train", __file__, "--batch-size", "0"])
    assert str(done.exception) == "--batch-size is 0; write a whole number at least 1"


def test_estimate_noise_has_the_defaults_of_the_warm_up():
    taken, settings = options("estimate-noise"), Settings(**WARM_UP)
    for name in ("model", "augment", "rounds", "fraction", "epochs", "batch_size", "lr", "momentum"):
        assert taken[name].default == getattr(settings, name)


def test_every_precision_has_a_type():
    (kind,) = [f.type for f in dataclasses.fields(Settings) if f.name == "precision"]
    assert set(get_args(kind)) == set(PRECISIONS)


def _all_options(command, line):
    """Yield (command line, option) of a command and of its subcommands, without those that were removed."""
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            yield f"{line} {option.opts[0]}", option
    for name, each in getattr(command, "commands", {}).items():
        yield from _all_options(each, f"{line} {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name):
    """A sentence for who has not read the papers: four words or more, a full stop, no open list, no shapes or symbols."""
    explained = list(_all_options(group.get_command(None, name), name))
    assert explained
    for where, option in explained:
        text = option.help or ""
        assert len(text.split()) >= 2 and text[0].isupper() and text.endswith(".") and "..." not in text, f"{where}: {text!r}"
        assert not re.search(r"\([nNPBC],|Beta\(|\b[Bb]udget\b|\beqs?\.|lambda", text), f"{where}: {text!r}"


@pytest.mark.parametrize(
    ("command", "table", "line"),
    [
        ("partition", SCHEMES, "bernoulli-dirichlet(p=0.7, alpha=10.0, at_least_one=false)"),
        ("inject-noise", MODELS, "matrix(path=..., key="),
        ("estimate-noise", ESTIMATORS, "loss(scope=pooled)"),
    ],
)
def test_help_lists_all_registered_components(command, table, line, monkeypatch):
    shown = CliRunner().invoke(group, [command, "--help"]).output
    assert line in shown and [name for name in table if not re.search(rf"^  {re.escape(name)}\b", shown, re.MULTILINE)] == []
    monkeypatch.setitem(table, "mine", f"{__name__}:mine")
    assert re.search(
        r"^  mine\(share=0.5\) +Does what I want.$", CliRunner().invoke(group, [command, "--help"]).output, re.MULTILINE
    )


def mine(*, share=0.5):
    """Does what I want.

    This is not shown.
    """


@pytest.mark.parametrize(
    ("option", "other"),
    [
        ("--ledger rows.jsonl", "--metrics"),
        ("--ledger run.pt", "-o"),
        ("--privacy-key run.pt", "-o"),
        ("--privacy-key spent --ledger spent", "--ledger"),
    ],
)
def test_two_options_may_not_name_one_file(option, other, noisy, tmp_path):
    line = f"fnlkit train {noisy} --method feddpcont --rounds 1 --metrics rows.jsonl -o run.pt {option}"
    refuse(line, tmp_path, option.split()[0], other)
    assert not list(tmp_path.iterdir())


def test_a_ledger_where_no_file_can_be_made_is_refused(noisy, tmp_path):
    refuse(
        f"fnlkit train {noisy} --method feddpcont --rounds 1 --ledger /proc/spent -o run.pt",
        tmp_path,
        "/proc/spent",
        "--ledger",
    )
    assert not list(tmp_path.glob("*.pt"))

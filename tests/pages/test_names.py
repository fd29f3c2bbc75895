"""Every command, option, public name, component and setting is on a page; AGENTS.md and llms.txt name all pages."""

import re
from dataclasses import fields

import click

import fnlkit
from fnlkit import kernels
from fnlkit.cli import COMMANDS, group, parts
from fnlkit.core import own
from fnlkit.experiment.settings import Settings, TrainOptions
from fnlkit.federated.engines import EngineOptions
from tests.pages.steps import PAGES, ROOT

TEXT = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
WORDS = set(re.findall(r"[\w-]+", TEXT))


def test_commands_and_options():
    missing = []
    for name in COMMANDS:
        command = group.get_command(None, name)
        for verb, each in {"": command, **getattr(command, "commands", {})}.items():
            path = f"{name} {verb}".strip()
            if not each.hidden:
                missing += [f"fnlkit {path}"] * (not set(path.split()) <= WORDS)
                options = [option for option in each.params if isinstance(option, click.Option) and not option.hidden]
                missing += [f"fnlkit {path} {option.opts[-1]}" for option in options if not {*option.opts} & WORDS]
    assert missing == []


def test_public_names_components_and_settings():
    names = [*fnlkit.__all__, *kernels.__all__, *(name for kind in parts.KINDS.values() for name in kind.parts())]
    options = [each.name for group in (Settings, TrainOptions, EngineOptions) for each in fields(group)]
    missing = [name for name in names if name not in WORDS]
    missing += [name for name in options if not {name, f"--{name.replace('_', '-')}"} & WORDS]
    assert missing == []


def test_the_list_of_pages_for_programs():
    listed = set(re.findall(r"\]\(([^)#]+)\)", (ROOT / "llms.txt").read_text(encoding="utf-8")))
    assert {*PAGES, "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md"} == listed
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_page_on_extending_has_an_example_or_a_row_of_each_kind():
    """The kinds with a row have a template that tests/cli/test_methods.py runs."""
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    examples = set(re.findall(r"^## An? (\w+)$", page, re.MULTILINE))
    rows = set(re.findall(r"^\| (\w+) \| `\(", page, re.MULTILINE))
    assert examples | rows == set(own.CALLS) and {"loss", "method", "optimizer"} <= examples

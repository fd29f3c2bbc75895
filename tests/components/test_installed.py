"""Components that installed packages register by entry points: found by name, on every engine, one line for a fault."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fnlkit import pipeline
from fnlkit.artifacts.run import Run
from fnlkit.components import installed, registry
from fnlkit.components.spec import FileText, MessageText, own_names, parse
from fnlkit.errors import InputError
from fnlkit.experiment import Settings
from fnlkit.sites import project
from tests.commands import fnlkit

PAGE = (Path(__file__).parents[2] / "docs/extending.md").read_text(encoding="utf-8")
SHORT = {"rounds": 1, "epochs": 1, "fraction": 1.0, "precision": "fp64", "say": None}
METHOD = """
from fnlkit.components import method
from fnlkit.methods.fedavg import fedavg


@method(cite="Doe 2026")
def halved(clients, model, opt, select, *, rounds, parts=2):
    return (yield from fedavg(clients, model, opt, select, rounds=rounds // parts))
"""


def install(folder, name, entries, **modules):
    """Install a distribution into a folder: metadata, entry points by group, and modules as text."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in rows.items()) for group, rows in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Return a folder that is searched for distributions and modules, by this process and by its children."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    before = {*sys.modules}
    installed.registered.cache_clear()
    installed.TARGETS.clear()
    yield folder
    installed.registered.cache_clear()
    installed.TARGETS.clear()
    for name in {*sys.modules} - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    importlib.invalidate_caches()


def install_page_example(folder):
    """Install the package of docs/extending.md."""
    project = tomllib.loads(re.search(r"```toml\n(# pyproject.*?)```", PAGE, re.S)[1])
    code = re.search(r"```python\n(# focus.py.*?)```", PAGE, re.S)[1]
    install(folder, project["project"]["name"], project["project"]["entry-points"], focus=code)


def test_a_registered_loss_runs_on_every_engine(packages, tmp_path):
    install_page_example(packages)
    federation = pipeline.inject_noise(pipeline.partition("digits", clients=3, say=None), say=None)
    weights = {}
    for engine in ("sequential", "workers", "stacked", "fused"):
        more = {"workers": 2} if engine == "workers" else {}
        pipeline.train(federation, loss="focus(power=1)", engine=engine, output=tmp_path / "run.pt", **SHORT, **more)
        run = Run.read(str(tmp_path / "run.pt"))
        weights[engine] = run.weights.numpy()
        assert list(run.meta["own"]) == ["focus:focus"] and len(run.meta["own"]["focus:focus"]) == 64
    pipeline.train(federation, engine="sequential", output=tmp_path / "plain.pt", **SHORT)
    plain = Run.read(str(tmp_path / "plain.pt")).weights.numpy()
    assert np.abs(weights["sequential"] - plain).max() > 1e-4
    assert (weights["workers"] == weights["sequential"]).all()
    for engine in ("stacked", "fused"):
        np.testing.assert_allclose(weights[engine], weights["sequential"], atol=1e-9)


def test_a_recipe_runs_a_registered_method(packages, tmp_path):
    install(packages, "half", {"fnlkit.methods": {"halved": "half:halved"}}, half=METHOD)
    (tmp_path / "own.toml").write_text(
        'title = "registered"\ndataset = "digits"\nseeds = [0]\n[train]\nrounds = 4\nepochs = 1\nfraction = 0.5\n'
        '[[regime]]\nname = "iid"\nsteps = ["partition --clients 4", "inject-noise"]\nmethods = ["fedavg", "halved(parts=4)"]\n'
    )
    done = fnlkit("fnlkit reproduce own.toml -o runs", tmp_path)
    assert done.returncode == 0 and "halved(parts=4)" in done.stdout, done.stderr
    done = fnlkit("fnlkit methods halved", tmp_path)
    assert done.stdout.startswith("halved, a method: fnlkit train --method"), done.stderr
    done = fnlkit("fnlkit methods", tmp_path)
    assert "Registered by installed packages: method halved (half 1.0)" in done.stdout, done.stderr


def test_no_entry_point_is_read_for_a_built_in_name(packages, monkeypatch):
    install(packages, "bad", {"fnlkit.methods": {"fedavg": "nowhere:fedavg"}})

    def fail(**selection):
        raise AssertionError(selection)

    monkeypatch.setattr("importlib.metadata.entry_points", fail)
    assert registry.method("fedavg").func.__module__ == "fnlkit.methods.fedavg"
    with pytest.raises(AssertionError, match="fnlkit.methods"):
        registry.method("fedavgg")


@pytest.mark.parametrize(("entries", "expected"), [
    ({"fnlkit.losses": {"mine": "gone:mine"}}, "loss 'mine' of the package one 1.0: loss 'gone:mine': No module named 'gone'"),
    ({"fnlkit.losses": {"mine": "there:other"}}, "there has no 'other'"),
    ({"fnlkit.losses": {"mine": "there:three"}}, "a loss is called as (logits, batch"),
    ({"fnlkit.losses": {"mine": "broken:mine"}}, "package one 1.0: loss 'broken:mine': ZeroDivisionError: division by zero"),
])  # fmt: skip
def test_a_faulty_entry_point_is_one_line(packages, entries, expected):
    install(packages, "one", entries, there="def mine(logits, batch): pass\ndef three(a, b, c): pass\n", broken="1 / 0\n")
    with pytest.raises(InputError, match=re.escape(expected)) as caught:
        registry.loss("mine")
    assert "\n" not in str(caught.value)


def test_a_name_of_two_packages_is_refused(packages):
    install(packages, "one", {"fnlkit.losses": {"mine": "one:mine"}}, one="def mine(logits, batch): return logits[..., 0]\n")
    install(packages, "two", {"fnlkit.losses": {"mine": "two:mine"}}, two="def mine(logits, batch): return logits[..., 0]\n")
    with pytest.raises(InputError, match="registered by one 1.0 and two 1.0; uninstall one of them, or write module:NAME"):
        registry.loss("mine")
    assert registry.loss("two:mine").__module__ == "two"


def test_files_can_name_a_registered_component_and_messages_cannot(packages):
    install_page_example(packages)
    assert own_names("focus(power=1)") == []
    assert registry.loss(FileText("focus(power=1)")).keywords == {"power": 1.0}
    assert own_names("focus(power=1)") == ["focus:focus"] == own_names(parse("forward(x=focus)"))
    with pytest.raises(InputError, match="a message or project names the loss 'focus', which is not in the installed fnlkit"):
        registry.loss(MessageText("focus"))
    with pytest.raises(InputError, match="focus:focus is a component of your own, which no site has"):
        project.deployable(Settings(loss="focus"), "train")

"""Lines of progress in a log: soon after the start, and regularly although nothing finishes."""

import pytest

import fnlkit
from fnlkit.cli import progress
from fnlkit.core.errors import InputError
from fnlkit.experiment import Experiment
from fnlkit.recipes import running
from tests.commands import refuse, succeed, wait_until


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "_FIRST", 0.01)
    monkeypatch.setattr(progress, "_EVERY", 0.02)


def test_a_log_gets_lines_while_nothing_finishes(capsys):
    shown = []

    def printed(text):
        shown.append(capsys.readouterr().err)
        return text in "".join(shown)

    with progress.bar("model 1") as advance:
        assert wait_until(lambda: printed("model 1: started\nmodel 1: started\n"))
        advance(1, 4)
        assert wait_until(lambda: printed("model 1: 1 of 4, about "))
    capsys.readouterr()
    assert not capsys.readouterr().err


@pytest.fixture
def wait_for(monkeypatch):
    """Return a function that waits until a text was printed; a fast machine would be ready before the first line."""
    lines, console = [], progress.console

    class Noticing:
        def __init__(self):
            self.talk = console()

        def __getattr__(self, name):
            return getattr(self.talk, name)

        def print(self, text, **more):
            self.talk.print(text, **more)
            lines.append(text)

    monkeypatch.setattr(progress, "console", Noticing)
    return lambda text: wait_until(lambda: any(text in line for line in lines))


def test_training_prints_progress_before_the_first_round(noisy, tmp_path, monkeypatch, wait_for):
    train, line = Experiment._train, "training: started"
    monkeypatch.setattr(Experiment, "_train", lambda self, *each: wait_for(line) and train(self, *each))
    done = succeed(f"fnlkit train {noisy} --rounds 3 --fraction 0.2 --epochs 1 --model 'mlp(hidden=4)' -o run.pt", tmp_path)
    assert line in done.stderr


@pytest.mark.parametrize(("command", "module", "function", "line"), [
    ("train {} -o run.pt", fnlkit, "train", "loading the federation and the data set"),
    ("audit {} -o judged.npz", fnlkit, "audit", "sites: started"),
    ("reproduce regimes -o runs", running, "Plan", "reading the data"),
])  # fmt: skip
def test_a_command_prints_progress_while_it_loads(command, module, function, line, noisy, tmp_path, monkeypatch, wait_for):
    def slow(*each, **options):
        assert wait_for(line)
        raise InputError("loaded")

    monkeypatch.setattr(module, function, slow)
    assert refuse(f"fnlkit {command.format(noisy)}", tmp_path, "loaded").stderr.splitlines()[0].startswith(line)


@pytest.mark.parametrize("spent", [30, 60])
def test_a_log_ends_with_the_work_that_was_done(spent, capsys):
    with progress.bar("training", unit="client-rounds", total=60) as advance:
        advance(spent, 60)
        advance(spent, spent)
    assert capsys.readouterr().err.count(f"{spent} of {spent} client-rounds") == 1

"""Lines of progress in a log: soon after the start, and regularly although nothing finishes."""

import pytest

from fnlkit.cli import progress
from tests.commands import fnlkit, wait_until


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


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            "train {noisy} --rounds 3 --fraction 0.2 --epochs 1 --model 'mlp(hidden=4)' -o run.pt",
            "0/12 client-rounds, training",
        ),
        ("reproduce tiny.toml", "no run is finished, 0 s after the start"),
    ],
)
def test_commands_print_progress_before_the_first_result(command, line, noisy, tmp_path):
    (tmp_path / "tiny.toml").write_text(
        'dataset = "digits"\nseeds = [0]\nmethods = ["fedavg"]\n[train]\nrounds = 1\nepochs = 1\nfraction = 0.2\n'
        'model = "mlp(hidden=4)"\n[[regime]]\nname = "a"\nsteps = ["partition --clients 5"]\n'
    )
    done = fnlkit(f"fnlkit {command.format(noisy=noisy)}", tmp_path)
    assert done.returncode == 0 and line in done.stderr

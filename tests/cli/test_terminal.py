"""What a person sees: tables at any width, plain letters where there are no others, names of classes, and how -v is heard."""

import io
import json
import os
import re
import signal
import subprocess
import threading
from contextlib import redirect_stderr

import click
import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from fnlkit.cli import group, watch
from fnlkit.cli.terminal import Table, console, out_console
from fnlkit.federated.client.failure import Failure
from tests.commands import BIN, ENVIRONMENT, LIMIT, fnlkit, refuse, succeed

ANIMALS = ["aardvark", "bumblebee", "cassowary", "dragonfly"]
QUICK = "--rounds 2 --fraction 1 --epochs 1 --batch-size 60 --model 'mlp(hidden=[8])' --engine sequential"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """A folder with images of four classes whose names are long, a judged federation, and two runs."""
    folder = tmp_path_factory.mktemp("zoo")
    rng = np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 5)):
        for label, name in enumerate(ANIMALS):
            (folder / "img" / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.normal(60 * label + 30, 10, (8, 8)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / "img" / part / name / f"{i}{('.png', '.PNG', '.jpg', '.JPEG')[i % 4]}")
    succeed(
        "fnlkit partition --dataset img --clients 4 | fnlkit inject-noise --noise 'symmetric(eta=0.4)' -o noisy.npz && "
        f"fnlkit estimate-noise noisy.npz -o judged.npz && fnlkit train judged.npz {QUICK} -o a-run-of-mine.pt && "
        f"fnlkit train judged.npz {QUICK} --loss gce -o another.pt && "
        f"fnlkit train judged.npz --seed 1 {QUICK} --loss gce -o twin.pt",
        folder,
    )
    return folder


# ---- -v
@pytest.mark.parametrize(
    "line", ["-vv info no.npz", "info -vv no.npz", "info no.npz -vv", "-v info no.npz -v", "data info --verbose no.npz -v"]
)
def test_vv_works_at_any_position(line, tmp_path):
    assert "no.npz" in refuse(f"fnlkit {line}", tmp_path, "Traceback").stderr.splitlines()[-1]
    quiet = " ".join(word for word in line.split() if not word.startswith("-"))
    assert "Traceback" not in fnlkit(f"fnlkit {quiet} -v", tmp_path).stderr


# ---- length
OUTPUTS = """partition --dataset img --clients 4 -o f.npz; inject-noise f.npz -o n.npz; estimate-noise n.npz -o e.npz;
audit n.npz --html a.html -o j.npz; review export e.npz --client 1 --budget 20 -o review;
review suspects e.npz -o s.csv; correct e.npz --above 0.5 -o c.npz; report another.pt -o report.html;
plot another.pt -o p.svg; plot transition e.npz -o t.svg; watch another.metrics.jsonl --once; reproduce;
predict another.pt img/test/aardvark -o p.csv; export another.pt -o state.pt; evaluate another.pt;
evaluate another.pt a-run-of-mine.pt; info f.npz; info judged.npz; info another.pt; methods; methods fedcorr;
methods fedavg; methods loss; methods noise; methods auto; data list; data info heart; data get digits;
doctor --no-test"""


def test_the_default_output_has_at_most_15_lines_and_ends_with_the_next_command(zoo):
    pytest.importorskip("matplotlib")
    for line in re.split(r";\s", OUTPUTS):
        done = succeed(f"fnlkit {line}", zoo, columns=100)
        printed = done.stdout.splitlines() + done.stderr.splitlines()
        assert 2 <= len(printed) <= 15, done
        assert (done.stderr or done.stdout).splitlines()[-1].startswith("next: fnlkit "), (line, done)


# ---- widths
def test_classes_have_names_where_a_person_reads(zoo):
    judged, run = (fnlkit(f"fnlkit {line} -v", zoo).stdout for line in ("info judged.npz", "evaluate another.pt --confusion"))
    for title in ("requested transition", "achieved transition", "estimated transition"):
        (head,) = re.findall(f"^{title}.*\n +(.*)$", judged, re.MULTILINE)
        assert head.split() == ANIMALS
    for title in ("test samples", "training labels at the end"):
        assert re.findall(f"^{title}.*\n +(.*)$", run, re.MULTILINE)[0].split() == ANIMALS
    assert re.search(r"^class +accuracy\naardvark +\d", run, re.MULTILINE)
    # Too narrow for names side by side: numbers, which stand before the names.
    narrow = fnlkit("fnlkit info judged.npz -v", zoo, columns=40).stdout
    assert re.search(r"^ +0 +1 +2 +3$\n0 aardvark ", re.sub(" +$", "", narrow, flags=re.MULTILINE), re.MULTILINE), narrow


def test_help_names_all_options_and_describes_the_most_used(zoo):
    short, full = (fnlkit(f"fnlkit train {option}", zoo, columns=80).stdout for option in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 80 < len(full.splitlines())
    for option in group.get_command(None, "train").params:
        if isinstance(option, click.Option) and not option.hidden:
            # Long texts are folded, also after a hyphen.
            assert option.opts[-1] in "".join(short.split()) and "".join(option.help.split()) in "".join(full.split()), option


# ---- readers that leave
@pytest.mark.parametrize("command", ["methods", "info noisy.npz --json", "partition"])
def test_a_closed_output_pipe_ends_with_sigpipe(command, zoo):
    """By SIGPIPE, as `seq 9999999 | head -1` ends, and without a word."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([BIN / "fnlkit", *command.split()], cwd=zoo, env=ENVIRONMENT, **pipes)
    process.stdout.close()
    said = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(LIMIT) == -signal.SIGPIPE
    assert "rror" not in said and "Traceback" not in said


def test_control_characters_are_escaped_in_tables_and_in_the_class_of_an_exception(capsys):
    table = Table("name", "b\x1b[31m", title="t\x1b[2J")
    table.add_row("bad\x1b]0;owned\x07", "two\nlines")
    out_console().print(table)
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out and "bad\\x1b]0;owned" in out and "lines" in out
    with redirect_stderr(io.StringIO()) as said:
        console().print(f"client 3: {Failure('failed', chr(27) + ']0;title' + chr(7))}\nsecond line", style="yellow")
    assert chr(27) not in said.getvalue() and "\\x1b" in said.getvalue() and said.getvalue().count("\n") == 2


# ---- a run is followed from another terminal, whatever state its file is in
def row(number, accuracy=None, stage="training"):
    out = {"round": number, "stage": stage, "client_rounds": 5 * (number + 1)}
    return json.dumps(out | ({} if accuracy is None else {"accuracy": accuracy})) + "\n"


def test_rows_are_summarized_and_a_row_that_is_still_written_is_left_out(tmp_path):
    (tmp_path / "run.metrics.jsonl").write_text(row(0, 0.5) + row(1) + row(2, 0.75) + row(3)[:10])
    lines = succeed("fnlkit watch run.metrics.jsonl", tmp_path).stdout.splitlines()
    assert lines == ["training, 3 rounds, 15 client-rounds, accuracy 0.7500, best 0.7500", "▁█"]


def test_watch_follows_until_the_run_ends(tmp_path, monkeypatch):
    shown, summary = threading.Event(), watch._summary
    monkeypatch.setattr(watch, "_summary", lambda *given: [summary(*given), shown.set()][0])
    path, lock = tmp_path / "run.metrics.jsonl", tmp_path / "run.metrics.jsonl.lock"
    path.write_text(row(0, 0.5))
    held = FileLock(lock)
    held.acquire()

    def train():
        shown.wait(LIMIT)  # the command shows the first row
        with open(path, "a") as file:
            file.write(row(1, 0.75) + row(2, 0.8, "final"))
        os.unlink(lock)
        held.release()

    other = threading.Thread(target=train)
    other.start()
    done = fnlkit("fnlkit watch run.metrics.jsonl --every 0.05", tmp_path)
    other.join()
    assert done.returncode == 0 and "accuracy 0.5000" in done.stdout and "final" in done.stdout and "best 0.8000" in done.stdout


def test_a_run_that_trained_is_shown_and_a_terminal_too(noisy, tmp_path):
    succeed(f"fnlkit train {noisy} --rounds 2 --engine sequential --epochs 1 --batch-size 60 -o run.pt", tmp_path)
    watched = succeed("fnlkit watch run.metrics.jsonl --once", tmp_path)
    assert "training, 2 rounds, 4 client-rounds, accuracy 0." in watched.stdout
    assert watched.stderr == "next: fnlkit evaluate run.pt\n"
    assert "2 rounds" in succeed("fnlkit watch run.metrics.jsonl", tmp_path, terminal=True).stdout


NO_ROW = ["hello", "5", "[]", "", "[" * 100000, '{"round": 1}', '{"round": 1, "stage": "x", "accuracy": "high"}']
NO_ROW += [f'{{"stage": "a", "client_rounds": {value}}}' for value in ('{"a": 1}', "[1]")]


@pytest.mark.parametrize("text", NO_ROW)
def test_watch_refuses_other_files(text, tmp_path):
    for number, before in enumerate(("", row(0, 0.5)), 1):
        (tmp_path / "x.jsonl").write_text(f"{before}{text}\n")
        refuse("fnlkit watch x.jsonl", tmp_path, f"line {number} is no row of a run")


def test_the_lock_of_a_killed_run_is_ignored(tmp_path):
    """After SIGKILL the file of the lock stays, and nobody holds it: the command ends.  No option is named: run.pt is empty."""
    (tmp_path / "run.pt").touch()
    (tmp_path / "run.metrics.jsonl").write_text('{"stage": "training", "client_rounds": 2, "agreement": 0.5}\n')
    (tmp_path / "run.metrics.jsonl.lock").write_text("123456")
    done = succeed("fnlkit watch run.metrics.jsonl", tmp_path)
    assert "1 rounds, 2 client-rounds, agreement 0.5000" in done.stdout and not done.stderr


def test_missing_files_folders_and_strange_stages(tmp_path):
    for name in ("nothing.jsonl", "."):
        refuse(f"fnlkit watch {name}", tmp_path, name)
    (tmp_path / "run.pt").write_bytes(b"\xff\x00")
    refuse("fnlkit watch run.pt", tmp_path, "RUN.metrics.jsonl")
    (tmp_path / "x.jsonl").write_text(row(0, 0.5, "\x1b[31mred"))
    done = fnlkit("fnlkit watch x.jsonl", tmp_path)
    assert "\x1b" not in done.stdout and "red" in done.stdout
    (tmp_path / "empty.jsonl").write_text("")
    assert "no round yet" in fnlkit("fnlkit watch empty.jsonl", tmp_path).stdout

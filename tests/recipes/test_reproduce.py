"""Recipes are commands: they parse, name what exists, run, continue, and compare."""

import contextlib
import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import numpy as np
import pytest

from benchmarks import worlds
from benchmarks.size import ROOT
from fnlkit import datasets
from fnlkit.artifacts.run import Run
from fnlkit.cli import group
from fnlkit.core import registry
from fnlkit.core.errors import WorkStopped
from fnlkit.pipeline import training
from fnlkit.recipes import recipe, running
from fnlkit.recipes.jobs import expand
from tests.commands import LIMIT, fnlkit, has_ended, refuse, refuse_call, succeed, wait_until

TINY = """
title = "tiny"
dataset = "digits"
seeds = [0, 1]
[train]
rounds = 6
fraction = 0.2
epochs = 1
memorization = true
[[regime]]
name = "heavy"
steps = ["partition --clients 10", "inject-noise --noise 'clients(rho=0.6, tau=0.5)'"]
methods = ["fedavg", "fedcorr(iterations=1)"]
published = { fedcorr = [90.0, 1.0] }
"""


QUICK = TINY.replace("rounds = 6", "rounds = 1").replace("fedcorr(iterations=1)", "flr")


class InTurn(Executor):
    """Stands for worker processes, which would import torch again."""

    def submit(self, call, /, *arguments):
        future = Future()
        future.set_result(call(*arguments))
        return future


@pytest.fixture
def here(monkeypatch):
    @contextlib.contextmanager
    def start(count, folder):
        with contextlib.chdir(folder):
            yield InTurn()

    monkeypatch.setattr(running, "_start_workers", start)


@pytest.mark.parametrize("name", recipe.names())
def test_included_recipes_name_existing_components(name, tmp_path):
    lines = {}
    for job in expand(recipe.load_recipe(name), tmp_path, seeds=1):
        registry.method(job.method)
        for verb, *words in job.stages:
            lines[verb, *words] = None
    for verb, *words in lines:
        # Parsing finds unknown options and values of a wrong type without running anything.
        group.get_command(None, verb).make_context(verb, words)


def write(folder, text=TINY):
    (folder / "tiny.toml").write_text(text)
    return running.Plan(str(folder / "tiny.toml"), running.Options(output=str(folder / "runs"), jobs=1))


def test_printed_lines_write_the_files_of_a_recipe(tmp_path, here):
    write(tmp_path, QUICK)
    lines = [line for line in succeed("fnlkit reproduce tiny.toml --dry-run", tmp_path).stdout.splitlines() if line]
    (tmp_path / "pasted").mkdir()
    for line in lines:
        succeed(line, tmp_path / "pasted")
    succeed("fnlkit reproduce tiny.toml -o runs", tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "pasted").glob("*.pt")}
    assert len(stamps) == len(lines) == 4
    for path in stamps:
        one, two = Run.read(str(path)), Run.read(str(tmp_path / "runs" / path.name))
        assert (one.weights == two.weights).all() and (one.labels["given"] == two.labels["given"]).all()
    # The files of the lines count as those of the recipe.
    succeed("fnlkit reproduce tiny.toml -o pasted", tmp_path)
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}


def test_a_finished_run_of_a_solved_head_is_kept(tmp_path, here):
    text = TINY.replace("memorization = true", "").replace('"fedavg", "fedcorr(iterations=1)"', '"fedsums"')
    plan = write(tmp_path, text.replace("published = { fedcorr = [90.0, 1.0] }", ""))
    assert not plan.run(print).failed and {job.state() for job in plan.jobs} == {"finished"}
    (tmp_path / "runs" / plan.jobs[0].file).write_bytes(b"damaged")
    result = plan.run(print)
    assert list(result.failed) == [plan.jobs[0].name] and result.rows[0]["runs"] == 1 == len(result.tidy())
    refuse("fnlkit reproduce tiny.toml --tidy t.txt", tmp_path, "t.txt: write a name that ends in .csv or .parquet")


def test_a_recipe_runs_continues_and_compares(tmp_path):
    """Real processes: one of them resumes a run that was stopped after half of its rounds."""
    plan = write(tmp_path)
    (tmp_path / "runs").mkdir()
    half = plan.jobs[0].line.replace("--rounds=6", "--rounds=3")
    succeed(half.replace(f"--fingerprint={plan.jobs[0].fingerprint}", ""), tmp_path / "runs")
    said = []
    first, second = plan.run(said.append).rows
    assert (tmp_path / "runs" / f"{plan.jobs[0].file}.old").exists() and said[-1].startswith("4/4 ")
    assert first["method"] == "fedavg" and first["best_ahead"] is None and not first["best_clear"] and first["runs"] == 2
    assert second["published"] == [90.0, 1.0] and second["best_spread"] >= 0
    assert second["late_ahead"] == pytest.approx(second["late_mean"] - first["late_mean"])
    # Two paired differences a and b: the interval of their mean is t(0.975, 1) = 12.7062 times |a - b| / 2 wide to each side.
    gains = [second["late"][seed] - first["late"][seed] for seed in (0, 1)]
    assert second["late_ahead_half"] == pytest.approx(12.7062 * abs(gains[0] - gains[1]) / 2, rel=1e-5)
    assert second["late_clear"] == (second["late_holm"] < 0.05)
    run = [Run.read(str(tmp_path / "runs" / job.file)) for job in plan.jobs if job.label == "fedavg"]
    last = [100 * [row["local_noisy_memorized"] for row in r.history if "local_noisy_memorized" in row][-1] for r in run]
    assert first["local_memorized"] == pytest.approx(sum(last) / 2) and 0 <= first["global_memorized"] <= 100
    assert first["client_rounds"] == second["client_rounds"] == 12


def test_an_unfinished_run_is_resumed(tmp_path, here, monkeypatch):
    plan = write(tmp_path, TINY.replace('"fedavg", "fedcorr(iterations=1)"', '"fedavg"').replace("[0, 1]", "[0]"))
    (job,), path = plan.jobs, tmp_path / "runs/0-0-fedavg-0.pt"
    plan.run(print)
    whole = Run.read(str(path))
    path.unlink()

    @contextlib.contextmanager
    def stop(path, history, target):
        yield lambda row: interrupt() if row.get("client_rounds", 0) >= 6 else None

    def interrupt(code=130):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "metrics_file", stop)
        patch.setattr(os, "_exit", interrupt)
        refuse_call("", plan.run, print, error=KeyboardInterrupt)
    assert job.state() == "unfinished" and len(Run.read(str(path)).history) < len(whole.history)
    plan.run(print)
    assert job.state() == "finished" and (Run.read(str(path)).weights == whole.weights).all()


def test_a_killed_worker_fails_its_runs(tmp_path, here, monkeypatch):
    def killed(self, call, /, *arguments):
        future = Future()
        future.set_exception(BrokenProcessPool())
        return future

    plan = write(tmp_path, QUICK)
    with monkeypatch.context() as patch:
        patch.setattr(InTurn, "submit", killed)
        result = plan.run(print)
        assert not result.rows and len(result.failed) == 4
        refuse_call("4 of 4 runs failed, the first, .*: a worker process was ended", result.must_be_complete, error=WorkStopped)
    assert {job.state() for job in plan.jobs} == {"missing"}


def test_copied_folders_have_the_table_of_one_folder(tmp_path, here):
    write(tmp_path, QUICK)
    show = "fnlkit reproduce tiny.toml --no-train -o"
    whole = succeed("fnlkit reproduce tiny.toml -o runs", tmp_path).stdout
    for part, seed in enumerate((0, 1)):
        (tmp_path / f"part-{part}").mkdir()
        for found in (tmp_path / "runs").glob(f"*-{seed}.pt"):
            shutil.copy(found, tmp_path / f"part-{part}")
    half = succeed(f"{show} part-0", tmp_path)
    assert "2 of 4 runs are missing or not finished, the first is 0-0-fedavg-1" in half.stderr
    shutil.copytree(tmp_path / "part-1", tmp_path / "part-0", dirs_exist_ok=True)
    (tmp_path / "part-0/stray.pt").write_bytes(b"nothing of this recipe's")
    assert succeed(f"{show} part-0", tmp_path).stdout == whole
    first = tmp_path / "part-0/0-0-fedavg-0.pt"
    first.write_bytes(first.read_bytes()[:5000])
    refuse(f"{show} part-0", tmp_path, "0-0-fedavg-0.pt: ")
    refuse(f"{show} runs --rounds 5", tmp_path, "0-0-fedavg-0.pt: made by other commands")


def test_methods_replace_those_of_a_recipe(tmp_path, here):
    write(tmp_path, QUICK)
    (tmp_path / "mine.py").write_text("from fnlkit.methods.fedavg import fedavg as m\n")
    line = "fnlkit reproduce tiny.toml --seeds 1 -o runs --json --method fedavg --method mine.py:m"
    fedavg, mine = map(json.loads, succeed(line, tmp_path).stdout.splitlines())
    assert mine["method"] == "mine.py:m" and mine["late_ahead"] == 0 and fedavg["baseline"] == "fedavg"
    refuse(f"{line[:-1]}n", tmp_path, "mine.py:n")


LOSS = """
def loss(logits, batch, *, times=""):
    factor = float((Path(__file__).parent / times).read_text()) if times else 1.0
    return {} * factor * (1 - logits.softmax(-1).gather(-1, batch.y[..., None])[..., 0])
"""
OWN = """
title = "own"
dataset = "data.npz"
seeds = [0]
[train]
rounds = 1
epochs = 1
fraction = 0.5
model = "mlp(hidden=[8])"
loss = "parts/mine.py:loss(times=times.txt)"
engine = "sequential"
[[regime]]
name = "one"
steps = ["partition --clients 4 --labels true", "inject-noise --noise 'parts/mine.py:noise(step=1, more=[more.txt])'"]
methods = ["parts/mine.py:plain"]
published = { "parts/mine.py:plain" = [50.0, 1.0] }
"""
PARTS = """
import os
from pathlib import Path

from beside import STEP
from fnlkit.methods.fedavg import fedavg
from fnlkit.simulate.noise import Corruption

def plain(clients, model, opt, select, *, rounds, trust=1.0):
    return (yield from fedavg(clients, model, opt, select, rounds=rounds))

def noise(ground, *, step=1, more=()):
    labels = ground.labels.copy()
    shift = int(Path(f"{os.path.dirname(__file__)}/shift.txt").read_text())
    shift *= len((Path(__file__).parent / str(more[0])).read_text())
    labels[::3] = (labels[::3] + step * STEP * shift) % ground.classes
    return Corruption(labels)
"""


@pytest.fixture
def mine(tmp_path):
    """A folder `my recipes` with a recipe of the user's components, the files that hold them, and their data."""
    folder = tmp_path / "my recipes"
    (folder / "parts").mkdir(parents=True)
    (folder / "own.toml").write_text(OWN)
    (folder / "parts/mine.py").write_text(LOSS.format(1.0) + PARTS)
    (folder / "parts/beside.py").write_text("STEP = 1\n")
    for name in ("shift", "times", "more"):
        (folder / f"parts/{name}.txt").write_text("1")
    samples(folder / "data.npz", 0)
    yield folder
    sys.modules.pop("beside", None)
    sys.path[:] = [path for path in sys.path if not path.startswith(str(tmp_path))]


def samples(path, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.random((120, 6), np.float32), np.arange(120) % 3
    np.savez(path, x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


CHANGES = {
    "a setting": lambda at: edit(at / "own.toml", "epochs = 1", "epochs = 2"),
    "a component": lambda at: edit(at / "parts/mine.py", "return 1.0", "return 2.0"),
    "a file beside a component": lambda at: (at / "parts/beside.py").write_text("STEP = 2  # another length"),
    "a data file in a parameter of a step": lambda at: (at / "parts/more.txt").write_text("11"),
    "the data": lambda at: samples(at / "data.npz", 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_of_another_specification_is_made_again(change, mine, here):
    """The old file is kept, and the first numbers return if the change is undone."""
    old = mine / "runs/0-0-mine.py-plain-0.pt.old"

    def numbers():
        plan = running.Plan(str(mine / "own.toml"), running.Options(output=str(mine / "runs"), jobs=1))
        (row,) = plan.run(print).rows
        assert row["published"] == [50.0, 1.0] and row["method"] == "parts/mine.py:plain"
        return Run.read(str(mine / "runs" / plan.jobs[0].file)).weights.sum().item()

    first = numbers()
    assert numbers() == first and not old.exists()
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file() and "runs" not in path.parts}
    CHANGES[change](mine)
    refuse("fnlkit reproduce own.toml --no-train -o runs", mine, "0-0-mine.py-plain-0.pt: made by other commands")
    assert numbers() != first and old.exists()
    for path, content in before.items():
        path.write_bytes(content)
    assert numbers() == first


def test_a_recipe_and_its_files_can_be_moved(mine, here, tmp_path):
    succeed("fnlkit reproduce own.toml -o runs", mine)
    shutil.copytree(mine, tmp_path / "moved")
    succeed("fnlkit reproduce own.toml --no-train -o runs", tmp_path / "moved")
    assert json.loads(succeed("fnlkit reproduce moved/own.toml --no-train -o moved/runs --json", tmp_path).stdout)["runs"] == 1


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('"parts/mine.py:plain"]', '"parts/mine.py:plain(truts=1)"]', "did you mean 'trust'"),
        ("loss(times=times.txt)", "loss(tims=times.txt)", "did you mean 'times'"),
        ("noise(step=1", "noise(stp=1", "did you mean 'step'"),
        ("parts/mine.py:noise(step=1, more=[more.txt])", "symmetric(etta=0.4)", "did you mean 'eta'"),
        ("mlp(hidden=[8])", "mlp(hiden=[8])", "did you mean 'hidden'"),
    ],
)
def test_a_dry_run_checks_components_and_their_parameters(old, new, named, mine):
    edit(mine / "own.toml", old, new)
    refuse("fnlkit reproduce own.toml --dry-run", mine, named)


def test_data_and_components_are_found_beside_the_recipe(mine):
    line = "fnlkit reproduce 'my recipes/own.toml' --dry-run"
    assert f"--dataset={mine / 'data.npz'}" in shlex.split(succeed(line, mine.parent).stdout)
    (mine / "data.npz").unlink()
    refuse(line, mine.parent, "own.toml: dataset data.npz: no such file or data set")
    edit(mine / "own.toml", "data.npz", "parts/mine.py:noise")
    refuse(line, mine.parent, "own.toml: dataset parts/mine.py:noise", "np.savez")
    refuse("fnlkit reproduce regimes --dataset mine.py:noise --dry-run", mine, "--dataset mine.py:noise", "np.savez")


def test_a_run_is_not_resumed_with_other_code(mine, here):
    """The session imports an edited file again, so that the code that is recorded is the code that ran."""
    train = "fnlkit train fed.npz --rounds 1 --model 'mlp(hidden=[8])' --loss parts/mine.py:loss --engine sequential"
    assert fnlkit(f"fnlkit partition --dataset data.npz --clients 4 -o fed.npz && {train} -o a.pt", mine).returncode == 0
    more = f"{train} -o a.pt --resume a.pt".replace("--rounds 1", "--rounds 2")
    edit(mine / "parts/mine.py", "return 1.0", "return 2.0")
    refuse(more, mine, "parts/mine.py:loss")
    assert fnlkit(f"{train} -o b.pt", mine).returncode == 0
    one, two = (Run.read(str(mine / name)) for name in ("a.pt", "b.pt"))
    assert not (one.weights == two.weights).all() and one.meta["own"] != two.meta["own"]
    assert two.meta["provenance"][-1]["own"] == two.meta["own"] and [*two.meta["own"]] == ["parts/mine.py:loss"]
    edit(mine / "parts/mine.py", "return 2.0", "return 1.0")
    assert fnlkit(more, mine).returncode == 0


@pytest.mark.parametrize("what", ["regimes", "fedln/table4"])
def test_a_dry_run_checks_the_names_that_a_run_would(what, tmp_path):
    """A list of commands that cannot run is none: --dry-run refuses as the run itself does."""
    np.save(tmp_path / "emb.npy", np.zeros((3, 2), np.float32))
    for option, says in (
        ("--embeddings emb.npz", "--embeddings emb.npz: no such file"),
        ("--dataset cifar01", "--dataset cifar01: no such file or data set; did you mean 'cifar10'?"),
        ("--model lenet", "did you mean 'lenet5'?"),
    ):
        refuse(f"fnlkit reproduce {what} --dry-run {option}", tmp_path, says)
    printed = succeed(f"fnlkit reproduce {what} --dry-run --embeddings emb.npy --precision bf16", tmp_path).stdout
    assert printed.count("fnlkit train") == printed.count("--precision=bf16") > 1


def _trains(folder):
    """Return the number of the child of a recipe that trains, or None."""
    for lock in folder.glob("*.pt.lock"):
        rows = lock.with_name(lock.name.replace(".pt.lock", ".metrics.jsonl"))
        if lock.read_text().strip() and rows.exists() and rows.stat().st_size:
            return int(lock.read_text())


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow)])
def test_a_recipe_ends_with_its_children(sign, code, tmp_path):
    """A signal to the parent alone, whose children notice; each start of real processes takes seconds."""
    (tmp_path / "long.toml").write_text(TINY.replace("rounds = 6", "rounds = 1000000").replace("[0, 1]", "[0]"))
    program = "from fnlkit.cli import main; main()"
    command = [sys.executable, "-c", program, "reproduce", "long.toml", "--only", "heavy", "--jobs", "1", "-o", "runs"]
    parent = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=dict(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_until(lambda: _trains(tmp_path / "runs") or parent.poll() is not None)
    child = _trains(tmp_path / "runs")
    assert child, parent.stderr.read()
    parent.send_signal(sign)
    assert parent.wait(LIMIT) == code, parent.stderr.read()
    parent.stderr.close()
    assert wait_until(partial(has_ended, child))
    (run,) = (tmp_path / "runs").glob("*.pt")
    assert not Run.read(str(run)).finished


ONE = '[[regime]]\nname = "{}"\nsteps = ["partition"]\nmethods = ["fedavg"]\n[[regime]]'
SAID = {
    "metrics": ("rounds = 6", "rounds = 6\nmetrics = '/tmp/x'", "train has no 'metrics'"),
    "step's path": ("--clients 10", "--clients 10 -o /tmp/x", "'-o' is not allowed in a recipe"),
    "another command": ("partition --clients 10", "data get", "begin with partition"),
    "no such network": ("epochs = 1", "epochs = 1\nmodel = 'mine.py:build'", "mine.py does not exist"),
    "typo": ("epochs = 1", "epoch = 1", "train has no 'epoch'; did you mean 'epochs'"),
    "seeds": ("[0, 1]", "[0, true]", "write distinct whole numbers"),
    "methods": ('["fedavg", "fedcorr(iterations=1)"]', "[3]", "'methods' is .3.; write texts"),
    "regime": ("[[regime]]", "[regime]", "needs 'regime' as list"),
    "one name": ("[[regime]]", ONE.format("heavy"), "two regimes are called"),
    "published": ("[90.0, 1.0]", "nan", "write .mean, standard deviation."),
    "long key": ("epochs = 1", ".".join("a" * 2000) + " = 1", "train has no 'a'"),
    "huge number": ("epochs = 1", f"epochs = 0x{'f' * 5000}", "Exceeds the limit"),
    "no such method": ('"fedavg", ', '"fedaverage", ', "unknown method 'fedaverage'; did you mean 'fedavg'"),
    "quotes": ("'clients(rho=0.6, tau=0.5)'", "'clients", "No closing quotation"),
}


@pytest.mark.parametrize("what", SAID)
def test_invalid_recipes_are_refused(tmp_path, what):
    old, new, said = SAID[what]
    assert old in TINY
    path = tmp_path / "x.toml"
    path.write_text(TINY.replace(old, new))
    refuse_call(said, recipe.load_recipe, str(path))


def test_a_recipe_is_a_regular_file_of_bounded_size(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with open(tmp_path / "sparse.toml", "wb") as handle:
        handle.truncate(3 * 2**30)
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    for name, said in (("pipe", "not a regular file"), ("zero", "not a regular file"), ("sparse", "more than the limit")):
        refuse_call(said, recipe.load_recipe, str(tmp_path / f"{name}.toml"))


OBSERVED = """
title = "observed"
dataset = "own.npz"
seeds = [0, 1]
[train]
rounds = 2
fraction = 0.5
epochs = 1
engine = "sequential"
[[regime]]
name = "held out"
steps = ["partition --clients 4"]
methods = ["flr", "fedavg"]
"""


def test_recipes_over_unverified_labels_compare_agreement(tmp_path, here):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 6)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=(x[:, 0] > 0).astype(int))
    (tmp_path / "observed.toml").write_text(OBSERVED.replace("own.npz", str(tmp_path / "own.npz")))
    done = succeed("fnlkit reproduce observed.toml --jobs 1 -o runs --json", tmp_path)
    flr, fedavg = [json.loads(line) for line in done.stdout.splitlines()]
    assert flr["measures"] == fedavg["measures"] == "agreement" and flr["baseline"] == "fedavg"
    assert flr["late_ahead"] == pytest.approx(flr["late_mean"] - fedavg["late_mean"]) and fedavg["late_ahead"] is None
    done = fnlkit("fnlkit reproduce observed.toml --no-train -o runs --json --baseline flr", tmp_path)
    assert json.loads(done.stdout.splitlines()[1])["late_ahead"] == pytest.approx(-flr["late_ahead"])
    shown = fnlkit("fnlkit reproduce observed.toml --no-train -o runs", tmp_path).stdout
    assert "agreement" in shown and "ahead: of fedavg" in shown
    groups = succeed("fnlkit evaluate runs --by method --json", tmp_path).stdout.splitlines()
    found = {one["group"]["method"]: one for one in map(json.loads, groups)}
    theirs, ours = found["flr"]["ahead"]["agreement_late"], flr
    assert 100 * theirs["mean"] == pytest.approx(ours["late_ahead"]) and theirs["clear"] == ours["late_clear"]
    assert fnlkit("fnlkit reproduce observed.toml --baseline fedcorr -o runs", tmp_path).returncode == 2


# ---- the recipe on images: its two parts of a data set share no image, and its runs start from the reported part
def test_a_regime_on_images_runs(tmp_path, here):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (460, 32, 32, 3), dtype=np.uint8)
    y = np.arange(460) % 10
    np.savez(tmp_path / "images.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:])
    only = "--only 'FLR*' --seeds 1 --rounds 1 --dataset images.npz --model 'mlp(hidden=[8])'"
    done = succeed(f"fnlkit reproduce regimes-images {only} -o runs --json", tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["method"] for row in rows if "method" in row][:3] == ["fedavg", "flr", "oracle"]


def test_the_small_tables_of_the_league_are_those_of_its_stored_runs(tmp_path):
    with (ROOT / "benchmarks/results/league.csv").open(newline="") as file:
        stored = {row["regime"]: row["data"] for row in csv.DictReader(file)}
    regimes = {each["dataset"]: each["name"] for each in recipe.load_recipe("league")["regime"] if "dataset" in each}
    names = worlds.list_small_tables()
    assert len(names) == 48 and {"wine-sites4-rows30-noise1.npz", "column-sites4-rows40.npz"} <= names
    for name in ("breast-cancer-sites5-rows60.npz", "wine-sites4-rows30-skew1-shift0.5-noise1.npz"):
        np.savez(tmp_path / name, **worlds.draw_small_table(name, None))
        assert datasets.load(tmp_path / name).checksum[:12] == stored[regimes[name]]

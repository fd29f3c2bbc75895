"""Recipes are commands: they parse, name what exists, run, continue, and compare."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fnlkit.artifacts.run import Run
from fnlkit.cli import group
from fnlkit.components import registry
from fnlkit.errors import InputError
from fnlkit.recipes import belonging, recipe, reproduce
from tests.commands import LIMIT, fnlkit, refuse, succeed, wait_until

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


@pytest.mark.parametrize("name", recipe.names())
def test_included_recipes_name_existing_components(name):
    lines = {}
    for job in reproduce.jobs(recipe.load_recipe(name), seeds=1):
        registry.method(job.method)
        lines |= {re.sub(r"[\w.-]+\.(npz|pt)", "", line): line for line in reproduce.commands(job)}  # alike but for the files
    for line in lines.values():
        program, verb, *arguments = shlex.split(line)
        assert program == "fnlkit"
        # Parsing finds unknown options and values of a wrong type without running anything.
        group.get_command(None, verb).make_context(verb, arguments)


def test_a_run_with_the_embeddings_of_its_method_is_continued(tmp_path, here):
    path, folder = tmp_path / "tiny.toml", tmp_path / "runs"
    path.write_text(TINY.replace('"fedavg", "fedcorr(iterations=1)"', '"nnc"').replace("rounds = 6", "rounds = 1"))
    (job,) = reproduce.jobs(recipe.load_recipe(str(path)), seeds=1)
    assert reproduce.run([job], folder, at_once=1) == {} and reproduce.find_change(job, folder) is None
    run = Run.read(str(folder / f"{job.name}.pt"))
    run.meta["embedding"] = "0" * 64
    run.write(str(folder / f"{job.name}.pt"))
    assert "embeddings" in reproduce.find_change(job, folder)


def test_a_recipe_runs_continues_and_compares(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    jobs = reproduce.jobs(recipe.load_recipe(str(path)))
    said = []
    assert reproduce.run(jobs[:1], tmp_path / "runs", at_once=1, on_done=lambda job, error: said.append(error)) == {}
    stamp = (tmp_path / "runs" / "0-0-1.npz").stat().st_mtime_ns
    assert reproduce.run(jobs, tmp_path / "runs", at_once=1) == {}
    assert (tmp_path / "runs" / "0-0-1.npz").stat().st_mtime_ns == stamp and said == [None]
    first, second = reproduce.rows(jobs, tmp_path / "runs")
    assert first["method"] == "fedavg" and first["best_ahead"] is None and not first["best_clear"] and first["runs"] == 2
    assert second["published"] == [90.0, 1.0] and second["best_spread"] >= 0
    assert second["late_ahead"] == pytest.approx(second["late_mean"] - first["late_mean"])
    # Two paired differences a and b: the interval of their mean is t(0.975, 1) = 12.7062 times |a - b| / 2 wide to each side.
    gains = [second["late"][seed] - first["late"][seed] for seed in (0, 1)]
    assert second["late_ahead_half"] == pytest.approx(12.7062 * abs(gains[0] - gains[1]) / 2, rel=1e-5)
    assert second["late_clear"] == (second["late_holm"] < 0.05)
    other, same = reproduce.rows(jobs, tmp_path / "runs", "fedcorr(iterations=1)")
    assert other["late_ahead"] == pytest.approx(-second["late_ahead"]) and other["late_clear"] == second["late_clear"]
    assert same["late_ahead"] is None and same["baseline"] == "fedcorr(iterations=1)"
    run = Run.read(str(tmp_path / "runs" / "0-0-fedavg-0.pt")), Run.read(str(tmp_path / "runs" / "0-0-fedavg-1.pt"))
    last = [100 * [row["local_noisy_memorized"] for row in r.history if "local_noisy_memorized" in row][-1] for r in run]
    assert first["local_memorized"] == pytest.approx(sum(last) / 2) and 0 <= first["global_memorized"] <= 100
    assert first["client_rounds"] == second["client_rounds"] == 12


def test_a_finished_run_is_opened_again_only_if_something_changed(tmp_path, here, monkeypatch):
    path, folder, started = tmp_path / "tiny.toml", tmp_path / "runs", []
    path.write_text(TINY)
    jobs = reproduce.jobs(recipe.load_recipe(str(path)))[:2]
    own = reproduce.Children.run
    monkeypatch.setattr(reproduce.Children, "run", lambda self, line: (started.append(line[0]), own(self, line))[1])

    def again(jobs=jobs):
        started.clear()
        assert reproduce.run(jobs, folder, at_once=1) == {}
        return started

    assert again().count("train") == 2
    assert again() == []
    os.utime(folder / f"{jobs[0].name}.pt", ns=(1, 1))
    assert again() == []  # a copy of the same run
    os.utime(folder / jobs[0].prepare[-1][1], ns=(1, 1))  # the same bytes
    with open(folder / "settled.jsonl", "a") as file:
        file.write('["torn')
    assert again() == []
    (folder / jobs[0].prepare[-1][1]).unlink()
    assert again() == ["inject-noise"]  # the same bytes again
    (folder / "settled.jsonl").unlink()
    weights = {job.name: digest(folder, job) for job in jobs}
    assert sorted(again()) == ["inject-noise", "partition"]  # finished runs are compared, and not rewritten
    assert {job.name: digest(folder, job) for job in jobs} == weights and not list(folder.glob("*.old"))


def digest(folder, job):
    return Run.read(str(folder / f"{job.name}.pt")).weights.sum().item()


class Here:
    """Runs commands in this process, where `Children` forks one for each: no import of torch."""

    ending = False

    def __init__(self, folder, environment):
        self.folder = folder

    def run(self, arguments):
        done = fnlkit(shlex.join(["fnlkit", *arguments]), self.folder)
        return done.returncode, done.stderr.encode()

    def end(self):
        pass


class InTurn:
    """Stands for a pool of threads, which could set no handler of a signal."""

    def __init__(self, at_once):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def shutdown(self, **how):
        pass

    map = staticmethod(map)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(reproduce, "Children", Here)
    monkeypatch.setattr(reproduce, "ThreadPoolExecutor", InTurn)


LOSS = """
def loss(logits, batch, *, times=""):
    factor = float((Path(__file__).parent / times).read_text()) if times else 1.0
    return {} * factor * (1 - logits.softmax(-1).gather(-1, batch.y[..., None])[..., 0])
"""
OWN = """
title = "own"
dataset = "DATA"
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
from fnlkit.noise import Corruption

def plain(clients, model, opt, select, *, rounds):
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
    (folder / "own.toml").write_text(OWN.replace("DATA", str(folder / "data.npz")))
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
    "a data file that a component names": lambda at: (at / "parts/shift.txt").write_text("2"),
    "a data file in a parameter of a step": lambda at: (at / "parts/more.txt").write_text("11"),
    "the data": lambda at: samples(at / "data.npz", 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_of_another_specification_is_made_again(change, mine, here):
    """With the first numbers if the change is undone; a folder whose list of specifications is lost is compared run by run."""

    def numbers():
        changed, jobs = [], reproduce.jobs(recipe.load_recipe(str(mine / "own.toml")))
        assert reproduce.run(jobs, mine / "runs", at_once=1, on_changed=lambda job, why: changed.append(why)) == {}
        belonging.must_belong_together(jobs, mine / "runs")
        (row,) = reproduce.rows(jobs, mine / "runs")
        assert row["published"] == [50.0, 1.0] and jobs[0].name == "0-0-mine.py-plain-0"
        return digest(mine / "runs", jobs[0]), changed

    first, _ = numbers()
    assert numbers() == (first, [])
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file() and "runs" not in path.parts}
    CHANGES[change](mine)
    with pytest.raises(InputError, match=r"0-0-mine\.py-plain-0\.pt: "):  # as with --no-train
        belonging.must_belong_together(reproduce.jobs(recipe.load_recipe(str(mine / "own.toml"))), mine / "runs")
    (mine / "runs/settled.jsonl").unlink()
    second, changed = numbers()
    assert second != first and len(changed) == 1 and numbers() == (second, [])
    if change == "a setting":
        for path, content in before.items():
            path.write_bytes(content)
        assert numbers()[0] == first


def test_a_changed_run_prints_the_difference_and_keeps_the_old_file(mine, here):
    line = "fnlkit reproduce 'my recipes/own.toml' --jobs 1 -o runs"
    assert fnlkit(line, mine.parent).returncode == 0
    edit(mine / "parts/mine.py", "return 1.0", "return 3.0")
    assert "0-0-mine.py-plain-0.pt.old" in succeed(line, mine.parent).stderr
    assert (mine.parent / "runs/0-0-mine.py-plain-0.pt.old").exists()


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


def _ended(process):
    try:
        return "Z" in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True


def test_a_recipe_ends_with_its_children_and_can_be_continued(tmp_path):
    """A signal to the parent alone; killed outright, its children notice.  Two starts of real processes: some seconds."""
    (tmp_path / "long.toml").write_text(TINY.replace("rounds = 6", "rounds = 1000000").replace("[0, 1]", "[0]"))
    program = "from fnlkit.cli import main; main()"
    command = [sys.executable, "-c", program, "reproduce", "long.toml", "--only", "heavy", "--jobs", "1", "-o", "runs"]
    for sign, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        parent = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=dict(os.environ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        wait_until(lambda: _trains(tmp_path / "runs") or parent.poll() is not None)  # noqa: B023
        child = _trains(tmp_path / "runs")
        assert child, parent.stderr.read()
        parent.send_signal(sign)
        assert parent.wait(LIMIT) == code, parent.stderr.read()
        parent.stderr.close()
        assert wait_until(partial(_ended, child))
        (run,) = (tmp_path / "runs").glob("*.pt")
        assert not Run.read(str(run)).finished


SAID = {
    "metrics": ("rounds = 6", "rounds = 6\nmetrics = '/tmp/x'", "train has no 'metrics'"),
    "step's path": ("--clients 10", "--clients 10 -o /tmp/x", "'-o' is not allowed in a recipe"),
    "another command": ("partition --clients 10", "data get", "begin with partition"),
    "no such network": ("epochs = 1", "epochs = 1\nmodel = 'mine.py:build'", "mine.py does not exist"),
    "typo": ("epochs = 1", "epoch = 1", "train has no 'epoch'; did you mean 'epochs'"),
    "seeds": ("[0, 1]", "[0, true]", "write distinct whole numbers"),
    "methods": ('["fedavg", "fedcorr(iterations=1)"]', "[3]", "'methods' is .3.; write texts"),
    "regime": ("[[regime]]", "[regime]", "needs 'regime' as list"),
    "published": ("[90.0, 1.0]", "nan", "write .mean, standard deviation."),
    "long key": ("epochs = 1", ".".join("a" * 5000) + " = 1", "a key of more than 16 parts"),
    "control characters": ('dataset = "digits"', 'dataset = "a\\u202eb"', "control characters"),
    "huge number": ("epochs = 1", f"epochs = 0x{'f' * 5000}", "train.epochs is a number of thousands of digits"),
    "no such method": ('"fedavg", ', '"fedaverage", ', "unknown method 'fedaverage'; did you mean 'fedavg'"),
    "quotes": ("'clients(rho=0.6, tau=0.5)'", "'clients", "No closing quotation"),
}


@pytest.mark.parametrize("what", SAID)
def test_invalid_recipes_are_refused(tmp_path, what):
    old, new, said = SAID[what]
    assert old in TINY
    path = tmp_path / "x.toml"
    path.write_text(TINY.replace(old, new))
    with pytest.raises(InputError, match=said):
        recipe.load_recipe(str(path))


def test_a_recipe_is_a_regular_file_of_bounded_size(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with open(tmp_path / "sparse.toml", "wb") as handle:
        handle.truncate(3 * 2**30)
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    for name, said in (("pipe", "not a regular file"), ("zero", "not a regular file"), ("sparse", "more than the limit")):
        with pytest.raises(InputError, match=said):
            recipe.load_recipe(str(tmp_path / f"{name}.toml"))


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
    groups = fnlkit("fnlkit evaluate runs --by method --json", tmp_path).stdout.splitlines()
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

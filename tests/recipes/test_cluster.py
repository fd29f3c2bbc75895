"""Runs of one recipe from many places: parts, what belongs together, and the commands of docs/gpu.md."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fnlkit.artifacts.run import Run
from fnlkit.errors import InputError
from fnlkit.recipes import belonging, recipe, reproduce
from tests.commands import ENVIRONMENT, LIMIT, fnlkit, refuse, succeed

TEXT = (Path(__file__).parents[2] / "docs/gpu.md").read_text(encoding="utf-8")
RECIPE = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)[1]
SLURM, SHOW, XARGS, PARALLEL, RAY, MERGE = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the recipe and its runs in `runs/mine`, made in this process as `reproduce` would in others."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "mine.toml").write_text(RECIPE)
    (folder / "runs/mine").mkdir(parents=True)
    for line in dict.fromkeys(line for job in listed(folder) for line in reproduce.commands(job)):
        succeed(line, folder / "runs/mine")
    return folder


def listed(folder, **more):
    return reproduce.jobs(recipe.load_recipe(str(folder / "mine.toml")), **more)


@pytest.fixture
def place(made, tmp_path):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("count", [1, 7, 100])
def test_every_run_is_in_one_part_and_parts_are_even(count):
    jobs = reproduce.jobs(recipe.load_recipe("regimes"))
    parts = [belonging.shard(jobs, f"{i}/{count}") for i in range(1, count + 1)]
    assert [job for part in parts for job in part] == jobs
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["0/8", "9/8", "1", "1/0", "a/b", "-1/8", "1/8/2", "²/3"])
def test_invalid_shards_are_refused(text):
    with pytest.raises(InputError, match=f"^`shard` {re.escape(text)}: write the part and the number"):
        belonging.shard([], text)


def test_an_empty_shard_succeeds(place):
    assert "--shard 1/9" in succeed("fnlkit reproduce mine.toml --shard 1/9 -o empty", place).stderr
    assert not (place / "empty").exists()


def test_a_published_table_is_taken_in_parts_too(tmp_path):
    lines = fnlkit("fnlkit reproduce fedcorr/table10 --dry-run", tmp_path).stdout.splitlines()
    part = "fnlkit reproduce fedcorr/table10 --dry-run --shard {}/3"
    parts = [fnlkit(part.format(i), tmp_path).stdout.splitlines() for i in (1, 2, 3)]
    runs = [line for line in lines if not line.startswith("#")]
    assert [line for part in parts for line in part if not line.startswith("#")] == runs and all(parts)


def test_copied_parts_have_the_table_of_one_folder(place):
    runs = place / "runs"
    for part, method in enumerate(("fedavg", "flr"), 1):
        (runs / f"part-{part}").mkdir()
        for found in (runs / "mine").glob(f"*-{method}-*"):
            shutil.copy(found, runs / f"part-{part}")
    (runs / "part-1/stray.pt").write_bytes(b"nothing of this recipe's")
    one = succeed(SHOW.strip(), place)
    assert " flr " in one.stdout
    done = subprocess.run(["bash", "-c", MERGE], cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0 and done.stdout == one.stdout and "missing" not in done.stderr
    half = succeed("fnlkit reproduce mine.toml --no-train -o runs/part-1", place)
    assert "1 of 2 runs are missing or not finished, the first is 0-1-flr-0" in half.stderr


def test_a_method_that_pools_the_clients_belongs_to_the_others(place):
    (place / "pooled.toml").write_text(RECIPE.replace('"flr"', '"centralized"'))
    assert fnlkit("fnlkit reproduce pooled.toml --jobs 1 -o runs/pooled", place).returncode == 0
    assert " centralized " in succeed("fnlkit reproduce pooled.toml --no-train -o runs/pooled", place).stdout


def altered(path, **changes):
    """Write another run in place of one."""
    run = Run.read(str(path))
    for name, value in changes.items():
        setattr(run, name, value)
    run.write(str(path))
    return run


WRONG = {
    "data": ("", "0-1-flr-0.pt: made from another data set than other/0-0-fedavg-0.pt"),
    "federation": ("", "0-1-flr-0.pt: made from another federation than"),
    "option": ("--rounds 5", "trained with --rounds 4, where the recipe has 5"),
    "default": ("", "trained with --lr 0.5, where the recipe has 0.03"),
    "method": ("", "a run of elr, where the recipe has fedavg"),
    "step": ("", "made by partition --clients 4, where the recipe has 5"),
    "broken": ("", "0-0-fedavg-0.pt: "),
}


@pytest.mark.parametrize("what", WRONG)
def test_runs_of_another_recipe_are_refused(place, what):
    more, said = WRONG[what]
    other = place / "other"
    shutil.copytree(place / "runs/mine", other)
    first, last = other / "0-0-fedavg-0.pt", other / "0-1-flr-0.pt"
    run = Run.read(str(first))
    if what == "data":
        altered(last, meta=run.meta | {"dataset_checksum": "0" * 64})
    elif what == "federation":
        altered(last, meta=Run.read(str(last)).meta | {"federation": "0" * 64})
    elif what == "default":
        altered(first, settings=run.settings | {"lr": 0.5})
    elif what == "method":
        altered(first, settings=run.settings | {"method": "elr"})
    elif what == "step":
        (place / "mine.toml").write_text(RECIPE.replace("--clients 4", "--clients 5"))
    elif what == "broken":
        first.write_bytes(first.read_bytes()[:5000])
    done = refuse(f"fnlkit reproduce mine.toml -o other --no-train {more}", place, said)
    assert len(done.stderr.strip().splitlines()) == 1 and not done.stdout


@pytest.mark.slow
def test_the_pages_scripts_make_runs(place):
    """A Slurm task and two of xargs in real processes, each of which starts its own: fifteen seconds of imports."""
    (place / "mine.sh").write_text(SLURM)
    shutil.rmtree(place / "runs/mine")
    slurm = ENVIRONMENT | {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_CPUS_PER_TASK": "1"}
    for script, environment in ((SLURM, slurm), (XARGS, ENVIRONMENT)):
        done = subprocess.run(["bash", "-c", script], cwd=place, env=environment, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
    assert [path.name for path in (place / "runs/mine").glob("*.pt")] == ["0-1-flr-0.pt"]
    done = succeed("fnlkit reproduce mine.toml --no-train -o runs/part-2", place)
    assert " flr " in done.stdout


# ---- folders that are merged come from other machines: nothing in them is followed or waited for
def test_runs_of_annotators_belong_to_the_recipe_that_names_the_votes(tmp_path):
    """The scheme `annotators` makes a row of each vote, so that runs have the checksum of these rows."""
    rng = np.random.default_rng(0)
    y, x = np.arange(60) % 2, rng.normal(size=(60, 3)).astype(np.float32)
    votes = np.where(rng.random((60, 3)) < 0.7, y[:, None], -1)
    votes[:, 0] = y
    np.savez(tmp_path / "votes.npz", x_train=x, votes_train=votes, y_train_true=y, x_test=x, y_test=y)
    (tmp_path / "r.toml").write_text(
        'title = "t"\ndataset = "votes.npz"\nseeds = [0]\nmethods = ["fedavg"]\n[train]\nmodel = "mlp(hidden=[])"\nrounds = 1\n'
        'epochs = 1\nfraction = 1.0\n[[regime]]\nname = "a"\nsteps = ["partition --scheme annotators"]\n'
    )
    given = recipe.load_recipe(str(tmp_path / "r.toml"))
    jobs = reproduce.jobs(given)
    assert reproduce.run(jobs, tmp_path, at_once=1) == {}
    belonging.must_belong_together(jobs, tmp_path)
    np.savez(tmp_path / "votes.npz", x_train=x + 1, votes_train=votes, y_train_true=y, x_test=x, y_test=y)
    with pytest.raises(InputError, match="another data set than"):
        belonging.must_belong_together(jobs, tmp_path)

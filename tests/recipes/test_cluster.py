"""The commands of docs/gpu.md for many machines."""

import re
import subprocess
from pathlib import Path

import pytest

from fnlkit.artifacts.run import Run
from tests.commands import ENVIRONMENT, LIMIT, succeed

TEXT = (Path(__file__).parents[2] / "docs/gpu.md").read_text(encoding="utf-8")
RECIPE = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)[1]
LIST, SLURM, XARGS, SHOW = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)


def bash(script, folder, **environment):
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=ENVIRONMENT | environment, capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_pages_scripts_make_the_runs_of_the_recipe(tmp_path):
    """A Slurm task and two of xargs in real processes, each of which imports torch; xargs finds the run of the Slurm task."""
    (tmp_path / "mine.toml").write_text(RECIPE)
    bash(LIST, tmp_path)
    bash(SLURM, tmp_path, SLURM_ARRAY_TASK_ID="2", SLURM_CPUS_PER_TASK="1")
    (path,) = (tmp_path / "runs/mine").glob("*.pt")
    assert path.name == "0-1-flr-0.pt" and Run.read(str(path)).finished
    bash(XARGS, tmp_path)
    assert " flr " in succeed(SHOW.strip(), tmp_path).stdout

"""The pipe runs without faiss; a missing library is named with the command that installs it."""

import subprocess
import sys

from tests.commands import ENVIRONMENT, LIMIT
from tests.test_versions import ROOT

# The usual finder, which does not find faiss and torchvision.
CALL = """
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ("faiss", "torchvision") else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from fnlkit.cli import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as end:
        if end.code:
            raise
"""


def without(folder, *lines, after=""):
    return subprocess.run(
        [sys.executable, "-c", CALL + after, *lines], cwd=folder, env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip


def test_the_pipe_needs_neither_faiss_nor_torchvision_nor_the_compiler_of_torch(tmp_path):
    done = without(
        tmp_path,
        "partition --clients 4 -o clean.npz",
        "inject-noise clean.npz -o noisy.npz",
        "estimate-noise noisy.npz --estimator confident(folds=2) --rounds 1 --epochs 1 --apply relabel -o judged.npz",
        "train judged.npz --rounds 1 --epochs 1 --engine sequential -o run.pt",
        "evaluate run.pt",
        after="assert 'torch._dynamo' not in sys.modules\n",
    )
    assert done.returncode == 0 and "accuracy" in done.stdout, done.stderr


MISSING = """
import numpy
from fnlkit.errors import InputError
from fnlkit.kernels.neighbors import nearest
from fnlkit.models.vision import torchvision
for need in (lambda: nearest(numpy.eye(4), 1), torchvision):
    try:
        need()
    except InputError as error:
        print(error)
"""


def test_a_missing_library_is_named_with_its_command(tmp_path):
    blocked = CALL.partition("from fnlkit.cli")[0] + MISSING
    done = subprocess.run(
        [sys.executable, "-c", blocked], cwd=tmp_path, env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    faiss, torchvision = done.stdout.splitlines()
    assert "pip install faiss-cpu" in faiss and "pip install torchvision" in torchvision, done.stderr

"""What works on systems without fork, POSIX modules, faiss and torchvision, with unusual paths, line ends and consoles."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fnlkit
from fnlkit.artifacts.run import Run
from tests.commands import ENVIRONMENT, LIMIT, succeed

ROOT = Path(__file__).parent.parent
SHORT = "--rounds 2 --fraction 0.5 --epochs 1"


def without_posix(*lines, folder, **environment):
    """Run commands, until one fails, without POSIX modules and calls, faiss, torchvision and the compiler of torch."""
    return subprocess.run(
        [sys.executable, "-m", "tests.without_posix", *lines],
        cwd=folder, env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)} | environment, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=LIMIT,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder whose path has spaces and letters outside ASCII."""
    return tmp_path_factory.mktemp("Zoë's Daten 数据")


RECIPE = (
    'title = "small"\ndataset = "digits"\nseeds = [0]\nmethods = ["fedavg"]\n[train]\nrounds = 2\nfraction = 0.5\n'
    'engine = "sequential"\n[[regime]]\nname = "one"\nsteps = ["partition --clients 4"]\n'
)


def test_the_pipeline_gives_the_same_bytes_without_posix_modules_and_faiss_and_refuses_the_engine_of_processes(folder):
    """Also a recipe, whose run is a process of its own, in the same process because each start imports torch."""
    (folder / "small.toml").write_text(RECIPE, encoding="utf-8")
    lines = [
        "partition --clients 4 -o clean.npz",
        "inject-noise clean.npz -o noisy.npz",
        "estimate-noise noisy.npz --estimator knn(k=5) --apply relabel -o judged.npz",
        f"train judged.npz {SHORT} -o run.pt",
        "evaluate run.pt",
    ]
    (folder / "usual").mkdir()
    # The second call of inject-noise replaces a file, and the last command is refused.
    refused = f"train noisy.npz {SHORT} --engine workers -o no.pt"
    done = without_posix(*lines, lines[1], "reproduce small.toml --jobs 1 -o results", refused, folder=folder)
    assert done.returncode == 2 and b"--engine sequential" in done.stderr and b"Traceback" not in done.stderr, done.stderr
    for line in lines:
        succeed(f"fnlkit {line}".replace("knn(k=5)", "'knn(k=5)'"), folder / "usual")
    for name in ("clean.npz", "noisy.npz", "judged.npz"):
        assert (folder / name).read_bytes() == (folder / "usual" / name).read_bytes(), name
    weights = [Run.read(folder / place / "run.pt").weights for place in ("", "usual")]
    assert np.array_equal(*weights)
    assert not (folder / "no.pt").exists() and list((folder / "results").rglob("*.pt"))
    assert not [name for name in os.listdir(folder) if name.startswith(".") or name.endswith(".lock")]


def test_a_console_of_western_windows_gets_only_its_letters(folder):
    (folder / "table.csv").write_bytes(b"site,a,b,label\r\n" + "".join(
        f"{site},{i},{i % 3},{i % 2}\r\n" for site in ("Łódź", "Agüera", "東京") for i in range(20)
    ).encode())  # fmt: skip
    lines = "partition --dataset table.csv --scheme sites -o sites.npz", "-v info sites.npz"
    done = without_posix(*lines, folder=folder, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr.decode("cp1252")
    text = done.stdout.decode("cp1252")
    assert "Agüera, \\u0141ódz, \\u6771\\u4eac" in text
    fed = fnlkit.load(folder / "sites.npz")
    assert fed.names == ["Agüera", "Łódź", "東京"] and len(fed.given) == 60


# ---- the numeric tests on other instruction sets
NUMERIC = ("kernels/test_kernels.py", "kernels/test_mixture.py", "federated/client", "models", "methods", "federated/server")
# What PyTorch, its two libraries, our kernels and the BLAS of numpy take the processor for.
NAMES = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "NUMBA_CPU_NAME", "OPENBLAS_CORETYPE")
PROCESSORS = {
    "256-bit vectors": ("avx2", "AVX2", "AVX2", "haswell", "Haswell"),
    "128-bit vectors": ("default", "SSE4_2", "SSE41", "nehalem", "Prescott"),
}
# Without fused multiply-add the compiled training computes each by a call of the C library, which takes an hour.
COMPILED = {"256-bit vectors": ("federated/engines/test_fused.py",), "128-bit vectors": ()}


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names processors of x86")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_numeric_tests_hold_on_another_processor(processor):
    environment = {**os.environ, **dict(zip(NAMES, PROCESSORS[processor], strict=True)), "NUMBA_CPU_FEATURES": ""}
    places = [f"tests/{name}" for name in (*NUMERIC, *COMPILED[processor])]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *places]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=4 * LIMIT)
    assert done.returncode == 0, done.stdout[-4000:]

"""The numeric tests on other instruction sets: no bound rests on the order of sums of one machine."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import LIMIT

ROOT = Path(__file__).parent.parent
NUMERIC = ("kernels/test_kernels.py", "kernels/test_mixture.py", "client", "models", "methods", "server")
# What PyTorch, its two libraries, our kernels and the BLAS of numpy take the processor for.
NAMES = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "NUMBA_CPU_NAME", "OPENBLAS_CORETYPE")
PROCESSORS = {
    "256-bit vectors": ("avx2", "AVX2", "AVX2", "haswell", "Haswell"),
    "128-bit vectors": ("default", "SSE4_2", "SSE41", "nehalem", "Prescott"),
}
# Without fused multiply-add the compiled training computes each by a call of the C library, which takes an hour.
COMPILED = {"256-bit vectors": ("engines/test_fused.py",), "128-bit vectors": ()}


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names processors of x86")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_numeric_tests_hold_on_another_processor(processor):
    environment = {**os.environ, **dict(zip(NAMES, PROCESSORS[processor], strict=True)), "NUMBA_CPU_FEATURES": ""}
    places = [f"tests/{name}" for name in (*NUMERIC, *COMPILED[processor])]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *places]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=4 * LIMIT)
    assert done.returncode == 0, done.stdout[-4000:]

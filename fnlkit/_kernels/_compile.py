"""The one decorator of all kernels, and the folder where compiled code waits for the next process.

Rationale
---------
nogil         Kernels run beside each other in plain threads; no pool of numba's own that would fight with the one of
BLAS. error_model   "numpy": 1 / 0 is infinity, as everywhere in numpy, and loops keep no branch for an exception.
fastmath      Only "contract" (a product and a sum are one instruction) and "reassoc" (sums may be split over vector
              lanes). Nothing that lets the compiler assume away NaN, infinity or the sign of zero.
boundscheck   Off: the public functions check once; here it would cost half of the speed.
cache         On, but not numba's own: that one numbers its files through a shared index, which two processes that start
              together can overwrite with each other's numbers, knows nothing of changes in imported kernels, and
              refuses to work without a writable folder.  Ours has one file for each function, signature and processor,
              named by a hash that includes the source of all kernels, written under a temporary name and renamed.
              Whatever goes wrong with a file means compiling again, never a failure.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import sys
import uuid
from pathlib import Path

import numba
from numba.core import compiler, serialize


@functools.cache
def _digest():
    """Hash of all that decides what a kernel compiles to, besides its signature and the processor."""
    parts = [path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    parts.append(f"{sys.version_info[:2]} {numba.__version__}".encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@functools.cache
def cache_folders():
    """Folders in the order in which they are read; the first that can be written is written to.

    NUMBA_CACHE_DIR when it is set; else the package's own `__pycache__`, then the user's cache folder.
    """
    if numba.config.CACHE_DIR:
        return (Path(numba.config.CACHE_DIR) / "fnlkit",)
    folders = [Path(__file__).parent / "__pycache__"]
    user = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folders.append(Path(user) / "fnlkit")
    return tuple(folders)


class _Shelf:
    """Compiled code of one function on disk, as a numba dispatcher asks for it."""

    def __init__(self, function):
        self._name = f"{function.__module__}.{function.__qualname__}"

    @property
    def cache_path(self):
        return str(cache_folders()[0])

    def _file(self, signature, codegen):
        key = f"{self._name} {signature} {codegen.magic_tuple()} {_digest()}"
        return key, f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.kernel"

    def load_overload(self, sig, target_context):
        """Return the compiled code for a signature, or None where no file holds it whole."""
        target_context.refresh()
        key, name = self._file(sig, target_context.codegen())
        for folder in cache_folders():
            # Any damage, from a lost disk to half a file, has one cure: compile.
            with contextlib.suppress(Exception):
                stored, payload = pickle.loads((folder / name).read_bytes())
                if stored == key:
                    return compiler.CompileResult._rebuild(target_context, *payload)
        return None

    def save_overload(self, sig, data):
        """Store compiled code in the first folder that takes it; silently nowhere when none does."""
        key, name = self._file(sig, data.codegen)
        content = serialize.dumps((key, data._reduce()))
        for folder in cache_folders():
            temporary = folder / f".{name}.{uuid.uuid4().hex}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(content)
                os.replace(temporary, folder / name)
                return
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink()

    def enable(self):
        """A dispatcher calls this; there is nothing to switch."""

    def flush(self):
        """Forget nothing: files of other sources have other names and are never read."""


def kernel(function):
    """Return `function` compiled on its first call for each signature, without the GIL, kept on disk.

    Examples
    --------
    >>> @kernel
    ... def twice(x):
    ...     return 2 * x
    >>> twice(3)
    6
    """
    compiled = numba.njit(nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})(function)
    if "<locals>" not in function.__qualname__ and function.__module__.startswith("fnlkit."):
        compiled._cache = _Shelf(function)
    return compiled


def inlined(function):
    """Return `function` compiled into each kernel that calls it; never stored by itself."""
    return numba.njit(nogil=True, error_model="numpy", fastmath={"contract", "reassoc"}, inline="never")(function)

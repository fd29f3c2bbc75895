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
              It begins with the SHA-256 of the rest, since machine code with one turned bit runs, or ends the process.
              Whatever goes wrong with a file means compiling again, never a failure.
"""

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import stat
import sys
import tempfile
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

    NUMBA_CACHE_DIR when it is set; else the package's own `__pycache__`, then the user's cache folder, which a container
    may lack; one for temporary files where none of them can be written.
    """
    if numba.config.CACHE_DIR:
        return (Path(numba.config.CACHE_DIR) / "fnlkit",)
    folders = [Path(__file__).parent / "__pycache__"]
    # Without HOME and without an entry among the machine's users, there is no home.
    with contextlib.suppress(RuntimeError):
        folders.append(Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "fnlkit")
    return tuple(folders) if any(map(_writable, folders)) else (*folders, *_temporary_folder())


def _writable(folder):
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK | os.X_OK)
    return False


def _temporary_folder():
    """A folder that is surely ours, in a tuple, or nothing: what lies there is run, and anybody can write beside it."""
    if not hasattr(os, "getuid"):
        return ()
    folder = Path(tempfile.gettempdir()) / f"fnlkit-kernels-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return ()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return (folder,) if ours else ()


@functools.cache
def _say_temporary(folder):
    logging.getLogger("fnlkit").warning(
        f"fnlkit: compiled kernels are kept in {folder}, since no other folder can be written; "
        "NUMBA_CACHE_DIR names one that lasts"
    )


_SEAL = hashlib.sha256().digest_size


def _sealed(content):
    """Bytes of a file: the SHA-256 of the content before it."""
    return hashlib.sha256(content).digest() + content


def _opened(raw):
    """The content of a file's bytes; raises ValueError where a bit has turned."""
    if hashlib.sha256(raw[_SEAL:]).digest() != raw[:_SEAL]:
        raise ValueError("damaged")
    return raw[_SEAL:]


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
                stored, payload = pickle.loads(_opened((folder / name).read_bytes()))
                if stored == key:
                    return compiler.CompileResult._rebuild(target_context, *payload)
        return None

    def save_overload(self, sig, data):
        """Store compiled code in the first folder that takes it; silently nowhere when none does."""
        key, name = self._file(sig, data.codegen)
        content = _sealed(serialize.dumps((key, data._reduce())))
        for folder in cache_folders():
            temporary = folder / f".{name}.{uuid.uuid4().hex}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(content)
                os.replace(temporary, folder / name)
                if folder.name.startswith("fnlkit-kernels-"):
                    _say_temporary(folder)
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

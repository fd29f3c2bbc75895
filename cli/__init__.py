"""The command `fnlkit`; each verb is a module that is imported when it is called."""

import atexit
import importlib
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from fnlkit.cli.group import WORDS, Context, Group
from fnlkit.cli.terminal import be_quiet, use_ascii_fallback
from fnlkit.core import own, tested_versions
from fnlkit.core.errors import InputError, Terminated, WorkStopped, how_to_install
from fnlkit.core.retired import refuse_retired

# Summaries by group, defined here so that `fnlkit --help` imports no command.
GROUPS = {
    "The pipe": {
        "partition": "Split a data set over clients.",
        "inject-noise": "Corrupt labels with a noise model.",
        "estimate-noise": "Estimate wrong labels, noise levels and transitions.",
        "train": "Train a model with a federated method.",
        "evaluate": "Evaluate runs: accuracy, corrected labels, traffic.",
    },
    "Your own labels": {
        "audit": "Find sites with wrong labels and the classes they confuse.",
        "review": "Review suspicious samples on a page.",
        "correct": "Apply suggested labels.",
        "consensus": "Combine the votes of several annotators.",
    },
    "Results": {
        "report": "Write a page about runs.",
        "plot": "Plot curves, confusion matrices, LID scores and more.",
        "watch": "Follow a run in another terminal.",
        "reproduce": "Run a recipe or a published table.",
        "predict": "Predict classes of new samples.",
        "export": "Export a model to ONNX or PyTorch.",
    },
    "Real sites": {
        "flower-app": "Write a Flower project for real sites.",
        "site": "Check data, join and review at a site.",
        "sites": "Admit sites, run tasks and show their state.",
    },
    "Tools": {
        "methods": "List and describe components.",
        "data": "List, download and describe data sets.",
        "info": "Print the content of a file.",
        "doctor": "Check the installation and all engines.",
        "demo": "Audit a small example and train on it.",
    },
}
STARTS = {
    "photographs": "fnlkit partition --dataset cifar10 -o fed.npz",
    "your table": "fnlkit partition --dataset cases.csv --scheme sites -o fed.npz",
    "a paper's row": "fnlkit reproduce fedcorr/table3 --dry-run",
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}


class ReaderGone(Exception):
    """The reader of the output pipe is gone; click would turn a BrokenPipeError into exit code 1."""


# The signal with which the program ends, if there is one.
_last_signal: list[int] = []


@atexit.register
def _end_with_signal():
    """End with SIGPIPE, as shells expect from a program whose reader is gone; runs last at exit."""
    if _last_signal:
        signal.signal(_last_signal[0], signal.SIG_DFL)
        os.kill(os.getpid(), _last_signal[0])


class Verbs(Group):
    """A group whose commands are modules of this package with an attribute `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return _talkative(importlib.import_module(f"fnlkit.cli.{name.replace('-', '_')}").command)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        words = tuple(args)
        try:
            context = super().make_context(info_name, args, *more, **extra)
        except BrokenPipeError as error:  # of --help and --version
            raise ReaderGone from error
        context.meta[WORDS] = words
        return context

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands before the options, which few readers of this page need."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])
        with formatter.section("Three starts"):
            formatter.write_dl([(f"{title}:".ljust(width), line) for title, line in STARTS.items()])


def _verbose(ctx, option, count):
    """Count -v before and after the command; from -vv on, print the log of clients."""
    root = ctx.find_root()
    root.obj = (root.obj or 0) + count
    if root.obj > 1:
        from fnlkit.federated.client.failure import show_log

        show_log()


_VERBOSE: dict[str, Any] = {
    "count": True, "expose_value": False, "callback": _verbose,
    "help": "Print details; -vv also prints tracebacks.",
}  # fmt: skip


_QUIET: dict[str, Any] = {
    "is_flag": True, "expose_value": False, "callback": lambda ctx, option, quiet: quiet and be_quiet(True),
    "is_eager": True, "help": "Print results and errors only, no messages.",
}  # fmt: skip


def _talkative(command):
    """Add -v, -q and the translation of errors to a command and its subcommands."""
    for inner in getattr(command, "commands", {}).values():
        _talkative(inner)
    command.context_class = Context
    if all(option.name != "verbose" for option in command.params):
        command.params.append(click.Option(["-v", "--verbose"], **_VERBOSE))
        command.params.append(click.Option(["-q", "--quiet"], **_QUIET))
    return command


def _versions(ctx, option, wanted):
    if wanted:
        from fnlkit.pipeline.doctor import packages

        for name, version in packages([]).items():
            click.echo(f"{name} {version or 'not installed'}")
        ctx.exit()


_VERSION: dict[str, Any] = {
    "is_flag": True, "expose_value": False, "callback": _versions, "is_eager": True,
    "help": "Print the versions of fnlkit, Python and the libraries.",
}  # fmt: skip


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("-v", "--verbose", is_eager=True, **_VERBOSE)
@click.option("--version", **_VERSION)
def group() -> None:
    """Federated learning with noisy labels.

    \b
    Example:
      fnlkit partition | fnlkit inject-noise | fnlkit estimate-noise | fnlkit train -o run.pt && fnlkit evaluate run.pt
    """


def _terminate(signum, frame):
    raise Terminated(128 + signum)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code.

    0: success; 1: a failure of fnlkit, the machine (disk full) or the training (divergence); 2: invalid input; 130: Ctrl-C;
    143: SIGTERM. If the reader of the output is gone, the program ends with SIGPIPE like cat. Errors are one line on stderr;
    with -vv the traceback follows.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    signal.signal(signal.SIGTERM, _terminate)
    # Reset -vv for a program that runs several commands.
    logging.getLogger("fnlkit.federated.client").setLevel(logging.NOTSET)
    use_ascii_fallback()
    be_quiet(False)  # for a program that runs several commands
    # Idle threads of OpenMP (torch, FAISS, scikit-learn) and OpenBLAS (numpy) must sleep: beside a busy process on two cores,
    # threads that wait actively take up to six times the CPU seconds of the work. Read when the libraries are loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    # -v given twice, read without click, so that errors in arguments can show a traceback.
    deep = sum(word.count("v") for word in arguments if re.fullmatch("-v+|--verbose", word)) > 1
    try:
        os.getcwd()
    except FileNotFoundError:  # libraries would end the process with messages of their own
        _fail("the working folder was deleted; change to an existing folder", 2, deep)
    try:
        code = group.main(arguments, prog_name="fnlkit", standalone_mode=False)
        sys.stdout.flush()
        _note_untested_torch()
    except click.exceptions.Exit as done:
        code = done.exit_code
    except Terminated as error:
        sys.exit(error.code)
    except SystemExit as error:
        _fail(f"a part of yours ended the program (SystemExit: {error.code}); let it return or raise instead", 2, deep)
    except (click.Abort, KeyboardInterrupt):
        _say("fnlkit: interrupted")
        sys.exit(130)
    except (ReaderGone, BrokenPipeError):
        # Discard buffered output, which would raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if hasattr(signal, "SIGPIPE"):
            _last_signal.append(signal.SIGPIPE)
        sys.exit(141)
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command
        click.echo(error.ctx.get_help(), err=True)
        sys.exit(2)
    except click.NoSuchOption as error:
        command = error.ctx.command_path if error.ctx else "fnlkit"
        try:
            refuse_retired("option", f"{command.removeprefix('fnlkit ')} {error.option_name}")
        except InputError as retired:
            _fail(str(retired), 2, deep)
        near = [name for name in error.possibilities or () if not name.startswith("--help")]  # near to --label, too
        error = click.NoSuchOption(error.option_name, possibilities=near)
        _fail(f"{error.format_message()} (see {command} --help)", 2, deep)
    except click.UsageError as error:
        _fail(error.format_message() + (f" (see {error.ctx.command_path} --help)" if error.ctx else ""), 2, deep)
    except (InputError, click.ClickException) as error:
        _fail(error.format_message() if isinstance(error, click.ClickException) else str(error), 2, deep)
    except WorkStopped as error:
        _fail(str(error), 1, deep)
    except Exception as error:  # noqa: BLE001 - report every other error in one line
        if mistake := own.mistake(error):
            _fail(str(mistake), 2, deep)
        if isinstance(error, OSError):
            _fail(f"{error.filename}: " * bool(error.filename) + (error.strerror or str(error)), 1, deep)
        if isinstance(error, ModuleNotFoundError) and (missing := how_to_install(error.name or "")):
            _fail(missing, 2, deep)
        if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
            _fail("there is not enough memory for this; a smaller network, cohort or batch needs less", 1, deep)
        _fail(f"internal error: {type(error).__name__}: {error}; run again with -vv and report the traceback", 1, deep)
    sys.exit(code if isinstance(code, int) else 0)


def _note_untested_torch():
    if "torch" in sys.modules:  # loaded by the command
        version = str(sys.modules["torch"].__version__)
        if tested_versions.is_newer(version):
            from fnlkit.datasets import cache_folder

            if text := tested_versions.note_once(version, cache_folder()):
                _say(text)


def _say(text):
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass


def _fail(message, code, deep):
    from fnlkit.artifacts.display import plain  # a message can contain text from a file

    if deep:
        import traceback

        _say("\n".join(map(plain, traceback.format_exc().splitlines())))
    _say("fnlkit: error: " + plain(" ".join(str(message).split())))
    try:
        sys.stdout.flush()
    except OSError:
        # /dev/full: discard output that cannot be written, so that the exit does not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)

"""The command `fnlkit`: one verb a file, imported when it is called."""

import importlib
import logging
import os
import signal
import sys

import click

from fnlkit import own
from fnlkit.errors import InputError, Terminated, WorkStopped, nearest

# Summaries stand here so that `fnlkit --help` imports no command.
COMMANDS = {
    "partition": "Split a data set over clients and write a federation.",
    "inject-noise": "Corrupt the labels of a federation by a noise model.",
    "estimate-noise": "Judge labels, clients and the noise transition.",
    "train": "Train one model over a federation and write a run.",
    "evaluate": "Judge a run: accuracy, corrections, estimates, traffic.",
    "audit": "Say which sites have wrong labels, and of which kind.",
    "review": "Let a person look at suspicious samples and decide.",
    "correct": "Act on suggested labels without a person.",
    "predict": "Predict the classes of new samples.",
    "export": "Write a run's model for other programs.",
    "plot": "Draw runs: curves, confusions, LID scores, noise levels.",
    "embed": "Compute embeddings of a data set's samples.",
    "methods": "List methods, or show what one does and sends.",
    "reproduce": "Run a published experiment and print both numbers.",
    "data": "List, fetch and describe data sets.",
    "info": "Show any artefact as a table.",
    "doctor": "Say what there is on this machine and what works.",
}


class ReaderGone(Exception):
    """The pipe that we write to was closed; click would turn a BrokenPipeError into exit code 1 before we see it."""


class Verbs(click.Group):
    """A group whose commands are modules of this package, each with an attribute `command`."""

    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, name):
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"fnlkit.cli.{name.replace('-', '_')}").command

    def make_context(self, *arguments, **more):
        try:
            return super().make_context(*arguments, **more)
        except BrokenPipeError as error:  # of --help and --version
            raise ReaderGone from error

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx, args):
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise InputError(f"no command {args[0]!r}{nearest(args[0], COMMANDS)}; known: {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("-v", "--verbose", count=True, help="Say more; -vv shows the traceback of an error.")
@click.version_option(package_name="fnlkit")
@click.pass_context
def group(ctx, verbose):
    """Federated learning with noisy labels, as a pipe of small commands.

    \b
    Example:
      fnlkit partition | fnlkit inject-noise | fnlkit estimate-noise | fnlkit train -o run.pt && fnlkit evaluate run.pt
    """
    ctx.obj = verbose
    # One command's -vv is not the next one's, where a program calls several.
    logging.getLogger("fnlkit.client").setLevel(logging.NOTSET)
    if verbose > 1:
        from fnlkit.client.failure import show_log

        show_log()


def _terminated(signum, frame):
    raise Terminated(128 + signum)


def main(arguments=None):
    """Run the command line and leave with its exit code.

    0 done; 1 a failure of ours, of the machine (disk full) or of the training (divergence); 2 a mistake in what was
    given; 130 Ctrl-C; 143 SIGTERM.  Errors are one line on stderr; with -vv the traceback follows.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    signal.signal(signal.SIGTERM, _terminated)
    deep = "-vv" in arguments or arguments[:2] == ["-v", "-v"]
    try:
        code = group.main(arguments, prog_name="fnlkit", standalone_mode=False)
        sys.stdout.flush()
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
        # The reader went away; the interpreter's own flush at exit must not complain about it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except click.UsageError as error:
        _fail(error.format_message() + (f" (see {error.ctx.command_path} --help)" if error.ctx else ""), 2, deep)
    except (InputError, click.ClickException) as error:
        _fail(error.format_message() if isinstance(error, click.ClickException) else str(error), 2, deep)
    except WorkStopped as error:
        _fail(str(error), 1, deep)
    except OSError as error:
        if mistake := own.mistake(error):
            _fail(str(mistake), 2, deep)
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}", 1, deep)
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line, not a page
        if mistake := own.mistake(error):
            _fail(str(mistake), 2, deep)
        _fail(f"internal error: {type(error).__name__}: {error}; run again with -vv and report the traceback", 1, deep)
    sys.exit(code if isinstance(code, int) else 0)


def _say(text):
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass


def _fail(message, code, deep):
    if deep:
        import traceback

        traceback.print_exc()
    _say("fnlkit: error: " + " ".join(str(message).split()))
    try:
        sys.stdout.flush()
    except OSError:
        # /dev/full: what could not be written stays unwritten; the exit must not say it twice.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)

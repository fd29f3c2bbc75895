"""Groups of commands, which know the commands of earlier versions, and the context in which a command runs."""

import re
import shlex
from itertools import zip_longest

import click

from fnlkit.core.errors import InputError, WorkStopped, nearest
from fnlkit.core.retired import refuse_retired

WORDS = "fnlkit.words"  # key of a context: the words after `fnlkit`
_CALL = re.compile(r"fnlkit\.([a-z_]+)\((?:(\w+)=([^()]*)|([A-Z]*))\)")
# Commands and options with other names than their functions and parameters.
_NAMES = {"export_review": "review export", "import_review": "review import", "listed": "list"}


class Context(click.Context):
    """Context of a command, in which an error names options."""

    def __exit__(self, kind, error, trace):
        if isinstance(error, (InputError, WorkStopped)):
            error.args = (name_options(str(error), self.command),)
        return super().__exit__(kind, error, trace)


def name_options(text: str, command: click.Command | None = None) -> str:
    """Replace parameters in a message of the library by the options of a command, by default the running one.

    A call of the library with at most one argument becomes a command.

    Examples
    --------
    >>> from fnlkit.cli.train import command
    >>> name_options("`lr` is -1.0; write `engine='stacked'` or `overwrite=True`, or `usual`", command)
    '--lr is -1.0; write --engine stacked or --overwrite, or `usual`'
    >>> name_options("make it with `fnlkit.partition(public=0.1)`")
    'make it with `fnlkit partition --public 0.1`'
    >>> name_options("`fnlkit.import_review()`, `fnlkit.correct(listed=True)` and `fnlkit.partition(FILE)`")
    '`fnlkit review import`, `fnlkit correct --list` and `fnlkit partition --dataset FILE`'
    """
    if command is None:
        context = click.get_current_context(silent=True)
        command = context.command if context else click.Command(None)
    known = [option for option in command.params if isinstance(option, click.Option)]
    options = {flag.lstrip("-").replace("-", "_"): option for option in known for flag in option.opts}  # --key is of `keys`
    options |= {option.name: option for option in known}
    renamed, *parts = text.split("`")
    for quoted, rest in zip_longest(parts[::2], parts[1::2]):
        name, mark, value = quoted.partition("=")
        if rest is not None and (call := _CALL.fullmatch(quoted)):
            first = "dataset" if call[1] == "partition" and call[4] else ""
            function, parameter = (_NAMES.get(word, word).replace("_", "-") for word in (call[1], call[2] or first))
            value = (call[3] or call[4] or "").strip("'").removesuffix("...")
            words = [function, parameter and f"--{parameter}", value and value != "True" and shlex.quote(value)]
            renamed += f"`{' '.join(['fnlkit', *filter(None, words)])}`{rest}"
        elif rest is None or name not in options:
            renamed += f"`{quoted}" + ("" if rest is None else f"`{rest}")
        else:
            option = options[name]
            value = shlex.quote(value.strip("'")) if mark and not option.is_flag else ""
            renamed += f"{option.opts[0]} {value}".rstrip() + rest
    return renamed


class Group(click.Group):
    """A group whose unknown commands end with the nearest name, or with what to do instead of a removed one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            refuse_retired("command", f"{ctx.command_path} {args[0]}".removeprefix("fnlkit "))
            raise InputError(f"no command {args[0]!r}; `{ctx.command_path} --help` lists them{nearest(args[0], known)}")
        return super().resolve_command(ctx, args)

"""Groups of commands, which know the commands of earlier versions."""

from __future__ import annotations

import click

from fnlkit.errors import InputError, nearest
from fnlkit.retired import refuse_retired


class Group(click.Group):
    """A group whose unknown commands end with the nearest name, or with what to do instead of a removed one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            refuse_retired("command", f"{ctx.command_path} {args[0]}".removeprefix("fnlkit "))
            raise InputError(f"no command {args[0]!r}{nearest(args[0], known)}; `{ctx.command_path} --help` lists them")
        return super().resolve_command(ctx, args)

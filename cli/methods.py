"""`fnlkit methods`: which methods there are, and what one does and sends."""

import inspect

import click

from fnlkit.cli.plumbing import out_console


@click.command()
@click.argument("name", required=False)
def command(name):
    """List methods with their sources, or show one: what it does, its parameters, what leaves a client.

    \b
    Example:
      fnlkit methods fedcorr
    """
    from fnlkit import catalogue, parameters, presets
    from fnlkit.spec import find, written

    say = out_console()
    if name is None:
        from rich.table import Table

        table = Table("name", "what it does", "source", box=None)
        for key in catalogue.METHODS:
            first, source = _headline(find(key, catalogue.METHODS, "method"))
            table.add_row(key, first, source)
        say.print(table)
        for title, parts in (
            ("loss", catalogue.LOSSES),
            ("optimizer", catalogue.OPTIMIZERS),
            ("aggregator", catalogue.AGGREGATORS),
            ("selector", catalogue.SELECTORS),
        ):
            say.print(f"--{title}: {', '.join(parts)}")
        say.print(f"--preset: {', '.join(presets.names())}")
        return
    function = find(name, catalogue.METHODS, "method")
    module = inspect.getmodule(function)
    say.print(inspect.getdoc(module))
    say.print()
    say.print(written(name, function, catalogue._BY_THE_RUN))
    say.print(inspect.getdoc(function))
    if limits := parameters.kinds(function):
        say.print("\nParameters may be:")
        for key, kind in limits.items():
            say.print(f"  {key}: {parameters.described(kind)}")
    sends = getattr(module, "SENDS", {})
    say.print("\nWhat leaves a client:")
    for reply, what in ({"weights": "the local model, every round"} | sends).items():
        say.print(f"  {reply}: {what}")


def _headline(function):
    """Return (what a method does in its docstring's first paragraph, the citation in its module's)."""
    first = (inspect.getdoc(function) or "").partition("\n\n")[0]
    source = inspect.getdoc(inspect.getmodule(function)).partition("\n")[2]
    return " ".join(first.split()).rstrip("."), " ".join(source.split())

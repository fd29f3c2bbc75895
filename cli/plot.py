"""`fnlkit plot`: look at runs."""

import click

from fnlkit.cli.plumbing import console


@click.command()
@click.argument("runs", nargs=-1, metavar="RUN.pt...", required=True)
@click.option(
    "--kind", default="accuracy", show_default=True, help="What to draw: accuracy, labels, lid, noise or memorization."
)
@click.option("-o", "--output", required=True, metavar="FIGURE", help="The figure to write, a .png, .svg or .pdf.")
def command(runs, kind, output):
    """Draw runs: learning curves, label confusions, LID scores, noise levels, memorization.

    Needs the extra `plot` (matplotlib).

    \b
    Example:
      fnlkit plot fedavg-0.pt fedcorr-0.pt -o curves.svg
    """
    from fnlkit.artefacts.run import Run
    from fnlkit.results import plots

    plots.plot([(path, Run.read(path)) for path in runs], kind, output)
    console().print(f"wrote {output}", style="dim")

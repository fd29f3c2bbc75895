"""`fnlkit plot`: look at runs."""

import click

from fnlkit.cli.plumbing import console


@click.command()
@click.argument("runs", nargs=-1, metavar="FILE...", required=True)
@click.option(
    "--kind",
    default=None,
    show_default="accuracy; of a federation, estimates",
    help="What to draw: accuracy, labels, lid, noise, memorization or estimates.",
)
@click.option("-o", "--output", required=True, metavar="FIGURE", help="The figure to write, a .png, .svg or .pdf.")
def command(runs, kind, output):
    """Draw runs: learning curves, label confusions, LID scores, noise levels, memorization; or a federation's estimates.

    Needs the extra `plot` (matplotlib).

    \b
    Example:
      fnlkit plot fedavg-0.pt fedcorr-0.pt -o curves.svg
      fnlkit plot judged.npz -o estimates.png
    """
    from fnlkit.artefacts.federation import Federation
    from fnlkit.artefacts.run import Run
    from fnlkit.results import plots

    if kind is None:
        kind = "estimates" if all(path.endswith(".npz") for path in runs) else "accuracy"
    read = Federation.read if kind == "estimates" else Run.read
    plots.plot([(path, read(path)) for path in runs], kind, output)
    console().print(f"wrote {output}", style="dim")

"""`fnlkit demo`: audit a small federation with wrong labels and train on it."""

import shlex
from pathlib import Path

import click

from fnlkit.artifacts.display import plain
from fnlkit.cli.plumbing import console
from fnlkit.core.errors import InputError

LINES = """
partition --clients 6 -o {folder}/fed.npz
inject-noise {folder}/fed.npz --noise 'clients(rho=0.4, tau=0.3)' -o {folder}/noisy.npz
audit {folder}/noisy.npz --html {folder}/audit.html -o {folder}/judged.npz
train {folder}/noisy.npz --method fedsums -o {folder}/run.pt
evaluate {folder}/run.pt
"""


@click.command()
@click.option("-o", "--output", default="fnlkit-demo", show_default=True, metavar="FOLDER", help="Folder for the files.")
def command(output: str) -> None:
    """Find the sites with wrong labels in a small example, and train a model in spite of them.

    Six sites have the embedded handwritten digits; noise makes some labels of some sites wrong. The five commands are printed
    with their results. They take ten seconds, and need no torch and no network.

    \b
    Example:
      fnlkit demo
    """
    folder = Path(output)
    if folder.exists():
        raise InputError(f"{plain(output)} exists; remove it or write another folder", parameter="output")
    folder.mkdir(parents=True)
    group = click.get_current_context().find_root().command
    for line in LINES.format(folder=shlex.quote(output)).strip().splitlines():
        click.echo(f"$ fnlkit {plain(line)}")
        group.main(shlex.split(line), prog_name="fnlkit", standalone_mode=False)
    console().print(f"Open {plain(output)}/audit.html in a browser: the sites, and their suspicious samples.", soft_wrap=True)

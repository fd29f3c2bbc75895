"""`fnlkit flower-app`: write a project for real sites."""

import click
from click.core import ParameterSource

from fnlkit.cli.plumbing import console, setting_options


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--dataset", metavar="NAME|PATH", required=True,
              help="Data like those of the sites; kind, shape, classes and scale are written into the project, "
              "samples are not.")  # fmt: skip
@click.option("--sites", type=click.IntRange(min=1), required=True, help="Number of sites; each is a client.")
@click.option("--wait", type=click.FloatRange(min=0), default=600.0, show_default=True, metavar="SECONDS",
              help="Time that the server waits for all sites before the run fails.")  # fmt: skip
@click.option("--client-timeout", "timeout", type=click.FloatRange(min=1), default=600.0, show_default=True, metavar="SECONDS",
              help="Time limit of a site per round; then the round continues without the site.")  # fmt: skip
@click.option("--max-samples", type=click.IntRange(min=1), default=10_000, show_default=True, metavar="N",
              help="Largest number of samples of a site; a site that states more is refused. A smaller limit makes "
              "--protect secagg more precise.")  # fmt: skip
@click.option("--key", "keys", multiple=True, metavar="FILE",
              help="Public key of a site (site.key.pub). Repeat it for each site in the order of the client numbers; each "
              "number then requires this key.")  # fmt: skip
@setting_options()
@click.pass_context
def command(ctx, folder, dataset, sites, wait, timeout, max_samples, keys, **options):
    """Write a Flower project for training over real sites into a new folder DIR.

    The ServerApp runs the method; the ClientApp trains on the table, folder of images or npz of a site and sends only declared
    replies. Each site keeps a copy of DIR/pyproject.toml as the agreed settings. See docs/deployment.md for TLS and keys.

    \b
    Example:
      fnlkit flower-app project --dataset digits --sites 3 --method fedcorr --rounds 20
    """
    from fnlkit.datasets.loading import loaded
    from fnlkit.deploy.project import write_project
    from fnlkit.experiment.settings import Settings

    given = {name: v for name, v in options.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    about = {"sites": sites, "wait": wait, "timeout": timeout, "max_samples": max_samples, "keys": keys}
    files = write_project(folder, loaded(dataset), Settings(**given), **about)
    for path in files:
        console().print(f"wrote {path}", style="dim", soft_wrap=True)

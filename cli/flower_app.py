"""`fnlkit flower-app`: write a project for real sites."""

import click
from click.core import ParameterSource

from fnlkit.cli.plumbing import console, setting_options


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--dataset", metavar="NAME|PATH", required=True,
              help="Samples of yours such as the sites have: their kind, shape, classes and scale are "
              "written down.")  # fmt: skip
@click.option("--sites", type=click.IntRange(min=1), required=True, help="How many sites take part, each as one client.")
@click.option("--wait", type=click.FloatRange(min=0), default=600.0, show_default=True, metavar="SECONDS",
              help="How long the server waits for all sites to come before it gives up.")  # fmt: skip
@click.option("--client-timeout", "timeout", type=click.FloatRange(min=1), default=600.0, show_default=True, metavar="SECONDS",
              help="How long one site may take in a round before the round goes on without it.")  # fmt: skip
@click.option("--max-samples", type=click.IntRange(min=1), default=10_000, show_default=True, metavar="N",
              help="Largest number of samples that a site may count for; a site that states more is refused. A bound near the "
              "largest site keeps --protect secagg precise.")  # fmt: skip
@click.option("--key", "keys", multiple=True, metavar="FILE",
              help="Public key of a site (site.key.pub), once for each site in the order of their numbers: a site then takes "
              "part under its own number alone.")  # fmt: skip
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

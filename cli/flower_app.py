"""`fnlkit flower-app`: write a project for real sites."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from fnlkit.cli.plumbing import console, printable, setting_options
from fnlkit.datasets.loading import to_dataset
from fnlkit.errors import InputError
from fnlkit.sites.identity import parse_address


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
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Name of a site. Repeat it for each site in the order of the client numbers. Default: site-0, site-1 and so on.",
)
@click.option(
    "--address",
    metavar="HOST[:PORT]",
    default=None,
    help="Address of the server. With it, certificates and a folder to hand over to each site are written too.",
)
@click.option("--demo", is_flag=True,
              help="Also give each site a part of the data with wrong labels, and write DIR/demo.sh, which starts the server "
              "and all sites on this machine.")  # fmt: skip
@click.option(
    "--task",
    "task",
    type=click.Choice(["train", "audit", "estimate", "evaluate"]),
    default="train",
    show_default=True,
    help="Task of a run, unless `fnlkit sites run --task` selects another one.",
)
@click.option("--only-task", is_flag=True, help="Sites agree to this task only. Default: to all four tasks.")
@click.option(
    "--open-tasks",
    is_flag=True,
    help="Agree to audit, estimate and evaluate although the training masks updates or randomizes label counts.",
)
@click.option("--estimator", metavar="SPEC", default="em", show_default=True, help="Estimator of the task estimate.")
@click.option("--folds", type=click.IntRange(min=2), default=5, show_default=True, help="Number of models of an audit.")
@click.option(
    "--audit-rounds",
    type=click.IntRange(min=1),
    default=25,
    show_default=True,
    help="Training rounds of each model of an audit or estimate.",
)
@click.option(
    "--per-sample",
    is_flag=True,
    help="Sites agree to reply with a number for each sample: hashes that find copies between sites, losses.",
)
@click.option("--backbone", metavar="SPEC", default="",
              help="Each site computes features of its images with this backbone (as for `fnlkit train`); models learn from "
              "these features.")  # fmt: skip
@click.option(
    "--scale",
    "scaling",
    type=click.Choice(["project", "sites"]),
    default="project",
    show_default=True,
    help="Scale of vectors and tables: that of --dataset, or from sums of the sites (`fnlkit sites run --task scale`).",
)
@click.option("--sums-epsilon", type=float, default=None, metavar="EPSILON",
              help="Sites agree to an audit by mail only with noise (`site summarize --epsilon`), and to at most this epsilon "
              "for all files of a site. DATASET must then hold no sample of a site.")  # fmt: skip
@click.option("--sums-delta", type=float, default=1e-5, show_default=True, metavar="DELTA", help="Delta of --sums-epsilon.")
@click.option("--publisher", metavar="NAME", default="fnlkit", show_default=True,
              help="Account at Flower's hub that publishes the project with `flwr app publish`.")  # fmt: skip
@setting_options()
@click.pass_context
def command(
    ctx: click.Context,
    folder: str,
    dataset: str,
    sites: int,
    wait: float,
    timeout: float,
    max_samples: int,
    keys: tuple[str, ...],
    names: tuple[str, ...],
    address: str | None,
    demo: bool,
    task: str,
    only_task: bool,
    open_tasks: bool,
    estimator: str,
    folds: int,
    audit_rounds: int,
    per_sample: bool,
    backbone: str,
    scaling: str,
    sums_epsilon: float | None,
    sums_delta: float,
    publisher: str,
    **options: Any,
) -> None:
    """Write a Flower project for real sites into a new folder DIR: audit, estimate, train and evaluate.

    The ClientApp computes on the table, folder of images or npz of a site and sends only declared replies. With --address, DIR
    also gets coordinator/ with certificates and the command that starts the server, and sites/NAME/ to hand over to each site.
    See docs/deployment.md.

    \b
    Example:
      fnlkit flower-app project --dataset digits --sites 3 --address localhost --demo
    """
    from fnlkit.experiment.settings import Settings
    from fnlkit.sites import handover
    from fnlkit.sites.project import write_project
    from fnlkit.sites.terms import TASKS, Judging

    if demo and address is None:
        raise InputError("--demo: needs the address of the server; add --address localhost")
    given = {name: v for name, v in options.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    judging = Judging((task,) if only_task else TASKS, estimator, folds, audit_rounds, per_sample, open_tasks)
    about: dict[str, Any] = {
        "sites": sites,
        "wait": wait,
        "timeout": timeout,
        "max_samples": max_samples,
        "keys": keys,
        "names": names,
    }
    about |= {"backbone": backbone, "scaling": scaling, "sums": None if sums_epsilon is None else (sums_epsilon, sums_delta)}
    about |= {"publisher": publisher}
    data, place = to_dataset(dataset), address and parse_address(address)
    known = names or [f"site-{k}" for k in range(sites)]
    more = (lambda agreed: handover.parts(place, known, agreed)) if place else None
    files = write_project(folder, data, Settings(**given), **about, name=task, judging=judging, more=more)
    if demo:
        handover.make_demo(folder, data, known, given.get("seed", 0))
    for note in data.notes:
        console().print(printable(f"{note[0].upper()}{note[1:]}."), style="dim", soft_wrap=True)
    for text in _describe_files(files, folder, known if place else (), demo):
        console().print(printable(text), style="dim", soft_wrap=True)


def _describe_files(files, folder, sites, demo):
    """Yield lines that name the written files and the next step."""
    yield from (f"wrote {path}" for path in files)
    if not sites:
        yield "next: see docs/deployment.md; with --address, certificates and folders for the sites are written, too"
        return
    yield f"wrote {folder}/coordinator: certificates and start.sh, for this machine only"
    yield from (f"wrote {folder}/sites/{name}: send this folder to {name}" for name in sites)
    if demo:
        yield f"wrote {folder}/demo.sh"
        yield f"next: {folder}/demo.sh starts the server and all sites; then `fnlkit sites run {folder}`"
        return
    yield (f"next: start the server with {folder}/coordinator/start.sh, send the folders, and admit the keys that the sites "
           f"return: `fnlkit sites admit {folder} SITE.key.pub`")  # fmt: skip

"""`fnlkit flower-app`: write a project for real sites."""

from typing import Any

import click
from click.core import ParameterSource

from fnlkit.cli.dataclass_options import options_of
from fnlkit.cli.plumbing import console, printable
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.loading import to_dataset
from fnlkit.experiment.settings import Settings
from fnlkit.sites.identity import check_names, parse_address

# Tasks in the order in which the first of them is suggested, with their files.
_FIRST = {"scale": "-o scale.json", "audit": "-o audit.json", "train": "-o run.pt", "evaluate": "--run run.pt -o evaluate.json"}
# Options of the project that are no settings of the training.
_OF_PROJECT = ("open_tasks", "backbone", "scaling", "wait", "timeout", "max_samples")


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
@click.option("--name", "names", multiple=True, metavar="NAME",
              help="Name of a site. Repeat it for each site in the order of the client numbers. Default: site-0, site-1 and "
              "so on.")  # fmt: skip
@click.option("--address", metavar="HOST[:PORT]", default=None,
              help="Address of the server. With it, certificates and a folder to hand over to each site are written "
              "too.")  # fmt: skip
@click.option("--demo", is_flag=True,
              help="Also give each site a part of the data with wrong labels, and write DIR/demo.sh, which starts the server "
              "and all sites on this machine.")  # fmt: skip
@click.option("--task", "tasks", type=click.Choice(["train", "audit", "evaluate"]), multiple=True,
              help="Sites agree to this task; repeat it for more. Default: to all tasks.")  # fmt: skip
@click.option("--open-tasks", is_flag=True,
              help="Agree to audit and evaluate although the training masks updates or randomizes label counts.")  # fmt: skip
@click.option("--backbone", metavar="SPEC", default="",
              help="Each site computes features of its images with this backbone (as for `fnlkit train`); models learn from "
              "these features.")  # fmt: skip
@click.option("--scale", "scaling", type=click.Choice(["project", "sites"]), default="project", show_default=True,
              help="Scale of vectors and tables: that of --dataset, or from sums of the sites (`fnlkit sites run --task "
              "scale`).")  # fmt: skip
@click.option("--sums-epsilon", type=float, default=None, metavar="EPSILON",
              help="Sites agree to an audit only with noise: both replies are (epsilon, delta)-differentially private. DATASET "
              "must then hold no sample of a site.")  # fmt: skip
@click.option("--sums-delta", type=float, default=1e-5, show_default=True, metavar="DELTA", help="Delta of --sums-epsilon.")
@click.option("--sums-budget", type=float, default=None, metavar="EPSILON",
              help="Largest epsilon of all audits of a site together. Default: --sums-epsilon.")  # fmt: skip
@options_of(Settings, checked=False)
@click.pass_context
def command(
    ctx: click.Context,
    folder: str,
    dataset: str,
    sites: int,
    keys: tuple[str, ...],
    names: tuple[str, ...],
    address: str | None,
    demo: bool,
    tasks: tuple[str, ...],
    **options: Any,
) -> None:
    """Write a Flower project for real sites into a new folder DIR: audit, train and evaluate.

    The ClientApp computes on the table, folder of images or npz of a site and sends only declared replies. With --address, DIR
    also gets coordinator/ with certificates and the command that starts the server, and sites/NAME/ to hand over to each site.
    See docs/deployment.md.

    \b
    Example:
      fnlkit flower-app project --dataset digits --sites 3 --address localhost --demo
    """
    from fnlkit.sites import flower_app, folders
    from fnlkit.sites.project import FEWEST, TASKS, agreed_tasks

    if demo and address is None:
        raise InputError("--demo: needs the address of the server; add --address localhost")
    sums = {name: options.pop(name) for name in ("sums_epsilon", "sums_delta", "sums_budget")}
    for name, what in (("sums_budget", "limit"), ("sums_delta", "delta")) if sums["sums_epsilon"] is None else ():
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise InputError(f"is the {what} of --sums-epsilon; add it", parameter=name)
    of_project = {name: options.pop(name) for name in _OF_PROJECT} | ({} if sums["sums_epsilon"] is None else sums)
    written = {name: v for name, v in options.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    data, place = to_dataset(dataset), address and parse_address(address)
    known = list(names or (f"site-{k}" for k in range(sites)))
    check_names(known, sites)
    fingerprints = list(map(flower_app.fingerprint_of, keys))
    project = flower_app.describe(
        data, Settings(**written), names=known, keys=fingerprints, tasks=list(tasks or TASKS), **of_project
    )
    more = (lambda agreed: folders.parts(place, known, agreed)) if place else None
    files = flower_app.write_project(folder, project, more=more)
    if demo:
        folders.make_demo(folder, data, known, written.get("seed", 0))
    for note in data.notes:
        console().print(printable(f"{note[0].upper()}{note[1:]}."), style="dim", soft_wrap=True)
    agreed = agreed_tasks(project, Settings(**written))
    first = next((task for task in _FIRST if task in agreed and (task != "audit" or sites >= FEWEST)), agreed[0])
    for text in _describe_files(files, folder, known if place else (), demo, first, options["protect"] != "none"):
        console().print(printable(text), style="dim", soft_wrap=True)


def _describe_files(files, folder, sites, demo, task, masked):
    """Yield lines that name the written files and the next step."""
    yield from (f"wrote {path}" for path in files)
    run = f"fnlkit sites run {folder} --task {task} {_FIRST[task]}"
    if not sites:
        by_mail = "" if masked and task == "train" else f"next, by mail: {run} --folder mail; "
        yield f"{by_mail}over Flower: write the project again with --address HOST"
        return
    yield f"wrote {folder}/coordinator: certificates and start.sh, for this machine only"
    yield f"wrote {folder}/sites/NAME: send each site its folder: {list_names(sites)}"
    if demo:
        yield f"wrote {folder}/demo.sh"
        yield f"next: {folder}/demo.sh starts the server and all sites; then `{run}`"
        return
    yield (f"next: start the server with {folder}/coordinator/start.sh, send the folders, and admit the keys that the sites "
           f"return: `fnlkit sites admit {folder} SITE.key.pub`")  # fmt: skip

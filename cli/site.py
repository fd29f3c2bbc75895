"""`fnlkit site`: commands for the person at a site."""

import json
import os
from collections.abc import Callable
from typing import Any

import click

import fnlkit
from fnlkit.artifacts import files, saving
from fnlkit.artifacts.federation import Federation
from fnlkit.cli.dataclass_options import options_of
from fnlkit.cli.group import Group
from fnlkit.cli.plumbing import (
    Table,
    caution,
    console,
    control_option,
    json_option,
    must_differ,
    out_console,
    printable,
    sample_column_option,
    seed_option,
    takes_file,
)
from fnlkit.cli.review import GUARANTEE, describe_list, describe_selection
from fnlkit.core.errors import InputError
from fnlkit.pipeline.reviewing import Reviewing
from fnlkit.sites.site import processes

project_option = click.option("--project", "folder", metavar="FOLDER", default=".", show_default=True,
                              help="Folder that the coordinator sent.")  # fmt: skip
leave_out_option = click.option("--leave-out", metavar="CLASS,...", default="",
                                help="Classes of this site that the project does not have; their samples are not "
                                     "used.")  # fmt: skip


def _source(data, site, what="DATA"):
    """Path of the named data, by default of the data with which a site has joined."""
    if not (data or site["data"]):
        raise InputError(f"{what}: this site has not joined; name the data, or run `fnlkit site join` first")
    return os.path.abspath(data) if data else site["data"]


def place_options(f: Callable[..., Any]) -> Callable[..., Any]:
    """Add --project and --site, which name a site's folder or the project's file."""
    f = click.option("--site", "name", metavar="NAME", default="", help="Name of this site, if --project is a file.")(f)
    return click.option("--project", "folder", metavar="PATH", default=".", show_default=True,
                        help="Folder that the coordinator sent, or the project's project.json.")(f)  # fmt: skip


@click.group(cls=Group)
def command() -> None:
    """Take part in a federation: check the data, join, review labels, and list everything that has left.

    \b
    Example:
      fnlkit site check ours.csv --project from-coordinator
      fnlkit site join from-coordinator --data ours.csv
    """


@command.command()
@click.argument("data", metavar="DATA")
@project_option
@leave_out_option
@json_option
def check(data: str, folder: str, leave_out: str, as_json: bool) -> None:
    """Read DATA, compare it with the project, and print exactly what would leave. Nothing is sent.

    \b
    Example:
      fnlkit site check ours.csv --project from-coordinator
    """
    from fnlkit.sites import folders
    from fnlkit.sites.site import preview, steps

    site = folders.read_site(folder)
    description = preview.describe_data(data, site["agreed"])
    if not as_json:
        for line in _describe(description):
            out_console().print(line)
    rows = preview.list_replies(data, site["agreed"], leave_out or site["leave_out"], site["memory"])
    tasks = preview.agreed_tasks(site["agreed"])
    requests = [row for task in tasks for row in steps.table(task)]
    if as_json:
        answered = [{"task": row.task, "step": row.step, "replies": row.replies, "requests": row.requests,
                     "fewest": row.fewest, "limits": row.limits, "noise": row.noise, "once": row.once}
                    for row in requests]  # fmt: skip
        click.echo(json.dumps({**description, "leaves": rows, "requests": answered}))
        return
    cells = [(row["task"], row["name"], "depends" if row["bytes"] is None else row["bytes"], row["when"], row["what"])
             for row in rows]  # fmt: skip
    always = "the client number, the number of samples, the version of fnlkit and codes of failures"
    out_console().print(f"The data fit the project. These replies can leave this machine, in addition to {always}:")
    out_console().print(Table("task", "reply", "bytes at most", "when", "content", rows=cells))
    if any(task.name == "train" and task.plan.protection is not None for task in tasks):
        out_console().print("Replies of train leave masked: the server receives only their mean over at least three sites.")
    out_console().print("The site answers these requests, for this agreement and in these numbers, and refuses all others:")
    out_console().print(Table(*steps.TITLES, rows=[row.cells for row in requests]))


def _describe(data):
    yield f"{data['samples']:,} samples with labels, {data['kind']} {tuple(data['shape'])}; {data['test']:,} test samples"
    yield Table("class", "samples", rows=[(printable(name), count) for name, count in data["classes"].items()])
    for text in data["notes"]:
        yield printable(f"Note: {text}")
    for text in data["problems"]:
        yield printable(f"Problem: {text}.")


@command.command()
@click.argument("folder", metavar="PROJECT")
@click.option("--data", required=True, metavar="DATA", help="Table, folder of images or npz of this site.")
@leave_out_option
def join(folder: str, data: str, leave_out: str) -> None:
    """Write the key, the certificate and the start command of this site into PROJECT, with a systemd unit and a Containerfile.

    The data are checked first, and nothing is sent. Send only SITE.key.pub to the coordinator.

    \b
    Example:
      fnlkit site join from-coordinator --data ours.csv
    """
    from fnlkit.sites import flower_app, folders
    from fnlkit.sites.site import preview

    site = folders.read_site(folder)
    preview.list_replies(data, site["agreed"], leave_out, site["memory"])
    if site["data"] and site["data"] != os.path.abspath(data) and (private := folders.list_private_files(site)):
        names = ", ".join(os.path.relpath(path, site["folder"]) for path in private)
        caution(
            f"{names}: kept from an earlier `fnlkit site join` with {site['data']}; if you did not join before, remove them"
        )
    for path in folders.join(folder, data, leave_out):
        console().print(f"wrote {path}", style="dim", soft_wrap=True)
    public = os.path.join(site["folder"], f"{site['name']}.key.pub")
    click.echo(f"send to the coordinator: {public}")
    click.echo(f"its fingerprint, to compare by telephone: {flower_app.fingerprint_of(public)}")
    click.echo(f"start this site: {os.path.join(site['folder'], 'start.sh')}")


@command.command()
@click.argument("data", metavar="[DATA]", required=False)
@place_options
@click.option("-o", "--output", default="review", show_default=True, metavar="FOLDER",
              help="Folder for review.html and decisions.csv.")  # fmt: skip
@click.option("--decisions", "table", default=None, metavar="FILE",
              help="Import this table or export of Label Studio (.json) or CVAT (.xml) instead of decisions.csv.")  # fmt: skip
@control_option
@sample_column_option
@options_of(Reviewing, "budget", *GUARANTEE)
@click.option("--list", "listed", is_flag=True,
              help="After the import, also correct the labels of the list with the guarantee.")  # fmt: skip
@seed_option
def review(data: str | None, folder: str, name: str, output: str, table: str | None, listed: bool, **options: Any) -> None:
    """Write a page with the suspicious samples of the last audit; after the decisions, import them.

    The first call writes review.html and decisions.csv. Open the page in a browser, decide, and save decisions.csv in the same
    folder. The second call imports the decisions: the next run uses the reviewed labels. The received labels and all imported
    tables are kept in the folder `memory`, and a further review adds to the decisions. Nothing leaves this machine.

    \b
    Example:
      fnlkit site review --project from-coordinator -o review --budget 100 --guarantee 0.2
    """
    from fnlkit.audits.reviews import read_reviews
    from fnlkit.sites import folders, project
    from fnlkit.sites.samples import load_for_display
    from fnlkit.sites.site import labels

    site = folders.locate_site(folder, name)
    source = _source(data, site)
    decisions = table or os.path.join(output, "decisions.csv")
    memory, columns = site["memory"], {name: options.pop(name) for name in ("control", "sample_column")}
    samples = load_for_display(source, project.read(site["agreed"]), leave_out=site["leave_out"], memory=memory)
    federation = labels.to_review(memory, samples, site["name"])
    if table is None and not os.path.exists(decisions):
        if listed:
            raise InputError(
                f"--list: there is no {decisions} yet; export the review with --guarantee and without --list first"
            )
        if not os.path.exists(output):
            saving.private_folder(output)  # the page contains samples
        chosen = fnlkit.export_review(federation, 0, output, dataset=samples, say=caution, **options)
        labels.store_export(memory, federation)
        many = f"{output}: review.html and decisions.csv, {describe_selection(chosen)}"
        console().print(f"{many}; decide, then run this command again", soft_wrap=True)
        return
    text = files.read_text(decisions)

    def change(before: Federation) -> Federation:
        imported = fnlkit.import_review(before, decisions, dataset=samples, say=caution, **columns)
        return fnlkit.correct(imported, listed=True) if listed else imported

    imported = labels.review_imported(memory, federation, change)
    last = read_reviews(imported)[-1]
    for line in describe_list(last, imported, "fnlkit site review --list"):
        console().print(line, soft_wrap=True)
    if listed:
        facts = imported.meta["corrections"][-1]
        console().print(f"{facts['flagged']} listed, {facts['changed']} relabeled, {facts['dropped']} left out")
    labels.store_review(memory, imported, text, os.path.splitext(decisions)[1])
    many = f"{last.decided} decided: {len(last.changed)} labels changed, {len(last.dropped)} samples left out"
    many += "; the next run uses these labels"
    if table is None:
        many += f". Move {decisions} away before the next review"
    console().print(many)


@command.command("answer")
@click.argument("requests", metavar="FOLDER|FILE.request...", nargs=-1, required=True)
@click.option("--data", metavar="DATA", default=None, help="Data of this site. Default: those of `fnlkit site join`.")
@place_options
@leave_out_option
def answer_requests(requests: tuple[str, ...], data: str | None, folder: str, name: str, leave_out: str) -> None:
    """Answer requests of the coordinator in files: FILE.reply is written next to FILE.request. Nothing is sent.

    Of a FOLDER, all open requests of this site are answered.

    The contents of each reply are printed: read them before you send the file. Everything is entered in the ledger
    (`fnlkit site log`). The suspicious samples of an audit stay here, for `fnlkit site review`.

    \b
    Example:
      fnlkit site answer mail --data bonn.csv --project project/project.json --site bonn
    """
    from fnlkit.sites import folders
    from fnlkit.sites.site import ledger, preview
    from fnlkit.sites.site import request_files as files_of
    from fnlkit.sites.site.door import LEDGER, Door
    from fnlkit.sites.site.opening import Place

    site = folders.locate_site(folder, name)
    place = Place(site["client"], _source(data, site, "--data"), site["memory"], site["agreed"], leave_out or site["leave_out"])
    path, door = os.path.join(site["memory"], LEDGER), Door(place)
    failed = 0
    waiting = files_of.list_requests(requests, site["name"])
    for request in waiting:
        reply = files_of.answer_file(door, request)
        line = ledger.read_ledger(path)[-1]
        failed += "failure" in line
        click.echo(printable(f"{reply}: {_content(line) if 'arrays' not in line else 'contains only'}"))
        for text in preview.describe_reply(site["agreed"], str(request), line):
            click.echo(printable(f"- {text}"))
    if failed < len(waiting):
        console().print("if you agree, send the .reply files to the coordinator", soft_wrap=True)
    if failed:
        raise InputError(
            f"{failed} of {len(waiting)} requests were refused or failed; their replies contain only a code: "
            "remove the causes above, or the requests that the coordinator no longer needs, then run the same command"
        )


@command.command()
@click.argument("run", metavar="RUN.pt")
@click.argument("data", metavar="[DATA]", required=False)
@project_option
@json_option
@click.option("-o", "--output", default=None, metavar="FILE.csv", callback=takes_file,
              help="Also write class and probability of each sample.")  # fmt: skip
def predict(run: str, data: str | None, folder: str, as_json: bool, output: str | None) -> None:
    """Predict the samples of this site with RUN.pt and print the agreement with the labels. Nothing is sent.

    The site need not have taken part: columns, classes and the backbone come from the project in FOLDER. Test samples are
    predicted if the data have some, otherwise all samples.

    \b
    Example:
      fnlkit site predict run.pt ours.csv --project from-coordinator -o predictions.csv
    """
    from fnlkit.sites import folders
    from fnlkit.sites.site import predictions

    site = folders.read_site(folder)
    source = _source(data, site)
    must_differ({"-o": output}, run, source)
    predicted = predictions.predict_site(run, source, site)
    if output:
        predicted.sheet.write(output)
    if as_json:
        click.echo(json.dumps(predicted.scores))
        return
    row = predicted.scores
    ends = f"{100 * row['low']:.1f} to {100 * row['high']:.1f} %"
    click.echo(f"{row['samples']:,} samples: {100 * row['agreement']:.1f} % agree with the labels ({ends}), balanced over "
               f"classes {100 * row['balanced']:.1f} %")  # fmt: skip


@command.command()
@project_option
def connect(folder: str) -> None:
    """Test the connection to the server: whether it answers, its certificate is accepted, and the clocks agree.

    The start command of a site runs this test first. The exit code is 1 if the server does not answer.

    \b
    Example:
      fnlkit site connect --project from-coordinator
    """
    from fnlkit.sites import connection, folders

    site = folders.read_site(folder)
    connection.test(site["superlink"], os.path.join(site["folder"], "ca.crt"))
    click.echo(f"{site['superlink']} answers, its certificate is accepted, and the clocks agree")


@command.command(hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def superexec(arguments: tuple[str, ...]) -> None:
    """Run Flower's `flower-superexec` with forked processes; the start command of a site calls it.

    \b
    Example:
      fnlkit site superexec --runtime-api-address 127.0.0.1:8001 --insecure
    """
    processes.superexec(arguments)


@command.command()
@place_options
@json_option
def log(folder: str, name: str, as_json: bool) -> None:
    """List everything that has left this machine, after checking the chain of checksums.

    \b
    Example:
      fnlkit site log --project from-coordinator
    """
    from fnlkit.sites import folders
    from fnlkit.sites.site import ledger

    path = os.path.join(folders.locate_site(folder, name)["memory"], "left.jsonl")
    lines = ledger.read_ledger(path)
    if as_json:
        click.echo(json.dumps(lines))
        return
    table, total = Table("message", "run", "round", "bytes", "content"), 0
    for number, line in enumerate(lines, 1):
        size = sum(array["bytes"] for array in line.get("arrays", {}).values())
        total += size
        cells = [str(number), line["run"][:8], "" if line["round"] is None else str(line["round"])]
        table.add_row(*cells, size, printable(_content(line)))
    out_console().print(table)
    out_console().print(f"{len(lines):,} messages, {total:,} bytes of arrays; the chain of checksums is intact")


def _content(line):
    received = [f"{name} {value}" for name, value in line.get("told", {}).items()]
    if "failure" in line:
        reason = line.get("told", {}).get("refused", "")
        return f"failure: {' '.join(map(str, line['failure']))}" + (f", refused: {reason}" if reason else "")
    if "arrays" in line:
        forms = (f"{name} {array['dtype']} {tuple(array['shape'])}" for name, array in line["arrays"].items())
        return ", ".join([*received, *forms]) or "no data"
    return ", ".join(received)

"""`fnlkit sites`: commands for the coordinator of real sites."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from fnlkit.artifacts import files, saving
from fnlkit.cli.audit import fit_results
from fnlkit.cli.group import Group
from fnlkit.cli.plumbing import Table, must_differ, out_console, printable, takes_file, verbose
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.sites import connection

_HERE = "here"
# Seconds for a command of Flower.
_SECONDS = 120
# Seconds in which a server that was just started answers.
_START_SECONDS = 60


@click.group(cls=Group)
def command() -> None:
    """Admit sites and run tasks.

    \b
    Example:
      fnlkit sites admit project site-0.key.pub site-1.key.pub
      fnlkit sites run project --task audit -o audit.json
    """


def _folder(folder):
    path = Path(folder).absolute()
    if not (path / "pyproject.toml").is_file() or not (path / "coordinator").is_dir():
        raise InputError(f"{folder}: is no project with an address; write one by `fnlkit flower-app DIR --address HOST`")
    return path


def _program():
    """Path of Flower's command."""
    beside = Path(sys.executable).parent / "flwr"
    program = str(beside) if beside.exists() else shutil.which("flwr")
    if program is None:
        raise InputError("the command flwr is missing; pip install 'fnlkit[flower]' adds it")
    return program


def _environment(folder):
    """Environment of Flower's command, in which ``here`` is the server of the project."""
    more = {"FLWR_HOME": str(folder / "coordinator" / "flwr"), "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1"}  # fmt: skip
    return os.environ | more


def _flwr(folder, *arguments):
    """Read the JSON that a command of Flower prints; raise WorkStopped if it fails."""
    home = folder / "coordinator" / "flwr"
    home.mkdir(exist_ok=True)
    start = folder / "coordinator" / "start.sh"
    named = re.search(r"--port (\d+)", files.read_text(str(start)))
    if named is None:
        raise InputError(f"{start}: names no --port; restore the file that `fnlkit flower-app` wrote")
    port = named[1]
    address = f'address = "127.0.0.1:{port}"\nroot-certificates = "{folder}/coordinator/ca.crt"\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "{_HERE}"\n\n[superlink.{_HERE}]\n{address}', encoding="utf-8")
    try:
        done = subprocess.run([_program(), *arguments], cwd=folder, env=_environment(folder), capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=_SECONDS)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise WorkStopped(
            f"flwr {arguments[0]}: no answer within {_SECONDS} s; this machine is overloaded, and a running task goes on; run "
            "the same command again"
        ) from None
    try:
        answer = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        answer = {"success": done.returncode == 0}
    if done.returncode or not answer.get("success", True):
        with contextlib.suppress(WorkStopped):
            connection.test(f"127.0.0.1:{port}", folder / "coordinator" / "ca.crt")
        text = " ".join((answer.get("error-message") or done.stderr or done.stdout).split())[-400:]
        raise WorkStopped(f"flwr {arguments[0]}: {text}; is the server running ({folder}/coordinator/start.sh)?")
    return answer


@command.command()
@click.argument("folder", metavar="DIR")
@click.argument("keys", metavar="SITE.key.pub...", nargs=-1, required=True)
def admit(folder: str, keys: tuple[str, ...]) -> None:
    """Admit sites by their public keys: write the fingerprints into the project and register them with the running server.

    The name of each file is the name of the site. Compare the fingerprints with the sites, for example by telephone.

    \b
    Example:
      fnlkit sites admit project site-0.key.pub site-1.key.pub
    """
    from fnlkit.sites import flower_app, project

    folder = _folder(folder)
    fingerprints = {os.path.basename(key).removesuffix(".key.pub"): flower_app.fingerprint_of(key) for key in keys}
    if len(fingerprints) < len(keys):
        raise InputError("two files are keys of one site; name one file SITE.key.pub for each site")
    path, nodes = _nodes(folder)
    _program()  # without Flower, nothing is written
    flower_app.set_keys(folder, project.read(folder), fingerprints)
    for key, (name, fingerprint) in zip(keys, fingerprints.items(), strict=True):
        nodes[fingerprint] = _register(folder, os.path.abspath(key), nodes.get(fingerprint))
        saving.write_bytes([json.dumps(nodes).encode()], str(path))
        click.echo(f"{name}  {fingerprint}")


def _nodes(folder):
    """Read (file, {fingerprint: node of the server}) of the registered sites."""
    path = folder / "coordinator" / "nodes.json"
    try:
        nodes = json.loads(files.read_text(str(path))) if path.exists() else {}
    except ValueError:
        nodes = None
    if not isinstance(nodes, dict):
        raise InputError(f"{path}: is damaged; delete it, then admit all sites again")
    return path, nodes


def _register(folder, key, known):
    """Find the node that the SuperLink gives to a key, or the `known` one; a server that was just started is awaited."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return str(_flwr(folder, "supernode", "register", key, _HERE, "--format", "json")["node-id"])
        except WorkStopped as error:
            if known and "already" in str(error):
                return known
            if time.monotonic() > deadline or "already" in str(error):
                raise
        time.sleep(1)


@command.command()
@click.argument("folder", metavar="DIR")
@click.option("--task", required=True, type=click.Choice(["scale", "audit", "train", "evaluate"]), help="Task to run.")
@click.option("--scale", "scaled", metavar="SCALE.json", default=None,
              help="Result of the task scale, if the project takes the scale from the sites.")  # fmt: skip
@click.option("--run", "model", metavar="RUN.pt", default=None, help="Run to evaluate, for the task evaluate.")
@click.option("--server-data", metavar="DATA", default=None, help="Test samples of the server, for the task train.")
@click.option("--min-replies", type=click.FloatRange(0, 1), default=None,
              help="Share of the sites that must remain. Default: that of the project.")  # fmt: skip
@click.option("--folder", "mail", metavar="MAIL", default=None,
              help="Exchange files in this folder instead of messages: FILE.request and FILE.reply of each site.")  # fmt: skip
@click.option("--without", metavar="SITE", multiple=True, help="With --folder: a site that takes no part.")
@click.option("--html", metavar="FILE.html", default=None, callback=takes_file, help="Of an audit: also write the page.")
@click.option("-o", "--output", required=True, metavar="FILE", callback=takes_file,
              help="Result: a run of the task train, JSON of the other tasks.")  # fmt: skip
def run(
    folder: str, task: str, scaled: str | None, model: str | None, server_data: str | None, min_replies: float | None,
    mail: str | None, without: tuple[str, ...], html: str | None, output: str,
) -> None:  # fmt: skip
    """Run a task over the sites and print its log to the end; the same command continues a stopped task.

    The command exits with 0 only if the task is completed. Ctrl-C ends the printing, and the task goes on: `flwr log` prints
    it again, and `flwr stop` ends the task.

    With --folder, no server runs: the command writes requests into the folder and ends with 1 while replies are missing. Sites
    answer with `fnlkit site answer`. Repeat the command when their files are in the folder.

    \b
    Example:
      fnlkit sites run project --task audit -o audit.json
      fnlkit sites run project --task audit --folder mail -o audit.json
    """
    if task == "evaluate" and model is None:
        raise InputError("--run: names no run; give the output of the task train")
    if html and task != "audit":
        raise InputError("--html: only an audit has a page; leave the option out")
    must_differ({"-o": output, "--html": html}, scaled, model, server_data)
    if without and not mail:
        raise InputError("--without: is for tasks over files; add --folder")
    if without and task == "train":
        raise InputError("--without: a training needs all sites; write a project of the other sites by `fnlkit flower-app`")
    output = os.path.abspath(output)
    values: dict[str, Any] = {"task": task, "output": output} | ({"run": os.path.abspath(model)} if model else {})
    values |= {"server_data": os.path.abspath(server_data)} if server_data else {}
    values |= {"scale": _result(scaled, "--scale", "scale")["scale"]} if scaled else {}
    values |= {"min_replies": min_replies} if min_replies is not None else {}
    if mail:
        _run_by_files(folder, values, mail, without)
    else:
        _run_at_server(_folder(folder), values)
    if task == "train":
        return
    if html:
        from fnlkit.audits import report

        saving.write_bytes([report.page(_result(output), "").encode()], html)
    _print(output)


def _run_by_files(where, values, mail, without):
    """Run a task over the files of a folder; the project needs no server."""
    from fnlkit.sites import project
    from fnlkit.sites.server import tasks
    from fnlkit.sites.server.folder import Folder

    agreed = project.read(where)
    if unknown := [name for name in without if name not in agreed.names]:
        raise InputError(f"--without {unknown[0]}: is no site of the project ({', '.join(agreed.names)})")
    if set(without) == set(agreed.names):
        raise InputError("--without: leaves no site; leave the option out for the sites that take part")
    share = 1 - len(set(without)) / agreed.sites
    options = tasks.options_of({"min_replies": share} | values | {"wait": 0.0})
    names = [name for name in agreed.names if name not in without]
    tasks.conduct(Folder(mail, names), agreed, options, folder=mail)


def _run_at_server(folder, config):
    """Submit a task to the running server and print its log until it ends."""
    from fnlkit.sites import project
    from fnlkit.sites.server import tasks

    try:
        tasks.prepare(project.read(folder), tasks.options_of(config))
    except InputError as error:
        raise InputError(f"{folder}: {error}; nothing was sent") from None
    text = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
    number = str(_flwr(folder, "run", str(folder), _HERE, "--run-config", text, "--format", "json")["run-id"])
    flwr = f"FLWR_HOME={folder / 'coordinator' / 'flwr'} flwr"
    click.echo(f"run {number}; Ctrl-C ends the printing, not the task: `{flwr} log {number} {_HERE}` continues it, "
               f"`{flwr} stop {number} {_HERE}` ends the task", err=True)  # fmt: skip
    _print_log(folder, number)
    while not (status := _status_of(folder, number)).startswith("finished"):
        time.sleep(1)
    if status != "finished:completed":
        raise WorkStopped(f"the task ended without a result ({status}); its last line above names the reason, and the same "
                          "command continues the task")  # fmt: skip


def _print_log(folder, number):
    """Print the log of a task on stderr until the task ends."""
    subprocess.run([_program(), "log", number, _HERE], cwd=folder, env=_environment(folder), stdin=subprocess.DEVNULL,
                   stdout=2, check=False)  # fmt: skip


def _status_of(folder, number):
    """Read Flower's status of a run."""
    (listed,) = _flwr(folder, "list", _HERE, "--run-id", number, "--format", "json")["runs"]
    return listed["status"]


@command.command()
@click.argument("folder", metavar="DIR")
@click.argument("names", metavar="SITE...", nargs=-1, required=True)
def remove(folder: str, names: tuple[str, ...]) -> None:
    """Withdraw the keys of sites: they can no longer connect, and a task does not wait for them.

    An audit continues without these sites. A training needs all sites: admit a new key of the site, or write a new project.

    \b
    Example:
      fnlkit sites remove project site-1
    """
    from fnlkit.sites import flower_app, project

    folder = _folder(folder)
    agreed, (path, nodes) = project.read(folder), _nodes(folder)
    known = agreed.names
    keys = dict(zip(known, agreed.keys or [""] * len(known), strict=True))
    for name in names:
        if not keys.get(name):
            raise InputError(f"{name}: is no admitted site ({', '.join(site for site in known if keys[site])})")
    if set(names) == {name for name in known if keys[name]}:
        raise InputError("these are all admitted sites; a project without keys would accept any site, so keep one")
    for name in names:
        if (node := nodes.pop(keys[name], None)) is not None:
            try:
                _flwr(folder, "supernode", "unregister", node, _HERE, "--format", "json")
            except WorkStopped as error:
                if "not found" not in str(error).lower():  # the server has lost its database
                    raise
        agreed = flower_app.set_keys(folder, agreed, {name: ""})
        saving.write_bytes([json.dumps(nodes).encode()], str(path))
        click.echo(f"removed {name}; it cannot connect until `fnlkit sites admit` registers a new key")


@command.command()
@click.argument("folder", metavar="DIR")
def renew(folder: str) -> None:
    """Write new certificates of the server, valid for a year; keys and settings stay.

    Restart the server. Each site replaces its ca.crt by the new file, and runs `fnlkit site join` and start.sh again.

    \b
    Example:
      fnlkit sites renew project
    """
    from fnlkit.sites import credentials, folders

    folder = _folder(folder)
    place = folder / "coordinator"
    try:
        made = credentials.renew((place / "ca.key").read_bytes(), (place / "server.crt").read_bytes())
    except (OSError, ValueError, TypeError, LookupError) as error:
        reason = getattr(error, "strerror", None) or "no keys in PEM"
        raise InputError(
            f"{place}: ca.key and server.crt cannot be read ({reason}); restore both files, or write a new project"
        ) from None
    for name, content in made.items():
        saving.write_bytes([content], str(place / name), mode=folders.mode_of(name))
    for site in sorted((folder / "sites").glob("*/site.toml")):
        saving.write_bytes([made["ca.crt"]], str(site.parent / "ca.crt"))
    click.echo(f"new certificates, valid for {credentials.DAYS} days: restart {place}/start.sh")
    click.echo(f"send {place}/ca.crt to each site, which replaces its ca.crt and runs: fnlkit site join FOLDER --data DATA; "
               "FOLDER/start.sh")  # fmt: skip


@command.command()
@click.argument("file", metavar="RESULT.json")
def show(file: str) -> None:
    """Print the result of an audit or an evaluation.

    \b
    Example:
      fnlkit sites show audit.json
    """
    _print(file)


def _result(file, option="", task=None):
    """Read the result of a task in a file of `fnlkit sites run`."""
    try:
        result = json.loads(files.read_text(file))
        right = result["kind"] == "fnlkit.sites/1" and (task is None or task == result["task"] and task in result)
    except (ValueError, KeyError, TypeError):
        right = False
    if not right:
        wanted = f" --task {task}" if task else ""
        raise InputError(f"{option} {file}: is no result of `fnlkit sites run{wanted}`; name the file of its option -o".strip())
    return result


def _print(file):
    result = _result(file)
    try:
        _print_result(file, result)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: lacks entries of the task {result['task']}; run the task again") from None


def _print_result(file, result):
    if result["task"] == "audit":
        try:
            parts = fit_results(result)
        except InputError as error:
            raise InputError(f"{file}: {error}; run the task again") from None
        parts[1:1] = [printable(f"lost {name}: {reason}") for name, reason in result["lost"].items()]
        for part in parts:
            out_console().print(part)
    elif result["task"] == "scale":
        rows = [(printable(row["name"]), row["known"], f"{row['mean']:.6g}", f"{row['std']:.6g}") for row in result["rows"]]
        out_console().print(Table("feature", "known values", "mean", "standard deviation", rows=rows))
    else:
        table = Table("site", "tested", "agreement", "range")
        for row in result["sites"]:
            value = row["agreement"]
            ends = f"{100 * row['low']:.1f} to {100 * row['high']:.1f} %"
            shown = "fewer than 20 samples" if value is None else f"{100 * value:.1f} %"
            table.add_row(printable(row["site"]), row["samples"], shown, ends)
        out_console().print(table)
    if result["task"] != "audit":
        out_console().print(printable(f"covers {', '.join(result['covers'])}"))
        for name, reason in result["lost"].items():
            out_console().print(printable(f"lost {name}: {reason}"))
    if not result["steps"] or not verbose():
        return
    rows = [(step["step"], f"{step['seconds']:,.1f}", step["bytes_up"], step["bytes_down"]) for step in result["steps"]]
    out_console().print(Table("step", "seconds", "bytes from sites", "bytes to sites", rows=rows))

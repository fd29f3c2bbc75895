"""`fnlkit doctor`: check the installation."""

import json
import sys

import click

from fnlkit.cli.plumbing import Table, console, json_option, out_console, printable, suggest
from fnlkit.core.errors import WorkStopped
from fnlkit.pipeline.doctor import examine


@click.command()
@click.option("--test/--no-test", default=True, show_default=True,
              help="Compare two short rounds on every engine.")  # fmt: skip
@click.option("--compile", "ahead", is_flag=True,
              help="Only compile all kernels into the cache (NUMBA_CACHE_DIR), for example in a container.")  # fmt: skip
@json_option
def command(test: bool, ahead: bool, as_json: bool) -> None:
    """Check versions, threads, caches, GPU and engines, with a self-test of a few seconds.

    Each engine trains two short rounds on each device, which are compared with the sequential engine. The exit code is 1 if
    anything is broken. The first call compiles kernels for up to a minute; --compile does this ahead of time.

    \b
    Example:
      fnlkit doctor --no-test
    """
    if ahead:
        _compile(as_json)
        return
    if test and not as_json:
        console().print("comparing two short rounds on every engine", style="dim")
    report = examine(test=test)
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        untested = "" if report["engines"] else " (engines were not tested)"
        out_console().print(f"{len(report['broken'])} broken" if report["broken"] else f"no problem found{untested}")
        out_console().print(Table("check", "result", rows=_rows(report), heads=False))
        suggest("partition", "-o", "fed.npz", output="-" if report["broken"] else "")
    if broken := report["broken"]:
        raise WorkStopped(f"{len(broken)} broken, the first: {broken[0]}")


def _compile(as_json):
    from fnlkit.pipeline.compiling import compile_kernels

    compiled = compile_kernels()
    line = f"{compiled['compiled']} functions compiled, {compiled['loaded']} loaded from the cache"
    line += f", in {compiled['seconds']:.1f} s: {printable(compiled['folder'])}"
    sys.stdout.write((json.dumps(compiled) if as_json else line) + "\n")


def _rows(report):
    """Yield (check, result): failures first, then versions, machine, GPU, engines and caches."""
    yield from (("broken", text) for text in report["broken"])
    yield "versions", ", ".join(f"{name} {version or 'not installed'}" for name, version in report["packages"].items())
    machine = report["machine"]
    yield "machine", f"{machine['system']}, {machine['cores']} cores, {machine['cpu_capability'] or 'no torch'}"
    yield "GPU", ", ".join(report["gpu"]["devices"]) or report["gpu"]["why"]
    for run in report["engines"]:
        yield f"{run['engine']} on {run['device']}", "trains" if run["runs"] else f"does not run here: {run['why']}"
    for cache in report["caches"]:
        state = "" if cache["writable"] else "CANNOT BE WRITTEN, set FNLKIT_CACHE or NUMBA_CACHE_DIR; "
        yield cache["what"], f"{cache['folder']} ({state}{cache['free_bytes'] / 1e9:,.1f} GB free)"

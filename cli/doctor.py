"""`fnlkit doctor`: check the installation."""

from __future__ import annotations

import json
import sys
from typing import cast

import click

from fnlkit.cli.plumbing import Table, console, json_option, out_console, printable, suggest, verbose
from fnlkit.errors import WorkStopped
from fnlkit.pipeline.doctor import examine

_MOST, _MOST_BROKEN = 2, 4  # lines of advice and of broken parts; -v prints all


@click.command()
@click.option("--test/--no-test", default=True, show_default=True,
              help="Compare kernels, files and two short rounds on every engine.")  # fmt: skip
@click.option("--compile", "ahead", is_flag=True,
              help="Only compile all kernels into the cache (NUMBA_CACHE_DIR), for example in a container.")  # fmt: skip
@json_option
def command(test: bool, ahead: bool, as_json: bool) -> None:
    """Check versions, threads, caches, GPU and engines, with a self-test of a few seconds.

    Kernels are compared with numpy, files are written and read back, and each engine trains two short rounds on each device,
    which are compared with the sequential engine. The exit code is 1 if anything is broken. The first call compiles kernels for
    up to a minute; --compile does this ahead of time.

    \b
    Example:
      fnlkit doctor --no-test
    """
    if ahead:
        _compile(as_json)
        return

    if test and not as_json:
        console().print("comparing kernels, files and two short rounds on every engine", style="dim")
    report = examine(test=test)
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        (_show if verbose() else _summarize)(report)
        suggest("partition", "-o", "fed.npz", output="-" if report["broken"] else "")
    broken = cast(list[str], report["broken"])
    if broken:
        raise WorkStopped(f"{len(broken)} broken, the first: {broken[0]}")


def _compile(as_json):
    from fnlkit.pipeline.compiling import compile_kernels

    if not as_json:
        console().print("compiling kernels", style="dim")
    compiled = compile_kernels()
    if as_json:
        sys.stdout.write(json.dumps(compiled) + "\n")
    else:
        line = f"{compiled['compiled']} functions compiled, {compiled['loaded']} loaded from the cache"
        out_console().print(f"{line}, in {compiled['seconds']:.1f} s: {printable(compiled['folder'])}", soft_wrap=True)


def _summarize(found):
    """Print the result and one line for each of: versions, machine, GPU, engines, caches."""
    say = out_console()
    untested = "" if found["engines"] else " (engines were not tested)"
    say.print(f"{len(found['broken'])} broken" if found["broken"] else f"no problem found{untested}")
    for text in found["broken"][:_MOST_BROKEN]:
        say.print(f"broken: {printable(text)}", soft_wrap=True)
    if (more := len(found["broken"]) - _MOST_BROKEN) > 0:
        say.print(f"broken: {more} more (-v)")
    packages, machine = found["packages"], found["machine"]
    say.print(", ".join(f"{name} {packages[name] or 'MISSING'}" for name in ("fnlkit", "python", "torch", "numba", "numpy")))
    say.print(printable(f"{machine['system']}, {machine['cores']} cores"))
    gpus = [f"{gpu['name']}, {gpu['free_bytes'] / 2**30:.0f} GiB free" for gpu in found["gpu"]["devices"]]
    say.print(
        printable(f"GPU: {'; '.join(gpus) if found['gpu']['usable'] else 'none: ' + found['gpu']['why']}"), soft_wrap=True
    )
    if found["engines"]:
        runs, rest = ([run for run in found["engines"] if run["runs"] == state] for state in (True, False))
        say.print(f"engines that train and agree: {', '.join(dict.fromkeys(run['engine'] for run in runs))}")
        if names := list(dict.fromkeys(run["engine"] for run in rest)):
            say.print(f"engines that do not run here: {', '.join(names)} (-v: reasons)")
    for cache in found["caches"]:
        state = "" if cache["writable"] else "CANNOT BE WRITTEN, "
        say.print(
            printable(f"{cache['what']}: {cache['folder']} ({state}{cache['free_bytes'] / 1e9:,.1f} GB free)"), soft_wrap=True
        )
    for text in found["advice"][:_MOST]:
        say.print(f"advice: {printable(text)}", soft_wrap=True)


def _show(found):
    say = out_console()
    table = Table("", "", heads=False)
    table.add_row("packages", ", ".join(f"{name} {version or 'MISSING'}" for name, version in found["packages"].items()))
    table.add_row("tested with", ", ".join(f"{name} {low} to {high}" for name, (low, high) in found["tested"].items()))
    for name, extra in found["extras"].items():
        there = ", ".join(f"{package} {version}" for package, version in extra["there"].items())
        missing = f"missing: {', '.join(extra['missing'])}" if extra["missing"] else ""
        table.add_row(f"extra {name}", "; ".join(part for part in (there, missing) if part))
    for name, value in found["machine"].items():
        if name != "environment":
            table.add_row(name.replace("_", " "), printable(f"{value:.1f}" if isinstance(value, float) else value))
    for name, value in found["machine"]["environment"].items():
        table.add_row(name, printable(value))
    for cache in found["caches"]:
        state = "" if cache["writable"] else "CANNOT BE WRITTEN, "
        table.add_row(cache["what"], printable(f"{cache['folder']} ({state}{cache['free_bytes'] / 1e9:,.1f} GB free)"))
    for gpu in found["gpu"]["devices"]:
        fit = ", ".join(f"{count:,} clients of {name}" for name, count in gpu["at_once"].items())
        free = f"{gpu['free_bytes'] / 2**30:.0f} of {gpu['bytes'] / 2**30:.0f} GiB free"
        table.add_row("GPU", printable(f"{gpu['name']}, {free}; at once by an estimate: {fit}"))
    if not found["gpu"]["usable"]:
        table.add_row("GPU", printable(f"none: {found['gpu']['why']}"))
    say.print(table)
    if found["engines"]:
        table = Table("engine", "device", "runs", "seconds", "difference", "reason")
        for run in found["engines"]:
            off = "" if run["difference"] is None else f"{run['difference']:.1e}" if run["difference"] else "equal"
            seconds = "" if run["seconds"] is None else f"{run['seconds']:.1f}"
            table.add_row(
                run["engine"], run["device"], "yes" if run["runs"] else "no", seconds, off, printable(run["why"] or "")
            )
        say.print(table)
        kernels, formats = ([row[key] for row in found[group]] for group, key in (("kernels", "kernel"), ("files", "file")))
        say.print(f"compared with numpy: {', '.join(kernels)}; written and read: {', '.join(formats)}", soft_wrap=True)
    for text in found["advice"]:
        say.print(f"advice: {printable(text)}", soft_wrap=True)
    for text in found["broken"]:
        say.print(f"broken: {printable(text)}", soft_wrap=True)
    if not found["broken"]:
        say.print("no problem found" + ("" if found["engines"] else " (engines were not tested)"))

"""Facts of an artifact, and tables of these facts."""

import json
from typing import Any

from fnlkit.artifacts import files, large, paths
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.files import Artifact
from fnlkit.cli import tables
from fnlkit.cli.terminal import Table, out_console, printable
from fnlkit.core.errors import InputError, list_names
from fnlkit.results.conventions import conventions_line
from fnlkit.simulate.noise import summary

_NAMES = 20  # items of a list that are shown


def describe(artifact: Artifact, source: str = "-", digest: str | None = None) -> dict[str, Any]:
    """Collect the facts of an artifact as plain values.

    Parameters
    ----------
    artifact : fnlkit.artifacts.files.Artifact
    source : str
    digest : str or None
        The SHA-256 in the file. Default: computed.
    """
    facts = {
        "kind": artifact.kind,
        **progress(artifact),
        "sha256": digest or files.digest(artifact),
        "checked": not any(isinstance(value, large.Head) for value in artifact.arrays.values()),
        "arrays": {
            name: {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
            for name, value in artifact.arrays.items()
        },
        "meta": artifact.meta,
    }
    if text := _conventions(artifact):
        facts["conventions"] = text
    federation = _federation(artifact, source)
    if federation is not None:
        facts |= {
            "dataset": federation.dataset,
            "classes": federation.classes,
            "clients": len(federation),
            "client_sizes": [len(part) for part in federation.clients],
            "noise": summary(federation),
        }
        if tables.has_judgment(federation):
            facts["estimates"] = {**federation.meta.get("estimate", {}), **tables.estimate_facts(federation)}
    return facts


def show(artifact: Artifact, source: str = "-", digest: str | None = None, *, everything: bool = False) -> None:
    """Print the most important facts of an artifact on stdout, or all; other parameters as in `describe`."""
    say, meta = out_console(), artifact.meta
    federation = _federation(artifact, source)
    kind = artifact.kind.removeprefix("fnlkit.").partition("/")[0]
    if federation is not None:
        say.print(printable(f"{kind} of {federation.dataset}, {tables.of_clients(federation)}"), soft_wrap=True)
        if meta.get("client_names") is not None and not everything:
            pairs = zip(federation.names, federation.clients, strict=True)
            bare = sum(meta.get("client_unlabeled") or [])
            text = f"samples of sites: {list_names(f'{printable(name)} {len(part):,}' for name, part in pairs)}"
            say.print(text + (f"; {bare:,} without a label" if bare else ""), soft_wrap=True)
        judged = [tables.estimate_line(federation)] if tables.has_judgment(federation) else []
        brief = [*tables.noise_lines(federation), *judged]
        full = [*tables.of_sites(federation), *tables.of_noise(federation), *tables.of_estimates(federation)]
        for part in full if everything else brief:
            say.print(part, soft_wrap=isinstance(part, str))
    else:
        of = f" of {meta['dataset']}" if isinstance(meta.get("dataset"), str) else ""
        say.print(printable(f"{kind}{of}{_state(artifact)}"), soft_wrap=True)
        if text := _conventions(artifact):
            say.print(f"conventions: {printable(text)}", soft_wrap=True)
    for key in ("reviews", "corrections"):
        if meta.get(key) and isinstance(meta[key], list):
            say.print(f"{len(meta[key]):,} {key}")
    checked = not any(isinstance(value, large.Head) for value in artifact.arrays.values())
    digest = f"sha256 {digest or files.digest(artifact)}{'' if checked else _UNCHECKED}"
    steps = [step if isinstance(step, dict) else {"command": str(step)} for step in _steps(artifact)]
    if everything:
        say.print(digest, soft_wrap=True)
        _show_details(say, artifact, steps)
        return
    seeds = ["" if step.get("seed") is None else f" (seed {step['seed']})" for step in steps]
    made = [f"{step.get('command', '')}{seed}" for step, seed in zip(steps, seeds, strict=True)][-_STEPS:]
    if made:
        say.print(printable(f"made by {'... | ' * (len(steps) > _STEPS)}{' | '.join(made)}"), soft_wrap=True)
    say.print(digest, soft_wrap=True)
    names = [f"{printable(name)} ({_sides(value.shape)})" for name, value in artifact.arrays.items()]
    say.print(f"arrays: {list_names(names)} (-v: all facts)", soft_wrap=True)


def _show_details(say, artifact, steps):
    """Print metadata, arrays and commands as tables."""
    texts = {key: _in_words(value) for key, value in artifact.meta.items() if key not in ("provenance", "noise", "estimate")}
    known = [("kind", artifact.kind), *((key.replace("_", " "), text) for key, text in texts.items() if text is not None)]
    say.print(Table("", "", rows=[map(printable, row) for row in known], heads=False))
    arrays = {name: str(value.dtype).removeprefix("torch.") for name, value in artifact.arrays.items()}
    shapes = [_sides(value.shape) or "one value" for value in artifact.arrays.values()]
    say.print(Table("array", "type", "shape", rows=zip(arrays, arrays.values(), shapes, strict=True)))
    table = Table("command", "seed", "parameters")
    for step in steps:
        parameters, seed = step.get("parameters"), step.get("seed")
        text = ", ".join(f"{key}={value}" for key, value in parameters.items()) if isinstance(parameters, dict) else ""
        table.add_row(*map(printable, (step.get("command", ""), "" if seed is None else seed, text)))
    if steps:
        say.print(table)


_UNCHECKED = ", as recorded in the file; large arrays were not checked"
_STEPS = 5


def _sides(shape):
    return " x ".join(f"{side:,}" for side in shape)


def _state(artifact):
    """Write the rounds of a run and whether it is finished, as text."""
    if not (facts := progress(artifact)):
        return ""
    steps = _steps(artifact)
    parameters = steps[-1].get("parameters", {}) if steps and isinstance(steps[-1], dict) else {}
    method = f", method {parameters['method']}" if isinstance(parameters, dict) and "method" in parameters else ""
    rounds = "{rounds_done:,} of {rounds_planned:,} rounds".format(**facts)
    return f"{method}, {rounds}" + ("" if facts["finished"] else ", not finished; continue with train --resume")


def _steps(artifact):
    steps = artifact.meta.get("provenance", [])
    return steps if isinstance(steps, list) else []


def _conventions(artifact):
    """Write the line of conventions of a run, "" for another file or for arrays that were not read."""
    labels = [artifact.arrays.get(f"labels/{name}") for name in ("given", "true")]
    try:
        wrong = None
        if not any(array is None or isinstance(array, large.Head) for array in labels):
            given, true = map(_values, labels)
            wrong = float((given != true)[true >= 0].mean())
        scores = {name for row in _body(artifact)["history"] for name in ("accuracy", "agreement") if name in row}
        tested = "predicted/test" in artifact.arrays or "agreement" not in scores  # an interrupted run has no predictions
        return conventions_line(artifact.meta["provenance"], wrong_share=wrong, tested=tested, verified=scores != {"agreement"})
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return ""  # `info` also describes damaged files


def _values(array):
    """Read an array or a Tensor of an artifact; raises for another object."""
    return array.array() if hasattr(array, "array") else array.numpy()


def _body(artifact):
    """Read the JSON of a run; raises if the file is damaged or no run."""
    return json.loads(_values(artifact.arrays.get("body")).tobytes())


def progress(artifact: Artifact) -> dict[str, Any]:
    """Read whether a run is finished, and its rounds; {} for another file."""
    if not artifact.kind.startswith("fnlkit.run/"):
        return {}
    try:
        run = _body(artifact)
        done = sum(row["stage"] != "final" for row in run["history"])
        return {"finished": bool(run["finished"]), "rounds_done": done, "rounds_planned": int(run["settings"]["rounds"])}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}  # `info` also describes damaged runs


def _in_words(value):
    """Write a metadata value as a line of text; None if it is too long."""
    if isinstance(value, list) and all(isinstance(part, (str, int, float)) for part in value):
        value = ", ".join(map(str, value[:_NAMES])) + (f", and {len(value) - _NAMES:,} more" if len(value) > _NAMES else "")
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 500 else None


def _federation(artifact, source):
    if not artifact.kind.startswith("fnlkit.federation/"):
        return None

    try:
        return Federation.from_artifact(artifact)
    except InputError as error:
        raise InputError(f"{paths.display_path(source)}: {error}") from error

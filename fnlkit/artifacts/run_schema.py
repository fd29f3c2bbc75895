"""Validate the names, types, shapes and ranges of a run from a file."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import MAX_CLASSES, OF_RUNS, Federation, must_be_names, must_be_steps
from fnlkit.errors import InputError

_TEXTS = ("method", "optimizer", "aggregator", "selector", "model", "augment", "client_optimizer", "precision")
_COUNTS = ("rounds", "epochs", "batch_size", "eval_every", "seed")
_NUMBERS = ("fraction", "lr", "momentum", "weight_decay", "decay", "clip", "min_replies")
# Shapes of the records that fnlkit's methods write and its readers use, for C classes and N clients.
_RECORDS = {
    "noise_level": "N", "cumulative_lid": "N", "noisy_clients": "N", "aggregation_weights": "N", "lid_means": "2",
    "lid_variances": "2", "lid_shares": "2", "prior": "C", "transition": "CC", "label_confusion": "CC",
}  # fmt: skip
_NOISE = ("noise_client_level", "noise_client_noisy", "noise_transition")
_MOST = 2**63 - 1


# A check is a function (value, name in messages). The following functions return checks of dicts and lists.
def _fields(*, optional=None, **required):
    """Check entries of a dict by name; it can have further entries."""

    def check(value: Any, where: str) -> None:
        _kind(value, where, dict)
        for name, entry in required.items():
            entry(value.get(name), f"{where}: {name}")
        for name, entry in (optional or {}).items():
            if name in value:
                entry(value[name], f"{where}: {name}")

    return check


def _each(entry, kind=list):
    """Check all values of a list, or of a dict if `kind` is dict."""

    def check(values: Any, where: str) -> None:
        _kind(values, where, kind)
        for value in values.values() if kind is dict else values:
            entry(value, where)

    return check


def _or_none(entry):
    return lambda value, where: None if value is None else entry(value, where)


def _choice(*texts):
    def check(value: object, where: str) -> None:
        if value not in texts:
            raise InputError(f"{where} is {_short(value)}; expected {', '.join(texts)}")

    return check


def _kind(value, where, kind):
    if not isinstance(value, kind):
        raise InputError(f"`{where}` is {_short(value)}; expected {kind.__name__}")


def _text(value, where):
    if not isinstance(value, str) or not value or len(value) > 10_000:
        raise InputError(f"{where} is {_short(value)}; expected a text")


def _whole(value, where, high=_MOST):
    if type(value) is not int or not 0 <= value <= high:
        raise InputError(f"{where} is {_short(value)}; expected a whole number from 0 to {high}")


def _number(value, where, finite=True):
    if isinstance(value, bool) and not finite:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (finite and not math.isfinite(value)):
        raise InputError(f"{where} is {_short(value)}; expected a number")
    if isinstance(value, int) and abs(value) > _MOST:
        raise InputError(f"{where} is {_short(value)}; expected a number below 2^63")


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _shape(value, where):
    if not isinstance(value, list) or not 1 <= len(value) <= 4 or not all(type(v) is int and 1 <= v < 2**31 for v in value):
        raise InputError(f"`{where}` is {_short(value)}; expected the shape of a sample")


def _sums(value, where):
    """Check the parameters of a privacy cost, which readers pass on by name."""
    _SUMS(value, where)
    if len(value) != 6:
        raise InputError(f"{where} is {_short(value)}; expected sampling, clients, cohort, clip, noise and rounds")


def _samples(value, where):
    """Check the description of the training samples."""
    _SAMPLES(value, where)
    shape, mean, std = value["shape"], value["mean"], value["std"]
    if len(shape) != (3 if value["kind"] == "image" else 1):
        raise InputError(f"{where}: shape is {_short(shape)}; this is not a shape of kind {value['kind']}")
    if len(mean) not in ((shape[-1],) if value["kind"] == "image" else (0, shape[-1])):
        raise InputError(f"{where}: mean has {len(mean)} numbers for samples of {shape}")
    if len(mean) != len(std) or any(number <= 0 for number in std):
        raise InputError(f"{where}: std must contain a positive number for each entry of mean")


# As fnlkit.datasets.dates.FORMS.
_DATES = ("year-month-day", "day-month-year", "month-day-year", "yearmonthday", "day name year", "name day year", "year-month",
          "yearmonth", "month-year", "name year", "year name", "year-quarter", "quarter-year", "year-week")  # fmt: skip

# Thousands separator and decimal mark, as fnlkit.datasets.notation.MARKS.
_MARKS = (("", "."), (",", "."), ("", ","), (".", ","), (" ", "."), (" ", ","), ("'", "."), ("'", ","))


def check_column(value, where):
    """Check the encoding of a table column."""
    _fields(name=_text, kind=_choice("number", "one-hot", "rank", "text", "date"))(value, where)
    if value["kind"] == "text":
        return _fields(size=partial(_whole, high=2**20))(value, where)
    if value["kind"] == "date":
        _fields(form=_choice(*_DATES), fill=_each(_number), missing=partial(_kind, kind=bool))(value, where)
        if len(value["fill"]) != 3:
            raise InputError(f"{where}: fill has {len(value['fill'])} numbers; expected three")
        return
    if "notation" in value:
        notation, place = value["notation"], f"{where}: notation"
        _fields(**dict.fromkeys(("thousands", "decimal", "unit"), partial(_kind, kind=str)))(notation, place)
        if (notation["thousands"], notation["decimal"]) not in _MARKS:
            raise InputError(f"{place} is {_short(notation)}; expected a thousands separator and a decimal mark")
    if value["kind"] != "number":
        _fields(levels=_each(_text))(value, where)
    if value["kind"] != "one-hot":
        _fields(fill=_number, missing=partial(_kind, kind=bool), optional={"offset": _number})(value, where)


_SUMS = _fields(sampling=_choice("fixed", "poisson"), **dict.fromkeys(("clients", "rounds"), _whole),
                **dict.fromkeys(("cohort", "clip", "noise"), _number))  # fmt: skip
_SAMPLES = _fields(
    kind=_choice("image", "wave", "vector"), shape=_shape, mean=_each(_number), std=_each(_number), sample_rate=_whole,
    optional={"columns": _each(check_column)},
)  # fmt: skip
_SELECTION = _fields(
    criterion=_text,
    column=_text,
    stopped=partial(_kind, kind=bool),
    round=_or_none(_whole),
    optional={"value": _number},
)
_SETTINGS = _fields(**dict.fromkeys(_TEXTS, _text), **dict.fromkeys(_COUNTS, _whole), **dict.fromkeys(_NUMBERS, _number))
_META = _fields(
    input_shape=_shape,
    dataset_checksum=_text,
    classes=partial(_whole, high=MAX_CLASSES),
    machine=_fields(engine=_text, seconds=_number, peak_bytes=_number, optional={"row_seconds": _each(_or_none(_number))}),
    optional={
        "embedding": _or_none(_text),
        "features": _or_none(_fields(sha256=_text, optional={"backbone": _text, "weights": _text})),
        "committee": partial(_whole, high=2**10),
        "frozen": _or_none(_text),
        "head": _or_none(partial(_whole, high=2**20)),
        "needs": _or_none(_each(_text)),
        "own": _or_none(_each(_text, dict)),
        "pair": partial(_kind, kind=bool),
        "protection": _or_none(_fields(sums=_sums, epsilon=_number, delta=_number, release=_text)),
        "samples": _samples,
        "selection": _or_none(_SELECTION),
        "unsaved": _each(_text),
    },
)
_COUNTED = dict.fromkeys(("bytes_down", "bytes_up", "client_rounds"), _whole)
_TRAFFIC = _fields(**_COUNTED)
_ROW = _fields(
    round=_whole, stage=_text, optional=_COUNTED | {"clients": _each(_whole), "rejected": _each(partial(_kind, kind=dict))}
)
_REJECTED = _fields(round=_whole, client=_whole, reason=_text)


def check(run: Any) -> None:
    """Raise InputError unless a run has the form that `train` writes; `check_state` checks its tensors.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    """
    _SETTINGS(run.settings, "settings")
    for name, value in run.settings.items():
        if not isinstance(value, (str, int, float, bool)):
            raise InputError(f"setting {_short(name)} is {_short(value)}; expected a number or a text")
    _META(run.meta, "run")
    must_be_steps(run.meta.get("provenance", []))
    if "samples" in run.meta:
        must_be_names(run.meta["samples"].get("class_names"), run.meta["classes"])
    _labels(run)
    _history(run.history)
    timed = run.meta["machine"].get("row_seconds")
    if timed is not None and len(timed) != len(run.history):
        raise InputError(f"machine: row_seconds has {len(timed)} entries for {len(run.history)} rows of history")
    _TRAFFIC(vars(run.traffic), "traffic")
    _each(_whole, dict)(run.traffic.sent, "traffic: sent")
    _each(_REJECTED)(run.rejected, "rejected")
    if any(row["client"] >= len(run.client_offsets) - 1 for row in run.rejected):
        raise InputError(f"rejected: a client is not one of the {len(run.client_offsets) - 1} clients")
    if type(run.finished) is not bool:
        raise InputError(f"`finished` is {_short(run.finished)}; expected true or false")
    _records(run)
    _log(run)
    _predicted(run)


def check_state(run: Any) -> None:
    """Raise InputError unless the weights, the memory and the selection of a run have the form that `train` writes.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    """
    weights = run.weights
    if weights.dim() != 1 or not weights.is_floating_point():
        raise InputError(f"`weights` is {weights.dtype} {tuple(weights.shape)}; expected one vector of floats")
    _selection(run)
    _memory(run)


def _labels(run):
    """Check labels and clients as in a federation, and convert both to the types of a federation."""
    for name in ("given", "corrected"):
        if name not in run.labels:
            raise InputError(f"the array labels/{name} is missing")
    federation = Federation(
        run.meta.get("dataset"),
        run.meta.get("classes"),
        run.client_offsets,
        run.client_indices,
        run.labels["given"],
        true=run.labels.get("true"),
        extra={name: values for name, values in run.truth.items() if name not in _NOISE}
        | {name: run.labels[name] for name in OF_RUNS if name in run.labels},
        **{name: run.truth.get(name) for name in _NOISE},
    )
    federation.check()
    if not len(federation):
        raise InputError("the run has no clients")
    if run.meta.get("client_names") is not None:
        must_be_names(run.meta["client_names"], len(federation), "client")
    corrected = run.labels["corrected"]
    if corrected.shape != federation.given.shape or corrected.dtype.kind not in "iu":
        raise InputError(f"labels/corrected is {corrected.dtype} {corrected.shape}, labels/given {federation.given.shape}")
    if corrected.min() < 0 or corrected.max() >= federation.classes:
        raise InputError(
            f"labels/corrected runs from {corrected.min()} to {corrected.max()}, not 0 to {federation.classes - 1}"
        )
    run.client_offsets, run.client_indices = federation.client_offsets, federation.client_indices
    run.labels["given"] = federation.given
    if federation.true is not None:
        run.labels["true"] = federation.true


def _history(history):
    _kind(history, "history", list)
    for i, row in enumerate(history):
        _ROW(row, "history")
        if row["round"] != i:
            raise InputError(f"history: round {row['round']} instead of round {i}")
        if row["stage"] != "final":
            _TRAFFIC(row, "history")
        for name, value in row.items():
            if name not in ("stage", "clients", "rejected"):
                _number(value, f"history: {_short(name)}", finite=False)
        for name in ("accuracy", "agreement", "label_accuracy"):
            if name in row and not 0 <= row[name] <= 1:
                raise InputError(f"history: {name} is {_short(row[name])}; expected 0 to 1")


def _selection(run):
    about = run.meta.get("selection")
    if about is not None and about["round"] is not None and about["round"] >= len(run.history):
        raise InputError(f"selection: round {about['round']} of {len(run.history)} rounds")
    for name, value in run.selection.items():
        if name in ("last", "before") and value.shape == run.weights.shape and value.dtype == run.weights.dtype:
            continue
        right = name == "predicted" and value.shape == (len(run.client_indices),) and not value.is_floating_point()
        if not right or (len(value) and not 0 <= int(value.min()) <= int(value.max()) < run.meta["classes"]):
            raise InputError(f"selection: {_short(name)} is {value.dtype} {tuple(value.shape)}; expected weights or classes")


def _records(run):
    sides = {"N": len(run.client_offsets) - 1, "C": run.meta["classes"], "2": 2}
    for name, (rounds, values) in run.records.items():
        where = f"record {_short(name)}"
        right = rounds.ndim == 1 and values.ndim >= 1 and rounds.dtype.kind in "iu" and values.dtype.kind in "biuf"
        if not right or not 0 < len(rounds) == len(values):
            raise InputError(f"{where} has {rounds.shape} rounds and {values.shape} values; expected one for each round")
        if rounds.min() < 0 or rounds.max() >= max(1, len(run.history)):
            raise InputError(f"{where} is of round {rounds.max()}; the history has {len(run.history)}")
        if name in _RECORDS:
            wanted = tuple(sides[side] for side in _RECORDS[name])
            if values.shape[1:] != wanted:
                raise InputError(f"{where} is {values.shape[1:]} each; expected {wanted}")
            if name != "noise_level" and values.dtype.kind == "f" and not np.isfinite(values).all():
                raise InputError(f"{where} contains NaN or infinity")


def _predicted(run):
    """Check stored predictions; `fnlkit.results.scores` compares their number with the samples."""
    for name, values in run.predicted.items():
        if name not in ("test", "held_out", "gold") or values.ndim != 1 or values.dtype.kind not in "iu":
            raise InputError(f"predicted: {_short(name)} is {values.dtype} {values.shape}; expected one vector of classes")
        if len(values) and not 0 <= values.min() <= values.max() < run.meta["classes"]:
            raise InputError(f"predicted: {name} has classes outside 0 to {run.meta['classes'] - 1}")


def _log(run):
    clients, classes = len(run.client_offsets) - 1, run.meta["classes"]
    for entry in run.log:
        for name in ("asked", "kept"):
            ids = getattr(entry, name)
            if ids.ndim != 1 or ids.dtype != np.int64 or (len(ids) and not 0 <= ids.min() <= ids.max() < clients):
                raise InputError(f"log: `{name}` contains clients outside 0 to {clients - 1}")
        if not np.isin(entry.kept, entry.asked).all() or len(np.unique(entry.asked)) != len(entry.asked):
            raise InputError("log: `kept` contains clients that are not in `asked`")
        if entry.norms.ndim != 1 or entry.norms.dtype != np.float64 or not np.isfinite(entry.norms).all():
            raise InputError("log: norms of updates are invalid")
        for name, values in entry.values.items():
            if len(values) != len(entry.kept) and len(values) != 1:  # one value: the sum over the clients
                raise InputError(f"log: {len(values)} replies {_short(name)} of {len(entry.kept)} clients")
        for name in ("private_counts", "exact_counts"):
            if any(np.shape(v) != (classes,) or np.asarray(v).dtype.kind not in "iu" for v in entry.values.get(name, [])):
                raise InputError(f"log: {name} must be counts of {classes} classes")
        for value in entry.values.get("epsilon", []):
            if np.shape(value) != () or not np.isfinite(value) or value <= 0:
                raise InputError("log: epsilon must be a positive number")


def _memory(run):
    sizes = np.diff(run.client_offsets)
    clients = len(sizes)
    for name, value in run.memory.items():
        group, _, rest = name.partition("/")
        if group not in ("server", "rows", "state") or not rest:
            raise InputError(f"memory: the name {_short(name)} is unknown")
        if group == "server":
            continue
        if rest.endswith("/clients"):
            continue
        whose = run.memory.get(f"{name}/clients")
        if whose is None or whose.dim() != 1 or whose.is_floating_point() or value.dim() < 1:
            raise InputError(f"memory: {_short(name)} has no valid list of clients")
        held = whose.numpy().astype(np.int64)
        if len(held) and not 0 <= held.min() <= held.max() < clients:
            raise InputError(f"memory: {_short(name)} contains clients outside 0 to {clients - 1}")
        wanted = int(sizes[held].sum()) if group == "rows" else len(held)
        if len(value) != wanted or len(np.unique(held)) != len(held):
            raise InputError(f"memory: {_short(name)} has {len(value)} entries; expected {wanted}")

"""Validate the names, types, shapes and ranges of a run from a file."""

from dataclasses import make_dataclass
from typing import Annotated, Any, Literal

import numpy as np

from fnlkit.artifacts.federation import MAX_CLASSES, must_be_names, must_be_steps
from fnlkit.artifacts.records import Within, from_json
from fnlkit.core.errors import InputError

_TEXTS = ("method", "optimizer", "aggregator", "selector", "model", "augment", "client_optimizer", "precision")
_COUNTS = ("rounds", "epochs", "batch_size", "eval_every", "seed")
_NUMBERS = ("fraction", "lr", "momentum", "weight_decay", "decay", "clip", "min_replies")
# Shapes of the records that fnlkit's methods write and its readers use, for C classes and N clients.
_RECORDS = {
    "noise_level": "N", "cumulative_lid": "N", "noisy_clients": "N", "aggregation_weights": "N", "lid_means": "2",
    "lid_variances": "2", "lid_shares": "2", "prior": "C", "transition": "CC", "label_confusion": "CC",
}  # fmt: skip
Text = Annotated[str, Within(1, 10_000)]
Whole = Annotated[int, Within()]
Shape = Annotated[list[Annotated[int, Within(1, 2**31 - 1)]], Within(1, 4)]


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# As fnlkit.datasets.dates.FORMS.
_DATES = ("year-month-day", "day-month-year", "month-day-year", "yearmonthday", "day name year", "name day year", "year-month",
          "yearmonth", "month-year", "name year", "year name", "year-quarter", "quarter-year", "year-week")  # fmt: skip

# Thousands separator and decimal mark, as fnlkit.datasets.notation.MARKS.
_MARKS = (("", "."), (",", "."), ("", ","), (".", ","), (" ", "."), (" ", ","), ("'", "."), ("'", ","))


def _record(optional=None, **required):
    """Declare a record with these entries; an optional entry can be missing."""
    entries = [*required.items(), *((name, kind, None) for name, kind in (optional or {}).items())]
    return make_dataclass("_Record", entries, repr=False, eq=False, match_args=False)  # faster to make


_NOTATION = {"notation": _record(**dict.fromkeys(("thousands", "decimal", "unit"), str))}
_NUMBER = {"fill": float, "missing": bool}
_COLUMNS = {
    "number": _record(_NOTATION | {"offset": float}, **_NUMBER),
    "one-hot": _record(_NOTATION, levels=list[Text]),
    "rank": _record(_NOTATION | {"offset": float}, levels=list[Text], **_NUMBER),
    "text": _record(size=Annotated[int, Within(0, 2**20)]),
    "date": _record(form=Literal[_DATES], fill=Annotated[list[float], Within(3, 3)], missing=bool),
}
_COLUMN = _record(name=Text, kind=Literal[tuple(_COLUMNS)])


def check_column(value: Any, where: str) -> None:
    """Check the encoding of a table column."""
    column = from_json(_COLUMNS[from_json(_COLUMN, value, where).kind], value, where)
    notation = getattr(column, "notation", None)
    if notation is not None and (notation.thousands, notation.decimal) not in _MARKS:
        found = _short(value["notation"])
        raise InputError(f"{where}: notation is {found}; expected a thousands separator and a decimal mark")


_SUMS = _record(sampling=Literal["fixed", "poisson"], clients=Whole, rounds=Whole, cohort=float, clip=float, noise=float)
_SAMPLES = _record(
    {"columns": list[Any]}, kind=Literal["image", "wave", "vector"], shape=Shape, mean=list[float], std=list[float],
    sample_rate=Whole,
)  # fmt: skip
_CHANGE = _record(name=Text, before=Text, after=Text, rounds=Whole)
_META = _record(
    input_shape=Shape, dataset_checksum=Text, classes=Annotated[int, Within(0, MAX_CLASSES)],
    machine=_record({"row_seconds": list[float | None]}, engine=Text, seconds=float, peak_bytes=float),
    optional={
        "embedding": Text | None,
        "features": _record({"backbone": Text, "weights": Text}, sha256=Text) | None,
        "code_changes": list[_CHANGE],  # type: ignore[valid-type]
        "committee": Annotated[int, Within(0, 2**10)],
        "frozen": Text | None,
        "head": Annotated[int, Within(0, 2**20)] | None,
        "needs": list[Text] | None,
        "own": dict[str, Text] | None,
        "pair": bool,
        "protection": _record(sums=_SUMS, epsilon=float, delta=float, release=Text) | None,
        "samples": _SAMPLES,
        "selection": _record({"value": float}, criterion=Text, column=Text, stopped=bool, round=Whole | None) | None,
        "unsaved": list[Text],
    },
)  # fmt: skip
_COUNTED = dict.fromkeys(("bytes_down", "bytes_up", "client_rounds"), Whole)
_TRAFFIC = _record(**_COUNTED)
_ROW = _record(_COUNTED | {"clients": list[Whole], "rejected": list[dict[str, Any]]}, round=Whole, stage=Text)
_REJECTED: Any = list[_record(round=Whole, client=Whole, reason=Text)]  # type: ignore[misc]
_SETTINGS = _record(**dict.fromkeys(_TEXTS, Text), **dict.fromkeys(_COUNTS, Whole), **dict.fromkeys(_NUMBERS, float))


def check(run: Any) -> None:
    """Raise InputError unless a run has the form that `train` writes; `check_state` checks its tensors.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    """
    from_json(_SETTINGS, run.settings, "settings")
    for name, value in run.settings.items():
        if not isinstance(value, (str, int, float, bool)):
            raise InputError(f"setting {_short(name)} is {_short(value)}; expected a number or a text")
    meta = from_json(_META, run.meta, "run")
    if meta.protection and len(run.meta["protection"]["sums"]) != 6:  # readers pass them on by name
        raise InputError("protection: sums must contain only sampling, clients, cohort, clip, noise and rounds")
    must_be_steps(run.meta.get("provenance", []))
    if "samples" in run.meta:
        must_be_names(run.meta["samples"].get("class_names"), run.meta["classes"])
        _check_samples(meta.samples)
    _labels(run)
    _history(run.history)
    timed = run.meta["machine"].get("row_seconds")
    if timed is not None and len(timed) != len(run.history):
        raise InputError(f"machine: row_seconds has {len(timed)} entries for {len(run.history)} rows of history")
    from_json(_TRAFFIC, vars(run.traffic), "traffic")
    from_json(dict[str, Whole], run.traffic.sent, "traffic: sent")
    from_json(_REJECTED, run.rejected, "rejected")
    if any(row["client"] >= len(run.client_offsets) - 1 for row in run.rejected):
        raise InputError(f"rejected: a client is not one of the {len(run.client_offsets) - 1} clients")
    if type(run.finished) is not bool:
        raise InputError(f"`finished` is {_short(run.finished)}; expected true or false")
    _records(run)
    _log(run)
    _predicted(run)


def _check_samples(samples):
    for number, column in enumerate(samples.columns or ()):
        check_column(column, f"column {number} of the samples")
    sides, mean, std, image = len(samples.shape), samples.mean, samples.std, samples.kind == "image"
    if sides != (3 if image else 1):
        raise InputError(f"samples: shape is {samples.shape}; this is not a shape of kind {samples.kind}")
    if len(mean) not in ((samples.shape[-1],) if image else (0, samples.shape[-1])):
        raise InputError(f"samples: mean has {len(mean)} numbers for samples of {samples.shape}")
    if len(mean) != len(std) or any(number <= 0 for number in std):
        raise InputError("samples: std must contain a positive number for each entry of mean")


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
    federation = run.federation()
    federation.check()
    if not len(federation):
        raise InputError("the run has no clients")
    corrected = run.labels["corrected"]
    if corrected.shape != federation.given.shape or corrected.dtype.kind not in "iu":
        raise InputError(f"labels/corrected is {corrected.dtype} {corrected.shape}, labels/given {federation.given.shape}")
    if corrected.min() < 0 or corrected.max() >= federation.classes:
        raise InputError(f"labels/corrected is from {corrected.min()} to {corrected.max()}, not 0 to {federation.classes - 1}")
    run.client_offsets, run.client_indices = federation.client_offsets, federation.client_indices
    run.labels["given"] = federation.given
    if federation.true is not None:
        run.labels["true"] = federation.true


def _history(history):
    from_json(list[_ROW], history, "history")
    for i, row in enumerate(history):
        if row["round"] != i:
            raise InputError(f"history: round {row['round']} instead of round {i}")
        if row["stage"] != "final":
            from_json(_TRAFFIC, row, "history")
        for name, value in row.items():
            # A score of a diverged model is not finite.
            if name not in ("stage", "clients", "rejected") and not isinstance(value, (bool, float)):
                from_json(int, value, f"history: {_short(name)}")
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
    for name, values in run.logits.items():
        wanted = (len(run.predicted.get(name, ())), run.meta["classes"])
        if values.shape != wanted or values.dtype != np.float32:
            raise InputError(f"logits: {_short(name)} is {values.dtype} {values.shape}; expected float32 {wanted} as predicted")


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

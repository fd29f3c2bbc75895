"""Validate the names, types, shapes and ranges of a run from a file."""

import math

import numpy as np

from fnlkit.artifacts.federation import MAX_CLASSES, Federation, must_be_names, must_be_steps
from fnlkit.errors import InputError

_TEXTS = ("method", "optimizer", "aggregator", "selector", "model", "augment", "client_optimizer", "precision")
_COUNTS = ("rounds", "epochs", "batch_size", "eval_every", "seed")
_NUMBERS = ("fraction", "lr", "momentum", "weight_decay", "decay", "clip", "min_replies")
_TRAFFIC = ("bytes_down", "bytes_up", "client_rounds")
# Shapes of the records that fnlkit's methods write and its readers use, for C classes and N clients.
_RECORDS = {
    "noise_level": "N", "cumulative_lid": "N", "noisy_clients": "N", "aggregation_weights": "N", "lid_means": "2",
    "lid_variances": "2", "lid_shares": "2", "prior": "C", "transition": "CC", "label_confusion": "CC",
}  # fmt: skip
_NOISE = ("noise_client_level", "noise_client_noisy", "noise_transition")
_MOST = 2**63 - 1


def check(run):
    """Raise InputError unless a run has the form that `train` writes.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    """
    _settings(run.settings)
    _meta(run.meta)
    _labels(run)
    _history(run.history)
    timed = run.meta["machine"].get("row_seconds")
    if timed is not None and len(timed) != len(run.history):
        raise InputError(f"machine: row_seconds has {len(timed)} entries for {len(run.history)} rows of history")
    _traffic(run.traffic)
    for row in _items(run.rejected, dict, "rejected"):
        _whole(row.get("round"), "rejected: round")
        _whole(row.get("client"), "rejected: client", high=len(run.client_offsets) - 2)
        _text(row.get("reason"), "rejected: reason")
    if type(run.finished) is not bool:
        raise InputError(f"`finished` is {_short(run.finished)}; expected true or false")
    weights = run.weights
    if weights.dim() != 1 or not weights.is_floating_point():
        raise InputError(f"`weights` is {weights.dtype} {tuple(weights.shape)}; expected one vector of floats")
    _records(run)
    _log(run)
    _memory(run)


def _settings(settings):
    _kind(settings, dict, "settings")
    for name in _TEXTS:
        _text(settings.get(name), f"setting {name}")
    for name in _COUNTS:
        _whole(settings.get(name), f"setting {name}")
    for name in _NUMBERS:
        value = settings.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InputError(f"setting {name} is {_short(value)}; expected a number")
    for name, value in settings.items():
        if not isinstance(value, (str, int, float, bool)):
            raise InputError(f"setting {_short(name)} is {_short(value)}; expected a number or a text")


def _meta(meta):
    shape = meta.get("input_shape")
    if not isinstance(shape, list) or not 1 <= len(shape) <= 4 or not all(type(v) is int and 1 <= v < 2**31 for v in shape):
        raise InputError(f"`input_shape` is {_short(shape)}; expected the shape of a sample")
    _text(meta.get("dataset_checksum"), "dataset_checksum")
    _whole(meta.get("classes"), "classes", high=MAX_CLASSES)
    if meta.get("embedding") is not None:
        _text(meta["embedding"], "embedding")
    _whole(0 if meta.get("head") is None else meta["head"], "head", high=2**20)
    if meta.get("features") is not None:
        _kind(meta["features"], dict, "features")
        for name in ("path", "sha256"):
            _text(meta["features"].get(name), f"features: {name}")
    if meta.get("protection") is not None:
        _protection(meta["protection"])
    if "samples" in meta:
        _samples(meta["samples"], meta["classes"])
    if meta.get("frozen") is not None:
        _text(meta["frozen"], "frozen")
    _kind(meta.get("pair", False), bool, "pair")
    if meta.get("needs") is not None:
        for need in _items(meta["needs"], str, "needs"):
            _text(need, "needs")
    if meta.get("own") is not None:
        _kind(meta["own"], dict, "own")
        for digest in meta["own"].values():
            _text(digest, "own")
    for name in _items(meta.get("unsaved", []), str, "unsaved"):
        _text(name, "unsaved")
    must_be_steps(meta.get("provenance", []))
    machine = meta.get("machine")
    _kind(machine, dict, "machine")
    _text(machine.get("engine"), "machine: engine")
    for name in ("seconds", "peak_bytes"):
        _number(machine.get(name), f"machine: {name}")
    for seconds in _items(machine.get("row_seconds", []), (int, float, type(None)), "machine: row_seconds"):
        if seconds is not None:
            _number(seconds, "machine: row_seconds")


def _protection(about):
    """Check the privacy cost of protected updates, as in `fnlkit.privacy`."""
    _kind(about, dict, "protection")
    sums = about.get("sums")
    _kind(sums, dict, "protection: sums")
    if set(sums) != {"sampling", "clients", "cohort", "clip", "noise", "rounds"} or sums["sampling"] not in (
        "fixed",
        "poisson",
    ):
        raise InputError(f"protection: sums is {_short(sums)}; expected sampling, clients, cohort, clip, noise and rounds")
    for name in ("clients", "rounds"):
        _whole(sums[name], f"protection: {name}")
    for value, name in ((sums[n], n) for n in ("cohort", "clip", "noise")):
        _number(value, f"protection: {name}")
    for name in ("epsilon", "delta"):
        _number(about.get(name), f"protection: {name}")
    if "release" in about:  # missing in the oldest protected runs
        _text(about["release"], "protection: release")


def _samples(about, classes):
    """Check the metadata of the training samples."""
    _kind(about, dict, "samples")
    if about.get("kind") not in ("image", "wave", "vector"):
        raise InputError(f"samples: kind is {_short(about.get('kind'))}; expected image, wave or vector")
    shape = _items(about.get("shape"), int, "samples: shape")
    for side in shape:
        _whole(side, "samples: shape", high=2**31)
    if len(shape) != {"image": 3}.get(about["kind"], 1):
        raise InputError(f"samples: shape is {_short(shape)}; this is not a shape of kind {about['kind']}")
    for name in ("mean", "std"):
        numbers = about.get(name)
        _kind(numbers, list, f"samples: {name}")
        for number in numbers:
            _number(number, f"samples: {name}")
        if len(numbers) not in ((shape[-1],) if about["kind"] == "image" else (0, shape[-1])):
            raise InputError(f"samples: {name} has {len(numbers)} numbers for samples of {shape}")
    if len(about["mean"]) != len(about["std"]) or any(number <= 0 for number in about["std"]):
        raise InputError("samples: std must contain a positive number for each entry of mean")
    _whole(about.get("sample_rate"), "samples: sample_rate")
    must_be_names(about.get("class_names"), classes)
    if "columns" in about:
        _columns(about["columns"])


def _columns(columns):
    """Check the encoding of table columns."""
    for column in _items(columns, dict, "samples: columns"):
        _text(column.get("name"), "samples: columns: name")
        if column.get("kind") not in ("number", "one-hot", "rank"):
            raise InputError(f"samples: columns: kind is {_short(column.get('kind'))}; expected number, one-hot or rank")
        if column["kind"] != "number":
            for level in _items(column.get("levels"), str, "samples: columns: levels"):
                _text(level, "samples: columns: levels")
        if column["kind"] != "one-hot":
            _number(column.get("fill"), "samples: columns: fill")
            _kind(column.get("missing"), bool, "samples: columns: missing")


def _labels(run):
    """Check labels and clients as in a federation, and convert them to its types."""
    for name in ("given", "corrected"):
        if name not in run.labels:
            raise InputError(f"the array labels/{name} is missing")
    found = Federation(
        run.meta.get("dataset"),
        run.meta.get("classes"),
        run.client_offsets,
        run.client_indices,
        run.labels["given"],
        true=run.labels.get("true"),
        extra={name: values for name, values in run.truth.items() if name not in _NOISE}
        | {name: run.labels[name] for name in ("holdout_client", "gold_label", "received") if name in run.labels},
        **{name: run.truth.get(name) for name in _NOISE},
    )
    found.check()
    if not len(found):
        raise InputError("the run has no clients")
    if run.meta.get("client_names") is not None:
        must_be_names(run.meta["client_names"], len(found), "client")
    corrected = run.labels["corrected"]
    if corrected.shape != found.given.shape or corrected.dtype.kind not in "iu":
        raise InputError(f"labels/corrected is {corrected.dtype} {corrected.shape}, labels/given {found.given.shape}")
    if corrected.min() < 0 or corrected.max() >= found.classes:
        raise InputError(f"labels/corrected runs from {corrected.min()} to {corrected.max()}, not 0 to {found.classes - 1}")
    run.client_offsets, run.client_indices = found.client_offsets, found.client_indices
    run.labels["given"] = found.given
    if found.true is not None:
        run.labels["true"] = found.true


def _history(history):
    for i, row in enumerate(_items(history, dict, "history")):
        if _whole(row.get("round"), "history: round") != i:
            raise InputError(f"history: round {row['round']} instead of round {i}")
        _text(row.get("stage"), "history: stage")
        for name in ("client_rounds", "bytes_up", "bytes_down"):
            if name in row or row["stage"] != "final":
                _whole(row.get(name), f"history: {name}")
        for client in _items(row.get("clients", []), int, "history: clients"):
            _whole(client, "history: clients")
        _items(row.get("rejected", []), dict, "history: rejected")
        for name, value in row.items():
            if name not in ("stage", "clients", "rejected"):
                _number(value, f"history: {_short(name)}", finite=False)
        for name in ("accuracy", "agreement", "label_accuracy"):
            if name in row and not 0 <= row[name] <= 1:
                raise InputError(f"history: {name} is {_short(row[name])}; expected 0 to 1")


def _traffic(traffic):
    for name in _TRAFFIC:
        _whole(getattr(traffic, name), f"traffic: {name}")
    _kind(traffic.sent, dict, "traffic: sent")
    for name, value in traffic.sent.items():
        _whole(value, f"traffic: {_short(name)}")


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
            if len(values) != len(entry.kept):
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


def _kind(value, kind, where):
    if not isinstance(value, kind):
        expected = kind.__name__ if isinstance(kind, type) else "a number"
        raise InputError(f"`{where}` is {_short(value)}; expected {expected}")


def _items(values, kind, where):
    _kind(values, list, where)
    for value in values:
        _kind(value, kind, where)
    return values


def _text(value, where):
    if not isinstance(value, str) or not value or len(value) > 10_000:
        raise InputError(f"{where} is {_short(value)}; expected a text")


def _whole(value, where, high=_MOST):
    if type(value) is not int or not 0 <= value <= high:
        raise InputError(f"{where} is {_short(value)}; expected a whole number from 0 to {high}")
    return value


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

"""Run: written by `train`, read by `evaluate` and `train --resume`."""

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fnlkit.artifacts import display, files, run_schema
from fnlkit.artifacts.exchange import Exchange, Result, Traffic, pack_log, unpack_log
from fnlkit.artifacts.federation import OF_RUNS, Federation
from fnlkit.artifacts.files import Artifact
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.provenance import must_be_current
from fnlkit.artifacts.safe.pt import Tensor
from fnlkit.core.errors import InputError
from fnlkit.core.spec import from_file

if TYPE_CHECKING:
    import pandas
    import torch


KIND = "fnlkit.run/1"


@dataclass
class Run:
    """A trained or interrupted run.

    Attributes
    ----------
    settings : dict
        All options of `train` that determine the result.  In a run from an untrusted file, texts are
        `fnlkit.core.spec.FileText`: specs in these texts can name only components of fnlkit and of
        installed packages.
    weights : Tensor (P + Q,)
        The global model: of the last round, or of the round that `--select` chose.
    labels : dict of int64 (n,)
        ``given``, ``corrected`` and, if known, ``true``, by position in the training set; ``holdout_client``,
        ``gold_label``, ``received``, ``review_part`` and ``group`` as in a federation.
    client_offsets (N + 1,), client_indices (m,) : int64
    history : list of dict
        The rows of metrics.jsonl.
    records : dict of (rounds int64 (r,), values (r, ...))
        Arrays that the method reported, by name.
    truth : dict of arrays
        Noise metadata from the federation, used only for evaluation.
    memory : dict
        State of the clients, their samples and the server, for resuming.
    log : list of Exchange
    results : list of Result
        Results of the server's computations with weights (`Clients.once`), in order.
    traffic : Traffic
    rejected : list of dict
    finished : bool
    selection : dict of Tensor
        For resuming with `--select`: ``last``, the model of the last round, if another round was chosen; ``predicted`` (m,),
        the predictions for the clients' samples at the last measurement.
    predicted : dict of int32 (m,)
        Classes that the model of a finished run predicts: ``test``, for the data set's test samples; ``held_out`` and ``gold``,
        for the clients' held-out and verified samples, in the order of the labels.  {} if the run has no global model.
    logits : dict of float32 (m, C)
        Logits of the same samples; {} in runs of earlier versions.
    meta : dict
        dataset, classes, network spec, input shape, provenance, machine.
    """

    settings: dict[str, Any]
    weights: "torch.Tensor"
    labels: dict[str, Any]
    client_offsets: np.ndarray
    client_indices: np.ndarray
    history: list[dict[str, Any]]
    records: dict[str, Any]
    truth: dict[str, np.ndarray]
    memory: dict[str, Any]
    log: list[Exchange]
    traffic: Traffic
    rejected: list[dict[str, Any]]
    finished: bool
    meta: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    selection: "dict[str, torch.Tensor]" = field(default_factory=dict)
    predicted: dict[str, np.ndarray] = field(default_factory=dict)
    logits: dict[str, np.ndarray] = field(default_factory=dict)

    def __getattr__(self, name):
        # Reached only for a field that is missing, as in a run of `read(..., state=False)`: its tensors are converted now.
        if name not in _STATE or "_stored" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        _load_state(self, vars(self).pop("_stored"))
        return vars(self)[name]

    @classmethod
    def of_arrays(cls, state: dict[str, np.ndarray], **fields: Any) -> Self:
        """Make a Run whose state {``weights``, ``memory/...``, ``selection/...``} becomes tensors at its first use."""
        return cls._with_stored({name: Tensor.of(values) for name, values in state.items()}, "a run in memory", **fields)

    @classmethod
    def _with_stored(cls, stored, source, **fields):
        """Make a Run whose state {name: Tensor} becomes tensors at its first use; `source` names it in messages."""
        run = cls(weights=None, memory={}, **fields)
        for name in _STATE:
            del vars(run)[name]
        vars(run).update(_stored=stored, _source=source)
        return run

    def weights_array(self) -> np.ndarray:
        """Read the weights, without torch if nothing else needed the tensors before."""
        if "_stored" in vars(self):
            return vars(self)["_stored"]["weights"].array()
        return self.weights.detach().cpu().contiguous().numpy()

    def weights_bytes(self) -> bytes:
        """Bytes of the weights."""
        return self.weights_array().tobytes()

    def __repr__(self):
        rounds = sum(row["stage"] != "final" for row in self.history)
        name = "accuracy" if any("accuracy" in row for row in self.history) else "agreement"
        scored = [row[name] for row in self.history if name in row]
        text = f"Run: {self.settings['method']} on {self.meta.get('dataset')}, {rounds:,} rounds"
        text += f", {self.budget()}" if self.budget() else "" if self.finished else " so far"
        text += f"; {name} {scored[-1]:.4f}, best {max(scored):.4f}" if scored else ""
        return display.plain(text)

    def budget(self) -> str:
        """Text with the number of rounds if it differs from the setting `rounds` because cohorts differ in size, or ""."""
        trained = sum(row["stage"] != "final" for row in self.history)
        stopped = (self.meta.get("selection") or {}).get("stopped")
        if not self.finished or stopped or trained == self.settings["rounds"]:
            return ""
        if "linear" in (self.meta.get("needs") or ()):
            return f"{self.traffic.bytes_up:,} bytes from all clients"
        visits, budget = self.traffic.client_rounds, self.settings["rounds"]
        if "folds" in (self.meta.get("needs") or ()):
            return f"{visits:,} client-rounds of several trainings of {budget:,} rounds"
        return f"{visits:,} client-rounds (the budget of {budget:,} rounds; here, cohorts differ in size)"

    def to_pandas(self) -> "pandas.DataFrame":
        """Convert to a data frame with one row per round.

        The columns as in metrics.jsonl: stage, client_rounds, bytes, and accuracy if it was measured.
        """
        return display.frame(self.history)

    def federation(self) -> Federation:
        """Make the Federation of the run, with the data that the run contains."""
        noise = ("noise_client_level", "noise_client_noisy", "noise_transition")
        extra = {name: values for name, values in self.truth.items() if name not in noise}
        extra |= {name: self.labels[name] for name in OF_RUNS if name in self.labels}
        return Federation(
            self.meta["dataset"],
            int(self.meta["classes"]),
            self.client_offsets,
            self.client_indices,
            self.labels["given"],
            true=self.labels.get("true"),
            extra=extra,
            meta={name: self.meta[name] for name in ("client_names", "dataset_checksum", "samples") if self.meta.get(name)},
            **{name: self.truth.get(name) for name in noise},
        )

    def to_artifact(self) -> Artifact:
        """Convert the complete run to an Artifact."""
        stored = vars(self).get("_stored")
        tensors = {"weights": _array(self.weights)} if stored is None else dict(stored)
        for group in ("labels", "truth", "predicted", "logits"):
            for name, values in getattr(self, group).items():
                tensors[f"{group}/{name}"] = _array(values)
        tensors |= {"client_offsets": _array(self.client_offsets), "client_indices": _array(self.client_indices)}
        for name, (rounds, values) in self.records.items():
            tensors[f"record/{name}/rounds"], tensors[f"record/{name}"] = _array(rounds), _array(values)
        for group in ("memory", "selection") if stored is None else ():
            for name, value in getattr(self, group).items():
                tensors[f"{group}/{name}"] = _array(value)
        index, results, tensors["log"] = pack_log(self.log, self.results)
        body = {
            "settings": self.settings,
            "history": self.history,
            "log": index,
            "results": results,
            "traffic": vars(self.traffic),
            "rejected": self.rejected,
            "finished": self.finished,
        }
        # One text is cheaper for the safe reader than thousands of nodes.
        tensors["body"] = _array(np.frombuffer(json.dumps(body).encode(), np.uint8))
        return files.Artifact(KIND, tensors, self.meta)

    def write(self, target: str | os.PathLike[str]) -> None:
        """Write the run as .pt by rename; `-` is stdout."""
        files.write(self.to_artifact(), target, format="pt")

    @classmethod
    def read(cls, source: str | os.PathLike[str] | bytes, *, trust: bool = False, state: bool = True) -> Self:
        """Read a Run from a file, stdin (`-`) or bytes.

        Parameters
        ----------
        source : str, os.PathLike or bytes
        trust : bool
            Whether components in the settings can be imported from a user's files (``--model mine.py:build``).
        state : bool
            If False, `weights`, `memory` and `selection` are converted and checked at their first use: the other fields need
            no torch.

        Raises
        ------
        InputError
            If the input is not a run, is damaged, or was written by a newer version.
        """
        artifact = files.read(source, kinds=[KIND], values=False)
        shown_source = display_path(source)
        with _named_errors(shown_source):
            must_be_current(artifact.meta)
            arrays = {name: value for name, value in artifact.arrays.items() if not _is_state(name)}
            tensors = {name: value.array() for name, value in arrays.items()}
            body = json.loads(tensors["body"].tobytes().decode())
            groups = {group: _of_group(group, tensors) for group in ("labels", "truth", "predicted", "logits")}
            recorded = _of_group("record", tensors)
            log, results = unpack_log(body["log"], body.get("results", []), tensors["log"])
            run = cls._with_stored(
                {name: value for name, value in artifact.arrays.items() if _is_state(name)},
                shown_source,
                settings=body["settings"],
                client_offsets=tensors["client_offsets"],
                client_indices=tensors["client_indices"],
                history=body["history"],
                records={
                    name: (recorded[f"{name}/rounds"], values)
                    for name, values in recorded.items()
                    if not name.endswith("/rounds")
                },
                log=log,
                results=results,
                traffic=Traffic(**body["traffic"]),
                rejected=body["rejected"],
                finished=body["finished"],
                meta=artifact.meta | {"dataset": from_file(artifact.meta.get("dataset"))},
                **groups,
            )
            if "weights" not in vars(run)["_stored"]:
                raise InputError("the array weights is missing")
            run_schema.check(run)
        if state:
            _load_state(run, vars(run).pop("_stored"))
        if not trust:  # a backbone is imported by name
            run.settings = from_file(run.settings)
            run.meta = run.meta | {name: from_file(run.meta[name]) for name in ("features", "samples") if name in run.meta}
        return run


# Fields with tensors, which only training, predictions and a resumed run need.
_STATE = ("weights", "memory", "selection")


def _is_state(name):
    return name.partition("/")[0] in _STATE


def _of_group(group, arrays):
    """Select the arrays ``GROUP/NAME`` by their names."""
    return {name.removeprefix(f"{group}/"): values for name, values in arrays.items() if name.startswith(f"{group}/")}


def _load_state(run, stored):
    """Convert the stored tensors of a run into its fields, and check these."""
    with _named_errors(vars(run).pop("_source")):
        tensors = {name: value.to_torch() for name, value in stored.items()}
        memory, selection = (_of_group(group, tensors) for group in ("memory", "selection"))
        vars(run).update(weights=tensors["weights"], memory=memory, selection=selection)
        run_schema.check_state(run)


@contextmanager
def _named_errors(source):
    """Raise every error of an unusable run as an InputError that names the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{source}: not a usable run: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        detail = " ".join(str(error).split())[:120]
        raise InputError(f"{source}: not a usable run ({type(error).__name__}: {detail}); train it again") from error


def _array(values):
    return values.detach().cpu().contiguous() if hasattr(values, "detach") else np.array(values)

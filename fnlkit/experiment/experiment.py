"""Train one experiment from a federation, a data set and settings: the training loop."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.names import REAL_SITES
from fnlkit.artifacts.run import Run
from fnlkit.artifacts.stored import load_small
from fnlkit.core.errors import InputError
from fnlkit.core.processes import defer_interrupts
from fnlkit.core.spec import digests
from fnlkit.experiment import assembly, checkpoints, memory
from fnlkit.experiment.accounting import record_labels
from fnlkit.experiment.evaluation_set import evaluation_set, held_out_set, tested_samples
from fnlkit.experiment.memorization import global_memorization, local_memorization
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.probing import warm_head
from fnlkit.experiment.references import OwnScores
from fnlkit.experiment.selection import Selection
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.network import Model
from fnlkit.federated.server.admission import check_any_accepted
from fnlkit.federated.server.rounds import Round
from fnlkit.federated.server.schedules import pooled_rounds
from fnlkit.kernels.scores import confusion
from fnlkit.models.devices import device_of


class Experiment:
    """A run before and during training.

    `fnlkit.experiment.assembly` builds the parts, and `fnlkit.experiment.checkpoints` saves and resumes a run.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    settings : Settings
    engine, device : str
        ``auto`` or a name; the result does not depend on the engine beyond rounding.
    resume : Run or None
        Continue this run. Its settings must equal `settings`, except for `rounds`.
    accept_code_change : bool
        Resume also if the user's files changed; the run then records the digests of both versions.
    embeddings : float (n, D) or None
        One vector per training sample, for methods that require embeddings (`Plan.needs`). Default: principal components
        of the samples, with a note.
    release_ledger : str, os.PathLike or None
        File in which releases of labels are recorded before they are made (fnlkit.artifacts.ledger). Default: no file.
    privacy_key : str, os.PathLike, bytes or None
        File of the key for flipped labels, or 32 bytes. The file is read, or created
        if missing, only if the run draws for privacy. None: a simulation, whose draws follow from the seed.
    scale : fnlkit.experiment.scale.Scale or None
        Scale of the samples. Default: statistics published with the data set, or statistics that the clients send.
    **engine_options
        Passed to the engine (workers, at_once, ...).
    """

    def __init__(self, federation, dataset, settings, *, engine="auto", device="auto", resume=None, embeddings=None,
                 release_ledger=None, privacy_key=None, scale=None, accept_code_change=False, **engine_options):  # fmt: skip
        plan = Plan.of(settings)
        data = assembly.training_data(federation, dataset, plan, embeddings)
        self.dataset, self.plan = dataset, plan
        self.federation = data.federation
        self.input_shape = data.shape
        self.embedding = data.embedding
        self.network, self.head = assembly.network_of(data, plan, device)
        self.device = device_of(device)
        # With `measure="holdout"`, no test sample is read.
        self._samples = tested_samples(self.federation, data.train, None if settings.measure == "holdout" else data.test)
        self.measured = evaluation_set(self.federation, dataset, data.train, data.test, settings.measure)
        held_out = held_out_set(self.federation, data.train)
        cohort = plan.cohort_of(len(self.federation))
        plan.check(cohort, None if dataset.name == REAL_SITES else len(self.measured), len(held_out))
        select = plan.make_selector()
        self.opt = assembly.optimizer_of(plan, data, select, self.network, cohort)
        self.initial_server_state = memory.server_state(self.opt)
        assembly.check_key(plan, privacy_key)
        self.clients = assembly.clients_of(data, self.network, plan, engine, engine_options, scale)
        self.inputs = self.clients.inputs
        if settings.warmup_head and "folds" not in plan.needs:  # each training of auto trains a head
            head = warm_head(self.federation, dataset, settings, self.network, make=Experiment, device=self.device)
            self.clients.traffic.add(head)
            self.clients.commit()
        self.model = Model(self.network, self.network.flat.clone())
        self.privacy_key = assembly.share_key(data, plan, self.clients, privacy_key)
        self.clients.on_release = partial(record_labels, release_ledger, self, self.privacy_key)
        self.selection = Selection(plan, self.clients, held_out, dataset, self.measured)
        self.program = assembly.program_of(plan, self.clients, self.model, self.opt, select)
        self.user_files, self.accept_code_change = digests(vars(settings).values()), accept_code_change
        self.code_changes: list[dict[str, Any]] = []

        self.history = []
        self.records = {}
        self.finished = False
        self.logits = {}
        self.times = []
        self._earlier_seconds = 0.0
        self._start = None
        self._evaluated_at, self._committed_rounds = 0, 0
        self.committee = 0  # number of networks that predict together; 0 for a single network
        self._tested = None, None  # the last evaluated weights and their logits
        self._constant = None  # the class, if the last evaluated model predicts only one
        self._own_scores = OwnScores(self.clients, self._test_scores) if "own" in plan.needs else None
        self.provenance = list(federation.meta.get("provenance", []))
        if resume is not None:
            checkpoints.resume(self, resume)
            self._commit(self.model)

    @property
    def settings(self) -> Settings:
        """Settings of the run."""
        return self.plan.settings

    @property
    def seconds(self) -> float:
        """Seconds of training so far, over all resumed parts."""
        now = 0.0 if self._start is None else time.monotonic() - self._start
        return round(self._earlier_seconds + now, 3)

    @property
    def client_rounds_total(self) -> int:
        """Client-rounds in the budget; for the progress bar."""
        rounds = self.settings.rounds + self.settings.warmup_head
        if "pooled" in self.plan.needs:
            return pooled_rounds(rounds, self.settings.fraction)
        return rounds * self.settings.cohort_size(len(self.clients))

    def labels(self) -> np.ndarray:
        """Collect the working labels of all clients by position in the training set (n,)."""
        labels = np.array(self.federation.given, np.int64)
        labels[self.federation.client_indices] = self.clients.members.y.numpy()
        return labels

    def snapshot(self) -> Run:
        """Save the Run after the last finished round."""
        return checkpoints.snapshot(self)

    def run(
        self,
        *,
        on_round: Callable[[dict[str, Any]], object] | None = None,
        checkpoint: Callable[[Run], object] | None = None,
        checkpoint_every: int = 10,
    ) -> Run:
        """Train to the end and return the Run.

        Parameters
        ----------
        on_round : callable(row dict) or None
            Called after each round with the row that metrics.jsonl gets.
        checkpoint : callable(Run) or None
            Called every `checkpoint_every` rounds, at the end, and before an interruption or failure is raised.
        checkpoint_every : int
        """
        self._start = time.monotonic()
        try:
            with torch.inference_mode(False):
                if not self.selection.stops(self.history):
                    self._train(on_round, checkpoint, checkpoint_every)
            if not self.history:
                raise InputError(f"method {self.settings.method}: yielded no Round, so nothing was trained")
            self._check_accepted()
            self._score_last_model(on_round)
            self._note_constant()
            self.logits = self._predict_samples()
            self.finished = True
        except BaseException:
            self.clients.rollback()
            if checkpoint and self.history:
                with defer_interrupts():  # a second Ctrl-C waits until the run is saved
                    checkpoint(self.snapshot())
            raise
        finally:
            self.clients.close()
        run = self.snapshot()
        if checkpoint:
            checkpoint(run)
        return run

    def _train(self, on_round, save, save_every):
        """Run the method's program round by round."""
        unsaved_rounds = 0
        first = None if self.history else self.model  # a rehearsal starts from the first model
        for step in self.program:
            if not isinstance(step, Round):
                kind = type(step).__name__
                raise InputError(f"method {self.settings.method}: yielded {kind}; a method yields fnlkit's Round")
            row, arrays, latest = self._measure(step)
            with defer_interrupts():
                self._append(row)
                self.selection.update(self.history, step.model.weights, latest)
                for name, value in arrays.items():
                    self.records.setdefault(name, []).append((row["round"], value))
                self._commit(step.model)
            step.replies.pop("weights", None)  # frees memory while the next replies arrive
            if on_round:
                on_round(row)
            unsaved_rounds += 1
            if save and len(self.history) == 1:
                checkpoints.warn_if_too_large(self)
            if save and first and len(self.history) == 2:
                checkpoints.rehearse(self, first)
                first = None
            if save and unsaved_rounds >= save_every:
                save(self.snapshot())
                unsaved_rounds = 0
            if self.selection.stops(self.history):
                return

    def _commit(self, model):
        self.model = model
        self.clients.commit()
        self._committed_rounds = self.clients.rounds

    def continue_history(self, run: Run) -> None:
        """Continue the history, the records and the times of a run."""
        self.history = [row for row in run.history if row["stage"] != "final"]
        self._earlier_seconds = float(run.meta.get("machine", {}).get("seconds", 0.0))
        times = run.meta.get("machine", {}).get("row_seconds") or [None] * len(self.history)  # the earliest runs have none
        self.times = list(times[: len(self.history)])
        for name, (rounds, values) in run.records.items():
            self.records[name] = list(zip(rounds.tolist(), values, strict=True))
        scored = [row["client_rounds"] for row in self.history if self.measured.name in row]
        self._evaluated_at = scored[-1] if scored else 0

    # ---- rows of the history
    def _measure(self, step):
        """Measure a round: its row, arrays {name: array} and `latest` of the selection, which the caller stores together."""
        clients, row = self.clients, {"round": len(self.history), "stage": step.stage, "clients": step.replies.ids.tolist()}
        row["client_rounds"] = clients.traffic.client_rounds
        row["bytes_up"], row["bytes_down"] = clients.traffic.bytes_up, clients.traffic.bytes_down
        if self._own_scores:
            self._own_scores.trained(step.replies.ids)
        values = {name: np.asarray(value) for name, value in step.report.items()}
        row |= {name: value.item() for name, value in values.items() if value.ndim == 0}
        arrays = {name: value for name, value in values.items() if value.ndim > 0}
        latest = None
        if self._evaluation_due():
            self._evaluated_at = clients.traffic.client_rounds
            row |= self._scores(step.model) if len(self.measured) else {}
            more, latest = self.selection.measure(step.model.weights)
            row |= more
            if self.settings.memorization and self.federation.true is not None:
                row |= self._measure_memorization(step)
        new_stage = not self.history or self.history[-1]["stage"] != step.stage
        if new_stage and self.federation.true is not None:
            arrays["label_confusion"] = confusion(self._true_of_clients(), clients.members.y.numpy(), self.federation.classes)
        rejected = [entry for entry in clients.rejected if entry["round"] >= self._committed_rounds]
        if rejected:
            row["rejected"] = rejected
        return row, arrays, latest

    def _append(self, row):
        # Times are kept outside the history, because equal runs have equal histories.
        self.times.append(self.seconds)
        self.history.append(row)

    def _evaluation_due(self):
        if not len(self.measured):  # only real sites count
            return self.selection.asks and (len(self.history) + 1) % self.settings.eval_every == 0
        cohort = self.settings.cohort_size(len(self.clients))
        since = self.clients.traffic.client_rounds - self._evaluated_at
        return since >= self.settings.eval_every * cohort

    def _score_last_model(self, on_round):
        """Add a row for the last model if the last round was not evaluated."""
        if not self.history or self.measured.name in self.history[-1] or not len(self.measured):
            return
        row = {"round": len(self.history), "stage": "final", **self._scores(self.model)}
        self._append(row)
        if on_round:
            on_round(row)

    def _note_constant(self):
        """Note that the last evaluated model predicts one class for all samples, although their labels differ."""
        if self._constant is not None:
            name, count = self.dataset.class_names[self._constant], len(self.measured)
            self.clients.note(
                f"the last model predicts the class {name!r} for all {count:,} test samples: training collapsed; lower `lr` or "
                f"the strength of {self.settings.method}'s loss"
            )

    def _scores(self, model):
        """Measure accuracy (or agreement) and loss, and the share of right labels if true labels are known."""
        scores = self._own_scores.mean(model.weights) if self._own_scores else self._test_scores(model.weights)
        if self.federation.true is not None:
            scores["label_accuracy"] = float(np.mean(self.clients.members.y.numpy() == self._true_of_clients()))
        return scores

    def _test_scores(self, weights):
        count = self.measured.clients
        if count:  # each client receives the model and replies its number of agreements and its sum of losses
            self.clients.count_traffic("held_out", up=16 * count, down=count * weights.numel() * weights.element_size())
        logits = self._logits(weights, self.measured.x).cpu()
        classes = logits.argmax(-1)
        self._tested = (None, None) if count else (weights, logits)
        predicted, labels = classes.unique(), self.measured.labels[self.measured.name].unique()
        self._constant = int(predicted) if len(predicted) == 1 < len(labels) else None
        return self.measured.scores(logits)

    def _predict_samples(self):
        """Predict logits float32 (m, C) of the run's model for test, held-out and verified samples, by name."""
        if "own" in self.plan.needs or self.federation.dataset == REAL_SITES:
            return {}
        weights = self.model.weights if self.selection.weights is None else self.selection.weights
        predictions = {}
        for name, x in self._samples.items():
            if name == "test" and weights is self._tested[0]:  # the last row of the history tested this model
                predictions[name] = self._tested[1]
            else:
                predictions[name] = self._logits(weights, load_small(x)).cpu()
        return {name: logits.numpy().astype(np.float32) for name, logits in predictions.items()}

    def _check_accepted(self):
        """Raise if no reply of the run was accepted."""
        check_any_accepted(self.clients.log, self.clients.rejected)

    def _logits(self, weights, x):
        """Predict the logits (n, C) of a model for raw samples."""
        return self.clients.predict(weights, x)

    def _true_of_clients(self):
        """True labels of all clients' samples, client by client."""
        return np.asarray(self.federation.true)[self.federation.client_indices]

    def _measure_memorization(self, step):
        """Measure the shares of wrong labels that the global model and the cohort's local models have memorized."""
        truth = np.split(self._true_of_clients(), np.asarray(self.federation.client_offsets)[1:-1])
        shares = global_memorization(self.clients, step.model.weights, truth)
        columns = {f"global_{name}": value for name, value in shares.items()}
        if "weights" in step.replies:
            shares = local_memorization(self.clients, step.replies.ids, step.replies["weights"], truth)
            columns |= {f"local_{name}": value for name, value in shares.items()}
        return columns

"""Train several methods on parts of each client's samples, and join the models to a committee (method `auto`)."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.core.parameters import arguments_of
from fnlkit.core.spec import parse
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.groups import without
from fnlkit.experiment import checkpoints, memory
from fnlkit.experiment.experiment import Experiment
from fnlkit.experiment.plan import BoundMethod
from fnlkit.experiment.scale import Scale
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.client import in_blocks
from fnlkit.federated.client.network import Model, Network, predict
from fnlkit.federated.server.agreement import measure_agreements, predict_fold
from fnlkit.kernels.committees import find_weights
from fnlkit.kernels.streams import stream
from fnlkit.models.committee import Committee

# Entries of a run's memory: the number of finished trainings, which methods failed (M,), agreement and weight of each method
# (M, 2) or (0, 2), and the models that were trained on all samples (E, P).  Predictions for held-out samples stay at their
# clients.
DONE, FAILED, FOUND, MODELS = "crossfit/done", "crossfit/failed", "crossfit/found", "crossfit/models"


class CrossFit(Experiment):
    """A run of `auto`: an experiment for each fold and method, then one on all samples for each method with a weight.

    This experiment itself trains nothing: it evaluates the committee, sums the traffic of the trainings, and saves the finished
    ones.  A resumed run repeats the training that was interrupted.

    Parameters
    ----------
    federation, dataset, settings, resume, **options
        As for `Experiment`.
    """

    def __init__(self, federation, dataset, settings, *, resume=None, **options):
        self.names, self.folds = methods_of(settings)
        super().__init__(federation, dataset, settings, **options)
        self._check_options()
        self.fold = np.asarray(self.clients.members.sources["input/fold"])
        self._options = {name: value for name, value in options.items() if name not in ("release_ledger", "privacy_key")}
        self._options["scale"] = Scale(self.inputs.mean, self.inputs.std, from_clients=False)
        self._joined, self._report = self.network, {}
        self.clients.memory[DONE] = torch.tensor(0)
        self.clients.memory[FAILED] = torch.zeros(len(self.names), dtype=torch.uint8)
        self.clients.memory[FOUND] = torch.zeros(0, 2, dtype=torch.float64)
        self.clients.memory[MODELS] = torch.zeros(0, self.network.size, dtype=self.network.dtype)
        if resume is not None:
            self._continue(resume)
        self.clients.commit()

    def _check_options(self):
        """Raise InputError if an option does not fit all methods and a committee."""
        self.opt.fit.refuse_mixup("auto")
        if self.plan.criterion is not None:
            raise InputError(
                f"{self.settings.select}: auto joins the models of the last round; omit `select`", parameter="select"
            )
        if self.settings.memorization:
            raise InputError("measures one training, but auto consists of many; omit `memorization`", parameter="memorization")

    @property
    def client_rounds_total(self) -> int:
        """Client-rounds of all trainings, if all methods get a weight; for the progress bar."""
        return super().client_rounds_total * (self.folds + 1) * len(self.names)

    def _continue(self, run):
        """Take over the finished trainings of a run."""
        checkpoints.check(self, run)
        self.continue_history(run)
        clients = self.clients
        clients.traffic, clients.rejected, clients.log = run.traffic.copy(), list(run.rejected), list(run.log)
        clients.rounds = len(run.log)
        forms = {name: value.shape[1:] for name, value in clients.memory.items()}
        memory.unpack(run.memory, clients.members, clients.memory, "cpu")
        if {name: value.shape[1:] for name, value in clients.memory.items()} != forms:
            raise InputError(
                ": the run lacks the models of its finished trainings; the file is damaged, train it again", parameter="resume"
            )
        self.model.weights = run.weights.to(self.network.flat)
        if len(clients.memory[MODELS]):
            self._join()

    # ---- training
    def _train(self, on_round, save, save_every):
        """Train every method without each fold, then the methods with a weight on all samples."""
        nothing = np.zeros(0, np.int64)
        trials = [(np.flatnonzero(self.fold == fold), f"fold {fold + 1} of {self.folds}", name)
                  for fold in range(self.folds) for name in self.names]  # fmt: skip
        for trial in trials[int(self.clients.memory[DONE]) :]:
            self._train_one(*trial, on_round, save)
        if not len(self.clients.memory[FOUND]):
            self.clients.memory[FOUND] = self._weigh()
            self._commit(self.model)  # an interrupted run does not ask again
        agreements = self.clients.memory[FOUND].numpy()
        for name, (share, weight) in zip(self.names, agreements.tolist(), strict=True):
            self._report |= {f"agreement_{name}": share, f"weight_{name}": weight}
        weights = agreements[:, 1]
        finals = [(nothing, "all samples", name) for name, weight in zip(self.names, weights, strict=True) if weight]
        for final in finals[len(self.clients.memory[MODELS]) :]:
            self._train_one(*final, on_round, save)
        self._join(weights[weights > 0])

    def _train_one(self, held_out, stage, name, on_round, save):
        """Train a method without some samples, note its predictions for them, and save the run."""
        clients = self.clients
        begun = len(self.history)
        before = self.clients.traffic.copy()
        settings = replace(self.settings, method=name, eval_every=10**9)
        trial = Experiment(without(self.federation, held_out), self.dataset, settings, **self._options)

        def add_row(row: dict[str, Any]) -> None:
            if row["stage"] == "final":
                return
            clients.traffic = before.copy()
            clients.traffic.add(trial.clients.traffic)
            counted = {column: getattr(clients.traffic, column) for column in ("client_rounds", "bytes_up", "bytes_down")}
            row = row | {"round": len(self.history), "stage": f"{stage}, {name}"} | counted
            self._append(row)
            if on_round:
                on_round(row)

        run = None
        try:
            run = trial.run(on_round=add_row)
        except BaseException as error:
            if not isinstance(error, WorkStopped) or not len(held_out):
                del self.history[begun:], self.times[begun:]  # the run keeps the finished trainings
                raise
            clients.note(f"auto: {name} is left out, because a training failed: {str(error).partition(' (')[0]}")
            clients.memory[FAILED] = clients.memory[FAILED].index_fill(0, torch.tensor(self.names.index(name)), 1)
        clients.traffic = before
        clients.traffic.add(trial.clients.traffic)
        for text in trial.clients.notes:
            clients.note(text)
        if len(held_out) and run is not None:
            self.model = Model(self.network, run.weights)
            self._predict(name, held_out)
        elif run is not None:
            clients.memory[MODELS] = torch.cat([clients.memory[MODELS], run.weights[None].cpu()])
            self._join()
        clients.rejected += [entry | {"round": entry["round"] + begun} for entry in trial.clients.rejected]
        clients.memory[DONE] = clients.memory[DONE] + 1
        self._commit(self.model)
        if save:
            save(self.snapshot())

    def _predict(self, name, held_out):
        """Let the clients predict their samples of a fold with the model."""
        ids = np.array([k for k, part in enumerate(self.federation.clients) if np.isin(part, held_out).any()])
        step = partial(predict_fold, fold=int(self.fold[held_out[0]]), method=self.names.index(name), methods=len(self.names))
        self.clients.round(ids, self.model, step, expect=())

    # ---- the committee
    def _weigh(self):
        """Measure the agreement with held-out given labels, and weigh each method: (M, 2)."""
        finished = np.flatnonzero(self.clients.memory[FAILED].numpy() == 0)
        if not len(finished):
            raise WorkStopped("auto: a training of every method failed; see the notes, and lower `lr`")
        products, agreed = measure_agreements(self.clients, finished)
        weights = np.zeros((len(self.names), 2))
        weights[finished, 0] = agreed / products[0, 0]
        weights[finished, 1] = find_weights(products, stream(self.settings.seed, "committee"))
        return torch.from_numpy(weights)

    def _join(self, shares=None):
        """Join the models that were trained on all samples; a single model stays as it is."""
        models = self.clients.memory[MODELS]
        if len(models) == 1:
            self._joined, self.committee = self.network, 0
            self.model = Model(self.network, models[0].to(self.network.flat))
            return
        modules = []
        for weights in models:
            twin = self.network.twin()
            twin.load(weights)
            modules.append(twin.module)
        self.committee, first = len(models), self.network
        self._joined = Network(Committee(modules, shares), dtype=first.dtype, device=first.device, precision=first.precision)
        self.model = Model(self._joined, self._joined.flat.clone())

    def _check_accepted(self):
        """Each training has checked its replies."""

    def _logits(self, weights, x):
        return in_blocks(partial(predict, self._joined, weights, inputs=self.inputs), x)

    def _score_last_model(self, on_round):
        """Add a row for the committee, with the weights of the methods."""
        scores = self._scores(self.model) if len(self.measured) else {}
        row = {"round": len(self.history), "stage": "final", **scores, **self._report}
        self._append(row)
        if on_round:
            on_round(row)


def make_experiment(federation: Federation, dataset: Dataset, settings: Settings, **options: Any) -> Experiment:
    """Make the Experiment of the settings: a CrossFit if the method trains other methods on folds.

    The arguments are those of both.
    """
    kind = CrossFit if "folds" in BoundMethod.of(settings.method).needs else Experiment
    return kind(federation, dataset, settings, **options)


def methods_of(settings: Settings) -> tuple[list[str], int]:
    """Read the methods and the number of folds from the setting `method`.

    Raises
    ------
    InputError
        If there are not two different methods, or one cannot be trained on parts of the samples.
    """
    parameters = arguments_of(BoundMethod.of(settings.method).run)
    names = [str(part) for part in parse(settings.method).parameters.get("of", parameters["of"])]
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(f"method 'auto': `of` has {', '.join(names)}; write at least two methods, each once")
    for name in names:
        if needs := sorted(BoundMethod.of(name).needs - {"probe"}):
            raise InputError(
                f"method 'auto': {name} in `of` requires {', '.join(needs)}, which a committee lacks; remove {name}"
            )
    return names, int(parameters["folds"])

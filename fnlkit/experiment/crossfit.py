"""Train several methods on parts of each client's samples, and join the models to a committee (method `auto`)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.artifacts.stored import Chosen
from fnlkit.client.client_list import in_blocks
from fnlkit.client.network import Model, Network, predict
from fnlkit.components.spec import parse
from fnlkit.errors import InputError, WorkStopped
from fnlkit.experiment import checkpoints, memory
from fnlkit.experiment.experiment import Experiment
from fnlkit.experiment.plan import BoundMethod
from fnlkit.experiment.scale import Scale
from fnlkit.kernels.committees import correct_agreement, find_weights, fit_transition
from fnlkit.kernels.streams import stream
from fnlkit.methods.auto import CANDIDATES
from fnlkit.methods.fedavg import refuse_mixup
from fnlkit.models.committee import Committee

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation
    from fnlkit.datasets.dataset import Dataset
    from fnlkit.experiment.settings import Settings

# Entries of a run's memory: the number of finished trainings, the predicted class of each method (M, n), the sum of their
# probabilities (n, C), both for samples that were held out, and the models that were trained on all samples (E, P).
DONE, GUESSES, SUMS, MODELS = "crossfit/done", "crossfit/guesses", "crossfit/sums", "crossfit/models"
PASSES = 10


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
        self.fold = assign_folds(self.federation, self.folds, settings.seed)
        self._options = {name: value for name, value in options.items() if name not in ("release_ledger", "privacy_key")}
        self._options["scale"] = Scale(self.inputs.mean, self.inputs.std, from_clients=False)
        self._joined, self._report = self.network, {}
        self.clients.memory[DONE] = torch.tensor(0)
        self.clients.memory[GUESSES] = torch.zeros(len(self.names), len(self.fold), dtype=torch.int16)
        self.clients.memory[SUMS] = torch.zeros(len(self.fold), self.federation.classes, dtype=torch.float64)
        self.clients.memory[MODELS] = torch.zeros(0, self.network.size, dtype=self.network.dtype)
        if resume is not None:
            self._continue(resume)
        self.clients.commit()

    def _check_options(self):
        """Raise InputError if an option does not fit all methods and a committee."""
        refuse_mixup(self.opt, "auto")
        if self.plan.criterion is not None:
            raise InputError(f"`select` {self.settings.select}: auto joins the models of the last round; omit `select`")
        if self.settings.memorization:
            raise InputError("`memorization` measures one training, but auto consists of many; omit `memorization`")
        if self.network.frozen:
            raise InputError(f"`model` {self.settings.model} has frozen parameters, which auto does not support")

    @property
    def client_rounds_total(self) -> int:
        """Client-rounds of all trainings, if all methods get a weight; for the progress bar."""
        return super().client_rounds_total * (self.folds + 1) * len(self.names)

    def _continue(self, run):
        """Take over the finished trainings of a run."""
        checkpoints.check(self, run)
        self.continue_history(run)
        self.clients.traffic, self.clients.rejected = run.traffic.copy(), list(run.rejected)
        memory.unpack(run.memory, self.clients.members, self.clients.memory, self.device)
        self.model.weights = run.weights.to(self.network.flat)
        if len(self.clients.memory[MODELS]):
            self._join()

    # ---- training
    def _train(self, on_round, save, save_every):
        """Train every method without each fold, then the methods with a weight on all samples."""
        nothing = np.zeros(0, np.int64)
        trials = [(np.flatnonzero(self.fold == fold), f"fold {fold + 1} of {self.folds}", name)
                  for fold in range(self.folds) for name in self.names]  # fmt: skip
        for trial in trials[int(self.clients.memory[DONE]) :]:
            self._train_one(*trial, on_round, save)
        weights = self._weigh()
        if not len(self.clients.memory[MODELS]):
            self._count_sums()
        finals = [(nothing, "all samples", name) for name, weight in zip(self.names, weights, strict=True) if weight]
        for final in finals[len(self.clients.memory[MODELS]) :]:
            self._train_one(*final, on_round, save)
        self._join(weights[weights > 0])

    def _train_one(self, held_out, stage, name, on_round, save):
        """Train a method without some samples, note its predictions for them, and save the run."""
        clients, begun, before = self.clients, len(self.history), self.clients.traffic.copy()
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
            guesses = clients.memory[GUESSES].clone()
            guesses[self.names.index(name), held_out] = -1
            clients.memory[GUESSES] = guesses
        for text in trial.clients.notes:
            clients.note(text)
        if len(held_out) and run is not None:
            self._predict_held_out(name, held_out, trial.network, run.weights)
            self.model = Model(self.network, run.weights)
        elif run is not None:
            clients.memory[MODELS] = torch.cat([clients.memory[MODELS], run.weights[None]])
            self._join()
        clients.rejected += [entry | {"round": entry["round"] + begun} for entry in trial.clients.rejected]
        clients.memory[DONE] = clients.memory[DONE] + 1
        self._commit(self.model)
        if save:
            save(self.snapshot())

    def _predict_held_out(self, name, held_out, network, weights):
        """Note the predictions of a model for samples that it was not trained on; their clients receive the model."""
        scores = partial(predict, network, weights, inputs=self.inputs)
        p = in_blocks(scores, Chosen(self.clients.members.source, held_out)).double().softmax(-1).cpu()
        guesses, sums = self.clients.memory[GUESSES].clone(), self.clients.memory[SUMS].clone()
        guesses[self.names.index(name), held_out] = p.argmax(-1).to(torch.int16)
        sums[held_out] += p
        self.clients.memory[GUESSES], self.clients.memory[SUMS] = guesses, sums
        judges = sum(bool(np.isin(held_out, part).any()) for part in self.federation.clients)
        self.clients.count_traffic("agreements", up=0, down=judges * weights.numel() * weights.element_size())

    def _count_sums(self):
        """Count the sums that clients send for the weights: expected counts in each pass, then agreements and products."""
        clients, classes, methods = len(self.clients), self.federation.classes, len(self.names)
        self.clients.count_traffic("expected", up=8 * classes**2 * PASSES * clients, down=8 * classes**2 * PASSES * clients)
        self.clients.count_traffic("agreements", up=8 * (methods + 1) ** 2 * clients, down=8 * classes**2 * clients)

    # ---- the committee
    def _weigh(self):
        """Return the weight of each method (M,), and fill the report.

        All quantities are sums over clients: the expected counts of each pass, and the agreements with their products.
        """
        held_out, memory = np.flatnonzero(self.fold >= 0), self.clients.memory
        given, guesses = self.federation.given[held_out], memory[GUESSES].cpu().numpy()[:, held_out]
        sums, weights = memory[SUMS].cpu().numpy()[held_out], np.zeros(len(self.names))
        finished = (guesses >= 0).all(1)
        if not finished.any():
            raise WorkStopped("auto: a training of every method failed; see the notes, and lower `lr`")
        matrix = fit_transition(sums / np.maximum(sums.sum(1, keepdims=True), 1e-300), given, passes=PASSES)
        values = correct_agreement(guesses[finished], given, matrix)
        weights[finished] = find_weights(values, stream(self.settings.seed, "committee"))
        for name, guess, weight in zip(self.names, guesses, weights, strict=True):
            self._report |= {f"agreement_{name}": float(np.mean(guess == given)), f"weight_{name}": float(weight)}
        return weights

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
    """Return the Experiment of the settings: a CrossFit if the method trains other methods on folds; arguments as for both."""
    kind = CrossFit if "folds" in BoundMethod.of(settings.method).needs else Experiment
    return kind(federation, dataset, settings, **options)


def methods_of(settings: Settings) -> tuple[list[str], int]:
    """Return the methods and the number of folds of the setting `method`.

    Raises
    ------
    InputError
        If there are not two different methods, or one cannot be trained on parts of the samples.
    """
    BoundMethod.of(settings.method)
    spec = parse(settings.method)
    names = [str(each) for each in spec.parameters.get("of", CANDIDATES)]
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(f"method 'auto': `of` has {', '.join(names)}; write at least two methods, each once")
    for name in names:
        if needs := sorted(BoundMethod.of(name).needs):
            raise InputError(
                f"method 'auto': {name} in `of` requires {', '.join(needs)}, which a committee lacks; remove {name}"
            )
    return names, int(spec.parameters.get("folds", 5))


def assign_folds(federation: Federation, folds: int, seed: int) -> np.ndarray:
    """Return the fold (n,) of each sample: stratified by given label at each client, -1 for samples that always train.

    Samples that several clients hold have the same fold at all of them.

    Raises
    ------
    InputError
        If no client has two samples.
    """
    fold, given = np.full(len(federation.given), -1, np.int64), np.asarray(federation.given)
    shared = federation.extra.get("sample_of")
    if shared is not None:
        names, number = np.unique(shared, return_inverse=True)
        drawn = stream(seed, "folds").permutation(np.arange(len(names)) % folds)[number]
    for k, part in enumerate(federation.clients):
        if len(part) < 2:
            continue
        if shared is None:
            rng = stream(seed, "folds", client=k)
            order = np.argsort(given[part] + rng.random(len(part)), kind="stable")
            fold[part[order]] = (np.arange(len(part)) + rng.integers(folds)) % folds
        elif len(np.unique(drawn[part])) > 1:
            fold[part] = drawn[part]
    if (fold < 0).all():
        raise InputError("method 'auto': no client has two samples, so that none can be held out; use another `method`")
    return fold


def without(federation: Federation, positions: np.ndarray) -> Federation:
    """Return the federation without some of the clients' samples."""
    parts = [part[~np.isin(part, positions)] for part in federation.clients]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return replace(federation, client_offsets=offsets, client_indices=np.concatenate(parts))

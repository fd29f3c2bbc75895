"""Train one experiment from a federation, a data set and settings; interrupt and resume it."""

import hashlib
import json
import os
import platform
import resource
import time
from collections.abc import Generator
from dataclasses import asdict, fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from fnlkit import engines, privacy
from fnlkit.artifacts import key as keys
from fnlkit.artifacts import ledger
from fnlkit.artifacts.run import Run
from fnlkit.artifacts.safe.zip import LIMIT
from fnlkit.artifacts.stored import Changed, Rows, blocks
from fnlkit.client.client_list import ClientList
from fnlkit.client.inputs import PRECISIONS, Inputs, intake
from fnlkit.client.network import Model, looks_up
from fnlkit.client.training import Fit
from fnlkit.components import own, registry
from fnlkit.components.spec import digests
from fnlkit.datasets.dataset import must_be
from fnlkit.errors import InputError
from fnlkit.experiment import cards, combination, memory
from fnlkit.experiment.augmentation import augmentation
from fnlkit.experiment.evaluation_set import evaluation_set
from fnlkit.experiment.memorization import global_memorization, local_memorization
from fnlkit.experiment.network import build_network
from fnlkit.experiment.references import OwnScores, arranged
from fnlkit.experiment.scale import cost_of_telling, scale_of
from fnlkit.experiment.settings import Settings, option
from fnlkit.kernels.scores import confusion
from fnlkit.kernels.streams import HiddenStream, derived
from fnlkit.methods.centralized import visits
from fnlkit.methods.fedavg import Round
from fnlkit.server.clients import Clients, Public
from fnlkit.server.selection import average_for, cohort_size


class Experiment:
    """A run before and during training.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    settings : Settings
    engine, device : str
        ``auto`` or a name; the result does not depend on the engine beyond rounding.
    resume : Run or None
        Continue this run. Its settings must equal `settings`, except for `rounds`.
    embeddings : float (n, D) or None
        One vector per training sample, for methods that require embeddings (`registry.needs`). Default: principal components
        of the samples, with a note.
    release_ledger : str, os.PathLike or None
        File in which releases of labels are recorded before they are made (fnlkit.artifacts.ledger). Default: no file.
    privacy_key : str, os.PathLike, bytes or None
        File of the key for protected noise, protected cohorts and flipped labels, or 32 bytes. Default:
        `fnlkit.artifacts.key.usual_path`.  The file is read, or created if missing, only if the run draws for privacy.
    scale : fnlkit.experiment.scale.Scale or None
        Scale of the samples. Default: statistics published with the data set, or statistics that the clients send.
    **engine_options
        Passed to the engine (workers, at_once, ...).
    """

    def __init__(self, federation, dataset, settings, *, engine="auto", device="auto", resume=None, embeddings=None,
                 release_ledger=None, privacy_key=None, scale=None, **engine_options):  # fmt: skip
        if len(federation.client_offsets) < 2:
            raise InputError("the federation has no clients yet; pipe it through `fnlkit partition -` first")
        trust = must_be(dataset, federation.meta, len(federation.given), what="the federation")
        wanted = registry.needs(settings.method)
        federation, rows = arranged(federation, wanted, settings.method)
        if settings.memorization and federation.true is None:
            raise InputError(f"--memorization requires true labels, but {dataset.name} declares none; omit it")
        self.federation, self.dataset, self.settings = federation, dataset, settings
        self.device = _device(device)
        dtype = PRECISIONS[settings.precision]
        train, test, shape, image = intake(dataset)
        self.input_shape = shape
        make = partial(build_network, settings.model, input_shape=shape, classes=federation.classes, seed=settings.seed)
        make = partial(make, kind=dataset.kind)
        make = partial(make, precision=settings.precision, device=self.device)
        self.needs = wanted
        self.pair, self._pooled = "pair" in wanted, "pooled" in wanted
        vectors, note = _embeddings(embeddings, federation, dataset, settings.method) if "embedding" in wanted else (None, None)
        if settings.precision == "tf32" and self.device == "cpu":
            raise InputError("--precision tf32 requires a GPU; write fp32, fp64 or bf16")
        self.network = make(pair=self.pair)
        self.head = _head_width(self.network, vectors.shape[1], settings) if "head" in wanted else 0
        if self.head:
            self.network = make(head=self.head)
        telling = scale is None
        tokens = dataset.kind == "vector" and looks_up(self.network.module)
        scale = scale or scale_of(federation, dataset, train, settings.standardize, tokens=tokens)
        inputs = self.inputs = Inputs(image, scale.mean, scale.std, dtype, self.device)
        self.measured = evaluation_set(federation, dataset, train, test)
        if vectors is not None:
            rows["input/embedding"] = vectors
        self.embedding = None if vectors is None else _content(vectors)
        if "received" in federation.extra:  # labels were corrected since: a release is about the labels as received
            rows["input/received"] = np.asarray(federation.extra["received"], np.int64)
        members = ClientList(
            train,
            federation.client_offsets,
            federation.client_indices,
            federation.given,
            federation.classes,
            inputs,
            rows=rows,
            reviewed=federation.extra.get("reviewed"),
        )
        drawing = "secret" in wanted or registry.hides(settings.protect)
        self._key, shown = _privacy_key(privacy_key) if drawing else (None, None)
        self._fingerprint = keys.fingerprint(self._key) if drawing else ""
        if drawing:
            labels = "labels", dataset.checksum, settings.seed, *(np.asarray(a, np.int64) for a in self._arrays().values())
            members.secret = derived(self._key, *labels)
        # A comparison with other clients' updates would break the sensitivity bound; clipping already limits an update.
        limits = {"keep": settings.min_replies, "bound": 0.0 if settings.protect != "none" else settings.max_update_ratio}
        self.clients = engines.make(engine, members, self.network, inputs, seed=settings.seed, **limits, **engine_options)
        self.clients.public = _public(train, federation, settings.method) if "public" in wanted else None
        self.clients.sends = cards.may_leave(settings.method, settings.optimizer, settings.selector)
        self.clients.protect = "" if settings.protect == "none" else settings.protect
        if telling and scale.told:
            self._meter()
        for text in (trust, note, shown, _alone(settings.fraction, self.clients)):
            if text:
                self.clients.note(text)
        self.ledger, self.clients.on_release = release_ledger, self._releasing
        loss, aggregate = combination.parts(settings, self.clients)
        select = registry.selector(settings.selector, settings.fraction)
        protect, self._sums = combination.protection(
            settings, self.clients, select, told=telling and scale.told and dataset.kind == "vector"
        )
        self._release = None
        if self._sums:
            self._release = self._named_release(resume)
            hidden = HiddenStream(self._key, "updates", self._release)
            protect, self.clients.hidden = replace(protect, hidden=hidden), hidden
        protected = {"protect": protect} if protect else {}
        if self._sums:
            cost = privacy.updates_epsilon(self._sums._replace(rounds=settings.rounds))
            self.clients.note(
                f"{settings.rounds} rounds under --protect will cost ({cost:.4g}, {self._sums.delta:g})-DP of a client"
            )
        fit = Fit(
            loss=loss,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            optimizer=settings.client_optimizer,
            clip=settings.clip,
            augment=augmentation(settings.augment, dataset),
            mixup=settings.mixup,
        )
        self.opt = registry.optimizer(settings.optimizer, fit, aggregate=aggregate, decay=settings.decay, **protected)
        average_for(select, self.opt)
        self.model = Model(self.network, self.network.flat.clone())
        self.program = registry.method(settings.method)(self.clients, self.model, self.opt, select, rounds=settings.rounds)
        if not isinstance(self.program, Generator):
            found = type(self.program).__name__
            raise InputError(f"method {settings.method}: returned {found}; a method is a generator that yields Round")
        self.own = digests(vars(settings).values())
        self.history, self.records, self.finished = [], {}, False
        self._evaluated_at = 0
        self._held = memory.held(self.opt)
        self._own = OwnScores(self.clients, self._tested) if "own" in wanted else None
        self._seconds, self._began, self.times = 0.0, None, []
        self.provenance = list(federation.meta.get("provenance", []))
        if resume is not None:
            self._continue(resume)

    def _meter(self):
        """Count the sample statistics that clients sent before training, and the mean and std that they received."""
        cost_of_telling(self.clients.traffic, len(self.clients), len(self.inputs.mean))
        self.clients.commit()
        if self.dataset.kind != "vector":
            return
        self.clients.note(
            "vectors are scaled by feature: each client sent count, sum and sum of squares of its samples once "
            "(--standardize none does not scale)"
        )

    @property
    def seconds(self):
        """Seconds of training so far, over all resumed parts."""
        return self._elapsed()

    @property
    def client_rounds_total(self):
        """Client-rounds in the budget; for the progress bar."""
        rounds, fraction = self.settings.rounds, self.settings.fraction
        return visits(rounds, fraction) if self._pooled else rounds * cohort_size(self.clients, fraction)

    def run(self, *, on_round=None, checkpoint=None, checkpoint_every=10):
        """Train to the end and return the Run.

        Parameters
        ----------
        on_round : callable(row dict) or None
            Called after each round with the row that metrics.jsonl gets.
        checkpoint : callable(Run) or None
            Called every `checkpoint_every` rounds, at the end, and before an interruption or failure is raised.
        checkpoint_every : int
        """
        self._missing = ledger.lost(self.clients.log)
        self._write_protection_down()
        since, self._began = 0, time.monotonic()
        first = None if self.history else self.model  # a rehearsal starts from the first model
        try:
            with torch.inference_mode(False):
                for step in self.program:
                    if not isinstance(step, Round):
                        found = type(step).__name__
                        raise InputError(f"method {self.settings.method}: yielded {found}; a method yields fnlkit's Round")
                    row = self._record(step)
                    self._commit(step.model)
                    step.replies.pop("weights", None)  # frees memory while the next replies arrive
                    if on_round:
                        on_round(row)
                    since += 1
                    if checkpoint and len(self.history) == 1:
                        self._foresee()
                    if checkpoint and first and len(self.history) == 2:
                        self._rehearse(first)
                        first = None
                    if checkpoint and since >= checkpoint_every:
                        checkpoint(self.snapshot())
                        since = 0
            if self.history and self.measured.name not in self.history[-1] and len(self.measured):
                row = {"round": len(self.history), "stage": "final", **self._score(self.model)}
                self._keep(row)
                if on_round:
                    on_round(row)
            self.finished = True
        except BaseException:
            self.clients.rollback()
            if checkpoint and self.history:
                checkpoint(self.snapshot())
            raise
        finally:
            self.clients.close()
        run = self.snapshot()
        if checkpoint:
            checkpoint(run)
        return run

    def _foresee(self):
        """Note after the first round if the clients' state will exceed the size limit of a run's file."""
        visits = min(len(self.clients), self.settings.rounds * len(self.clients.log[-1].asked))
        total = memory.foreseen(self.clients.members.with_memory(), visits)
        if total > LIMIT:
            self.clients.note(
                f"after all rounds the state of {visits:,} clients will have {total / 1e9:.1f} GB, but the limit of a run's "
                f"file is {LIMIT / 1e9:.1f} GB, so writing it will fail; choose a smaller network, fewer rounds, or an "
                "optimizer and a method without client state"
            )

    def _rehearse(self, first):
        """Note if the rounds so far cannot be repeated from the log, because a resumed run could not continue either."""
        clients = Clients((), self.network, self.inputs, seed=self.settings.seed)
        clients.sizes, clients.classes, clients.public = self.clients.sizes, self.clients.classes, self.clients.public
        clients.hidden = self.clients.hidden
        clients.replay(self.clients.log, self.clients.results)
        select = registry.selector(self.settings.selector, self.settings.fraction)
        opt = replace(self.opt, rounds=0)
        method = registry.method(self.settings.method)
        try:
            program = method(clients, Model(self.network, first.weights), opt, select, rounds=self.settings.rounds)
            for _ in self.history:
                next(program)
        except InputError as error:
            self.clients.note(f"this run cannot be resumed after an interruption: {str(error).removeprefix('--resume: ')}")

    def _unsaved(self):
        """Return the optimizer's server parts that keep state in themselves, which no run saves; note each once."""
        now = memory.held(self.opt)
        changed = [name for name in now if now[name] != self._held[name]]
        for name in changed:
            self.clients.note(
                f"the optimizer's {name} keeps state in its own attributes or variables, so that this run cannot be resumed; "
                "keep it in `updates.memory`, an aggregator in its argument `memory` (docs/extending.md)"
            )
        return changed

    def _releasing(self, round, epsilon):
        """Record a release of labels in the ledger before it is made, and note the total privacy cost."""
        if self.ledger is None:
            return
        data, about = self.dataset.checksum, {"classes": self.federation.classes, "key": self._fingerprint}
        about |= {"data": data, "seed": self.settings.seed, **self._arrays()}
        made = ledger.release(round=round, epsilon=epsilon, **about)
        beside = set(self.clients.sends) - privacy.RELEASED
        said = privacy.summed(ledger.commit(self.ledger, made), data, beside=beside)["label_statement"]
        self.clients.note(f"{said} (total of the ledger {self.ledger})")

    def _write_protection_down(self):
        """Record the rounds of protected updates in the ledger before the first round, and note the total cost."""
        if self.ledger is None or self._sums is None:
            return
        planned = self._sums._replace(rounds=self.settings.rounds)._asdict()
        about = {"classes": self.federation.classes, "key": self._fingerprint, "seed": self.settings.seed}
        about |= {"data": self.dataset.checksum, "name": self._release, **self._arrays()}
        made = ledger.training(planned, lost=ledger.lost(self.clients.log), **about)
        there = any(one.id == made.id for one in ledger.read(self.ledger))
        known = ledger.commit(self.ledger, made, replacing=self._written)
        self._written = None if there else made.id
        self.clients.note(privacy.spent(known, made, self.ledger))

    _written = None  # the ledger entry that only this run wrote

    def _arrays(self):
        """Return the labels and clients of a release in the form of fnlkit.artifacts.ledger."""
        f = self.federation
        return {"given": f.given, "offsets": f.client_offsets, "indices": f.client_indices}

    def _named_release(self, resume):
        """Return the name of this run's protected updates; noise and cohorts depend on it and on the key."""
        if resume is not None:
            return (resume.meta.get("protection") or {}).get("release", "")
        settings = {name: value for name, value in asdict(self.settings).items() if name not in ("rounds", "min_replies")}
        facts = {
            "settings": settings,
            "budget": registry.of_budget(self.settings.method, self.settings.rounds),
            "key": self._fingerprint,
            "data": [self.dataset.checksum, _content_of(self.federation), self.dataset.features, self.embedding],
            "scale": [list(self.inputs.mean), list(self.inputs.std)],
            "start": hashlib.sha256(self.network.flat.cpu().numpy()).hexdigest(),
            "files": sorted(hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in own.files()),
            "machine": machine(self.clients, self.device) | {"engine": self.clients.numerics},
        }
        return ledger.named_training(json.loads(json.dumps(facts, sort_keys=True, default=str)), **self._arrays())

    def _record(self, step):
        if (missing := ledger.lost(self.clients.log)) != self._missing:  # a repetition of this run can lose other clients
            self._missing = missing
            self._write_protection_down()
        clients, row = self.clients, {"round": len(self.history), "stage": step.stage, "clients": step.replies.ids.tolist()}
        row["client_rounds"] = clients.traffic.client_rounds
        row["bytes_up"], row["bytes_down"] = clients.traffic.bytes_up, clients.traffic.bytes_down
        if self._own:
            self._own.trained(step.replies.ids)
        for name, value in step.report.items():
            value = np.asarray(value)
            if value.ndim == 0:
                row[name] = value.item()
            else:
                self.records.setdefault(name, []).append((row["round"], value))
        cohort = max(1, round(self.settings.fraction * len(clients)))
        if clients.traffic.client_rounds - self._evaluated_at >= self.settings.eval_every * cohort and len(self.measured):
            self._evaluated_at = clients.traffic.client_rounds
            row.update(self._score(step.model))
            if self.settings.memorization and self.federation.true is not None:
                row.update(self._memorized(step))
        new_stage = not self.history or self.history[-1]["stage"] != step.stage
        if new_stage and self.federation.true is not None:
            counts = confusion(self._true_of_held(), self._labels()[self.federation.client_indices], self.federation.classes)
            self.records.setdefault("label_confusion", []).append((row["round"], counts))
        refused = [r for r in clients.rejected if r["round"] >= self._committed_rounds]
        if refused:
            row["rejected"] = refused
        self._keep(row)
        return row

    def _keep(self, row):
        # Times are kept outside the history, because equal runs have equal histories.
        self.times.append(self._elapsed())
        self.history.append(row)

    def _score(self, model):
        """Return accuracy (or agreement) and loss, and the share of right labels if true labels are known."""
        out = self._own.mean(model.weights) if self._own else self._tested(model.weights)
        if self.federation.true is not None:
            held = self.federation.client_indices
            out["label_accuracy"] = float(np.mean(self._labels()[held] == self.federation.true[held]))
        return out

    def _tested(self, weights):
        if self.measured.clients:  # each client receives the model and replies its number of agreements and its sum of losses
            traffic, count = self.clients.traffic, self.measured.clients
            traffic.bytes_down += count * weights.numel() * weights.element_size()
            traffic.bytes_up += 16 * count
            traffic.sent["held_out"] = traffic.sent.get("held_out", 0) + 16 * count
        return self.measured.scores(self.clients.predict(weights, self.measured.x).cpu())

    def _true_of_held(self):
        return np.asarray(self.federation.true)[self.federation.client_indices]

    def _memorized(self, step):
        bounds = np.asarray(self.federation.client_offsets)[1:-1]
        truth = np.split(self._true_of_held(), bounds)
        shares = global_memorization(self.clients, step.model.weights, truth)
        out = {f"global_{name}": value for name, value in shares.items()}
        if "weights" in step.replies:
            shares = local_memorization(self.clients, step.replies.ids, step.replies["weights"], truth)
            out |= {f"local_{name}": value for name, value in shares.items()}
        return out

    def _labels(self):
        """Return the working labels of all clients by position in the training set (n,)."""
        labels = np.array(self.federation.given, np.int64)
        labels[self.federation.client_indices] = self.clients.members.y.numpy()
        return labels

    def _commit(self, model):
        self.model = model
        self.clients.commit()
        self._committed_rounds = self.clients.rounds

    _committed_rounds = 0

    def snapshot(self):
        """Return the Run after the last finished round."""
        f = self.federation
        labels = {"given": np.asarray(f.given), "corrected": self._labels()}
        if f.true is not None:
            labels["true"] = np.asarray(f.true)
        labels |= {name: np.asarray(f.extra[name]) for name in ("holdout_client", "gold_label", "received") if name in f.extra}
        truth = {name: getattr(f, name) for name in ("noise_client_level", "noise_client_noisy", "noise_transition")}
        truth |= {name: value for name, value in f.extra.items() if name.startswith("estimate_")}
        truth = {name: np.asarray(value) for name, value in truth.items() if value is not None}
        return Run(
            settings=asdict(self.settings),
            weights=self.model.weights,
            labels=labels,
            client_offsets=np.asarray(f.client_offsets),
            client_indices=np.asarray(f.client_indices),
            history=list(self.history),
            records={
                name: (np.array([r for r, _ in pairs]), np.stack([v for _, v in pairs])) for name, pairs in self.records.items()
            },
            truth=truth,
            memory=memory.pack(self.clients.members.with_memory(), self.clients.memory),
            log=list(self.clients.log),
            results=list(self.clients.results),
            traffic=self.clients.traffic,
            rejected=list(self.clients.rejected),
            finished=self.finished,
            meta={
                "dataset": f.dataset,
                "dataset_checksum": self.dataset.checksum,
                "federation": _content_of(f),
                "classes": int(f.classes),
                "client_names": f.meta.get("client_names"),
                "input_shape": list(self.input_shape),
                "embedding": self.embedding,
                "features": self.dataset.features,
                "samples": {
                    "kind": self.dataset.kind,
                    "shape": [int(side) for side in self.dataset.x_train.shape[1:]],
                    "mean": list(self.inputs.mean),
                    "std": list(self.inputs.std),
                    "sample_rate": self.dataset.sample_rate,
                    "class_names": list(self.dataset.class_names),
                    **_columns_of(self.dataset),
                },
                "head": self.head,
                "frozen": self.network.frozen,
                "pair": self.pair,
                "needs": sorted(self.needs),
                "own": self.own,
                "provenance": self.provenance,
                "protection": self._protection(),
                "unsaved": self._unsaved(),
                "privacy_key": self._fingerprint,
                "machine": machine(self.clients, self.device) | self._cost(),
            },
        )

    def _protection(self):
        """Return the cost of protected updates so far: sums, epsilon and delta; None without protection."""
        if self._sums is None:
            return None
        # Count rounds in which models were sent, and rounds in which all replies were lost, because models could have been
        # sent.
        sums = self._sums._replace(rounds=sum(bool(len(e.norms)) or not len(e.kept) for e in self.clients.log))
        epsilon = privacy.updates_epsilon(sums)
        return {"sums": sums._asdict(), "epsilon": epsilon, "delta": sums.delta, "release": self._release}

    def _cost(self):
        """Return seconds spent in `run` over all resumed parts, also per row, and this process's peak memory."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"seconds": self._elapsed(), "peak_bytes": peak, "row_seconds": self.times[: len(self.history)]}

    def _elapsed(self):
        now = 0.0 if self._began is None else time.monotonic() - self._began
        return round(self._seconds + now, 3)

    def _must_be_the_same(self, run):
        """Raise if any part of the federation or the data set differs from a run's."""
        what, f = None, self.federation
        if run.meta.get("dataset_checksum") != self.dataset.checksum:
            what = "data set"
        elif f.classes != run.meta["classes"] or not (
            np.array_equal(run.client_offsets, f.client_offsets) and np.array_equal(run.client_indices, f.client_indices)
        ):
            what = "partition"
        elif not np.array_equal(run.labels["given"], f.given):
            what = "set of labels"
        elif not np.array_equal(run.labels.get("true", 0), 0 if f.true is None else f.true):
            what = "set of true labels"
        elif run.meta.get("federation") not in (None, _content_of(f)):  # the earliest runs have none
            what = "review of labels"
        if what:
            raise InputError(f"--resume: the run was made from another {what}; give the federation it was made from")

    def _continue(self, run):
        """Replay the server's program on the logged replies, then restore the run's model and state."""
        for field in fields(Settings):
            name, now = field.name, getattr(self.settings, field.name)
            before = run.settings.get(name, field.default)  # the option can be newer than the run
            # `min_replies` only decides when to stop, so a run that lost too many clients can be resumed with a lower value.
            if name not in ("rounds", "min_replies") and before != now:
                raise InputError(f"--resume: the run was made with {option(name)} {before}, not {now}")
        self._must_be_the_same(run)
        recorded = run.meta.get("own")  # digests of a user's files; the earliest runs have none
        for name in [] if recorded is None else sorted(recorded.keys() | self.own):
            if recorded.get(name) != self.own.get(name):
                raise InputError(
                    f"--resume: the code of {name} was changed since the run was made; take that version again, or train "
                    "from the start"
                )
        if run.meta.get("unsaved"):
            raise InputError(
                f"--resume: the optimizer's {run.meta['unsaved'][0]} kept state in itself that no run saves; keep it in "
                "`updates.memory` (docs/extending.md) and train again"
            )
        if run.meta.get("privacy_key", "") != self._fingerprint:
            raise InputError(
                "--resume: the run was made with another privacy key, or by an older fnlkit without one; name its file with "
                "--privacy-key, or train again"
            )
        before, now = (features and features["sha256"] for features in (run.meta.get("features"), self.dataset.features))
        if before != now:
            raise InputError("--resume: the run was made with other --features; give those it was made with")
        scaled = (run.meta.get("samples") or {}).get("mean", [])
        if self.dataset.kind == "vector" and list(self.inputs.mean) != scaled:
            raise InputError(
                "--resume: the run was made with vectors scaled otherwise; try --standardize none, or train it again"
            )
        if run.meta.get("embedding") != self.embedding:
            raise InputError("--resume: the run was made with other embeddings; give the ones it was made with")
        if run.meta.get("frozen") != self.network.frozen:
            raise InputError("--resume: the network's frozen parameters are others now; give the --model file it was made with")
        before, now = run.settings["rounds"], self.settings.rounds
        method = self.settings.method
        if before != now and registry.of_budget(method, before) != registry.of_budget(method, now):
            raise InputError(
                f"--resume: what {method} does in a round follows from the whole budget, which was --rounds {before}; continue "
                f"with that, or train {now} rounds from the start"
            )
        self.history = [row for row in run.history if row["stage"] != "final"]
        self._seconds = float(run.meta.get("machine", {}).get("seconds", 0.0))
        known = run.meta.get("machine", {}).get("row_seconds") or [None] * len(self.history)  # the earliest runs have none
        self.times = list(known[: len(self.history)])
        self.clients.replay(run.log, run.results)
        for _ in self.history:
            step = next(self.program, None)
            if step is None:
                raise InputError(f"--resume: the run has {len(self.history)} rounds, more than --rounds now allows")
            self.model = step.model
        if self.clients.unread and run.finished:  # a method can request further replies after its last round
            next(self.program, None)
        if self.clients.unread:
            raise InputError("--resume: the run's log does not fit its history; the file cannot be continued")
        self.clients.replayed()
        # The program's variables refer to the Model that it yielded last, so this object receives the run's weights. The
        # weights of earlier rounds stay unknown.
        self.model.weights = run.weights.to(device=self.device, dtype=self.network.dtype)
        self.clients.log, self.clients.rejected, self.clients.results = list(run.log), list(run.rejected), list(run.results)
        self.clients.traffic = replace(run.traffic, sent=dict(run.traffic.sent))  # the caller can resume the run again
        memory.unpack(run.memory, self.clients.members, self.clients.memory, self.device)
        corrected = torch.from_numpy(run.labels["corrected"].astype(np.int64))
        self.clients.members.y.copy_(corrected[torch.from_numpy(np.asarray(self.federation.client_indices, np.int64))])
        for name, (rounds, values) in run.records.items():
            self.records[name] = list(zip(rounds.tolist(), values, strict=True))
        scored = [row["client_rounds"] for row in self.history if self.measured.name in row]
        self._evaluated_at = scored[-1] if scored else 0
        self._commit(self.model)


def _privacy_key(given):
    """Return (key, note about the file or None) from the given file or bytes. Default: the usual file."""
    if isinstance(given, bytes):
        if len(given) != 32:
            raise InputError(f"`privacy_key` has {len(given)} bytes; give 32, or the path of a file")
        return given, None
    path = keys.usual_path() if given is None else os.path.abspath(os.path.expanduser(given))
    return keys.read_or_draw(path), f"draws for privacy depend on the secret key in {path}; keep this file secret"


def _columns_of(dataset):
    """Return {"columns": conversion of table columns to vectors} if the data set is a table, else {}."""
    columns = getattr(dataset, "table", None)
    return {"columns": columns} if columns and dataset.features is None else {}


def sources_of(federation, method, embeddings=None):
    """Return the metadata entries of a run that identify its inputs.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    method : str
    embeddings : float (n, D), optional

    Returns
    -------
    dict
        ``federation`` and ``embedding``, SHA-256 over their content, and ``dataset_checksum``.
    """
    rows = None if embeddings is None else _embeddings(embeddings, federation, None, method)[0]
    return {
        "dataset_checksum": federation.meta.get("dataset_checksum"),
        "federation": _content_of(arranged(federation, registry.needs(method), method)[0]),
        "embedding": None if rows is None else _content(rows),
    }


def _content_of(federation):
    """Return a SHA-256 over the arrays of a federation that affect a run or its evaluation."""
    total = hashlib.sha256(str(federation.classes).encode())
    arrays = {name: getattr(federation, name) for name in ("client_offsets", "client_indices", "given", "true")}
    arrays |= {name: federation.extra.get(name) for name in ("reviewed", "received", "holdout_client", "gold_label")}
    for name, values in arrays.items():
        if values is not None:
            values = np.ascontiguousarray(values).astype(np.int64)
            total.update(f"{name}{values.shape}".encode())
            total.update(values.tobytes())
    return total.hexdigest()


def machine(clients, device):
    """Return the conditions of equal results in addition to the settings: engine, threads, CPU, versions."""
    return {
        "engine": getattr(clients, "name", type(clients).__name__.lower()),
        "device": str(device) if str(device) == "cpu" else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "sklearn": version("scikit-learn"),
    }


def _alone(fraction, clients):
    """Return a note if a round selects only one of several clients, else None."""
    if len(clients) < 2 or cohort_size(clients, fraction) > 1:
        return None
    return (
        f"--fraction {fraction:g} of {len(clients)} clients is one client per round: its model becomes the next global model "
        f"without averaging; --fraction {min(1, 5 / len(clients)):g} selects {min(5, len(clients))} clients"
    )


def _public(train, federation, method):
    """Return the Public set: the samples that no client holds."""
    rest = np.setdiff1d(np.arange(len(federation.given)), federation.client_indices)
    if "holdout_client" in federation.extra:  # held-out samples belong to a client
        rest = rest[np.asarray(federation.extra["holdout_client"])[rest] < 0]
    if not len(rest):
        raise InputError(
            f"{method} requires public samples, but every sample belongs to a client; make the federation with "
            "`fnlkit partition --public 0.1`, which assigns a tenth of the samples to no client"
        )
    given = np.asarray(federation.given, np.int64)[rest]
    return Public(torch.from_numpy(np.ascontiguousarray(train[rest])), torch.from_numpy(given))


def _device(name):
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {name}: {str(error).splitlines()[0]}; write cpu, cuda or auto") from error
    return name


def _embeddings(embeddings, federation, dataset, method):
    """Return (float32 (n, D), note): the given embeddings, or principal components with a note."""
    note = None
    if embeddings is None:
        from fnlkit.datasets.embed import embed

        dim = min(64, len(dataset.x_train), int(np.prod(np.shape(dataset.x_train)[1:])))
        embeddings = embed(dataset, f"pca(dim={dim})" if dataset.kind != "wave" else "pca")
        note = (
            f"{method} compares samples by an embedding; no --embeddings were given, so it uses {embeddings.shape[1]} "
            "principal components of the samples, which are far worse than a pretrained network"
        )
    if not isinstance(embeddings, Rows):
        embeddings = np.ascontiguousarray(embeddings, np.float32)
    elif embeddings.dtype != np.float32:
        embeddings = Changed(embeddings, _singles)
    if embeddings.ndim != 2 or len(embeddings) != len(federation.given):
        raise InputError(f"the embeddings are {embeddings.shape}; expected one vector for {len(federation.given):,} samples")
    return embeddings, note


def _singles(rows):
    return rows.astype(np.float32)


def _content(rows):
    """Return the SHA-256 of an array's bytes."""
    total = hashlib.sha256()
    for a, b in blocks(rows):
        total.update(np.ascontiguousarray(rows[a:b]).data)
    return total.hexdigest()


def _head_width(network, size, settings):
    """Return the head's width for an embedding of `size`: 0 if the network's features already have it."""
    width = getattr(network.module, "width", None)
    if width is None:
        raise InputError(f"{settings.method} requires a network with features, classify and width; {settings.model} lacks them")
    return 0 if width == size else size

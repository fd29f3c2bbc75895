"""The options of `fnlkit train`: settings, which determine the result of a run, and data, engine and files."""

import os
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Literal

from numpy.typing import ArrayLike

from fnlkit.artifacts.run import Run
from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.core.options import option
from fnlkit.core.parameters import Count, Natural, NotNegative, Positive, PositiveShare, Share, SpecText, faults
from fnlkit.datasets.dataset import Dataset
from fnlkit.federated.engines import EngineOptions
from fnlkit.models import NETWORKS

_Path = str | os.PathLike[str]
LEDGER = "Ledger of privacy spent over all runs. Default: next to the data set (train: with `privacy_key`); none: no ledger."


# An option of each section of the help.
_method, _local, _federation, _measurement, _protection, _run = (
    partial(option, section=name) for name in ("Method", "Local training", "Federation", "Measurement", "Protection", "Run")
)


def _names(table):
    return ", ".join(table)


@dataclass(frozen=True)
class Settings:
    """All settings that determine the result of a run; each field is an option of `fnlkit train`.

    The annotation of a field restricts the values, and the metadata contains the help text.

    Raises
    ------
    InputError
        If a value does not match the annotation.
    """

    method: SpecText = _method("fedavg", "Method that handles wrong labels during training; `fnlkit methods` lists all.")
    _: KW_ONLY
    loss: SpecText = _method("ce", f"Loss of local training, if the method leaves it open: {_names(registry.LOSSES)}.")
    optimizer: SpecText = _method("fedavg", f"Federated optimizer: {_names(registry.OPTIMIZERS)}.")
    aggregator: SpecText = _method("mean", f"Aggregation of local models: {_names(registry.AGGREGATORS)}.", rare=True)
    selector: SpecText = _method("uniform", f"Client selection: {_names(registry.SELECTORS)}.", rare=True)
    model: SpecText = _method("auto", f"Network: {_names(NETWORKS)}, or FILE.py:NAME. auto selects by the samples.")
    augment: SpecText = _local(
        "auto",
        "Augmentation: none, or augment(pad=4, flip=true, cutout=16). auto crops and flips color images of 32 pixels or more.",
        rare=True,
    )
    mixup: NotNegative = _local(0.0, "Alpha of mixup, if the method leaves it open; 0 disables it.", rare=True)
    rounds: Count = _federation(50, "Communication rounds; fewer if a method visits more clients.")
    fraction: PositiveShare = _federation(0.1, "Share of the clients that train in each round.")
    epochs: Count = _local(5, "Local epochs per round.")
    batch_size: Count = _local(10, "Batch size of local training.")
    lr: Positive = _local(0.03, "Learning rate of local training.")
    momentum: Share = _local(0.5, "Momentum of local SGD, from 0 to 1.")
    weight_decay: NotNegative = _local(0.0, "Weight decay of local training.", rare=True)
    schedule: SpecText = _local(
        "constant",
        f"Schedule of the learning rate over the rounds: {_names(registry.SCHEDULES)}; torch's definitions.",
        rare=True,
    )
    warmup_rounds: Natural = _local(0, "First rounds, in which the learning rate rises linearly to `lr`.", rare=True)
    decay: NotNegative = _local(
        1.0, "Factor on the learning rate after each round, as `schedule` exponential(factor=...).", rare=True
    )
    clip: NotNegative = _local(0.0, "Largest L2 norm of a gradient; 0 disables clipping.", rare=True)
    standardize: Literal["auto", "always", "none"] = _local(
        "auto",
        "Scale vectors by feature and images by channel, from sums that clients send once. auto leaves out networks with an "
        "embedding table.",
        rare=True,
    )
    client_optimizer: Literal["sgd", "adam"] = _local("sgd", "Local optimizer.", rare=True)
    eval_every: Count = _measurement(1, "Evaluate every this many rounds.", rare=True)
    seed: Natural = _federation(0, "Seed of all random draws.")
    measure: SpecText = _measurement(
        "auto",
        "Samples for evaluation. auto: the test set if there is one; holdout: only held-out samples with their noisy labels; "
        "FILE.py:NAME: the test set, also with your own measure.",
    )
    select: SpecText = _measurement(
        "last",
        "Round of the model that the run keeps: last, or chosen without clean labels by best-holdout, nes or label-wave.",
    )
    patience: Natural = _measurement(
        0, "Stop this many evaluated rounds after the round that `select` chose; 0 never stops early.", rare=True
    )
    warmup_head: Natural = _local(
        0, "Rounds of fedavg that first train only the head of a pretrained network, on features (LP-FT).", rare=True
    )
    warmup_lr: Positive = _local(0.03, "Learning rate of warmup_head; local steps are those of SGD.", rare=True)
    precision: Literal["fp32", "fp64", "tf32", "bf16"] = _local(
        "fp32", "Number format of training; tf32 and bf16 are faster and less exact.", rare=True
    )
    min_replies: Share = _federation(
        0.5, "Smallest share of a cohort that must reply; with fewer, training stops. 0 never stops.", rare=True
    )
    max_update_ratio: NotNegative = _federation(
        100.0,
        "Reject updates this many times as long as the median update and longer than the model; 0 rejects none.",
        rare=True,
    )
    protect: SpecText = _protection(
        "none", "Protection of updates: none, or secagg for real sites; see docs/privacy.md.", rare=True
    )
    memorization: bool = _measurement(False, "Record the share of memorized wrong labels; requires true labels.", rare=True)

    def __post_init__(self):
        for name, fault in faults(type(self), vars(self)):
            raise InputError(f"`{name}` {fault}")

    def cohort_size(self, clients: int) -> int:
        """Number of the clients that train in a round."""
        return max(1, round(self.fraction * clients))


@dataclass(frozen=True, kw_only=True)
class TrainOptions(EngineOptions):
    """Options of a run that do not belong to its settings; `fnlkit train --help-all` describes them.

    `dataset` and `output` have the same option in several commands, which declare it.
    """

    dataset: _Path | Dataset | None = _federation(None)
    preset: str | None = _method(
        None,
        "Options of a paper, for example fedcorr/cifar10; options given here take precedence.",
        metavar="NAME",
        recipe=True,
    )
    embeddings: _Path | ArrayLike | None = _federation(
        None,
        "A backbone or a file of vectors, for methods that compare samples. Default: as `backbone`.",
        rare=True,
        metavar="SPEC|FILE",
    )
    backbone: SpecText = _method(
        "auto",
        "Pretrained network that encodes the samples: a spec, none, or auto: an installed one for photographs, texts and "
        "sounds, if neither `preset` nor `model` is given.",
        metavar="SPEC",
        recipe=True,
    )
    checkpoint_every: Count = _run(10, "Rounds between checkpoints.", rare=True, recipe=True)
    resume: _Path | Run | None = _run(None, "Continue this run; start a new one if the file does not exist.", metavar="RUN")
    accept_code_change: bool = _run(False, "Resume also if your own files changed; the run records both versions.", rare=True)
    overwrite: bool = _run(False, "Replace an unfinished run at `output`.", rare=True)
    ledger: _Path | None = _protection(None, LEDGER, rare=True, metavar="FILE")
    privacy_key: _Path | None = _protection(
        None,
        "Secret key of privacy noise, to publish the output. Default: draws follow from `seed`.",
        rare=True,
        metavar="FILE",
    )
    metrics: _Path | None = _measurement(
        None,
        "JSON lines with the numbers of each round. Default: RUN.metrics.jsonl next to `output`.",
        rare=True,
        metavar="FILE",
        output=True,
    )
    log: str | tuple[str, ...] = _measurement(
        (),
        "Also log the numbers of each round to tensorboard, wandb or mlflow, offline; several with commas.",
        rare=True,
        metavar="NAMES",
    )
    fingerprint: str | None = _run(None, "Identity of a recipe's job, recorded in the run.", rare=True, metavar="TEXT")
    output: _Path | None = _run(None)

"""The options of `fnlkit train`: settings, which determine the result of a run, and data, engine and files."""

import os
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.core.options import option
from fnlkit.core.parameters import Count, Natural, NotNegative, Positive, PositiveShare, Share, SpecText, faults
from fnlkit.federated.engines import EngineOptions
from fnlkit.models import NETWORKS

# Types of values; the command line, which reads this module, does not need their modules.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from fnlkit.artifacts.run import Run
    from fnlkit.datasets.dataset import Dataset

_Path = str | os.PathLike[str]
LEDGER = "Ledger of privacy spent over all runs. Default: next to the data set (train: with `privacy_key`); none: no ledger."


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

    method: SpecText = option(
        "fedavg", "Method that handles wrong labels during training; `fnlkit methods` lists all.", section="Method"
    )
    _: KW_ONLY
    loss: SpecText = option(
        "ce", f"Loss of local training, if the method leaves it open: {_names(registry.LOSSES)}.", section="Method"
    )
    optimizer: SpecText = option("fedavg", f"Federated optimizer: {_names(registry.OPTIMIZERS)}.", section="Method")
    aggregator: SpecText = option(
        "mean", f"Aggregation of local models: {_names(registry.AGGREGATORS)}.", section="Method", rare=True
    )
    selector: SpecText = option("uniform", f"Client selection: {_names(registry.SELECTORS)}.", section="Method", rare=True)
    model: SpecText = option(
        "auto", f"Network: {_names(NETWORKS)}, or FILE.py:NAME. auto selects by the samples.", section="Method"
    )
    augment: SpecText = option(
        "auto",
        "Augmentation: none, or augment(pad=4, flip=true, cutout=16). auto crops and flips color images of 32 pixels or more.",
        section="Local training",
        rare=True,
    )
    mixup: NotNegative = option(
        0.0,
        "Alpha of mixup, if the method leaves it open; 0 disables it.",
        section="Local training",
        rare=True,
    )
    rounds: Count = option(50, "Communication rounds; fewer if a method visits more clients.", section="Federation")
    fraction: PositiveShare = option(0.1, "Share of the clients that train in each round.", section="Federation")
    epochs: Count = option(5, "Local epochs per round.", section="Local training")
    batch_size: Count = option(10, "Batch size of local training.", section="Local training")
    lr: Positive = option(0.03, "Learning rate of local training.", section="Local training")
    momentum: Share = option(0.5, "Momentum of local SGD, from 0 to 1.", section="Local training")
    weight_decay: NotNegative = option(0.0, "Weight decay of local training.", section="Local training", rare=True)
    schedule: SpecText = option(
        "constant",
        f"Schedule of the learning rate over the rounds: {_names(registry.SCHEDULES)}; torch's definitions.",
        section="Local training",
        rare=True,
    )
    warmup_rounds: Natural = option(
        0, "First rounds, in which the learning rate rises linearly to `lr`.", section="Local training", rare=True
    )
    decay: NotNegative = option(
        1.0,
        "Factor on the learning rate after each round, as `schedule` exponential(factor=...).",
        section="Local training",
        rare=True,
    )
    clip: NotNegative = option(0.0, "Largest L2 norm of a gradient; 0 disables clipping.", section="Local training", rare=True)
    standardize: Literal["auto", "always", "none"] = option(
        "auto",
        "Scale vectors by feature and images by channel, from sums that clients send once. auto leaves out networks with an "
        "embedding table.",
        section="Local training",
        rare=True,
    )
    client_optimizer: Literal["sgd", "adam"] = option("sgd", "Local optimizer.", section="Local training", rare=True)
    eval_every: Count = option(1, "Evaluate every this many rounds.", section="Measurement", rare=True)
    seed: Natural = option(0, "Seed of all random draws.", section="Federation")
    measure: SpecText = option(
        "auto",
        "Samples for evaluation. auto: the test set if there is one; holdout: only held-out samples with their noisy labels; "
        "FILE.py:NAME: the test set, also with your own measure.",
        section="Measurement",
    )
    select: SpecText = option(
        "last",
        "Round of the model that the run keeps: last, or chosen without clean labels by best-holdout, nes or label-wave.",
        section="Measurement",
    )
    patience: Natural = option(
        0,
        "Stop this many evaluated rounds after the round that `select` chose; 0 never stops early.",
        section="Measurement",
        rare=True,
    )
    warmup_head: Natural = option(
        0,
        "Rounds of fedavg that first train only the head of a pretrained network, on features (LP-FT).",
        section="Local training",
        rare=True,
    )
    warmup_lr: Positive = option(
        0.03, "Learning rate of warmup_head; local steps are those of SGD.", section="Local training", rare=True
    )
    precision: Literal["fp32", "fp64", "tf32", "bf16"] = option(
        "fp32",
        "Number format of training; tf32 and bf16 are faster and less exact.",
        section="Local training",
        rare=True,
    )
    min_replies: Share = option(
        0.5,
        "Smallest share of a cohort that must reply; with fewer, training stops. 0 never stops.",
        section="Federation",
        rare=True,
    )
    max_update_ratio: NotNegative = option(
        100.0,
        "Reject updates this many times as long as the median update and longer than the model; 0 rejects none.",
        section="Federation",
        rare=True,
    )
    protect: SpecText = option(
        "none",
        "Protection of updates: none, or secagg for real sites; see docs/privacy.md.",
        section="Protection",
        rare=True,
    )
    memorization: bool = option(
        False, "Record the share of memorized wrong labels; requires true labels.", section="Measurement", rare=True
    )

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

    dataset: "_Path | Dataset | None" = option(None, section="Federation")
    preset: str | None = option(
        None,
        "Options of a paper, for example fedcorr/cifar10; options given here take precedence.",
        section="Method",
        metavar="NAME",
        recipe=True,
    )
    embeddings: "_Path | ArrayLike | None" = option(
        None,
        "A backbone or a file of vectors, for methods that compare samples. Default: as `backbone`.",
        section="Federation",
        rare=True,
        metavar="SPEC|FILE",
    )
    backbone: SpecText = option(
        "auto",
        "Pretrained network that encodes the samples: a spec, none, or auto: an installed one for photographs, texts and "
        "sounds, if neither `preset` nor `model` is given.",
        section="Method",
        metavar="SPEC",
        recipe=True,
    )
    checkpoint_every: Count = option(10, "Rounds between checkpoints.", section="Run", rare=True, recipe=True)
    resume: "_Path | Run | None" = option(
        None, "Continue this run; start a new one if the file does not exist.", section="Run", metavar="RUN"
    )
    accept_code_change: bool = option(
        False, "Resume also if your own files changed; the run records both versions.", section="Run", rare=True
    )
    overwrite: bool = option(False, "Replace an unfinished run at `output`.", section="Run", rare=True)
    ledger: _Path | None = option(None, LEDGER, section="Protection", rare=True, metavar="FILE")
    privacy_key: _Path | None = option(
        None,
        "Secret key of privacy noise, to publish the output. Default: draws follow from `seed`.",
        section="Protection",
        rare=True,
        metavar="FILE",
    )
    metrics: _Path | None = option(
        None,
        "JSON lines with the numbers of each round. Default: RUN.metrics.jsonl next to `output`.",
        section="Measurement",
        rare=True,
        metavar="FILE",
        output=True,
    )
    log: str | tuple[str, ...] = option(
        (),
        "Also log the numbers of each round to tensorboard, wandb or mlflow, offline; several with commas.",
        section="Measurement",
        rare=True,
        metavar="NAMES",
    )
    fingerprint: str | None = option(
        None, "Identity of a recipe's job, recorded in the run.", section="Run", rare=True, metavar="TEXT"
    )
    output: _Path | None = option(None, section="Run")

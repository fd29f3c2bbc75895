"""The settings of a run, which are the options of `fnlkit train`."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from fnlkit.components import registry
from fnlkit.components.options import option
from fnlkit.components.parameters import Count, Natural, NotNegative, Positive, PositiveShare, Share, SpecText, faults
from fnlkit.errors import InputError
from fnlkit.models import NETWORKS


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
        after="clip",
        rare=True,
    )
    mixup: NotNegative = option(
        0.0,
        "Alpha of mixup, if the method leaves it open; 0 disables it.",
        section="Local training",
        after="augment",
        rare=True,
    )
    rounds: Count = option(
        50, "Communication rounds. Methods that visit more clients per round run fewer rounds.", section="Federation"
    )
    fraction: PositiveShare = option(
        0.1, "Share of the clients that train in each round, above 0 and at most 1.", section="Federation"
    )
    epochs: Count = option(5, "Local epochs per round.", section="Local training")
    batch_size: Count = option(10, "Batch size of local training.", section="Local training")
    lr: Positive = option(0.03, "Learning rate of local training.", section="Local training")
    momentum: Share = option(0.5, "Momentum of local SGD, from 0 to 1.", section="Local training")
    weight_decay: NotNegative = option(0.0, "Weight decay of local training.", section="Local training", rare=True)
    decay: NotNegative = option(1.0, "Factor on the learning rate after each round.", section="Local training", rare=True)
    clip: NotNegative = option(0.0, "Largest L2 norm of a gradient; 0 disables clipping.", section="Local training", rare=True)
    standardize: Literal["auto", "always", "none"] = option(
        "auto",
        "Standardize vectors by feature, from sums that clients send once. auto leaves out networks with an embedding table.",
        section="Local training",
        rare=True,
    )
    client_optimizer: Literal["sgd", "adam"] = option(
        "sgd", "Local optimizer.", section="Local training", after="batch_size", rare=True
    )
    eval_every: Count = option(1, "Evaluate every this many rounds.", section="Measurement", rare=True)
    seed: Natural = option(
        0, "Seed of all random draws; equal seeds give equal results.", section="Federation", after="max_update_ratio"
    )
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
        after="mixup",
        rare=True,
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
        "Protection of updates: none, dp(clip=1, noise=1.1), or secagg for real sites; see docs/privacy.md.",
        section="Protection",
        rare=True,
    )
    memorization: bool = option(
        False, "Record the share of memorized wrong labels; requires true labels.", section="Measurement", rare=True
    )

    def __post_init__(self):
        for name, fault in faults(type(self), vars(self)):
            raise InputError(f"`{name}` {fault}")

"""The settings of a run, which are the options of `fnlkit train`."""

from dataclasses import dataclass, field
from typing import Literal

from fnlkit.components import registry
from fnlkit.components.parameters import Count, Natural, NotNegative, Positive, PositiveShare, Share, SpecText, faults
from fnlkit.errors import InputError
from fnlkit.models import NETWORKS


def _setting(default, meaning):
    """Return a field with a default and the text of `fnlkit train --help`."""
    return field(default=default, metadata={"help": meaning})


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

    method: SpecText = _setting("fedavg", "Method that handles wrong labels during training; `fnlkit methods` lists all.")
    loss: SpecText = _setting("ce", f"Loss of local training, if the method leaves it open: {_names(registry.LOSSES)}.")
    optimizer: SpecText = _setting("fedavg", f"Federated optimizer: {_names(registry.OPTIMIZERS)}.")
    aggregator: SpecText = _setting("mean", f"Aggregation of local models: {_names(registry.AGGREGATORS)}.")
    selector: SpecText = _setting("uniform", f"Client selection: {_names(registry.SELECTORS)}.")
    model: SpecText = _setting("auto", f"Network: {_names(NETWORKS)}, or FILE.py:NAME. auto selects by the samples.")
    augment: SpecText = _setting(
        "auto",
        "Augmentation: none, or augment(pad=4, flip=true, cutout=16). auto crops and flips color images of 32 pixels or more.",
    )
    mixup: NotNegative = _setting(0.0, "Alpha of mixup, if the method leaves it open; 0 disables it.")
    rounds: Count = _setting(50, "Communication rounds. Methods that visit more clients per round run fewer rounds.")
    fraction: PositiveShare = _setting(0.1, "Share of the clients that train in each round, above 0 and at most 1.")
    epochs: Count = _setting(5, "Local epochs per round.")
    batch_size: Count = _setting(10, "Batch size of local training.")
    lr: Positive = _setting(0.03, "Learning rate of local training.")
    momentum: Share = _setting(0.5, "Momentum of local SGD, from 0 to 1.")
    weight_decay: NotNegative = _setting(0.0, "Weight decay of local training.")
    decay: NotNegative = _setting(1.0, "Factor on the learning rate after each round.")
    clip: NotNegative = _setting(0.0, "Largest L2 norm of a gradient; 0 disables clipping.")
    standardize: Literal["auto", "always", "none"] = _setting(
        "auto",
        "Standardize vectors by feature, from sums that clients send once. auto leaves out --features and networks with an "
        "embedding table.",
    )
    client_optimizer: Literal["sgd", "adam"] = _setting("sgd", "Local optimizer.")
    eval_every: Count = _setting(1, "Evaluate every this many rounds.")
    seed: Natural = _setting(0, "Seed of all random draws; equal seeds give equal results.")
    measure: SpecText = _setting(
        "auto",
        "Samples for evaluation. auto: the test set if there is one; holdout: only held-out samples with their noisy labels; "
        "FILE.py:NAME: the test set, also with your own measure.",
    )
    select: SpecText = _setting(
        "last",
        "Round of the model that the run keeps: last, or chosen without clean labels by best-holdout, nes or label-wave.",
    )
    patience: Natural = _setting(0, "Stop this many evaluated rounds after the round that --select chose; 0 never stops early.")
    precision: Literal["fp32", "fp64", "tf32", "bf16"] = _setting(
        "fp32",
        "Number format of training; tf32 and bf16 are faster and less exact.",
    )
    min_replies: Share = _setting(0.5, "Smallest share of a cohort that must reply; with fewer, training stops. 0 never stops.")
    max_update_ratio: NotNegative = _setting(
        100.0,
        "Reject updates this many times as long as the median update and longer than the model; 0 rejects none.",
    )
    protect: SpecText = _setting(
        "none",
        "Protection of updates: none, dp(clip=1, noise=1.1), or secagg for real sites; see docs/privacy.md.",
    )
    memorization: bool = _setting(False, "Record the share of memorized wrong labels; requires true labels.")

    def __post_init__(self):
        for name, fault in faults(type(self), vars(self)):
            raise InputError(f"{option(name)} {fault}")


def option(name: str) -> str:
    """Return the option of `fnlkit train` for a setting."""
    return f"--{name.replace('_', '-')}"

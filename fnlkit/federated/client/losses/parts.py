"""Shared parts of losses."""

import math
from collections.abc import Callable
from typing import Any

import torch

from fnlkit.core.declarations import declaration, declare


def select_label(values: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
    """Select the entry of the last axis at each label: values (..., C), labels (...) -> (...)."""
    return values.gather(-1, labels[..., None]).squeeze(-1)


def away_from_uniform(logp: "torch.Tensor", samples: int = -2) -> "torch.Tensor":
    """Divergence KL(uniform || mean p) of log probabilities (..., B, C): (...), with the axis `samples` of B.

    Value and gradient are exact, also of a class whose probability is 0 in single precision, as with logits that differ by 104.
    """
    mean = logp.logsumexp(samples) - math.log(logp.shape[samples])  # log mean_c
    return -(mean.mean(-1) + math.log(logp.shape[-1]))  # sum_c (1/C) log((1/C) / mean_c)


def reads(
    *,
    teacher: bool = False,
    features: bool = False,
    uniform: bool = False,
    unmixed: bool = False,
    mixes: bool = False,
    before: Callable[..., Any] | None = None,
    check: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Declare that a loss reads more of its Batch than labels and received values (a decorator).

    Parameters
    ----------
    teacher, features, uniform, unmixed : bool
        Values that Fit must provide in the Batch.
    mixes : bool
        Under mixup, the loss mixes the targets itself, and it does not read ``batch.y``.
    before : callable or None
        (**keywords of the loss) -> client steps that run before local training, for example to allocate rows.
    check : callable or None
        Called before training as ``check(classes, **keywords of the loss)``; raises InputError if a keyword does not fit.
    """

    fields = {"teacher": teacher, "features": features, "uniform": uniform, "unmixed": unmixed, "mixes": mixes}
    return declare(reads=tuple(name for name, needed in fields.items() if needed), before=before, check=check)


def needs(loss: Callable[..., Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Declared needs of a loss with bound keywords: (fields of Fit that must be True, client steps)."""
    known = declaration(loss)
    return known.reads, tuple(known.before(**getattr(loss, "keywords", {}))) if known.before else ()


def suits(loss: Callable[..., Any], classes: int) -> None:
    """Raise InputError if a loss with bound keywords does not support this number of classes."""
    if check := declaration(loss).check:
        check(classes, **getattr(loss, "keywords", {}))

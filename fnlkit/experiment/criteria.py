"""Criteria that choose the round of the kept model without a clean label (`--select`).

A criterion is a function of the values measured so far, one per evaluated round, that returns the index of the chosen round.
With one more value the index stays or moves to the newest round, so that a single model is stored.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.core.parameters import Count
from fnlkit.core.spec import Spec, bind, parse

LAST = "last"
# Columns of the history that criteria read.
AGREEMENT, CHANGES = "held_out_agreement", "prediction_changes"


class Criterion(Protocol):
    """A criterion with bound parameters; `func` has the attributes that `reads` declares."""

    @property
    def func(self) -> Any:
        """Function with the attributes `column` and `each_stage`."""

    def __call__(self, values: Sequence[float], /) -> int:
        """Choose a value by its index."""


def reads(column: str, *, each_stage: bool = False) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Declare the measured column of a criterion, and whether the criterion begins again in each stage."""

    def attach(criterion: Any) -> Any:
        criterion.column, criterion.each_stage = column, each_stage
        return criterion

    return attach


@reads(AGREEMENT)
def best_holdout(values: Sequence[float]) -> int:
    """Choose the first round with the highest agreement on held-out noisy labels, over all rounds and stages.

    Examples
    --------
    >>> best_holdout([0.2, 0.5, 0.4, 0.5])
    1
    """
    return int(np.argmax(values))


@reads(AGREEMENT, each_stage=True)
def nes(values: Sequence[float], *, patience: Count = 10) -> int:
    """Choose the round of Noisy Early Stopping: the first peak of the agreement on held-out noisy labels.

    The peak is final after `patience` further values without a higher agreement.

    Toner, Storkey. Noisy early stopping for noisy labels. arXiv 2409.06830, 2024.  As in the paper, the criterion is accuracy
    (not the loss) on samples with the same label noise.  `patience` counts evaluated rounds instead of epochs; the default is
    ours.

    Examples
    --------
    >>> nes([0.2, 0.5, 0.4, 0.3, 0.9], patience=2)
    1
    """
    return _first_peak(values, patience)


@reads(CHANGES, each_stage=True)
def label_wave(values: Sequence[float], *, window: Count = 3, patience: Count = 3) -> int:
    """Choose the round of Label Wave: the first local minimum of the smoothed number of prediction changes.

    `values` counts the training samples whose predicted class differs from the previous evaluated round.  The counts are
    averaged over `window` values; the minimum is final after `patience` averages that are not lower.  Until the first average,
    the newest round is chosen.

    Yuan, Feng, Liu. Early stopping against label noise without validation data. ICLR 2024.  The authors' code counts changes of
    the predictions made during an epoch of training; here the global models of two evaluated rounds are compared, because a
    client does not train in every round.  The defaults of both parameters are ours.

    Examples
    --------
    >>> label_wave([9, 5, 3, 4, 6, 1], window=1, patience=2)
    2
    """
    if len(values) < window:
        return len(values) - 1
    averages = np.convolve(values, np.ones(window) / window, mode="valid")
    return window - 1 + _first_peak(-averages, patience)


def _first_peak(values, patience):
    best = 0
    for i, value in enumerate(values):
        if value > values[best]:
            best = i
        elif i - best >= patience:
            break
    return best


CRITERIA = {"best-holdout": best_holdout, "nes": nes, "label-wave": label_wave}


def criterion(spec: str | Spec) -> Criterion | None:
    """Bind the criterion of a spec; None for ``last``.

    Raises
    ------
    InputError
        For an unknown criterion or parameter.
    """
    spec = parse(spec, "`select`")
    if spec == Spec(LAST):
        return None
    if spec.name not in CRITERIA:
        known = (LAST, *CRITERIA)
        raise InputError(
            f": unknown criterion {str(spec)!r}{nearest(spec.name, known)}; known: {list_names(known)}", parameter="select"
        )
    return bind(spec, CRITERIA[spec.name], "criterion")

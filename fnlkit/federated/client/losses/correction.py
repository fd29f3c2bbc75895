"""Loss correction by a transition matrix, which is stored on a client or given by the user.

Patrini, Rozza, Menon, Nock, Qu. Making deep neural networks robust to label noise: A loss correction approach. CVPR 2017.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from fnlkit.artifacts.transitions import TRANSITIONS
from fnlkit.core.declarations import declare
from fnlkit.core.errors import InputError, nearest
from fnlkit.core.parameters import Range, SpecText
from fnlkit.core.spec import MessageText, Spec, bind, find, parse
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.parts import reads, select_label

# A site does not read files that a server names.
IN_MESSAGES = {name: target for name, target in TRANSITIONS.items() if name != "matrix"}
# Above this condition number, backward correction gives single samples weights that a batch cannot average out.
_WORST = 1e6


def forward_corrected(logits: torch.Tensor, batch: Batch, *, floor: float = 1e-12) -> torch.Tensor:
    """Forward-corrected cross entropy -log( (p T)_y ), (..., B) (Patrini 2017; FedEFC eq. 16).

    ``state["transition"]`` (..., C, C) is T[true, given] with rows that sum to 1.  FedEFC's Q is the transpose, so
    Q[observed, :] . p equals (p T)[observed].

    Parameters
    ----------
    floor : float >= 0
        Added inside the logarithm, as in the authors' code.
    """
    return _through(logits, batch, batch.state["transition"].to(logits), floor)


def importance_reweighted(logits: torch.Tensor, batch: Batch, *, constant: bool = True, floor: float = 1e-12) -> torch.Tensor:
    """Importance-reweighted cross entropy p_y / (p T)_y (-log p_y), (..., B) (Xia 2019, eq. 4).

    ``state["transition"]`` (..., C, C) is T[true, given] with rows that sum to 1.

    Parameters
    ----------
    constant : bool
        True computes no gradient through the weight p_y / (p T)_y.
    floor : float >= 0
        Added to (p T)_y.
    """
    p = logits.softmax(-1)
    weight = select_label(p, batch.y) / (select_label(p @ batch.state["transition"].to(logits), batch.y) + floor)
    return -(weight.detach() if constant else weight) * select_label(logits.log_softmax(-1), batch.y)


def transition_matrix(transition: str, classes: int) -> np.ndarray | None:
    """Read the matrix T[true, given] (C, C) float64 that a text describes.

    Parameters
    ----------
    transition : str
        A noise model with one matrix, ``symmetric(eta=0.4)``, ``pairflip(eta=0.4)``, ``asymmetric(eta=0.4,
        map=cifar10)``, ``matrix(path=T.csv, transpose=true)``; or the path of an npy, npz, csv or pt file.
    classes : int
        C.

    Raises
    ------
    InputError
        For an unknown name, an unreadable file, or a matrix of another size or with rows that are not probabilities.
    """
    return _build_named(transition, classes, _stamp(transition))


def names_a_file(transition: str) -> bool:
    """Whether a text names a file with a transition matrix, directly or as ``matrix(path=...)``."""
    return _spec(transition).name == "matrix"


@lru_cache(maxsize=32, typed=True)
def _spec(transition):
    spec = parse(transition, "transition")
    if spec.name not in TRANSITIONS and Path(spec.name).suffix and ":" not in spec.name:
        spec = Spec("matrix", {"path": spec.name}, spec.origin)
    table = IN_MESSAGES if spec.origin is MessageText else TRANSITIONS
    if spec.name not in table:
        known = ", ".join(table) + ("" if table is IN_MESSAGES else ", or the path of a file")
        raise InputError(f"unknown transition {spec.name!r}{nearest(spec.name, table)}; known: {known}")
    return spec


def _stamp(transition):
    """Make a cache key for the file that a spec names, so that the matrix is not read in each batch."""
    path = _spec(transition).parameters.get("path")
    try:
        status = os.stat(path) if isinstance(path, str) else None
    except (OSError, ValueError):  # reported when the file is read
        status = None
    return status and (os.path.abspath(path), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8, typed=True)
def _build_named(transition, classes, stamp):
    spec = _spec(transition)
    return bind(spec, find(spec, TRANSITIONS, "transition"), "transition")(classes)


def inverse_matrix(transition: str, classes: int) -> np.ndarray:
    """Invert the matrix of `transition_matrix`: T^-1 (C, C) float64.

    Raises
    ------
    InputError
        If T is singular or nearly singular (condition number above 10^6).
    """
    return _inverse(transition, classes, _stamp(transition))


@lru_cache(maxsize=8, typed=True)
def _inverse(transition, classes, stamp):
    matrix = transition_matrix(transition, classes)
    worst = np.linalg.cond(matrix)
    if not worst <= _WORST:
        raise InputError(
            f"backward: {transition} cannot be inverted (condition number {worst:.2g}); use forward, or a matrix with "
            "less noise",
            parameter="loss",
        )
    return np.linalg.inv(matrix)


def _to_device(of, transition, logits):
    """Move a matrix to the device of the logits; a recorded GPU step must not copy it from the host."""
    return _tensor(of, transition, logits.shape[-1], _stamp(transition), logits.dtype, logits.device)


@lru_cache(maxsize=None, typed=True)
def _tensor(of, transition, classes, stamp, dtype, device):
    return torch.from_numpy(of(transition, classes)).to(device, dtype)


@declare(cite="Patrini 2017")
@reads(check=lambda classes, *, transition, floor=0.0: transition_matrix(transition, classes))
def forward_given(
    logits: torch.Tensor,
    batch: Batch,
    *,
    transition: SpecText,
    floor: Annotated[float, Range(0, 1, open_high=True)] = 1e-12,
) -> torch.Tensor:
    """Correct known confusions of classes: apply the transition matrix to predictions before the comparison with the label.

    Return -log( (p T)_y ), (..., B), with one given T for all clients: forward correction (Patrini 2017, eq. 5).

    Parameters
    ----------
    transition : str
        T[true, given], for example ``symmetric(eta=0.4)`` or a file; see `transition_matrix`.
    floor : float in [0, 1)
        Added inside the logarithm.
    """
    matrix = _to_device(transition_matrix, transition, logits)
    return _through(logits, batch, matrix, floor)


@declare(cite="Patrini 2017")
@reads(check=lambda classes, *, transition: inverse_matrix(transition, classes))
def backward_given(logits: torch.Tensor, batch: Batch, *, transition: SpecText) -> torch.Tensor:
    """Correct known confusions of classes: weight the losses so that the confusions cancel on average.

    Return sum_j T^-1[y, j] (-log p_j), (..., B): backward correction (Patrini 2017, eq. 4).

    The expectation over the noise is the cross entropy with the true label.  Single values can be negative, without bound.

    Parameters
    ----------
    transition : str
        T[true, given], for example ``symmetric(eta=0.4)`` or a file; see `transition_matrix`.
    """
    inverse = _to_device(inverse_matrix, transition, logits)
    return -(inverse[batch.y] * logits.log_softmax(-1)).sum(-1)


def _through(logits, batch, matrix, floor):
    return -(select_label(logits.softmax(-1) @ matrix, batch.y) + floor).log()

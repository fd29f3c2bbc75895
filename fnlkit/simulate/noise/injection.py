"""Corrupt the given labels of a federation with a noise model and measure the result."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import InputError
from fnlkit.core.spec import Spec, bind, find, parse
from fnlkit.kernels.streams import stream
from fnlkit.simulate.noise.ground import Corruption, Ground

MODELS = {
    "clients": "fnlkit.simulate.noise.by_client:clients",
    "symmetric": "fnlkit.simulate.noise.by_class:symmetric",
    "pairflip": "fnlkit.simulate.noise.by_class:pairflip",
    "asymmetric": "fnlkit.simulate.noise.by_class:asymmetric",
    "random": "fnlkit.simulate.noise.by_class:random",
    "sparse": "fnlkit.simulate.noise.sparse:sparse",
    "instance": "fnlkit.simulate.noise.instance:instance",
    "annotators": "fnlkit.simulate.noise.people:annotators",
    "difficult": "fnlkit.simulate.noise.people:difficult",
    "matrix": "fnlkit.simulate.noise.own:matrix",
    "labels": "fnlkit.simulate.noise.own:labels",
    "none": "fnlkit.simulate.noise.own:none",
}


def inject(
    federation: Federation, noise: str | Spec, *, seed: int, x: ArrayLike | Callable[[], ArrayLike] | None = None
) -> Federation:
    """Corrupt the given labels of a federation by a noise model.

    True labels and clients stay unchanged.  Noise can be injected before or after `partition`, and repeatedly: each call
    corrupts the labels of the previous one.  If the data set declares no true labels, a model that creates wrong labels
    treats the current labels as true, and ``meta["truth"]`` records this.

    Parameters
    ----------
    federation : Federation
    noise : str or Spec
        A name of `MODELS` with parameters, or ``FILE.py:NAME`` of the user, called as ``function(ground, **parameters)``
        with a `Ground`, which returns a `Corruption`.
    seed : int
    x : (n, ...) array or callable that returns it, optional
        Training samples for instance-dependent noise.

    Returns
    -------
    Federation
        With the measured ``noise_client_level`` and ``noise_achieved_transition`` (an extra array), and with the requested
        ``noise_transition`` and ``noise_client_noisy``.

    Raises
    ------
    InputError

    Examples
    --------
    >>> from fnlkit import datasets
    >>> from fnlkit.simulate import noise
    >>> from fnlkit.simulate import partitioning
    >>> clean = partitioning.federation(datasets.load("digits"))
    >>> noisy = noise.inject(clean, "symmetric(eta=0.4)", seed=0)
    >>> float(round((noisy.given != noisy.true).mean(), 1))
    0.4
    """
    spec = parse(noise, "`noise`")
    model = bind(spec, find(spec, MODELS, "noise"), "noise")
    before = federation.meta.get("noise", [])
    # A second noise model with the same seed must not select the same samples as the first.
    ground = Ground(
        labels=federation.given.copy(),  # a model that changes them in place changes no federation
        classes=federation.classes,
        clients=federation.whole().clients,  # held-out labels are corrupted like the others
        rng=lambda client=0: stream(seed, "noise", len(before), client),
        x=x if callable(x) else lambda: x,
        dataset=federation.dataset,
        training=federation.clients,
    )
    done = model(ground)
    if not isinstance(done, Corruption):
        raise InputError(f"noise {spec.name!r} returned {type(done).__name__}; expected fnlkit.simulate.noise.Corruption")
    labels = np.asarray(done.labels)
    whole = labels.shape == ground.labels.shape and labels.dtype.kind in "iu"
    if not whole or labels.min() < 0 or labels.max() >= federation.classes:
        found = f"labels from {labels.min()} to {labels.max()}" if whole else f"{labels.dtype} of shape {labels.shape}"
        raise InputError(
            f"noise {spec.name!r} returned {found}; expected {len(ground.labels):,} whole numbers from 0 to "
            f"{federation.classes - 1}"
        )
    true, meta = federation.true, {**federation.meta, "noise": [*before, {"model": str(spec), "seed": seed}]}
    if true is None and done.simulated:
        true, meta["truth"] = np.array(federation.given), "the labels before the noise"
    noisy_federation = replace(
        federation,
        true=true,
        given=labels,
        noise_transition=_compose(federation, done.transition, bool(before)),
        extra=dict(federation.extra),
        meta=meta,
    )
    noisy_federation.noise_client_level = noisy_federation.wrong_share()
    noisy = done.noisy
    if noisy is None and noisy_federation.noise_client_level is not None:
        noisy = noisy_federation.noise_client_level > 0
    if federation.noise_client_noisy is not None and noisy is not None:
        noisy = noisy | federation.noise_client_noisy
    noisy_federation.noise_client_noisy = noisy
    if noisy_federation.true is not None:
        noisy_federation.extra["noise_achieved_transition"] = noisy_federation.achieved_transition()
    # Estimates for the previous labels do not apply to the new labels.
    noisy_federation.extra = {name: value for name, value in noisy_federation.extra.items() if not name.startswith("estimate_")}
    noisy_federation.meta.pop("estimate", None)
    noisy_federation.check()
    return noisy_federation


def _compose(federation, transition, again):
    """Multiply old T @ new T; None if either is unknown."""
    if not again:
        return transition
    if transition is None or federation.noise_transition is None:
        return None
    return federation.noise_transition @ transition


def mean_requested_transition(federation: Federation) -> np.ndarray | None:
    """Average the requested transition (C, C) over all clients, weighted with their samples of each class; can be None.

    None if a noise model did not state a transition or if no true labels are known.
    """
    T = federation.noise_transition
    if T is None or T.ndim == 2 or federation.true is None:
        return T if T is None or T.ndim == 2 else None
    known = [federation.true[members] for members in federation.clients]
    counts = np.stack([np.bincount(true, minlength=federation.classes) for true in known])
    total = counts.sum(0)
    mean = np.einsum("kc,kcd->cd", counts / np.maximum(total, 1), T)
    return np.where(total[:, None] > 0, mean, np.eye(federation.classes))


def summary(federation: Federation) -> dict[str, Any]:
    """Describe the noise of a federation by plain values for a table or JSON.

    Parameters
    ----------
    federation : Federation

    Returns
    -------
    dict
        samples, wrong_share, requested_share (None if unknown),
        client_level (list), client_requested (list or None), transition_error (mean over classes of the total variation
        between requested and achieved rows, or None, as without samples of a class).
    """
    fed: Federation = federation
    seen = fed.client_indices if len(fed) else np.arange(len(fed.given))
    facts: dict[str, Any] = {"samples": len(seen), "wrong_share": None, "requested_share": None, "client_level": None}
    facts |= {"client_requested": None, "transition_error": None}
    if fed.true is None:
        return facts
    true, given_labels = fed.true[seen], fed.given[seen]
    facts["wrong_share"] = float((true != given_labels).mean())
    if len(fed):
        facts["client_level"] = np.asarray(fed.wrong_share()).tolist()
    if fed.noise_transition is None:
        return facts
    T = fed.noise_transition
    stay = np.diagonal(T, axis1=-2, axis2=-1)  # (C,) or (N, C)
    parts = fed.clients if len(fed) else [seen]
    rates = (1 - (stay if T.ndim == 2 else stay[k]) for k in range(len(parts)))
    asked = [float(rate[fed.true[members]].mean()) for rate, members in zip(rates, parts, strict=True)]
    facts["requested_share"] = float(np.average(asked, weights=[len(members) for members in parts]))
    facts["client_requested"] = asked if len(fed) else None
    present = np.bincount(true, minlength=fed.classes) > 0
    if present.any():
        distance = np.abs(mean_requested_transition(fed) - fed.achieved_transition()).sum(1) / 2
        facts["transition_error"] = float(distance[present].mean())
    return facts

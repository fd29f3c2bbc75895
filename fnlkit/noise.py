"""Label noise: models that corrupt the given labels of a federation and say what they asked for and what they got."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fnlkit import files
from fnlkit import noise_matrices as matrices
from fnlkit.errors import InputError
from fnlkit.federation_file import FederationFile
from fnlkit.spec import Spec, bind, find, parse
from fnlkit.streams import stream

MODELS = {
    "clients": "fnlkit.noise:clients",
    "symmetric": "fnlkit.noise:symmetric",
    "pairflip": "fnlkit.noise:pairflip",
    "asymmetric": "fnlkit.noise:asymmetric",
    "sparse": "fnlkit.noise:sparse",
    "random": "fnlkit.noise:random",
    "instance": "fnlkit.noise:instance",
    "matrix": "fnlkit.noise:matrix",
    "labels": "fnlkit.noise:labels",
    "none": "fnlkit.noise:none",
}


@dataclass(frozen=True)
class Ground:
    """What a noise model sees.

    Attributes
    ----------
    labels : (n,) int64
        The labels to corrupt; not to be changed in place.
    classes : int
    clients : list of (n_k,) int64
        Positions of each client's samples; empty before `partition`.
    rng : callable
        ``rng(client=0)`` is the stream of a client, or of the whole training set.
    x : callable
        Returns the training samples; only instance-dependent noise asks.
    dataset : str
    """

    labels: np.ndarray
    classes: int
    clients: list
    rng: Any
    x: Any
    dataset: str


@dataclass
class Corruption:
    """What a noise model returns: the labels, and what it asked for as far as it knows.

    Attributes
    ----------
    labels : (n,) int64
    transition : (C, C) or (N, C, C) float64, or None
        T[true, given]; rows sum to 1.
    noisy : (N,) bool or None
        Which clients the model chose; None: those that got a wrong label.
    """

    labels: np.ndarray
    transition: np.ndarray = None
    noisy: np.ndarray = None


def inject(federation, noise, *, seed, x=None):
    """Return a federation whose given labels went through a noise model; true labels and clients stay as they are.

    Noise may come before or after `partition`, and more than once: the second corrupts what the first left.

    Parameters
    ----------
    federation : FederationFile
    noise : str or Spec
        A name of `MODELS` with its parameters, or ``module:function`` of your own, called as
        ``function(ground, **parameters)`` with a `Ground`, returning a `Corruption`.
    seed : int
    x : (n, ...) array or callable returning it, optional
        Training samples, for instance-dependent noise.

    Returns
    -------
    FederationFile
        With ``noise_client_level`` and ``noise_achieved_transition`` (an extra array) measured, ``noise_transition``
        and ``noise_client_noisy`` as asked for.

    Raises
    ------
    InputError

    Examples
    --------
    >>> from fnlkit import datasets, noise, partition
    >>> clean = partition.federation(datasets.load("digits"))
    >>> noisy = noise.inject(clean, "symmetric(eta=0.4)", seed=0)
    >>> float(round((noisy.given != noisy.true).mean(), 1))
    0.4
    """
    spec = parse(noise, "--noise")
    model = bind(spec, find(spec.name, MODELS, "noise"), "noise")
    before = federation.meta.get("noise", [])
    # Equal seeds must not make a second noise hit the samples of the first.
    ground = Ground(
        labels=federation.given,
        classes=federation.classes,
        clients=federation.clients,
        rng=lambda client=0: stream(seed, "noise", len(before), client),
        x=x if callable(x) else lambda: x,
        dataset=federation.dataset,
    )
    done = model(ground)
    if not isinstance(done, Corruption):
        raise InputError(f"noise {spec.name!r} returned {type(done).__name__}; expected fnlkit.noise.Corruption")
    out = replace(
        federation,
        given=np.asarray(done.labels),
        noise_transition=_composed(federation, done.transition, bool(before)),
        extra=dict(federation.extra),
        meta={**federation.meta, "noise": [*before, {"model": str(spec), "seed": seed}]},
    )
    out.noise_client_level = out.wrong_share()
    noisy = done.noisy
    if noisy is None and out.noise_client_level is not None:
        noisy = out.noise_client_level > 0
    if federation.noise_client_noisy is not None and noisy is not None:
        noisy = noisy | federation.noise_client_noisy
    out.noise_client_noisy = noisy
    if out.true is not None:
        seen = out.client_indices if len(out) else slice(None)
        out.extra["noise_achieved_transition"] = matrices.achieved(out.true[seen], out.given[seen], out.classes)
    # Judgements of the labels before this noise are judgements no more.
    out.extra = {name: value for name, value in out.extra.items() if not name.startswith("estimate_")}
    out.check()
    return out


def _composed(federation, transition, again):
    """Return old T @ new T; None when either is unknown."""
    if not again:
        return transition
    if transition is None or federation.noise_transition is None:
        return None
    return federation.noise_transition @ transition


def none(ground):
    """No noise: the labels as they are."""
    return Corruption(ground.labels, np.eye(ground.classes))


def clients(ground, *, rho=0.6, tau=0.5, exact=False, kind="symmetric", map=""):
    """FedCorr's noise (Xu 2022, Sec. 4.1): some clients are noisy, each at its own level.

    Client k is noisy with probability rho; its level mu_k ~ U(tau, 1).  Each of its samples is picked with probability
    mu_k and gets a label drawn from ALL classes, so that the share of wrong labels is mu_k (C - 1) / C.  The authors'
    code draws from the first 10 classes whatever C is; here from all.

    Parameters
    ----------
    rho : float in [0, 1]
    tau : float in [0, 1]
    exact : bool
        rho N clients and mu_k n_k samples, rounded, instead of independent draws (FLR, Kim 2024).
    kind : {"symmetric", "asymmetric", "pairflip"}
        Where picked labels go: any class; the published map (only its classes change); the next class.
    map : str
        The published map, when the data set's name does not say it.
    """
    _shares(rho=rho, tau=tau)
    _partitioned(ground, "clients")
    count, rng = len(ground.clients), ground.rng()
    if exact:
        noisy = np.zeros(count, bool)
        noisy[rng.permutation(count)[: round(rho * count)]] = True
    else:
        noisy = rng.random(count) < rho
    level = np.where(noisy, tau + (1 - tau) * rng.random(count), 0.0)
    target = _target(ground, kind, map)
    labels = ground.labels.copy()
    # The whole training set has stream 0, client k stream k + 1.
    for k in np.flatnonzero(noisy):
        own, here = ground.rng(k + 1), ground.clients[k]
        if exact:
            picked = here[own.permutation(len(here))[: round(level[k] * len(here))]]
        else:
            picked = here[own.random(len(here)) < level[k]]
        labels[picked] = own.integers(0, ground.classes, len(picked)) if target is None else target[labels[picked]]
    base = np.full((ground.classes,) * 2, 1 / ground.classes) if target is None else matrices.mapped(target, 1.0)
    T = (1 - level)[:, None, None] * np.eye(ground.classes) + level[:, None, None] * base
    return Corruption(labels, T, noisy)


def symmetric(ground, *, eta=0.4, include_true=False):
    """Each label changes with probability eta to any other class; with include_true it is drawn from all classes."""
    _shares(eta=eta)
    return _drawn(ground, matrices.symmetric(ground.classes, eta, include_true))


def pairflip(ground, *, eta=0.4):
    """Each label becomes the next class with probability eta, the last class the first (Han 2018)."""
    _shares(eta=eta)
    return _drawn(ground, matrices.mapped(_target(ground, "pairflip", ""), eta))


def asymmetric(ground, *, eta=0.4, map=""):
    """Labels of easily confused classes change with probability eta, by the published map of the data set.

    Parameters
    ----------
    eta : float in [0, 1]
    map : str
        ``cifar10``, ``cifar100``, ``mnist`` or ``fashion-mnist``; the data set's name without it.
    """
    _shares(eta=eta)
    return _drawn(ground, matrices.mapped(_target(ground, "asymmetric", map), eta))


def random(ground, *, eta=0.4):
    """FedDPCont's random noise (Di 2024): every class has its own rate, eta +- 0.05, and its own random row."""
    _shares(eta=eta)
    return _drawn(ground, matrices.random(ground.classes, eta, ground.rng(0)), ground.rng(1))


def sparse(
    ground,
    *,
    level=0.4,
    sparsity=0.4,
    per_client=False,
    noisy_share=1.0,
    clean_level=0.0,
    construction="confident-learning",
):
    """Class-dependent noise with zeros: one matrix for everybody (FedEFC) or one per client (FedLN).

    Parameters
    ----------
    level : float in [0, 1)
        Mean of 1 - T[i, i].
    sparsity : float in [0, 1]
        Share of zeros beside the diagonal; 1 flips classes in pairs.
    per_client : bool
        A matrix of its own for each client; needs a partitioned federation.
    noisy_share : float in [0, 1]
        With per_client: the share F of clients that get `level`, rounded, drawn at random.
    clean_level : float in [0, 1)
        With per_client: the level of the other clients (FedLN, Table 6).
    construction : {"confident-learning", "fedln-code"}
        The first draws an uneven diagonal and changes exactly as many labels as the matrix announces, by largest
        remainders; the second has an even diagonal and independent draws, as FedLN's public code.
    """
    _shares(level=level, sparsity=sparsity, noisy_share=noisy_share, clean_level=clean_level)
    if construction not in ("confident-learning", "fedln-code"):
        raise InputError(f"sparse: construction is {construction!r}; write confident-learning or fedln-code")

    def corrupted(labels, rate, rng, shares):
        if construction == "fedln-code":
            T = matrices.sparse_as_fedln(ground.classes, rate, sparsity, rng)
            return matrices.draw(labels, T, rng), T
        T = matrices.sparse(ground.classes, rate, sparsity, rng, shares)
        return matrices.exact(labels, T, rng), T

    if not per_client:
        if noisy_share != 1 or clean_level:
            raise InputError("sparse: noisy_share and clean_level go with per_client=true")
        shares = np.bincount(ground.labels, minlength=ground.classes) / len(ground.labels)
        labels, T = corrupted(ground.labels, level, ground.rng(), shares)
        return Corruption(labels, T)
    _partitioned(ground, "sparse(per_client=true)")
    count = len(ground.clients)
    noisy = np.zeros(count, bool)
    noisy[ground.rng().permutation(count)[: round(noisy_share * count)]] = True
    labels, T = ground.labels.copy(), np.empty((count, ground.classes, ground.classes))
    for k, here in enumerate(ground.clients):
        rate = level if noisy[k] else clean_level
        labels[here], T[k] = corrupted(ground.labels[here], rate, ground.rng(k + 1), None)
    return Corruption(labels, T, noisy)


def instance(ground, *, eta=0.4, spread=0.1):
    """Instance-dependent noise (Xia 2020, part-dependent transition; Algorithm 2 there).

    Sample i flips with probability q_i ~ Normal(eta, spread) cut to [0, 1]; where it goes depends on how it looks:
    softmax over the other classes of x_i W[y_i], with one standard normal matrix W per class.  All entries of the
    samples together are scaled to mean 0 and standard deviation 1; for images of more than a few pixels the softmax is
    then close to one class, as in the authors' code.

    Parameters
    ----------
    eta : float in [0, 1]
    spread : float >= 0
    """
    _shares(eta=eta)
    if not 0 <= spread <= 10:
        raise InputError(f"instance: spread is {spread}; expected 0 or a small positive number")
    x = ground.x()
    if x is None:
        raise InputError("instance: needs the samples; give x=... (on the command line the data set must be readable)")
    if len(x) != len(ground.labels):
        raise InputError(f"instance: {len(x):,} samples but {len(ground.labels):,} labels; is it another data set?")
    if eta == 0:
        return none(ground)
    rng = ground.rng()
    wrong = rng.normal(eta, spread, len(x))
    while (outside := (wrong < 0) | (wrong > 1)).any():
        wrong[outside] = rng.normal(eta, spread, outside.sum())
    uniform = rng.random(len(x))
    centre, width = _spread(x)
    labels, T = ground.labels.copy(), np.eye(ground.classes)
    for label in np.unique(labels):
        here = np.flatnonzero(ground.labels == label)
        W = ground.rng(label + 1).normal(size=(int(np.prod(x.shape[1:])), ground.classes)).astype(np.float32)
        total = np.zeros(ground.classes)
        for start in range(0, len(here), 1000):  # a float copy of all images would not fit
            part = here[start : start + 1000]
            flat = (np.asarray(x[part], np.float32).reshape(len(part), -1) - centre) / width
            score = (flat @ W).astype(np.float64)
            score[:, label] = -np.inf
            p = np.exp(score - score.max(1, keepdims=True))
            p *= (wrong[part] / p.sum(1))[:, None]
            p[:, label] = 1 - wrong[part]
            total += p.sum(0)
            border = np.cumsum(p, 1)
            labels[part] = (uniform[part, None] * border[:, -1:] >= border).sum(1)
        T[label] = total / len(here)
    return Corruption(labels, T / T.sum(1, keepdims=True))


def _spread(x):
    first = second = count = 0.0
    for start in range(0, len(x), 1000):
        part = np.asarray(x[start : start + 1000], np.float64)
        first, second, count = first + part.sum(), second + (part * part).sum(), count + part.size
    mean = first / count
    return mean, max(np.sqrt(max(second / count - mean**2, 0)), 1e-12)


def matrix(ground, *, path, key="", transpose=False):
    """A transition matrix of your own, T[true, given], from npy, npz, csv or .pt.

    Parameters
    ----------
    path : str
    key : str
        The array's name, when the file has several.
    transpose : bool
        For files with rows given and columns true.
    """
    path, key = _word(path), _word(key)
    T = files.pick(files.read_arrays(path), key, path).astype(np.float64)
    if T.shape != (ground.classes,) * 2:
        raise InputError(f"{files.shown(path)}: a matrix of {T.shape}; expected {ground.classes} x {ground.classes}")
    T = T.T if transpose else T
    if not np.isfinite(T).all() or (T < 0).any() or (np.abs(T.sum(1) - 1) > 1e-3).any():
        hint = "; its columns do: add transpose=true" if np.isfinite(T).all() and np.allclose(T.sum(0), 1, atol=1e-3) else ""
        raise InputError(f"{files.shown(path)}: rows must be probabilities that sum to 1{hint}")
    return _drawn(ground, T / T.sum(1, keepdims=True))


def labels(ground, *, path, key=""):
    """Labels of your own for the whole training set, from npy, npz, csv or .pt (CIFAR-N's among them).

    Parameters
    ----------
    path : str
    key : str
        The array's name, when the file has several; for CIFAR-N for example ``worse_label``.
    """
    path, key = _word(path), _word(key)
    arrays = files.read_arrays(path)
    given = files.pick(arrays, key, path)
    if given.ndim != 1 or given.dtype.kind not in "iu" or len(given) != len(ground.labels):
        raise InputError(
            f"{files.shown(path)}: found {given.dtype} of shape {given.shape}; expected a whole number for each of "
            f"{len(ground.labels):,} training samples"
        )
    if given.min() < 0 or given.max() >= ground.classes:
        raise InputError(f"{files.shown(path)}: labels run from {given.min()} to {given.max()}, not 0 to {ground.classes - 1}")
    clean = arrays.get("clean_label")
    if clean is not None and clean.shape == given.shape and (same := (clean == ground.labels).mean()) < 1:
        raise InputError(
            f"{files.shown(path)}: its clean_label equals only {same:.1%} of this data set's labels; "
            "its samples are in another order, or of another data set"
        )
    return Corruption(given.astype(np.int64))


def _drawn(ground, T, rng=None):
    return Corruption(matrices.draw(ground.labels, T, rng or ground.rng()), T)


def _target(ground, kind, name):
    """Return the class each class goes to, (C,) int64, or None for any."""
    if kind == "symmetric":
        return None
    if kind == "pairflip":
        return (np.arange(ground.classes) + 1) % ground.classes
    if kind != "asymmetric":
        raise InputError(f"kind is {kind!r}; write symmetric, asymmetric or pairflip")
    return matrices.class_map(name or ground.dataset, ground.classes)


def _partitioned(ground, what):
    if not ground.clients:
        raise InputError(f"{what} chooses clients and this federation has none; run `fnlkit partition` first")


def _shares(**values):
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise InputError(f"noise: {name} is {value}; expected a share from 0 to 1")


def _word(value):
    if isinstance(value, Spec) and not value.parameters:
        return value.name
    if not isinstance(value, str):
        raise InputError(f"noise: {value} where a path or a name belongs; write it in quotes")
    return value


def requested(federation):
    """Return the transition that was asked for, over all clients by their samples of each class; (C, C) or None.

    None when a noise model did not say, or nobody knows the true labels.
    """
    T = federation.noise_transition
    if T is None or T.ndim == 2 or federation.true is None:
        return T if T is None or T.ndim == 2 else None
    counts = np.stack([np.bincount(federation.true[here], minlength=federation.classes) for here in federation.clients])
    total = counts.sum(0)
    mean = np.einsum("kc,kcd->cd", counts / np.maximum(total, 1), T)
    return np.where(total[:, None] > 0, mean, np.eye(federation.classes))


def summary(federation):
    """Return what is known of a federation's noise, as plain values for a table or JSON.

    Parameters
    ----------
    federation : FederationFile

    Returns
    -------
    dict
        samples, wrong_share, requested_share (None when unknown), client_level (list), client_requested (list or None),
        transition_error (mean over classes of the total variation between requested and achieved rows, or None).
    """
    fed: FederationFile = federation
    seen = fed.client_indices if len(fed) else np.arange(len(fed.given))
    out = {"samples": len(seen), "wrong_share": None, "requested_share": None, "client_level": None}
    out |= {"client_requested": None, "transition_error": None}
    if fed.true is None:
        return out
    true, given = fed.true[seen], fed.given[seen]
    out["wrong_share"] = float((true != given).mean())
    if len(fed):
        out["client_level"] = fed.wrong_share().tolist()
    if fed.noise_transition is None:
        return out
    T = fed.noise_transition
    stay = np.diagonal(T, axis1=-2, axis2=-1)  # (C,) or (N, C)
    parts = fed.clients if len(fed) else [seen]
    asked = [float((1 - (stay if T.ndim == 2 else stay[k])[fed.true[here]]).mean()) for k, here in enumerate(parts)]
    out["requested_share"] = float(np.average(asked, weights=[len(here) for here in parts]))
    out["client_requested"] = asked if len(fed) else None
    present = np.bincount(true, minlength=fed.classes) > 0
    got = matrices.achieved(true, given, fed.classes)
    out["transition_error"] = float((np.abs(requested(fed) - got).sum(1) / 2)[present].mean())
    return out

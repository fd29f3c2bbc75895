"""Steps before training: partition, label noise, and noise estimation."""

import os
import sys
from collections import Counter

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.provenance import provenance, with_record
from fnlkit.datasets.loading import loaded
from fnlkit.errors import InputError, nearest


def tell(text):
    """Print a note as a line on stderr. This is the default of every ``say``."""
    print(text, file=sys.stderr)


def data_of(federation, dataset=None, say=tell):
    """Return the data set of a federation.

    If `dataset` is given, it must be the same data set. Unverified assumptions are passed to `say`.

    Parameters
    ----------
    federation : Federation
    dataset : str, path or Dataset, optional
    say : callable(str) or None
    """
    from fnlkit.datasets.dataset import must_be

    data = loaded(dataset if dataset is not None else federation.dataset)
    trust = must_be(data, federation.meta, len(federation.given), what="the federation")
    if trust and say:
        say(trust)
    return data


def named(dataset):
    """Return the name of a data set in the provenance: the given name or path."""
    return dataset if dataset is None or isinstance(dataset, str) else getattr(dataset, "name", None) or os.fspath(dataset)


def read(federation):
    """Return the Federation of a path or ``-``. A Federation is returned unchanged.

    Raises
    ------
    InputError
        If `source` is anything else.
    """
    if isinstance(federation, Federation):
        return federation
    if isinstance(federation, (str, os.PathLike)):
        return Federation.read(os.fspath(federation))
    raise InputError(f"`federation` is {type(federation).__name__}; give what fnlkit.partition returns, or a file's path")


def known_settings(options, function):
    """Raise InputError if a keyword is not a field of fnlkit.experiment.Settings."""
    from dataclasses import fields

    from fnlkit.experiment import Settings

    names = [field.name for field in fields(Settings)]
    for name in options:
        if name not in names:
            raise InputError(f"{function} has no option `{name}`{nearest(name, names)}; its settings are: {', '.join(names)}")


def partition(source="digits", scheme="iid", *, clients=None, labels="auto", min_samples=1, holdout=None, gold=None,
              public=0.0, seed=0, dataset=None, say=tell):  # fmt: skip
    """Split a data set, or labels that are already corrupted, over clients.

    Parameters
    ----------
    source : str, path, fnlkit.datasets.Dataset or Federation
        A name of `fnlkit data list`, an .npz file, a folder of images; or an unpartitioned Federation from `inject_noise`.
    scheme : str
        Partition scheme: ``iid``, ``dirichlet(alpha=0.5)``, ... (`fnlkit partition --help`).
    clients : int or None
        Number of clients. None means 20 below 10,000 samples and 100 above.
    labels : "auto", "observed" or "true"
        Whether the labels are the true labels: as declared by the data set ("auto"), unknown ("observed"), or yes ("true").
    min_samples : int
        Repeat the draw until every client has at least this number of samples.
    holdout : float in [0, 1), optional
        Share of each client's samples in its held-out set. Default: 0.2 for a data set without test samples, else 0.
    gold : path, optional
        A csv (id, label) of verified samples. They are used for evaluation and never for training.
    public : float in [0, 1)
        Share of all samples that form a public set, which belongs to no client. Some methods require a public set.
    seed : int
    dataset : str, path or Dataset, optional
        Location of the samples of a Federation. Default: the location recorded in the file.
    say : callable(str) or None
        Receives notes on unverified assumptions.

    Returns
    -------
    Federation

    Raises
    ------
    InputError

    Examples
    --------
    >>> import fnlkit
    >>> fnlkit.partition("digits", clients=10)
    Federation: data set digits, 1,438 samples of 10 classes; clients 10, of 143 to 144 samples; labels 0.00 % wrong
    """
    from fnlkit.datasets import partitioning

    noisy = source if isinstance(source, Federation) else None
    if noisy is None and dataset is not None:
        raise InputError("`dataset` says where the samples of a Federation lie; give the data set as the first argument")
    data = loaded(source) if noisy is None else data_of(noisy, dataset, say)
    if data.in_files:
        data.x_train  # noqa: B018 - reads every file, so that all that cannot be used are named now
    options = {"scheme": str(scheme), "clients": clients, "min_samples": min_samples, "labels": labels}
    options |= {"holdout": holdout, "gold": None if gold is None else os.fspath(gold)}
    options |= {"public": public} if public else {}
    out = partitioning.federation(data, seed=seed, noisy=noisy, **options)
    out.meta = with_record(out.meta, provenance("partition", seed, dataset=data.name, **options))
    for text in [*data.notes, *_unlabeled(data, out), *_sites_left(data, scheme)] if say else []:
        say(text)
    return out


def _unlabeled(data, federation):
    """Yield a note if samples have no label."""
    if data.unlabeled is None:
        return
    where = ""
    if data.unlabeled.sites is not None:
        where = f" ({', '.join(f'{site} {n:,}' for site, n in sorted(Counter(data.unlabeled.sites).items()))})"
    yield f"{len(data.unlabeled):,} samples without a label{where} belong to no client; `fnlkit predict` reads them"
    names = federation.meta.get("client_names", [])
    bare = sorted(set(data.unlabeled.sites or []) - set(names)) if "client_unlabeled" in federation.meta else []
    if bare:
        yield f"no client: {', '.join(bare)}, without a single label"


def _sites_left(data, scheme):
    """Yield a note if the data names sites but is split by a different scheme."""
    count = len(set(data.fields["site"])) if "site" in data.fields else 0
    if count > 1 and str(scheme) == "iid":
        yield f"the data comes from {count:,} sites and is mixed over clients; --scheme sites makes each of them a client"


def inject_noise(source, noise=None, *, seed=0, dataset=None, say=tell):
    """Return a federation with given labels corrupted by a noise model.

    The federation keeps the true labels for evaluation.

    Parameters
    ----------
    source : Federation, str, path or Dataset
        A federation, or a data set. All labels of a data set are corrupted before `partition`.
    noise : str or None
        Noise model: ``symmetric(eta=0.4)``, ``sparse(level=0.4, sparsity=0.7)``, ... (`fnlkit inject-noise --help`), or
        ``FILE.py:NAME`` for a user's noise model. None means ``clients(rho=0.6, tau=0.5)``, or ``symmetric(eta=0.4)`` if
        there are no clients yet.
    seed : int
    dataset : str, path or Dataset, optional
        Location of the samples of a Federation. Default: the location recorded in the file.
    say : callable(str) or None
        Receives notes on assumptions.

    Returns
    -------
    Federation

    Raises
    ------
    InputError

    Examples
    --------
    >>> import fnlkit
    >>> fed = fnlkit.inject_noise(fnlkit.partition("digits"), "symmetric(eta=0.4)", seed=1)
    >>> 0.3 < (fed.given != fed.true).mean() < 0.5
    np.True_
    """
    from fnlkit import noise as models
    from fnlkit.datasets import partitioning

    if isinstance(source, Federation):
        federation = source

        def samples():
            return data_of(federation, dataset, say).x_train

        if dataset is not None:
            samples()  # a given data set is always compared, even if this noise model does not use the samples
    else:
        if dataset is not None:
            raise InputError("`dataset` says where the samples of a Federation lie; give the data set as the first argument")
        dataset, data = source, loaded(source)
        federation, samples = partitioning.empty(data), lambda: data.x_train
    if noise is None:
        noise = "clients(rho=0.6, tau=0.5)" if len(federation) else "symmetric(eta=0.4)"
    noisy = models.inject(federation, str(noise), seed=seed, x=samples)
    noisy.meta = with_record(noisy.meta, provenance("inject-noise", seed, noise=str(noise), dataset=named(dataset)))
    if say and federation.true is None and noisy.true is not None:
        say("nobody declared these labels to be true: the noise takes those that it found for the truth")
    if say and federation.meta.get("noise"):
        say("these labels were corrupted before: the noise adds up")
    return noisy


def estimate_noise(federation, estimator="knn", *, embeddings=None, probabilities=None, run=None, form="pooled",
                   relabel=False, seed=0, dataset=None, engine="auto", device="auto", trust=False, say=tell, progress=None,
                   **warm_up):  # fmt: skip
    """Estimate which labels and clients are noisy, and the noise transition matrix.

    The returned federation contains the estimates as arrays ``estimate_*`` in ``extra``.

    Parameters
    ----------
    federation : Federation, or path
    estimator : str
        ``knn``, ``confident``, ``lid``, ... (`fnlkit estimate-noise --help`), or ``FILE.py:NAME`` for a user's estimator.
    embeddings, probabilities : path or array (n, d), optional
        A row for each training sample, for estimators that use embeddings or probabilities.
    run : Run or path, optional
        A trained run. The estimator uses the model of this run instead of training a new model.
    form : "pooled" or "federated"
        "pooled" processes all samples in one place, which is a shortcut for simulations. "federated" runs steps on each client,
        and their replies are declared and metered: ``meta["estimate"]`` then lists the replies. Both give the same numbers.
    relabel : bool
        Replace the labels that are estimated to be wrong by the suggested labels.
    seed : int
    dataset : str, path or Dataset, optional
        Location of the samples. Default: the location recorded in the federation.
    engine, device : str
        As for `train`.
    trust : bool
        Allow a run to use user code that its file names.
    say : callable(str) or None
        Receives notes on assumptions.
    progress : callable(done, total, what) or None
        Called after each round with the number of finished client-rounds, their total, and the name of the training.
    **warm_up
        Fields of fnlkit.experiment.Settings, for the short training of estimators that need a model.

    Returns
    -------
    Federation

    Raises
    ------
    InputError

    Examples
    --------
    >>> import fnlkit
    >>> fed = fnlkit.inject_noise(fnlkit.partition("digits"), "symmetric(eta=0.4)")
    >>> judged = fnlkit.estimate_noise(fed, "knn", say=None)
    >>> judged.extra["estimate_client_level"].shape
    (20,)
    """
    from fnlkit.artifacts.run import Run
    from fnlkit.estimators import judged_by, warm_up_of
    from fnlkit.estimators.apply import judged
    from fnlkit.estimators.rows import read_rows

    known_settings(warm_up, "estimate_noise")
    federation = read(federation)
    if dataset is not None:  # a given data set is always compared, even if this estimator does not use the samples
        data_of(federation, dataset, say)
    rows = {"embeddings": embeddings, "probabilities": probabilities}
    found, facts = judged_by(
        federation,
        lambda: loaded(dataset if dataset is not None else federation.dataset),
        str(estimator),
        **{name: read_rows(os.fspath(v), name, federation) if _path(v) else v for name, v in rows.items()},
        run=Run.read(os.fspath(run), trust=trust) if _path(run) else run,
        form=form,
        seed=seed,
        warm_up=warm_up,
        engine=engine,
        device=device,
        say=say,
        progress=progress,
    )
    record = provenance(
        "estimate-noise",
        seed,
        estimator=str(estimator),
        embeddings=_source(embeddings),
        probs=_source(probabilities),
        run=_source(run),
        form=form,
        dataset=named(dataset),
        apply="relabel" if relabel else "none",
        **warm_up_of(len(federation) or 1, warm_up),
    )
    return judged(federation, found, relabel=relabel, provenance=record, facts=facts)


def _path(value):
    return isinstance(value, (str, os.PathLike))


def _source(value):
    """Return the name of a source in the provenance: the path, or the type of the object."""
    if value is None or _path(value):
        return None if value is None else os.fspath(value)
    return f"{type(value).__name__} in memory"

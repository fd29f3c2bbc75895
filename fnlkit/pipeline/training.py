"""Training from Python, and the functions behind `fnlkit train`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict

from fnlkit.artifacts.provenance import provenance
from fnlkit.components import presets
from fnlkit.datasets import sibling_path
from fnlkit.datasets.features import open_embeddings, with_features
from fnlkit.datasets.loading import to_dataset
from fnlkit.errors import InputError
from fnlkit.experiment.experiment import Experiment
from fnlkit.experiment.output import lock_output, metrics_file, metrics_path, must_differ, torch_threads
from fnlkit.experiment.tracking import parse_tracker, track_run
from fnlkit.pipeline.labels import check_settings, tell, to_federation
from fnlkit.pipeline.rows import is_path, rows_of
from fnlkit.pipeline.types import ArrayLike, FilePath, Labels, Samples, Say
from fnlkit.results.trained import TrainedRun


def train(
    federation: Labels,
    method: str | None = None,
    *,
    preset: str | None = None,
    dataset: Samples | None = None,
    features: FilePath | None = None,
    embeddings: FilePath | ArrayLike | None = None,
    engine: str = "auto",
    device: str = "auto",
    workers: int = 0,
    at_once: int = 0,
    client_timeout: float | None = None,
    resume: FilePath | TrainedRun | None = None,
    overwrite: bool = False,
    ledger: FilePath | None = None,
    privacy_key: FilePath | None = None,
    output: FilePath | None = None,
    metrics: FilePath | None = None,
    log: str | Sequence[str] | None = None,
    checkpoint_every: int = 10,
    say: Say = tell,
    on_round: Callable[[dict[str, object]], object] | None = None,
    watch: Callable[[Experiment], AbstractContextManager[Callable[[dict[str, object]], object]]] | None = None,
    **settings: object,
) -> TrainedRun:
    """Train a global model over a federation and return the run.

    Parameters
    ----------
    federation : Federation, or path
    method : str, optional
        Method against wrong labels, for example ``fedcorr(beta=5)``. Default: the method of the preset, or ``fedavg``.
    preset : str, optional
        Name of a paper's settings, for example ``fedcorr/cifar10``. Settings given here override the preset.
    dataset : str, path or Dataset, optional
        Location of the samples. Default: the location recorded in the federation.
    features, embeddings : path or array (n, d), optional
        Files of `fnlkit embed`. `features` are vectors that replace the samples in training. `embeddings` are vectors for
        methods that compare samples, and only these can be an array.
    engine, device : str
        Engine and device that run the clients. They change the speed; the results agree up to rounding.
    workers, at_once, client_timeout
        Options of the engine, as for `fnlkit train`.
    resume : TrainedRun or path, optional
        Run to resume. If the file does not exist yet, training starts from the first round.
    overwrite : bool
        Replace an unfinished run at `output`. Default: raise if its rounds would be lost.
    ledger : path or "none", optional
        File that sums up the privacy cost of releases. Default: a file next to the data with `privacy_key`, else none.
    privacy_key : path, optional
        File of the secret key from which noise and flipped labels are drawn, to publish the output. Default: the seed; such
        a simulation gives no privacy.
    output : path, optional
        File to which the run is written, every `checkpoint_every` rounds and at the end.
    metrics : path, optional
        File for the metrics of each round as JSON lines. Default: a file next to `output`.
    log : str or list of str, optional
        Also send the metrics to tracking programs, for example ``tensorboard:DIR``, as for
        `fnlkit.experiment.tracking.parse_tracker`.
    checkpoint_every : int
    say : callable(str) or None
        Receives notes on assumptions and the notes of the engine.
    on_round : callable(dict) or None
        Called with the metrics of each round.
    watch : callable (Experiment) -> context manager of a callable (dict), optional
        Front end that replaces `say` and `on_round` during training. It is entered before training and left afterwards.
    **settings
        Fields of fnlkit.experiment.Settings, as the options of `fnlkit train`: ``rounds``, ``model``, ``lr``, ...

    Returns
    -------
    TrainedRun

    Raises
    ------
    InputError
        If an argument cannot be used.
    WorkStopped
        If training diverges, or if too many clients fail.

    Examples
    --------
    >>> import fnlkit
    >>> fed = fnlkit.inject_noise(fnlkit.partition("digits"), "symmetric(eta=0.4)")
    >>> run = fnlkit.train(fed, rounds=1, engine="sequential", say=None)
    >>> run.finished, len(run.history)
    (True, 1)
    """
    from fnlkit.experiment import Experiment, Settings

    check_settings(settings, "train")
    trackers = [log] if isinstance(log, str) else list(log or ())
    for text in trackers:
        parse_tracker(text)
    given = settings if method is None else {"method": str(method), **settings}
    settings = Settings(**(_preset(preset, given, say) | given))
    previous = _resume(resume, say)
    federation = to_federation(federation)
    data, vectors = _samples(federation, dataset, features, embeddings)
    target = "-" if output is None else os.fspath(output)
    rows = metrics_path(target, metrics and os.fspath(metrics))
    # Without a key nothing is released: the draws of a simulation follow from the seed.
    written = ledger_path("none" if privacy_key is None and ledger is None else ledger, federation.dataset)
    must_differ({"`output`": target, "`metrics`": rows, "`ledger`": written, "`privacy_key`": privacy_key})
    with lock_output(target), lock_output(rows, "`metrics`"), torch_threads():
        if not overwrite:
            _keep_unfinished(target, resume)
        experiment = Experiment(
            federation,
            data,
            settings,
            engine=engine,
            device=device,
            resume=previous,
            embeddings=vectors,
            release_ledger=written,
            privacy_key=privacy_key,
            workers=workers,
            at_once=at_once,
            client_timeout=client_timeout,
        )
        experiment.provenance.append(provenance("train", **asdict(settings), engine=engine, device=device))
        watched = watch(experiment) if watch else _PrintedNotes(experiment.clients, say, on_round)
        with (
            metrics_file(rows, experiment.history) as write,
            track_run(trackers, experiment, name=None if target == "-" else target) as track,
            watched as shown,
        ):

            def row_done(row: dict[str, object]) -> None:
                write(row)
                track(row, experiment.times[-1])
                shown(row)

            save = None if target == "-" else lambda run: run.write(target)
            run = experiment.run(on_round=row_done, checkpoint=save, checkpoint_every=checkpoint_every)
    return TrainedRun.of(run)


class Notes:
    """Print each note of the engine once, such as the chosen engine, a fallback or an active protection."""

    def __init__(self, clients, say):
        self.clients, self.say, self.shown = clients, say, 0
        self.update()

    def update(self) -> None:
        for text in self.clients.notes[self.shown :]:
            if self.say:
                self.say(text)
        self.shown = len(self.clients.notes)


class _PrintedNotes:
    """Default handling of a round in `train`, without a front end."""

    def __init__(self, clients, say, on_round):
        self.notes, self.on_round = Notes(clients, say), on_round

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.notes.update()

    def __call__(self, row):
        self.notes.update()
        if self.on_round:
            self.on_round(row)


def ledger_path(chosen: str | os.PathLike[str] | None, dataset: str) -> str | os.PathLike[str] | None:
    """Return the path of the ledger: as given, next to the data by default, None for ``none``."""
    if chosen is not None:
        return None if chosen == "none" else chosen
    return sibling_path(dataset, ".ledger")


def _preset(name, given, say):
    """Return the settings of a preset that are not given explicitly.

    If the budget differs from the preset, the changed settings are passed to `say`.
    """
    if name is None:
        return {}
    settings, left_out = presets.remaining_options(name, given)
    if left_out and say:
        method = settings["method"].partition("(")[0]
        say(
            f"`preset` {name}: {', '.join(left_out)} of the preset are parts of another number of rounds and are not used; "
            f"{method} derives them from `rounds`"
        )
    return settings


def _resume(resume, say):
    if resume is None or not isinstance(resume, (str, os.PathLike)):
        return resume
    if os.path.exists(resume):
        return TrainedRun.read(os.fspath(resume))
    if say:
        say(f"`resume` {resume}: the file does not exist yet; training starts from the first round")
    return None


def _keep_unfinished(target, resume):
    """Raise if `target` is an unfinished run that is not resumed, because its rounds would be lost."""
    named = isinstance(resume, (str, os.PathLike))
    if not os.path.isfile(target) or named and os.path.realpath(resume) == os.path.realpath(target):
        return
    try:
        run = TrainedRun.read(target)
    except InputError:
        return  # another file, or a damaged one
    if run.history and not run.finished:
        raise InputError(
            f"`output` {target}: contains {len(run.history):,} rounds of an unfinished run; add `resume={target!r}` to "
            "continue it, or `overwrite=True` to replace it"
        )


def _samples(federation, dataset, features, embeddings):
    """Return (Dataset, vectors or None) for the training of a run."""
    data, vectors = to_dataset(dataset if dataset is not None else federation.dataset), None
    if features is not None:
        if not is_path(features):
            raise InputError(f"`features` is {type(features).__name__}; pass the path of a file written by `fnlkit embed`")
        features = os.fspath(features)
        data, vectors = with_features(data, features), open_embeddings(features).arrays["embeddings"]
    if embeddings is not None:
        vectors, _ = rows_of(embeddings, "embeddings", federation)
    return data, vectors

"""Training from Python, and the functions behind `fnlkit train`."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from fnlkit.artifacts import files
from fnlkit.artifacts.provenance import provenance
from fnlkit.core import presets
from fnlkit.core.options import keywords_of, pick
from fnlkit.core.spec import bind, parse
from fnlkit.encoders.features import check_backbone, choose_backbone, choose_head, embed_samples, with_backbone
from fnlkit.experiment import solved
from fnlkit.experiment.bound_method import BoundMethod
from fnlkit.experiment.loggers import check_loggers, open_loggers
from fnlkit.experiment.output import (
    lock_output,
    metrics_file,
    metrics_path,
    must_be_finished,
    must_differ,
    torch_threads,
)
from fnlkit.experiment.references import arrange
from fnlkit.experiment.settings import Settings, TrainOptions
from fnlkit.federated.engines import EngineOptions
from fnlkit.pipeline.inputs import Labels, Progress, Say, print_note, read_inputs
from fnlkit.pipeline.labels import check_settings
from fnlkit.results.trained_run import TrainedRun

if TYPE_CHECKING:
    from fnlkit.experiment.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class Training(TrainOptions):
    """Keywords of `train` in addition to the settings.

    Attributes
    ----------
    say : callable(str) or None
        Receives notes on assumptions and the notes of the engine.
    progress : callable(done, total, what) or None
        Called while a backbone encodes samples.
    on_round : callable(dict) or None
        Called with the metrics of each round.
    watch : callable (Experiment) -> context manager of a callable (dict), optional
        Front end that replaces `say` and `on_round` during training. It is entered before training and left afterwards.
    """

    say: Say = print_note
    progress: Progress = None
    on_round: Callable[[dict[str, object]], object] | None = None
    watch: "Callable[[Experiment], AbstractContextManager[Callable[[dict[str, object]], object]]] | None" = None


@dataclass(frozen=True)
class _Keywords(Training, Settings):
    """All keywords of `train`, for its signature."""

    method: str | None = None  # type: ignore[assignment]


@keywords_of(_Keywords)
def train(federation: Labels, method: str | None = None, **options: Any) -> TrainedRun:
    """Train a global model over a federation and return the run.

    Parameters
    ----------
    federation : Federation, or path
    method : str, optional
        Method against wrong labels, for example ``fedcorr(beta=5)``. Default: the method of the preset, or ``fedavg``.
    **options
        Fields of `Training`: the data, the engine, the files, ``say`` and ``on_round``. All other keywords are fields of
        fnlkit.experiment.Settings: ``rounds``, ``model``, ``lr``, ... Both are options of `fnlkit train`.

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
    run = Training(**pick(Training, options))
    keywords = options if method is None else {"method": str(method), **options}
    settings = _settings_of(run, keywords)
    check_loggers(run.log, run.output)
    settings, run = _of_head(settings, run)
    previous = _resume(run.resume, run.say)
    inputs = read_inputs(federation, run, backbone=_choose_backbone(run, previous))
    federation = inputs.federation
    needs = BoundMethod.of(settings.method).needs
    target = "-" if run.output is None else os.fspath(run.output)
    ledger = inputs.ledger
    rows = metrics_path(target, run.metrics and os.fspath(run.metrics))
    must_differ({"`output`": target, "`metrics`": rows, "`ledger`": ledger, "`privacy_key`": run.privacy_key})
    for path in (target, rows):
        files.must_spare_data(path, federation.dataset)
    arrange(federation, needs & {"truth"}, settings.method)
    with lock_output(target), lock_output(rows, "`metrics`"):
        if not run.overwrite:
            must_be_finished(target, run.resume)
        if run.say and run.embeddings is not None and "embedding" not in needs:
            run.say(f"`embeddings` are not used: {parse(settings.method).name} compares no samples")
        if "linear" in needs:
            settings = replace(settings, model=solved.linear_network(settings.model, settings.method, run.say))
        data, vectors, settings = _samples(inputs, settings)
        if "linear" in needs and settings.model == "auto":
            settings = replace(settings, model=solved.choose_features(data, len(federation.client_indices), needs))
        if "head" not in needs:  # such a method trains hidden layers
            settings = replace(settings, model=choose_head(data, settings.model))
        if "linear" in needs and solved.can_solve(settings, data, run.engine):
            return _solve(federation, data, settings, run, previous, target, rows)
        return _train_rounds(inputs, data, vectors, settings, run, previous, target, rows)


def _train_rounds(inputs, data, vectors, settings, run, previous, target, rows):
    """Run the rounds of an experiment; write the run and its metrics."""
    from fnlkit.experiment.crossfit import make_experiment

    with torch_threads():
        experiment = make_experiment(
            inputs.federation,
            data,
            settings,
            resume=previous,
            accept_code_change=run.accept_code_change,
            embeddings=vectors,
            release_ledger=inputs.ledger,
            privacy_key=run.privacy_key,
            **{entry.name: getattr(run, entry.name) for entry in fields(EngineOptions)},
        )
        experiment.provenance.append(
            provenance("train", fingerprint=run.fingerprint, **asdict(settings), engine=run.engine, device=run.device)
        )
        front_end = run.watch(experiment) if run.watch else _print_notes(experiment.clients, run.say, run.on_round)
        log_to = open_loggers(run.log, target, asdict(settings), experiment.history)
        with log_to as log, metrics_file(rows, experiment.history, target) as write, front_end as show:

            def row_done(row: dict[str, object]) -> None:
                write(row)
                log(row)
                show(row)

            save = None if target == "-" else lambda snapshot: snapshot.write(target)
            finished = experiment.run(on_round=row_done, checkpoint=save, checkpoint_every=run.checkpoint_every)
    return TrainedRun.of(finished)


def _solve(federation, data, settings, run, previous, target, rows):
    """Compute the linear head of a method without torch; write the run and its metrics."""
    entry = provenance("train", fingerprint=run.fingerprint, **asdict(settings), engine=run.engine, device=run.device)
    finished = TrainedRun.of(solved.solve(federation, data, settings, resume=previous, provenance=[entry], say=run.say))
    with metrics_file(rows, [], target) as write, open_loggers(run.log, target, asdict(settings), []) as log:
        for row in finished.history:
            write(row)
            log(row)
            if run.on_round:
                run.on_round(row)
        if target != "-":
            finished.write(target)
    return finished


def check_arguments(options: Mapping[str, Any]) -> None:
    """Raise InputError if options of `train` cannot be used, before any data is read.

    Parameters
    ----------
    options : dict
        Keywords of `train`.
    """
    keywords = dict(options)
    run = replace(Training(**pick(Training, keywords)), say=None)
    check_loggers(run.log, run.output or "run.pt")
    check_backbone(_of_head(_settings_of(run, keywords), run)[1].backbone)


def _settings_of(run, inputs):
    """Make the Settings of the preset and of keywords, with all components found."""
    check_settings(inputs, "train", [entry.name for entry in fields(Training)])
    settings = Settings(**(_preset(run.preset, inputs, run.say) | inputs))
    if "linear" not in BoundMethod.of(settings.method).needs:
        from fnlkit.experiment.plan import check_components

        check_components(settings)
    return settings


class Notes:
    """Print each note of the engine once, such as the chosen engine, a fallback or an active protection."""

    def __init__(self, clients, say):
        self.clients, self.say, self.shown = clients, say, 0
        self.update()

    def update(self) -> None:
        for text in self.clients.notes[self.shown :] if self.say else ():
            self.say(text)
        self.shown = len(self.clients.notes)


@contextmanager
def _print_notes(clients, say, on_round):
    """Yield the default handling of a round in `train`, without a front end."""
    notes = Notes(clients, say)

    def row_done(row):
        notes.update()
        if on_round:
            on_round(row)

    try:
        yield row_done
    finally:
        notes.update()


def _of_head(settings, run):
    """Replace a pretrained network of which only the head is trained by a head on features: (settings, options)."""
    spec = parse(settings.model, "model")
    if spec.name != "pretrained" or str(spec.parameters.get("train", "head")) != "head":
        return settings, run
    from fnlkit.encoders.pretrained import pretrained

    bind(spec, pretrained, "model", given=("input_shape", "classes"))  # raises for an unknown parameter
    backbone = str(spec.parameters.get("backbone", "auto"))
    return replace(settings, model="mlp(hidden=[])"), replace(run, backbone=backbone)


def _preset(name, inputs, say):
    """Read the settings of a preset that are not given explicitly.

    If the budget differs from the preset, the changed settings are passed to `say`.
    """
    if name is None:
        return {}
    settings, left_out = presets.remaining_options(name, inputs)
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
        return TrainedRun.read(os.fspath(resume), state=False)
    if say:
        say(f"`resume` {resume}: the file does not exist yet; training starts from the first round")
    return None


def _choose_backbone(run, previous):
    """Choose the backbone of a run: the given one, or that of a resumed run; none for the published setting of a preset."""
    if run.backbone != "auto":
        return run.backbone
    if previous is not None:
        return (previous.meta.get("features") or {}).get("backbone", "none")
    return "auto" if run.preset is None else "none"


def _samples(inputs, settings):
    """Prepare (Dataset, vectors or None, settings) for the training of a run.

    The data set is encoded by the backbone, if there is one, or by the part of a pretrained network that is not trained.
    """
    vectors = inputs.embeddings
    needs = vectors is None and "embedding" in BoundMethod.of(settings.method).needs
    # A network for images reads the images themselves.
    if inputs.backbone != "auto" or parse(settings.model).name in ("auto", "mlp") or inputs.dataset.kind != "image":
        encoded = inputs.encoded
        return encoded, encoded.x_train if needs and encoded.features is not None else vectors, settings
    data = inputs.dataset
    if needs and (spec := choose_backbone(data)):
        vectors = embed_samples(data, spec, device=inputs.device, progress=inputs.progress)
    from fnlkit.encoders.pretrained import find_frozen_part
    from fnlkit.experiment.augmentation import augmentation

    if not augmentation(settings.augment, data.kind, data.x_train.shape[1:]):
        frozen, model = find_frozen_part(settings.model, data, inputs.say)
        if frozen:
            data = with_backbone(data, frozen, device=inputs.device, progress=inputs.progress)
            return data, vectors, replace(settings, model=model)
    return data, vectors, settings

"""Steps before training: partition, label noise, and noise estimation."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from typing import Any

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.provenance import provenance, with_record
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.core.options import about, keywords_of, option, pick
from fnlkit.core.parameters import Count
from fnlkit.core.retired import refuse_retired
from fnlkit.core.spec import parse
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.groups import with_groups
from fnlkit.datasets.loading import to_dataset
from fnlkit.datasets.manifest import is_manifest, with_options
from fnlkit.encoders.features import choose_head
from fnlkit.estimators import EstimateOptions, run_estimator
from fnlkit.estimators.judgment import add_judgment
from fnlkit.experiment.settings import Settings
from fnlkit.pipeline.inputs import FilePath, Labels, Samples, Say, is_path, name_source, print_note, read_inputs
from fnlkit.simulate import noise as models
from fnlkit.simulate import partitioning
from fnlkit.simulate.partition_report import note_partition, report_partition


def check_settings(options: Iterable[str], function: str, known: Sequence[str] = ()) -> None:
    """Raise InputError if a keyword is not a field of fnlkit.experiment.Settings; `known` are the function's other keywords."""
    names = [field.name for field in fields(Settings)]
    for name in options:
        if name not in names:
            refuse_retired("option", f"{function} --{name}".replace("_", "-"))
            hint = nearest(name, [*names, *known])
            raise InputError(f"{function} has no option `{name}`{hint}; its settings are: {list_names(names)}")


@dataclass(frozen=True)
class Partitioning:
    """Keywords of `partition`; `fnlkit partition --help` describes those with a help text.

    Attributes
    ----------
    scheme : str
        Partition scheme: ``iid``, ``dirichlet(alpha=0.5)``, ... (`fnlkit partition --help`).
    seed : int
    dataset : str, path or Dataset, optional
        Location of the samples of a Federation. Default: the location recorded in the file.
    say : callable(str) or None
        Receives notes on unverified assumptions.
    report : callable(dict) or None
        Receives facts on samples, clients, classes and columns (fnlkit.simulate.partition_report.report_partition).
    """

    scheme: str = "iid"
    _: KW_ONLY
    clients: Count | None = option(None, "Number of clients. Default: 20 for fewer than 10,000 samples, else 100.")
    min_samples: Count = option(
        1, "Smallest number of samples per client; a split with smaller clients is drawn again.", metavar="N"
    )
    labels: str = option(
        "auto",
        "Status of the labels. observed: some can be wrong; true: all are right; auto: as the data set declares.",
        metavar="WORD",
    )
    holdout: float | None = option(
        None,
        "Share of each client's samples held out for evaluation. Default: 0.2 without test samples, else 0.",
        metavar="SHARE",
    )
    gold: FilePath | None = option(
        None, "Verified samples (columns id, label), used for evaluation and never for training.", metavar="IDS.csv"
    )
    public: float = option(0.0, "Share of the samples in a public set, for methods such as rhfl.", metavar="SHARE")
    duplicates: str | None = option(
        None,
        "Samples that are equal to others. together: never divided, and left out of training if they are in the test set; "
        "drop: only the first is used; allow: only counted. Default: together; allow for data sets of fnlkit.",
        metavar="WORD",
    )
    skip_damaged: bool = option(False, "Leave out images and sounds that cannot be read, and print their names.")
    sample_column: str | None = option(
        None,
        "Column of a table that names the samples. Default: the only column that names a sample in every row.",
        metavar="NAME",
    )
    label: str | None = option(None, "Label column of a table.", metavar="COLUMN")
    group: str | None = option(
        None,
        "Column of a table, field of an npz, or level of the folders of images: samples with the same value, such as a "
        "patient, are never divided. Default: the column with a usual name.",
        metavar="COLUMN",
    )
    seed: int = 0
    dataset: Samples | None = None
    say: Say = print_note
    report: Callable[[dict[str, Any]], object] | None = None


@keywords_of(Partitioning)
def partition(source: Samples | Federation = "digits", scheme: str = "iid", **options: Any) -> Federation:
    """Split a data set, or labels that are already corrupted, over clients.

    Parameters
    ----------
    source : str, path, fnlkit.datasets.Dataset or Federation
        A name of `fnlkit data list`, an .npz file, a folder of images; or an unpartitioned Federation from `inject_noise`.
    scheme : str
    **options
        Fields of `Partitioning`.

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
    chosen, say = Partitioning(scheme=scheme, **options), options.get("say", print_note)
    noisy = source if isinstance(source, Federation) else None
    if noisy is None and chosen.dataset is not None:
        raise InputError(
            "is the location of the samples of a Federation; pass a data set as the first argument", parameter="dataset"
        )
    for name in ("label", "group") if noisy is not None else ():
        if getattr(chosen, name):
            raise InputError(f"describes a data set; the {name}s of a federation are known", parameter=name)
    source = _with_options(source, chosen)
    data = read_inputs(source, chosen).checked if isinstance(source, Federation) else to_dataset(source)
    if data.in_files:
        data.x_train  # noqa: B018 - reads every file, so that unusable files are named now
    names = {entry.name for entry in fields(Partitioning) if about(entry).help} - {"label", "group", "skip_damaged"}
    split = {name: value for name, value in vars(chosen).items() if name in names}
    split["gold"] = None if chosen.gold is None else os.fspath(chosen.gold)
    federation = partitioning.federation(data, str(scheme), seed=chosen.seed, noisy=noisy, **split)
    split["public"] = chosen.public or None
    federation.meta = with_record(
        federation.meta, provenance("partition", chosen.seed, dataset=data.name, scheme=str(scheme), **split)
    )
    if say is not None:
        for text in [*data.notes, *note_partition(data, federation, str(scheme))]:
            say(text)
    if chosen.report is not None:
        chosen.report(report_partition(data, federation))
    return federation


def _with_options(source, chosen):
    """Add the options `label`, `group` and `skip_damaged` of a partition to a data set, or to the Spec of its files."""
    options = {name: value for name in ("label", "group", "skip_damaged") if (value := getattr(chosen, name))}
    text = os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
    if chosen.label and not is_manifest(text):
        missing = f", and {text} is none; name a CSV or Parquet file" if text else "; name its path"
        raise InputError(f"describes a table{missing}", parameter="label")
    if chosen.skip_damaged and not text:
        raise InputError("describes a folder or table of files; name its path", parameter="skip_damaged")
    group = ""  # of a loaded data set
    if chosen.group and not is_manifest(text):
        group = options.pop("group")
        if text and group.isdigit():
            options["group"], group = int(group), ""
    if options:
        source = with_options(text, next(iter(options)), **options)
    return with_groups(to_dataset(source), group) if group else source


def inject_noise(
    source: Samples | Federation,
    noise: str | None = None,
    *,
    seed: int = 0,
    dataset: Samples | None = None,
    say: Say = print_note,
) -> Federation:
    """Corrupt the given labels of a federation by a noise model.

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
    >>> bool(0.3 < (fed.given != fed.true).mean() < 0.5)
    True
    """
    if isinstance(source, Federation):
        federation = source
        inputs = read_inputs(source, dataset=dataset, say=say)
    else:
        if dataset is not None:
            raise InputError(
                "is the location of the samples of a Federation; pass a data set as the first argument", parameter="dataset"
            )
        dataset = source
        data = to_dataset(source)
        federation = partitioning.empty(data)
        inputs = read_inputs(federation, dataset=data, say=say)
    if noise is None:
        noise = "clients(rho=0.6, tau=0.5)" if len(federation) else "symmetric(eta=0.4)"
    noisy = models.inject(federation, str(noise), seed=seed, x=lambda: inputs.checked.x_train)
    noisy.meta = with_record(noisy.meta, provenance("inject-noise", seed, noise=str(noise), dataset=name_source(dataset)))
    if say and federation.true is None and noisy.true is not None:
        say("the data set declares no true labels: the labels before this noise are treated as true")
    if say and federation.meta.get("noise"):
        say("these labels were corrupted before: the noise is added to the earlier noise")
    return noisy


@dataclass(frozen=True, kw_only=True)
class Estimating(EstimateOptions):
    """Keywords of `estimate_noise` in addition to the settings of its training.

    Attributes
    ----------
    relabel : bool
        Replace the labels that are estimated to be wrong by the suggested labels.
    backbone : str
        As for `train`: pretrained network that encodes the samples, for neighbors and models.
    dataset : str, path or Dataset, optional
        Location of the samples. Default: the location recorded in the federation.
    trust : bool
        Allow a run to use user code that the run file names.
    say : callable(str) or None
        Receives notes on assumptions.
    fingerprint : str or None
        Identity of a recipe's job, recorded in the file.
    """

    fingerprint: str | None = None
    relabel: bool = False
    backbone: str = "auto"
    dataset: Samples | None = None
    trust: bool = False
    say: Say = print_note


@dataclass(frozen=True)
class _Keywords(Estimating, Settings):
    """All keywords of `estimate_noise`, for its signature."""

    method: str = field(default="fedavg", kw_only=True)
    estimator: str = "knn"


@keywords_of(_Keywords)
def estimate_noise(federation: Labels, estimator: str = "knn", **options: Any) -> Federation:
    """Estimate which labels and clients are noisy, and the noise transition matrix.

    The returned federation contains the estimates as arrays ``estimate_*`` in ``extra``.

    Parameters
    ----------
    federation : Federation, or path
    estimator : str
        ``knn``, ``confident``, ``lid``, ... (`fnlkit methods estimator`), or ``FILE.py:NAME`` for a user's estimator.
    **options
        Fields of `Estimating`. ``embeddings``, ``probabilities`` and ``run`` can also be paths of files. All other keywords are
        fields of fnlkit.experiment.Settings for the short training of estimators that need a model: ``rounds``, ``lr``, ...

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

    chosen = Estimating(**pick(Estimating, options))
    warm_up = (chosen.warm_up or {}) | options
    check_settings(warm_up, "estimate_noise", [entry.name for entry in fields(Estimating)])
    given = read_inputs(federation, chosen)
    inputs: dict[str, Any] = {"probabilities": given.probabilities, "embeddings": given.embeddings, "warm_up": warm_up}
    inputs["run"] = Run.read(os.fspath(chosen.run), trust=chosen.trust) if is_path(chosen.run) else chosen.run

    def encoded() -> Dataset:
        model = warm_up.get("model", "auto")
        has_features = inputs["run"] or chosen.embeddings is not None
        if chosen.backbone == "auto" and (has_features or parse(model).name not in ("auto", "mlp")):
            return given.dataset
        warm_up["model"] = choose_head(given.encoded, model)
        return given.encoded

    record = partial(
        provenance,
        "estimate-noise",
        chosen.seed,
        fingerprint=chosen.fingerprint,
        estimator=str(estimator),
        embeddings=name_source(chosen.embeddings),
        probs=name_source(chosen.probabilities),
        run=name_source(chosen.run),
        form=chosen.form,
        dataset=name_source(chosen.dataset),
        apply="relabel" if chosen.relabel else "none",
    )
    arrays, facts = run_estimator(
        given.federation,
        encoded,
        str(estimator),
        groups=given.groups,
        **{entry.name: getattr(chosen, entry.name) for entry in fields(EstimateOptions)} | inputs,
    )
    entry = record(**facts.pop("training", {}))
    return add_judgment(given.federation, arrays, relabel=chosen.relabel, provenance=entry, facts=facts)

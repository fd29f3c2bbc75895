"""Names of earlier versions, each with one line that says what to do instead."""

from fnlkit.core.errors import InputError

_OF_FILE = "the noise model labels(path=FILE, key=COLUMN) reads labels of people"
_OF_TABLE = "write a table with a row per sample and read it with manifest(file=...)"
_OF_ANNOTATORS = "write fedem, which infers a transition matrix for each client"
_OF_CLEANLAB = "call cleanlab on the samples of a site, or fnlkit.find_label_issues(sites=...)"
_FLOWER_HOME = "FLWR_HOME=PROJECT/coordinator/flwr"
_OF_FLOWER = f"write {_FLOWER_HOME} flwr {{}}; docs/deployment.md has the commands"
_AUDIT = "the task estimate was removed; an audit estimates levels and finds suspects"
_NO_TRAINING = "audits train no model"
_LATEX = "write --json, or --latex"
# File of each loss that could be imported from the package of all losses.
_LOSSES = {
    "adjusted": "adjusted_distilled label_learning logit_adjusted partly_distilled",
    "centroids": "near_centroids",
    "consistency": "self_regularized",
    "contrastive": "draw_classes",
    "correction": "forward_corrected importance_reweighted",
    "cross_entropy": "kept_cross_entropy smoothed_cross_entropy soft_cross_entropy",
    "distillation": "embedding_distilled logit_distilled",
    "exchange": "exchanged",
    "filtered": "consistent",
    "mixture": "label_mixture remember_predictions",
    "parts": "needs suits",
    "refurbish": "joint refurbished",
}
# Kind -> name -> what to do instead. Kinds of components are those of their registries: method, loss, estimator, ...
RETIRED: dict[str, dict[str, str]] = {
    # "sites log": a command, as written after `fnlkit`.
    "command": {
        "sites audit": "write sites run PROJECT --task audit --folder MAIL -o audit.json",
        "sites log": _OF_FLOWER.format("log RUN here"),
        "sites stop": _OF_FLOWER.format("stop RUN here"),
        "sites status": _OF_FLOWER.format("list here and flwr supernode list here"),
        **dict.fromkeys(("site summarize", "site judge"), "answer the .request files of the coordinator with site answer"),
        "embed": "train, estimate-noise, audit, review and predict compute features themselves: write --backbone SPEC there",
    },
    # "train --features": an option of a command. `fnlkit.train(features=...)` ends with the same line.
    "option": {
        "flower-app --only-task": "name the agreed tasks with --task",
        **dict.fromkeys((f"flower-app --{name}" for name in ("folds", "audit-rounds", "warm-up-rounds")), _NO_TRAINING),
        **dict.fromkeys(("flower-app --estimator", "flower-app --per-sample"), _AUDIT),
        **dict.fromkeys((f"audit --{name}" for name in ("rounds", "fraction", "folds", "checkpoints")), _NO_TRAINING),
        "audit --model": f"{_NO_TRAINING}; write --embeddings, --backbone or --probs",
        "audit --quick": "leave it out; every audit is from sums",
        "train --features": "write --backbone SPEC, which computes and keeps the features itself",
        "evaluate --csv": "write --tidy FILE.csv for the runs, or --json for the groups",
        "evaluate --markdown": _LATEX,
        "reproduce --markdown": _LATEX,
        "partition --task": "labels are classes; cleanlab has functions for numbers, tags and several labels per sample",
        "plot --kind": "write the kind as the first word",
        "plot --embeddings": "project the samples by scikit-learn",
        "plot --projection": "project the samples by scikit-learn",
        "site review --test": "review the training samples; correct labels of test samples in your own file",
        "reproduce --merge": "copy the files of all parts into one folder, then write --no-train -o FOLDER",
        "reproduce --shard": "write --dry-run, which prints a command for each run, and distribute the lines",
        "reproduce --add": "write --method METHOD, which trains this method instead of the recipe's",
        "reproduce --stored": "train the other methods in the same folder; python -m benchmarks.league reads the league's runs",
        "reproduce --export": "write --tidy FILE.csv",
        "reproduce --no-search": "recipes have no search; write each configuration as a method of the recipe",
    },
    "protection": {
        "dp": "write a Flower app with its mods or strategies for differential privacy (docs/privacy.md)",
    },
    "method": {
        "crowd-layer": _OF_ANNOTATORS,
        "trace-regularization": _OF_ANNOTATORS,
        "clipfl": "write rhfl, a method with a public set, or fedcorr, which selects clients",
    },
    # "METHOD(PARAMETER=[VALUE])": a value of a parameter.
    "parameter": {
        "fedcorr(code=[mixup])": "mixup in all stages is the default; write mixup_in=first for stage 1 only",
    },
    # A package that a user's file imports.
    "module": {
        "fnlkit.components": "import fnlkit.core",
        "fnlkit.errors": "import fnlkit.core.errors",
        "fnlkit.estimators.ranges": "import fnlkit.estimators.intervals",
        "fnlkit.noise": "import fnlkit.simulate.noise",
        **{f"fnlkit.{name}": f"import fnlkit.federated.{name}" for name in ("client", "server", "engines", "privacy")},
        **{f"fnlkit.{name}": f"import fnlkit.cleanlab.{name}" for name in ("filter", "rank", "count")},
    },
    # A property of `declare`.
    "declaration": {"terms": "leave it out; a loss of PyTorch needs no other form to be fast on the CPU"},
    # "NAME" or, for a parameter, "NAME(PARAMETER=)".
    "data set": {
        **dict.fromkeys(("relabeled", "cifar10n", "cifar100n"), _OF_FILE),
        **dict.fromkeys(("label-errors", "varierr", "lewidi", "security-bugs", "openml"), _OF_TABLE),
        "small-table": "write an npz with x_train, y_train and site_train, or a table with a column of sites",
        "open-set": "hold classes out by a loader, FILE.py:NAME",
        "medmnist": "write the path of a file of MedMNIST, such as bloodmnist.npz",
        "hf": "write a loader, FILE.py:NAME, that returns the arrays of an npz, or the path of a Parquet file",
    },
    # "fnlkit.NAME": a public name of a package whose names are imported at first use (fnlkit.core.lazy).
    "name": {
        **dict.fromkeys(("fnlkit.Datalab", "fnlkit.datalab", "fnlkit.dataset"), _OF_CLEANLAB),
        **{
            f"fnlkit.federated.client.losses.{name}": f"import it from fnlkit.federated.client.losses.{file}"
            for file, names in _LOSSES.items()
            for name in names.split()
        },
    },
}


def refuse_retired(kind: str, name: str) -> None:
    """Raise InputError with the replacement if `name` is a name of an earlier version.

    Parameters
    ----------
    kind : str
        A key of `RETIRED`; nothing is raised for another one.
    name : str

    Examples
    --------
    >>> from fnlkit.core.retired import refuse_retired
    >>> refuse_retired("option", "reproduce --export")
    Traceback (most recent call last):
    fnlkit.core.errors.InputError: the option reproduce --export was removed: write --tidy FILE.csv
    """
    if instead := RETIRED.get(kind, {}).get(name):
        raise InputError(f"the {kind} {name} was removed: {instead}")

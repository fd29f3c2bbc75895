"""Published numbers of the five papers, and the runs that reproduce them.

`data/published.csv` contains the numbers, one per row. `data/published.toml` gives the commands before training, the preset of
a row's training and the changes of its method.
"""

import csv
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core import presets
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.estimators.judgment import compare
from fnlkit.recipes import scores
from fnlkit.recipes.jobs import Job, mentions
from fnlkit.recipes.recipe import replace_dataset
from fnlkit.results import evaluation, statistics

DATASETS = {
    "MNIST": "mnist", "CIFAR-10": "cifar10", "CIFAR-10N": "cifar10", "CIFAR-100": "cifar100", "CIFAR-100N": "cifar100",
    "Clothing1M": "clothing1m", "FashionMNIST": "fashion-mnist", "PathMNIST": "pathmnist", "EuroSAT": "eurosat",
    "SpeechCommands": "speechcommands12",
}  # fmt: skip
# Training samples of data sets that a file can replace.
SAMPLES = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000, "pathmnist": 89_996}
# Options of training that a method's entry in published.toml can change.
TRAINED = ("optimizer", "aggregator", "loss", "lr", "rounds", "epochs", "fraction", "batch_size", "momentum", "weight_decay")
# Settings of training that `estimate-noise` has as options.
_WARM_UP = ("model", "augment", "rounds", "fraction", "epochs", "batch_size", "lr", "momentum")
_TARGET = re.compile(r"client-rounds to (\d+) % accuracy")


class Row(NamedTuple):
    """A published number.

    Attributes
    ----------
    paper, table, measure, dataset, model, setting, method : str
    value : float or None
        In percent, also AUCs; costs are in client-rounds, times in hours. None if the paper has a dash, for a target that was
        not reached.
    spread : float or None
        Standard deviation; None if the paper prints none.
    """

    paper: str
    table: str
    measure: str
    dataset: str
    model: str
    setting: str
    method: str
    value: float | None
    spread: float | None

    @property
    def run(self) -> str:
        """Title of the run that measures the row; rows with several measures of one run have the same."""
        return f"{self.method}, {self.dataset} {self.model}, {self.setting}"

    @property
    def title(self) -> str:
        """Title of the row: ``FedCorr, CIFAR-10 ResNet-18, iid rho=0.6 tau=0.5``."""
        return self.run + ("" if self.measure == "accuracy" else f", {self.measure}")


@cache
def rows() -> tuple[Row, ...]:
    """Read all published numbers."""
    text = (resources.files("fnlkit.data") / "published.csv").read_text(encoding="utf-8")
    lines: list[dict[str, Any]] = list(csv.DictReader(text.splitlines()))
    return tuple(Row(**line | {key: float(line[key]) if line[key] else None for key in ("value", "spread")}) for line in lines)


@cache
def papers() -> dict[str, dict[str, Any]]:
    """Read {paper: {title, trials, reports, ...}}; ``tables`` has the tables that report another accuracy."""
    return tomllib.loads((resources.files("fnlkit.data") / "published.toml").read_text(encoding="utf-8"))


def tables() -> list[str]:
    """List the names of all tables in the order of the papers, ``fedcorr/table2``."""
    return list(dict.fromkeys(f"{row.paper}/table{row.table}" for row in rows()))


def load_rows(name: str) -> list[Row]:
    """Load the rows of a table by name.

    Raises
    ------
    InputError
        If there is no such table.

    Examples
    --------
    >>> len(load_rows("fedcorr/table2"))
    63
    """
    if name not in tables():
        raise InputError(f"no published table {name!r}{nearest(name, tables())}; write one of {list_names(tables())}")
    return [row for row in rows() if f"{row.paper}/table{row.table}" == name]


def select(rows: list[Row], only: str | None) -> list[Row]:
    """Select the rows that match every comma-separated part of a text such as ``fedcorr, 0.6, 0.5``.

    A number must be one of the setting's numbers; parts and numbers are matched one to one, in order. A text must be the
    method, occur in the row's title as whole words, or be a pattern with ``*`` and ``?``.

    Parameters
    ----------
    rows : list of Row
    only : str or None

    Raises
    ------
    InputError
        If no row matches.
    """
    if not only:
        return rows
    parts = [part.strip().lower() for part in only.split(",") if part.strip()]
    matching = [row for row in rows if _matches(row, parts)]
    if not matching:
        methods = dict.fromkeys(row.method for row in rows)
        settings = dict.fromkeys(row.setting for row in rows)
        raise InputError(
            f"{only!r} matches no row; methods: {list_names(methods)}; settings: {list_names(settings)}; write '*WORD*' "
            "for a part of a word",
            parameter="only",
        )
    methods = {row.method.lower() for row in rows}
    exact = [row for row in matching if row.method.lower() in parts]
    return exact if methods & set(parts) else matching


def _matches(row, parts):
    numbers = [float(text) for text in re.findall(r"=(\d+(?:\.\d+)?)", row.setting)]
    for part in parts:
        if re.fullmatch(r"\d+(\.\d+)?", part):
            if float(part) not in numbers:
                return False
            numbers = numbers[numbers.index(float(part)) + 1 :]
        elif not mentions(row.title, part):
            return False
    return True


def regime_of(row: Row, *, scale: float = 1.0) -> dict[str, Any]:
    """Make the regime of a recipe for the run of a row.

    ``estimate`` is added for an AUC: {estimator, options, train}, as `fnlkit.recipes.jobs.expand` takes it.

    Parameters
    ----------
    row : Row
    scale : float in (0, 1]
        Use this share of the paper's rounds. Below 1, the method chooses the lengths of the stages.
    """
    paper, dataset = papers()[row.paper], DATASETS[row.dataset]
    text = f"{row.dataset} {row.model}, {row.setting}, {row.measure}"
    values = dict(re.findall(r"(\w+)=([\d.]+)", row.setting))
    estimates = row.measure == "auc"
    change = _changes(paper["estimators" if estimates else "methods"][row.method], text)
    preset = f"{change['preset']}/{dataset}" if "preset" in change else _first(paper["presets"], text)
    train = presets.load_preset(preset)
    own = train.pop("method")
    method = change.get("method") or (own if "own" in change or "preset" in change else "fedavg")
    train |= {key: change[key] for key in TRAINED if key in change} | _options_of(row.measure)
    if row.model in paper.get("models", {}):
        train["model"] = paper["models"][row.model]
    train["rounds"] = max(1, round(scale * train["rounds"]))
    steps = [step.format_map(values) for rules in paper["steps"] if (step := _first(rules, text))]
    if "public" in change:  # methods with a public set: no client has this share of the samples
        steps = [f"{step} --public {change['public']}" if step.startswith("partition") else step for step in steps]
    notes = [change.get("note"), _first(paper.get("notes", {}), text)]
    regime: dict[str, Any] = {"name": row.run, "dataset": dataset, "steps": steps, "train": train}
    regime |= {"methods": [method.format_map(values)], "note": "; ".join(filter(None, notes))}
    if estimates:
        regime["estimate"] = {
            "estimator": change["estimator"],
            "options": {key: train[key] for key in _WARM_UP if key in train} if change["by"] == "training" else {},
            "train": train if change["by"] == "run" else None,
        }
    elif scale < 1:
        regime["methods"] = [presets.of_any_budget(method)[0] for method in regime["methods"]]
    if "backbone" in paper and row.dataset != "SpeechCommands" and change.get("by", "embeddings") == "embeddings":
        regime["backbone"] = paper["backbone"]
    return regime


def _first(rules, text):
    """Find the value of the first rule whose pattern occurs in a text, or None."""
    return next((value for pattern, value in rules.items() if re.search(pattern, text)), None)


def _changes(entry, text):
    """Change an entry by the tables whose patterns occur in a text; later and inner ones take precedence."""
    change = {key: value for key, value in entry.items() if not isinstance(value, dict)}
    for pattern, inner in entry.items():
        if isinstance(inner, dict) and re.search(pattern, text):
            change |= _changes(inner, text)
    return change


def recipe(
    name: str, *, only: str | None = None, scale: float = 1.0, dataset: str | None = None, embeddings: str | None = None
) -> dict[str, Any]:
    """Make a recipe of the selected rows of a table, with one regime per run.

    Parameters
    ----------
    name : str
    only : str or None
        As for `select`.
    scale : float
        As for `regime_of`.
    dataset, embeddings : str or None
        Replace the paper's.

    Returns
    -------
    dict
        As `fnlkit.recipes.recipe.load_recipe` returns; the name of a regime is `Row.run`, and ``note`` states differences
        from the paper.

    Raises
    ------
    InputError
        If no row is selected, or `dataset` would replace several data sets.
    """
    if not 0 < scale <= 1:
        raise InputError(f"{scale:g}: write a share above 0 and at most 1; 1 is the paper's length", parameter="scale")
    rows, about = load_rows(name), papers()[name.partition("/")[0]]
    wanted = {row.run for row in select(rows, only)}
    regimes: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows):
        if (run := row.run) in wanted:
            key = f"{row.paper}-{row.table}-{number}"  # of the first row with this run, whatever is selected
            regime = regimes.setdefault(run, regime_of(row, scale=scale) | {"key": key})
            regime["train"] |= _options_of(row.measure)
            if row.measure == "accuracy":
                numbers = [number for number in (row.value, row.spread) if number is not None]
                regime["published"] = {regime["methods"][0]: numbers}
    made: dict[str, Any] = {"title": f"{about['title']}, Table {rows[0].table}", "seeds": list(range(about["trials"]))}
    made |= {"dataset": "", "train": {}, "regime": [*regimes.values()]}
    if dataset:
        if len(sets := {regime["dataset"] for regime in made["regime"]}) > 1:
            text = f"{dataset} would replace {list_names(sorted(sets))}; select one data set with `only`"
            raise InputError(text, parameter="dataset")
        replace_dataset(made, dataset)
    for regime in made["regime"]:
        if "path=" in " ".join(regime["steps"]):
            regime["note"] = "the file of human labels must be in the folder of `output`"
        if "weights=ViT" in regime.get("backbone", "") and embeddings is None:
            clip = "OpenAI's weights of CLIP must be in the folder of `output` as ViT-B-32.pt; `embeddings` replaces them"
            regime["note"] = "; ".join(filter(None, [regime["note"], clip]))
    return made


def measure_rows(
    name: str, jobs: Sequence[Job], changed: dict[str, Any] | None = None, only: str | None = None
) -> list[dict[str, Any]]:
    """Measure each selected row with finished results: the number and a verdict, one dict per row.

    ``measure`` is the measure of the row, with the unit in ``unit``; ``reports`` is the accuracy that the paper prints (best or
    last). ``measured`` and ``spread`` are the mean and the standard deviation over the seeds. They are None if a run did
    not reach the row's target; ``reached`` counts the runs that did.  ``verdict`` is "within" if our mean is within one
    standard deviation of the published mean, else "above" or "below"; None if the paper prints no deviation. ``apart`` is the
    measured minus the published number.  ``overrides`` are the settings that differ from the paper's; a row with overrides is
    not compared: ``verdict`` and ``apart`` are None.  A row of a run also has the values of `fnlkit.recipes.scores`.

    Parameters
    ----------
    name : str
    jobs : list of Job
    changed : dict of str to str or int, optional
        Settings that replace the paper's: scale, rounds, model, embeddings, and ``dataset``, which counts as an override unless
        it has as many training samples as the data set that it replaces (`SAMPLES`).
    only : str or None
        As for `select`.
    """
    paper, _, table = name.partition("/table")
    reports = papers()[paper].get("tables", {}).get(table, papers()[paper]["reports"])
    finished: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state() == "finished":
            finished.setdefault(job.regime, []).append(job)
    by_run = {row["regime"]: row for row in scores.compare(scores.measure(jobs))}
    measured_rows = []
    for row in select(load_rows(name), only):
        if not (results := finished.get(row.run)):
            continue
        overrides = _overrides(row, results[0], changed)
        values = [compute_measure(row.measure, reports, job) for job in results]
        reached = [value for value in values if value is not None]
        complete = len(reached) == len(values)
        unit = next((word for word in ("client-rounds", "hours") if row.measure.startswith(word)), "%")
        measured = by_run.get(row.run, {}) | {"regime": row.title, "measure": row.measure, "unit": unit}
        measured |= {"published": [row.value, row.spread], "reports": reports, "overrides": overrides}
        measured |= {"runs": len(values), "reached": len(reached), "measured": mean(reached) if complete else None}
        measured["spread"] = statistics.spread(reached) if complete else None
        comparable = complete and not overrides and row.value is not None
        measured["apart"] = measured["measured"] - row.value if comparable else None
        measured["verdict"] = statistics.verdict(measured["measured"], row.value, row.spread) if comparable else None
        measured_rows.append(measured)
    return measured_rows


def _options_of(measure):
    """Options of `train` that a published measure needs, as a dict."""
    return {"memorization": True} if measure.startswith("memorization: ") else {}


def compute_measure(measure: str, reports: str, job: Job) -> float | None:
    """Compute the number of a published measure in the result of a job.

    Parameters
    ----------
    measure : str
        Of a row of published.csv: ``accuracy``, ``client-rounds to 80 % accuracy``, ``memorization: global noisy correct``,
        ``hours of 300 rounds`` or ``auc``.
    reports : "best" or "last"
        Which accuracy the paper prints.
    job : Job
        Finished.

    Returns
    -------
    float or None
        In the units of the row: percent, client-rounds, or hours.  None if no evaluation reached the target.
    """
    path = str(Path(job.folder) / job.file)
    if measure == "auc":
        return 100 * compare(Federation.read(path))["sample_auc"]
    run = Run.read(path)
    if match := _TARGET.fullmatch(measure):
        return evaluation.summary(run, target=int(match[1]) / 100)["target_client_rounds"]
    if measure.startswith("memorization: "):
        name = measure.removeprefix("memorization: ").replace(" ", "_")
        return 100 * next(row[name] for row in reversed(run.history) if name in row)
    summary = evaluation.summary(run)
    if measure.startswith("hours of "):
        return summary["seconds"] / 3600
    return 100 * summary[f"{evaluation.score_name(run)}_{reports}"]


def _overrides(row, job, changed):
    """Settings of a result that differ from the paper's."""
    overrides, paper = dict(changed or {}), DATASETS[row.dataset]
    if "dataset" in overrides:
        path = str(Path(job.folder) / job.file)
        given = Run.read(path).labels["given"] if job.method else Federation.read(path).given
        if overrides["dataset"] == paper or len(given) == SAMPLES.get(paper):
            del overrides["dataset"]
        else:
            overrides["dataset"] = f"{overrides['dataset']} ({len(given):,} training samples)"
    return overrides

"""Published numbers of the five papers, and the runs that reproduce them.

`data/published.csv` contains the numbers, one per row. `data/published.toml` gives the preset of a row's training and the
changes of its method.  This module derives clients and labels from the row's setting.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core import presets
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.estimators.compare import compare
from fnlkit.recipes import scores
from fnlkit.recipes.jobs import hint, mentions
from fnlkit.recipes.recipe import replace_dataset
from fnlkit.results import evaluation, statistics

if TYPE_CHECKING:
    from fnlkit.recipes.jobs import Job


DATASETS = {
    "MNIST": "mnist", "CIFAR-10": "cifar10", "CIFAR-10N": "cifar10", "CIFAR-100": "cifar100", "CIFAR-100N": "cifar100",
    "Clothing1M": "clothing1m", "FashionMNIST": "fashion-mnist", "PathMNIST": "pathmnist", "EuroSAT": "eurosat",
    "SpeechCommands": "speechcommands12",
}  # fmt: skip
# Training samples of data sets that a file can replace.
SAMPLES = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000, "pathmnist": 89_996}
# FedDPCont's names of CIFAR-N's labels -> file and key as published.
HUMAN = {
    "worst": "labels(path=CIFAR-10_human.pt, key=worse_label)",
    "random": "labels(path=CIFAR-10_human.pt, key=random_label1)",
    "aggregate": "labels(path=CIFAR-10_human.pt, key=aggre_label)",
    "fine": "labels(path=CIFAR-100_human.pt, key=noisy_label)",
}


# Options of training that a method's entry in published.toml can change.
TRAINED = ("optimizer", "aggregator", "loss", "lr", "rounds", "epochs", "fraction", "batch_size", "momentum", "weight_decay")
# (rho, tau) that FedCorr calls high noise levels (Table 8, appendix B).
HIGH = {("0.6", "0.5"), ("0.8", "0.0"), ("0.8", "0.5")}


@cache
def rows() -> tuple[dict[str, Any], ...]:
    """Return all published numbers as a tuple of dicts.

    Keys: paper, table, measure, dataset, model, setting, method, value, spread. Values are in percent, AUCs in percent, costs
    in client-rounds, times in hours; None if the paper has a dash (a target that was not reached) or no spread.
    """
    text = (resources.files("fnlkit.data") / "published.csv").read_text(encoding="utf-8")
    out = []
    for row in csv.DictReader(text.splitlines()):
        out.append(row | {name: float(row[name]) if row[name] else None for name in ("value", "spread")})
    return tuple(out)


@cache
def _how():
    return tomllib.loads((resources.files("fnlkit.data") / "published.toml").read_text(encoding="utf-8"))


def papers() -> dict[str, dict[str, Any]]:
    """Return {paper: {title, trials, reports, ...}}."""
    return _how()


def tables() -> list[str]:
    """Return the names of all tables in the order of the papers, ``fedcorr/table2``."""
    return list(dict.fromkeys(f"{row['paper']}/table{row['table']}" for row in rows()))


def load_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a table by its name.

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
    return [row for row in rows() if f"{row['paper']}/table{row['table']}" == name]


def title_of(row: dict[str, Any]) -> str:
    """Return the title of a row: ``FedCorr, CIFAR-10 ResNet-18, iid rho=0.6 tau=0.5``."""
    return run_of(row) + ("" if row["measure"] == "accuracy" else f", {row['measure']}")


def run_of(row: dict[str, Any]) -> str:
    """Return the title of the run that measures a row; rows with several measures of one run have the same."""
    return f"{row['method']}, {row['dataset']} {row['model']}, {row['setting']}"


def select(found: list[dict[str, Any]], only: str | None) -> list[dict[str, Any]]:
    """Return the rows that match every comma-separated part of a text such as ``fedcorr, 0.6, 0.5``.

    A number must be one of the setting's numbers; parts and numbers are matched one to one, in order. A text must be the
    method, occur in the row's title as whole words, or be a pattern with ``*`` and ``?``.

    Parameters
    ----------
    found : list of dict
    only : str or None

    Raises
    ------
    InputError
        If no row matches.
    """
    if not only:
        return found
    parts = [part.strip().lower() for part in only.split(",") if part.strip()]
    matching = [row for row in found if _matches(row, parts)]
    if not matching:
        titles = [title_of(row) for row in found]
        unknown = [part for part in parts if not any(mentions(title, part) for title in titles)]
        remedy = next(filter(None, (hint(titles, part) for part in unknown)), "")
        methods = dict.fromkeys(row["method"] for row in found)
        settings = dict.fromkeys(row["setting"] for row in found)
        raise InputError(
            f"{only!r} matches no row{remedy}; methods: {list_names(methods)}; settings: {list_names(settings)}",
            parameter="only",
        )
    methods = {row["method"].lower() for row in found}
    exact = [row for row in matching if row["method"].lower() in parts]
    return exact if methods & set(parts) else matching


def _matches(row, parts):
    numbers = [float(text) for text in re.findall(r"=(\d+(?:\.\d+)?)", row["setting"])]
    for part in parts:
        if re.fullmatch(r"\d+(\.\d+)?", part):
            if float(part) not in numbers:
                return False
            numbers = numbers[numbers.index(float(part)) + 1 :]
        elif not mentions(title_of(row), part):
            return False
    return True


def plan(row: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a run for a row: {dataset, steps, method, train, backbone, note}.

    ``estimate`` is added for an AUC: {estimator, options, train}, as `fnlkit.recipes.jobs.expand` takes it.
    """
    paper = _how()[row["paper"]]
    out = {
        "dataset": DATASETS[row["dataset"]],
        "steps": _steps(row),
        "method": "",
        "train": presets.load_preset(_preset(row, paper)),
        "backbone": paper.get("backbone") if row["dataset"] != "SpeechCommands" else None,
        "note": "",
    }
    own = out["train"].pop("method")
    if row["measure"] == "auc":
        return out | _estimate(paper["estimators"][row["method"]], out)
    change = _change(paper["methods"][row["method"]], _conditions(row))
    if "preset" in change:
        out["train"] = presets.load_preset(f"{change['preset']}/{DATASETS[row['dataset']]}")
        own = out["train"].pop("method")
    method = change.get("method") or (own if "own" in change or "preset" in change else "fedavg")
    out["method"] = _by_setting(row, method)
    out["train"] |= {key: change[key] for key in TRAINED if key in change} | _options_of(row["measure"])
    if row["model"] in paper.get("models", {}):
        out["train"]["model"] = paper["models"][row["model"]]
    return out | {
        "steps": [_public(step, change.get("public")) for step in out["steps"]],
        "note": "; ".join(filter(None, [change.get("note", ""), _list_unstated(row)])),
    }


def _list_unstated(row):
    """Return the parts of a row's setting that the paper does not state."""
    timed = row["measure"].startswith("hours") and row["dataset"] in ("CIFAR-10", "CIFAR-100")
    return "the paper states no noise level beside the time; eta is 0.4" if timed else ""


# Settings of training that `estimate-noise` has as options.
_WARM_UP = ("model", "augment", "rounds", "fraction", "epochs", "batch_size", "lr", "momentum")


def _estimate(how, planned):
    """Return changes of a plan by the entry of an estimator: in the embeddings, from a run, or with its own training."""
    train = planned["train"] | {key: how[key] for key in TRAINED if key in how}
    estimate = {"estimator": how["estimator"], "options": {}, "train": None}
    if how["by"] == "run":
        estimate["train"] = train
    elif how["by"] == "training":
        estimate["options"] = {key: train[key] for key in _WARM_UP if key in train}
    return {
        "estimate": estimate,
        "backbone": planned["backbone"] if how["by"] == "embeddings" else None,
        "note": how.get("note", ""),
    }


def _conditions(row):
    """Return the names under which a method's entry lists further changes for a row, in the order in which they apply."""
    values = dict(re.findall(r"(rho|tau)=([\d.]+)", row["setting"]))
    high = (values.get("rho"), values.get("tau")) in HIGH
    return [*(["asymmetric"] if "asymmetric" in row["setting"] else []), *(["high"] if high else []), row["dataset"]]


def _change(entry, conditions):
    """Return an entry's changes under the conditions; later and inner ones take precedence."""
    change = {key: value for key, value in entry.items() if not isinstance(value, dict)}
    for name in conditions:
        if name in entry:
            change |= _change(entry[name], conditions)
    return change


def _preset(row, paper):
    """Return the name of the preset for a row's training and its paper's method."""
    name = paper["presets"][f"{row['dataset']} {row['model']}"]
    if row["paper"] == "flr" and "asymmetric" in row["setting"]:
        return f"{name}-asymmetric"
    if row["paper"] == "fedefc" and "p=0.2" in row["setting"] and row["dataset"] != "CIFAR-100":
        return f"{name}-imbalanced"
    return name


def _by_setting(row, method):
    """Return the method with parameters from the setting: FedDPCont's epsilon."""
    match = re.search(r"epsilon=([\d.]+)", row["setting"])
    return f"feddpcont(epsilon={match[1]})" if match else method


def _steps(row):
    """Return the commands before training that make a row's clients and labels."""
    values = dict(re.findall(r"(\w+)=([\d.]+)", row["setting"]))
    return {"fedcorr": _fedcorr, "flr": _flr, "feddpcont": _feddpcont, "fedln": _fedln, "fedefc": _fedefc}[row["paper"]](
        row, values
    )


def _public(step, share):
    """Return a `partition` step that assigns a share of the samples to no client, for methods with a public set."""
    return f"{step} --public {share}" if share and step.startswith("partition") else step


def _clients(row):
    return {"CIFAR-100": 50, "Clothing1M": 500}.get(row["dataset"], 100)


def _fedcorr(row, values):
    if row["dataset"] == "Clothing1M":
        return ["partition --clients 500 --scheme 'bernoulli-dirichlet(p=0.7, alpha=10)'"]
    tau = "0" if "caption says tau=0" in row["setting"] else values["tau"]  # the authors' errata agree with the caption
    scheme = "iid" if row["setting"].startswith("iid") else f"bernoulli-dirichlet(p={values['p']}, alpha={values['alpha']})"
    noise = f"inject-noise --noise 'clients(rho={values['rho']}, tau={tau})'"
    return [f"partition --clients {_clients(row)} --scheme '{scheme}'", noise]


def _flr(row, values):
    if row["dataset"] == "Clothing1M":
        return ["partition --clients 500 --scheme iid"]
    scheme = "iid(balanced=true)"
    if row["setting"].startswith("non-iid"):
        scheme = f"bernoulli-dirichlet(p=1, alpha={values['alpha']}, at_least_one=true)"
    kind = ", kind=asymmetric" if "asymmetric" in row["setting"] else ""
    noise = f"inject-noise --noise 'clients(rho={values['rho']}, tau={values['tau']}, exact=true{kind})'"
    return [f"partition --clients {_clients(row)} --scheme '{scheme}'", noise]


def _feddpcont(row, values):
    uniform = "true" if row["setting"].startswith("symmetric") else "false"
    split = f"partition --clients 100 --scheme 'openset(uniform={uniform})'"
    if row["dataset"] == "Clothing1M":
        return [split]
    if row["dataset"].endswith("N"):
        return [f"inject-noise --noise '{HUMAN[row['setting'].split()[2]]}'", split]
    eta = values.get("eta", "0.4")  # a row of hours has none
    return [f"inject-noise --noise '{'symmetric' if uniform == 'true' else 'random'}(eta={eta})'", split]


def _fedln(row, values):
    share = re.search(r"carry (\d+)% of nl", row["setting"])
    clean = f", clean_level={float(values['nl']) * int(share[1]) / 100:g}" if share and share[1] != "0" else ""
    noise = f"sparse(level={values['nl']}, sparsity={values['ns']}, per_client=true, noisy_share={values['F']}{clean})"
    return ["partition --clients 30 --scheme 'sizes(sigma=0.25)'", f"inject-noise --noise '{noise}'"]


def _fedefc(row, values):
    split = f"partition --clients 100 --scheme 'bernoulli-dirichlet(p={values['p']}, alpha={values['alpha']})'"
    if float(values["rho"]) == 0:
        return [split]
    return [f"inject-noise --noise 'sparse(level={values['rho']}, sparsity={values['zeta']})'", split]


def recipe(name: str, *, scale: float = 1.0) -> dict[str, Any]:
    """Return a recipe of a table, with one regime per run.

    Parameters
    ----------
    name : str
    scale : float in (0, 1]
        Use this share of the paper's rounds. Below 1, the method chooses the lengths of its stages.

    Returns
    -------
    dict
        As `fnlkit.recipes.recipe.load_recipe` returns; a regime's name is `run_of` its rows.
    """
    if not 0 < scale <= 1:
        raise InputError(f"{scale:g}: write a share above 0 and at most 1; 1 is the paper's length", parameter="scale")
    rows, about = load_rows(name), papers()[name.partition("/")[0]]
    regimes: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows):
        if run_of(row) in regimes:
            regime = regimes[run_of(row)]
            regime["train"] |= _options_of(row["measure"])
        else:
            regime = regimes[run_of(row)] = _regime(row, f"{row['paper']}-{row['table']}-{number}", scale)
        if row["measure"] == "accuracy":
            (method,) = regime["methods"]
            regime["published"] = {method: [value for value in (row["value"], row["spread"]) if value is not None]}
    top = {"title": f"{about['title']}, Table {rows[0]['table']}", "seeds": list(range(about["trials"]))}
    return top | {"dataset": "", "train": {}, "regime": [*regimes.values()]}


def _regime(row, key, scale):
    """Return the regime of a recipe for the run of a row."""
    how = plan(row)
    method = how["method"] if scale == 1 or "estimate" in how else presets.of_any_budget(how["method"])[0]
    regime = {"name": run_of(row), "key": key, "dataset": how["dataset"], "steps": how["steps"], "note": how["note"]}
    regime |= {"methods": [method], "train": _shorten(how["train"], scale)}
    if how["backbone"]:
        regime["backbone"] = how["backbone"]
    if "estimate" in how:
        shorter = {part: _shorten(how["estimate"][part], scale) for part in ("options", "train")}
        regime["estimate"] = how["estimate"] | shorter
    return regime


def _shorten(settings, scale):
    """Return settings with a share of their rounds; empty settings and None are returned unchanged."""
    return settings | {"rounds": max(1, round(scale * settings["rounds"]))} if settings else settings


def select_recipe(
    name: str, *, only: str | None = None, scale: float = 1.0, dataset: str | None = None, embeddings: str | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (recipe, notes) of the selected rows of a table.

    Parameters
    ----------
    name : str
    only : str or None
        As for `select`.
    scale : float
        As for `recipe`.
    dataset, embeddings : str or None
        Replace the paper's.

    Returns
    -------
    recipe : dict
        Rows with several measures of one run share a regime.
    notes : dict of str to str
        Differences from the paper, by the run's title.

    Raises
    ------
    InputError
        If no row is selected, or `dataset` would replace several data sets.
    """
    wanted = {run_of(row) for row in select(load_rows(name), only)}
    made = recipe(name, scale=scale)
    made["regime"] = regimes = [regime for regime in made["regime"] if regime["name"] in wanted]
    sets = {regime["dataset"] for regime in regimes}
    if dataset:
        if len(sets) > 1:
            raise InputError(
                f"{dataset} would replace {list_names(sorted(sets))}; select one data set with `only`", parameter="dataset"
            )
        replace_dataset(made, dataset)
    notes = {regime["name"]: regime["note"] for regime in regimes if regime["note"]}
    for regime in regimes:
        if "path=" in " ".join(regime["steps"]):
            notes[regime["name"]] = "the file of human labels must be in the folder of `output`"
        if "weights=ViT" in regime.get("backbone", "") and embeddings is None:
            clip = "OpenAI's weights of CLIP must be in the folder of `output` as ViT-B-32.pt; `embeddings` replaces them"
            notes[regime["name"]] = "; ".join(filter(None, [regime["note"], clip]))
    return made, notes


def measure_rows(
    name: str, jobs: Sequence[Job], changed: dict[str, Any] | None = None, only: str | None = None
) -> list[dict[str, Any]]:
    """Return one dict per selected row with finished results: the measured number and a verdict.

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
    reports = papers()[name.partition("/")[0]]["reports"]
    finished: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state() == "finished":
            finished.setdefault(job.regime, []).append(job)
    by_run = {row["regime"]: row for row in scores.compare(scores.measure(jobs))}
    out = []
    for row in select(load_rows(name), only):
        if not (results := finished.get(run_of(row))):
            continue
        overrides = _overrides(row, results[0], changed)
        values = [compute_measure(row["measure"], reports, job) for job in results]
        reached = [value for value in values if value is not None]
        complete = len(reached) == len(values)
        unit = next((word for word in ("client-rounds", "hours") if row["measure"].startswith(word)), "%")
        measured = by_run.get(run_of(row), {}) | {"regime": title_of(row), "measure": row["measure"], "unit": unit}
        measured |= {"published": [row["value"], row["spread"]], "reports": reports, "overrides": overrides}
        measured |= {"runs": len(values), "reached": len(reached), "measured": mean(reached) if complete else None}
        measured["spread"] = statistics.spread(reached) if complete else None
        comparable = complete and not overrides and row["value"] is not None
        measured["apart"] = measured["measured"] - row["value"] if comparable else None
        measured["verdict"] = statistics.verdict(measured["measured"], row["value"], row["spread"]) if comparable else None
        out.append(measured)
    return out


def _options_of(measure):
    """Return the options of `train` that a published measure needs, as a dict."""
    return {"memorization": True} if measure.startswith("memorization: ") else {}


_TARGET = re.compile(r"client-rounds to (\d+) % accuracy")


def compute_measure(measure: str, reports: str, job: Job) -> float | None:
    """Return the number of a published measure in the result of a job.

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
    """Return the settings of a result that differ from the paper's."""
    overrides, paper = dict(changed or {}), DATASETS[row["dataset"]]
    if "dataset" in overrides:
        path = str(Path(job.folder) / job.file)
        given = Run.read(path).labels["given"] if job.method else Federation.read(path).given
        if overrides["dataset"] == paper or len(given) == SAMPLES.get(paper):
            del overrides["dataset"]
        else:
            overrides["dataset"] = f"{overrides['dataset']} ({len(given):,} training samples)"
    return overrides

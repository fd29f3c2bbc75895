"""Scores of finished runs by regime and method, with differences from a baseline."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.recipes.jobs import Job
from fnlkit.results import evaluation
from fnlkit.results.comparison import score_name
from fnlkit.results.grouping import baseline_among
from fnlkit.results.statistics import compare_pairs, holm, significant, spread

KINDS = ("best", "last", "late", "kept")


def measure(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """List one dict per regime and method with finished runs: the scores of each seed in percent, and the cost.

    Runs that are not finished are left out, because half a run would look like a bad method.

    Parameters
    ----------
    jobs : list of Job

    Returns
    -------
    list of dict
        regime, method (the label), measures (``accuracy``, or ``agreement`` with unverified labels), published, chance (the
        share of the most frequent class), client_rounds, seconds,
        global_memorized, local_memorized; best, last, late and kept, each {seed: percent}.  ``kept`` is the score
        of the selected model: of the round that `--select` chose, or ``late``.

    Raises
    ------
    InputError
        If a run has no evaluation.
    """
    groups: dict[tuple[str, str], list[Any]] = {}
    for job in jobs:
        path = Path(job.folder) / job.file
        if path.suffix == ".pt" and path.exists() and (run := Run.read(str(path))).finished:
            groups.setdefault((job.regime, job.label), []).append((job, evaluation.summary(run), run))
    rows = []
    for (regime, label), members in groups.items():
        measures = score_name(members[0][1])
        row = {"regime": regime, "method": label, "measures": measures, "published": members[0][0].published}
        row["chance"] = max(summary.get("chance", -1) for _, summary, _ in members)
        row["client_rounds"] = round(mean(summary["client_rounds"] for _, summary, _ in members))
        row["seconds"] = mean(summary["seconds"] for _, summary, _ in members)
        row |= {f"{whose}_memorized": _memorized([run for *_, run in members], whose) for whose in ("global", "local")}
        row |= {kind: {job.seed: _score(job, summary, measures, kind) for job, summary, _ in members} for kind in KINDS}
        rows.append(row)
    return rows


def _memorized(runs, whose):
    """Mean share, in percent, of wrong labels that global or local models repeat at the last evaluation."""
    name = f"{whose}_noisy_memorized"
    last = [next((row[name] for row in reversed(run.history) if name in row), None) for run in runs]
    return None if None in last else 100 * mean(last)


def _score(job, summary, measures, kind):
    value = summary.get(f"{measures}_{kind}")
    if kind == "kept":
        value = summary.get(f"{measures}_chosen", summary.get(f"{measures}_late"))
    if value is None:
        raise InputError(f"{job.name}: the run has no {measures} to compare; its federation needs test or held-out samples")
    return 100 * value


def compare(cells: Sequence[dict[str, Any]], baseline: str | None = None) -> list[dict[str, Any]]:
    """Add to the rows of `measure` means, spreads, and differences from a baseline.

    ``ahead`` is the mean difference from the baseline in the same regime, over common seeds, with the spread and half of the
    95 % interval (Student's, of these paired differences); it is None for the baseline itself. ``p`` is the p-value of the
    paired t-test, ``holm`` the p-value after Holm's correction over all rows, and ``clear`` is true if ``holm`` is below 0.05.

    Parameters
    ----------
    cells : list of dict
    baseline : str, optional
        Default: ``fedavg`` if a row has this method, else the first method.
    """
    if not cells:
        return []
    baseline = baseline or baseline_among([cell["method"] for cell in cells])
    bases, compared = {cell["regime"]: cell for cell in cells if cell["method"] == baseline}, []
    for cell in cells:
        base = bases.get(cell["regime"])
        row = cell | {"runs": len(cell["late"]), "baseline": baseline}
        for kind in KINDS:
            row |= {f"{kind}_mean": mean(cell[kind].values()), f"{kind}_spread": spread(cell[kind].values())}
            ahead = None if base is None or base is cell else compare_pairs(cell[kind], base[kind])
            row |= {f"{kind}_ahead": ahead and ahead["mean"], f"{kind}_ahead_spread": ahead and ahead["spread"]}
            row |= {f"{kind}_ahead_half": ahead and ahead["half"], f"{kind}_p": ahead and ahead["p"]}
        compared.append(row)
    for kind in KINDS:
        for row, corrected in zip(compared, holm([row[f"{kind}_p"] for row in compared]), strict=True):
            row[f"{kind}_holm"], row[f"{kind}_clear"] = corrected, significant(corrected)
    return compared


def to_groups(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert rows of `compare` to the form of `fnlkit.results.grouping.groups`; without a selected round, kept equals late."""
    groups, kinds = [], ["best", "late"] + ["kept"] * any(row["kept_mean"] != row["late_mean"] for row in rows)
    for row in rows:
        numbers = {name: (row[name],) for name in ("global_memorized", "local_memorized") if row[name] is not None}
        numbers |= {"published": row["published"]} if row["published"] else {}
        measures = {name: _number(*values, factor=100) for name, values in numbers.items()}
        measures |= {name: _number(row[name]) for name in ("client_rounds", "seconds")}
        ahead: dict[str, Any] = {}
        for kind in kinds:
            name = f"{row['measures']}_{kind}"
            measures[name] = _number(row[f"{kind}_mean"], row[f"{kind}_spread"], 100)
            difference = {"mean": row[f"{kind}_ahead"], "half": row[f"{kind}_ahead_half"]}
            ahead[name] = None if difference["mean"] is None else {key: v and v / 100 for key, v in difference.items()}
            if ahead[name]:
                ahead[name] |= {"holm": row[f"{kind}_holm"], "clear": row[f"{kind}_clear"]}
        group = {"group": {"regime": row["regime"], "method": row["method"]}, "runs": row["runs"], "differ": []}
        group |= {"measures": measures, "ahead": ahead, "baseline": row["baseline"], "chance": row.get("chance", -1)}
        groups.append(group)
    return groups


def _number(mean, spread=None, factor=1):
    return {"mean": mean / factor, "spread": spread and spread / factor}

"""Search for options of each method in each regime of a recipe, judged by held-out noisy labels.

Runs of a search are evaluated only on held-out samples with given labels (`train --measure holdout`).  Neither test samples
nor true labels are read before the choice.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from glob import escape, glob
from pathlib import Path
from statistics import mean
from typing import Any

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.run import Run
from fnlkit.components import own, presets
from fnlkit.components.spec import rename_components
from fnlkit.errors import InputError
from fnlkit.experiment.settings import Settings
from fnlkit.recipes import spaces
from fnlkit.recipes.recipe import entries
from fnlkit.recipes.reproduce import Federated, Job, select_regimes
from fnlkit.recipes.settled import Settled
from fnlkit.results.evaluation import late_score
from fnlkit.results.statistics import spread

LOG = "search.jsonl"
_MAX_BYTES = 2**26


class Cell:
    """Search of one method in one regime.

    Parameters
    ----------
    recipe, regime : dict
    number : int
        Place of the regime in the recipe.
    place : int
        Place of the method in the regime.
    dataset, embeddings : str or None
        As for `fnlkit.recipes.reproduce.jobs`.
    **train
        Options of `train` that replace the recipe's, if not None.
    """

    def __init__(self, recipe, regime, number, place, *, dataset=None, embeddings=None, **train):
        self.plan, self.regime, self.entry = recipe["search"], regime, entries(regime)[place]
        self.place = regime.get("places", {}).get(self.entry.label, place)
        self.seeds = spaces.seeds_of(recipe)
        self.data = [Federated(recipe, regime, number, seed, dataset, embeddings) for seed in self.seeds]
        self.replacing = {key: value for key, value in train.items() if value is not None}
        self.options = recipe["train"] | regime.get("train", {}) | self.entry.train
        self.space = spaces.space_of(self.plan, self.entry)
        self.rungs = spaces.rungs(self.plan, self._rounds())
        # The key has no method: methods with equal spaces get equal configurations.
        count = self.rungs[0].configurations
        self.left = spaces.draw_configurations(self.space, count, key=regime["name"], seed=self.seeds[0])
        self.lines, self.error = [], None

    @property
    def name(self) -> tuple[str, str]:
        """(regime, label)."""
        return self.regime["name"], self.entry.label

    def _rounds(self):
        options = self.options | self.replacing
        preset = presets.load_preset(options["preset"]) if "preset" in options else {}
        return options.get("rounds", preset.get("rounds", Settings.rounds))

    def jobs(self, rung: int) -> list[tuple[dict[str, Any], list[Job]]]:
        """Return [(configuration, its Jobs, one per seed)] of a rung."""
        out = []
        for i, values in enumerate(self.left):
            method, more = spaces.apply_configuration(self.entry.method, values)
            options = self.options | more | self.replacing | {"rounds": self.rungs[rung].rounds, "measure": "holdout"}
            name = f"search-{rung}-{self.data[0].number}-{self.place}-{i}"
            jobs = [data.job(self.entry.label, method, options, f"{name}-{data.seed}") for data in self.data]
            out.append((values, jobs))
        return out

    def judge(self, rung: int, folder: str | os.PathLike[str], failed: Mapping[str, Exception]) -> None:
        """Record the scores of a rung, and keep the best configurations for the next one.

        A run that diverged counts as the worst.  A run that was refused is a mistake in the recipe: `error` is set.

        Parameters
        ----------
        rung : int
        folder : str or Path
        failed : dict of str to Exception
            The errors of failed jobs, by name.
        """
        scored = []
        for values, jobs in self.jobs(rung):
            scores = [score(Path(folder) / f"{job.name}.pt") for job in jobs]
            total = None if None in scores else mean(value for value in scores if value is not None)
            scored.append((values, total))
            regime, label = self.name
            facts = {"regime": regime, "method": label, "rung": rung, "rounds": self.rungs[rung].rounds, "values": values}
            self.lines.append(facts | {"seeds": self.seeds, "scores": scores, "score": total, "runs": [j.name for j in jobs]})
            refused = [(job.name, failed[job.name]) for job in jobs if isinstance(failed.get(job.name), InputError)]
            if refused and self.error is None:
                self.error = "{}: {}".format(*refused[0])
        # A stable sort keeps the earlier configuration of a tie; the recipe's own options are the first.
        order = sorted(scored, key=lambda pair: -1.0 if pair[1] is None else pair[1], reverse=True)
        following = self.rungs[rung + 1].configurations if rung + 1 < len(self.rungs) else 1
        if order[0][1] is None and self.error is None:
            self.error = f"no run of rung {rung} has a score; check the options in the space"
        kept = [values for values, total in order[:following] if total is not None]
        self.left = [values for values in self.left if values in kept]

    @property
    def choice(self) -> dict[str, Any]:
        """The line of the log with the chosen values and the score, next to the score of the recipe's options."""
        regime, label = self.name
        last = [line for line in self.lines if line["rung"] == len(self.rungs) - 1]
        best = next(line for line in last if line["values"] == self.left[0])
        own: dict[str, Any] = next((line for line in last if not line["values"]), {})
        count = sum(len(line["runs"]) for line in self.lines)
        facts = {"regime": regime, "method": label, "chosen": self.left[0], "seeds": self.seeds}
        for name, line in (("", best), ("own_", own)):
            scores = line.get("scores", [])
            facts |= {f"{name}score": line.get("score"), f"{name}spread": None if None in scores else spread(scores)}
        return facts | {"runs": count, "failed": sum(None in line["scores"] for line in self.lines)}

    def key(self, settled: Settled) -> str:
        """Return the SHA-256 of everything that decides the choice; it does not depend on the folder or the machine.

        Parameters
        ----------
        settled : fnlkit.recipes.settled.Settled
            It identifies the content of data sets and files.
        """
        jobs = [job for _, jobs in self.jobs(0) for job in jobs]
        words = [word for job in jobs for words in (*(step for step, _ in job.prepare), job.train) for word in words]
        what = [_identify_word(word, settled) for word in words]
        return hashlib.sha256(json.dumps([what, self.rungs, self.seeds]).encode()).hexdigest()


def _identify_word(word, settled):
    """Return a word of a command with the content of a file instead of its path."""
    option, _, value = word.partition("=") if word.startswith("--") else ("", "", word)
    if option == "--dataset" or os.path.isabs(value):
        return [option, settled.content(word)]
    return [option, rename_components(value, lambda name: f"{own.digest(name)}:{name.rpartition(':')[2]}")]


def cells(recipe: dict[str, Any], only: str | None = None, **options: Any) -> list[Cell]:
    """Return the Cells of a recipe with a search; options as for `Cell`."""
    return [
        Cell(recipe, regime, number, place, **options)
        for number, regime in select_regimes(recipe, only)
        for place in range(len(entries(regime)))
    ]


def search(
    found: Sequence[Cell], folder: str | os.PathLike[str], make: Callable[[list[Job]], dict[str, Exception]], *, part: str = ""
) -> list[dict[str, Any]]:
    """Search all cells, write the log, and return the chosen values.

    A cell whose choice is already in a log of the folder, for equal options, data and code, is not searched again.  Lines of an
    earlier log about other cells are kept, so that the regimes of a recipe can run in separate calls (`--only`).

    Parameters
    ----------
    found : list of Cell
        `error` is set in the cells whose search failed; they have no choice.
    folder : str or Path
        Folder of the runs and the log.
    make : callable (jobs) -> {name: error}
        Trains jobs in the folder; failed jobs have no finished run.
    part : str
        Part of the log's name if several machines search.

    Returns
    -------
    list of dict
        As `Cell.choice`, one per cell without an error.
    """
    os.makedirs(folder, exist_ok=True)
    settled = Settled(folder, {job.dataset for cell in found for _, jobs in cell.jobs(0) for job in jobs})
    keys = {cell.name: cell.key(settled) for cell in found}
    known = {(line["regime"], line["method"]): line for path in _logs([folder]) for line in _lines(path) if "chosen" in line}
    choices = {name: line for name, line in known.items() if line.get("key") is not None and line["key"] == keys.get(name)}
    left = [cell for cell in found if cell.name not in choices]
    for rung in range(max((len(cell.rungs) for cell in left), default=0)):
        searching = [cell for cell in left if cell.error is None and rung < len(cell.rungs)]
        failed = make([job for cell in searching for _, jobs in cell.jobs(rung) for job in jobs])
        for cell in searching:
            cell.judge(rung, folder, failed)
    choices |= {cell.name: cell.choice | {"key": keys[cell.name]} for cell in left if cell.error is None}
    if left:
        lines = [line for cell in left for line in (*cell.lines, *([choices[cell.name]] if cell.error is None else []))]
        write_log([*_others(left, folder, part), *lines], folder, part=part)
    return [choices[cell.name] for cell in found if cell.error is None]


def _others(found, folder, part):
    """Return the lines of an existing log about other cells."""
    path, names = _path(folder, part), {cell.name for cell in found}
    return [line for line in _lines(path) if (line["regime"], line["method"]) not in names] if path.exists() else []


def write_log(lines: Iterable[dict[str, Any]], folder: str | os.PathLike[str], *, part: str = "") -> None:
    """Write lines of a log, one JSON object each."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    saving.write_bytes([text.encode()], str(_path(folder, part)))


def _path(folder, part):
    return Path(folder) / LOG.replace(".", f"{part}.")


def _lines(path):
    try:
        lines = [json.loads(line) for line in files.read_text(str(path), max_bytes=_MAX_BYTES).splitlines()]
        for line in lines:
            hash((line["regime"], line["method"]))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: not the log of a search; start the recipe again") from error
    return lines


def score(path: Path) -> float | None:
    """Return the agreement with held-out noisy labels of the selected model of a run, or None without a finished run.

    It is the agreement in the round that `--select` chose; with ``last``, the late agreement.

    Parameters
    ----------
    path : Path
    """
    if not path.exists():
        return None
    run = Run.read(str(path))
    about = run.meta.get("selection") or {}
    if not run.finished:
        return None
    if about.get("round") is not None:
        return run.history[about["round"]]["agreement"]
    return late_score(run.history, "agreement")


def _logs(folders):
    """Return the paths of the logs in folders."""
    paths = [path for folder in folders for path in sorted(glob(f"{escape(str(folder))}/{LOG.replace('.', '*.')}"))]
    return [path for path in paths if not path.endswith(".metrics.jsonl")]  # of the runs of the search


def read_choices(folders: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """Return the choices in the logs of folders, as `search` returns them.

    Raises
    ------
    InputError
        If no folder has a log, a log is damaged, or two logs choose different values.
    """
    out: dict[tuple[str, str], dict[str, Any]] = {}
    for path in _logs(folders):
        choices = {(line["regime"], line["method"]): line for line in _lines(path) if "chosen" in line}
        for name, line in choices.items():
            if out.setdefault(name, line)["chosen"] != line["chosen"]:
                raise InputError(
                    f"{path}: chose other values for {', '.join(name)} than another log; merge folders of the same search"
                )
    if not out:
        raise InputError(f"{folders[0]}: the recipe has a search, but the folder has no {LOG}; run the recipe first")
    return list(out.values())


def choices_by_cell(choices: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return choices as the argument `choices_by_cell` of `fnlkit.recipes.reproduce.jobs`."""
    return {(line["regime"], line["method"]): line["chosen"] for line in choices}

"""Group many runs into one table by chosen columns, and compare each group with a baseline."""

from collections.abc import Mapping, Sequence
from typing import Any

from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.core.spec import parse
from fnlkit.results import evaluation, statistics
from fnlkit.results.calibration import TITLES
from fnlkit.results.tables import Table, Value, shorten

_SCORES = ("best", "last", "late", "chosen", "kept")
# Each number of a run's row: column, factor to the unit, digits.
MEASURES = {
    **{f"accuracy_{kind}": (kind, 100, 2) for kind in _SCORES},
    **{f"agreement_{kind}": (f"{kind} agreement", 100, 2) for kind in _SCORES},
    "macro_f1": ("macro-F1", 100, 2),
    "balanced_accuracy": ("balanced", 100, 2),
    "auc": ("AUC", 100, 2),
    "ece": ("ECE", 100, 2),
    "nll": ("NLL", 1, 3),
    "client_accuracy_worst_tenth": ("worst tenth of clients", 100, 2),
    "client_accuracy_spread": ("spread over clients", 100, 2),
    "client_agreement_worst_tenth": ("worst tenth of clients, agreement", 100, 2),
    "client_agreement_spread": ("spread over clients, agreement", 100, 2),
    "label_accuracy_corrected": ("labels right", 100, 2),
    "global_memorized": ("memorized by the global model", 100, 1),
    "local_memorized": ("memorized by local models", 100, 1),
    "published": ("published", 100, 2),
    "client_rounds": ("client-rounds", 1, 0),
    "bytes_up": ("MB up", 1e-6, 1),
    "seconds": ("seconds", 1, 0),
    "target_client_rounds": ("client-rounds to target", 1, 0),
    "target_bytes_up": ("MB up to target", 1e-6, 1),
    "target_bytes_down": ("MB down to target", 1e-6, 1),
    "target_seconds": ("seconds to target", 1, 1),
}
# Numbers that require testing the model.
TESTED = ("macro_f1", "balanced_accuracy", *TITLES, *(f"client_{kind}_{what}" for kind in ("accuracy", "agreement")
                                              for what in ("worst_tenth", "spread")))  # fmt: skip
# Differences from the baseline that a table shows, with titles after the number's; differences are computed for all numbers.
AHEAD = {
    **{f"{name}_{kind}": "ahead" for name in ("accuracy", "agreement") for kind in ("best", "late", "chosen", "kept")},
    "target_client_rounds": "more than the baseline",
}
# Numbers of which a larger one is better; the best of a setting is bold.
_NEUTRAL = ("_spread", "ece", "_memorized", "published")
LARGER = tuple(name for name, (_, factor, _) in MEASURES.items() if factor == 100 and not name.endswith(_NEUTRAL))
# Numbers that a pivot table can show, by short name: the first that the runs have.
PIVOT: dict[str, tuple[str, ...]] = {kind: (f"accuracy_{kind}", f"agreement_{kind}") for kind in _SCORES}
PIVOT |= {name: (name,) for name in ("macro_f1", "balanced_accuracy", "auc")}
LEGEND = (
    "in %, mean ± standard deviation over runs; best: a run's best evaluation; late: mean of those in its last fifth of "
    "client-rounds; ahead: of {baseline} in the same setting, over the seeds that both have; p: paired t-test, corrected for "
    "all groups by Holm's method; * p below 0.05"
)
CHANCE = "(chance): at most 2 points above a model that always predicts the most frequent class"
AT_CHANCE = 0.02  # largest distance from the share of the most frequent class that is marked
# Default baseline of methods.
USUAL = "fedavg"


def flatten_scores(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the findings of `fnlkit.results.scores.measure_run` to numbers of a run's row.

    Returns
    -------
    dict
        macro_f1, balanced_accuracy, auc, ece and nll on the first samples with verified labels; with held-out samples at
        clients also client_accuracy_worst_tenth and client_accuracy_spread over clients (client_agreement_* for unverified
        labels). Numbers without samples are missing.
    """
    flat: dict[str, Any] = {}
    for name, part in scores.items():
        if name == "reviewed":  # few samples of some sites
            continue
        if part["measures"] == "accuracy" and "macro_f1" not in flat and "balanced" in part:
            flat |= {"macro_f1": part["macro_f1"], "balanced_accuracy": part["balanced"]}
            flat |= {key: part[key] for key in TITLES if key in part}
        shares = [site["share"] for site in part.get("sites", [])]
        if shares and part["measures"] in ("accuracy", "agreement"):
            kind = f"client_{part['measures']}"
            flat |= {f"{kind}_worst_tenth": statistics.worst_tenth(shares), f"{kind}_spread": statistics.spread(shares)}
    return flat


def baseline_among(names: Sequence[str], wanted: str | None = None, *, methods: bool = True) -> str:
    """Find the baseline among the names of compared groups, as written there.

    Parameters
    ----------
    names : sequence of str
        In order of appearance.
    wanted : str, optional
        A spec such as ``fedcorr(beta=5)``, or a name that only one of the specs has.  Default: ``fedavg``
        if it is a method among the names, else the first name.
    methods : bool
        Whether the names are methods.

    Raises
    ------
    InputError
        If no name, or more than one, matches.
    """
    names = list(dict.fromkeys(names))
    if wanted is None:
        return USUAL if methods and USUAL in names else names[0]
    matches = [name for name in names if name == wanted or _spec(name) == _spec(wanted)]
    matches = matches or [name for name in names if name.partition("(")[0] == wanted]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(f"{wanted} could mean {' or '.join(matches)}; write one of them in full", parameter="baseline")
    raise InputError(f"{wanted}: no run has it{nearest(wanted, names)}; write one of {list_names(names)}", parameter="baseline")


def _spec(text):
    """Parse a text as a spec; a text that is not a spec is unchanged."""
    try:
        return parse(text)
    except InputError:
        return text


def groups(
    runs: list[Run], rows: list[dict[str, Any]], by: Sequence[str] | None = None, baseline: str | None = None
) -> list[dict[str, Any]]:
    """Group finished runs, one dict per group, in order of appearance.

    Parameters
    ----------
    runs : list of Run
    rows : list of dict
        Numbers of the runs, as `fnlkit.results.comparison.row` returns them.
    by : sequence of str, optional
        Columns that define a group: ``method``, ``dataset``, ``noise``, ``scheme``, ``clients`` or any other parameter of the
        commands before training, any option of `fnlkit train`.  Default: data set, method and all other differences except
        seeds.
    baseline : str, optional
        As for `baseline_among`: a method, or a value of the first word of `by` if `by` does not contain ``method``.

    Returns
    -------
    list of dict
        group: values of `by`; runs; seeds; differ: further differences within the group except seeds; measures: {number:
        {mean, spread, runs}} of the numbers that a run has; baseline: its name; ahead: {number: result of
        `fnlkit.results.statistics.compare_pairs` for the difference from the baseline's group of the same setting, with
        ``holm``, the p-value corrected for all groups, and ``clear``, whether it is below 0.05; None for the baseline's group};
        reached: number of runs that reached the target, if there is one.

    Raises
    ------
    InputError
        If no run has a name in `by`.
    """
    done = [(run, row) for run, row in zip(runs, rows, strict=True) if run.finished]
    if not done:
        return []
    import pandas

    decided = [evaluation.deciding_settings(run) | {"seed": run.settings["seed"]} for run, _ in done]
    if by is None:
        names = {name: name for name in evaluation.distinct([run for run, _ in done])[0]}
    else:
        names = {word: full_name(word, decided) for word in by}
    keys = [tuple(str(facts.get(name)) for name in names.values()) for facts in decided]
    frame = pandas.DataFrame([{name: row.get(name) for name in MEASURES} for _, row in done], dtype=float)
    frame["seed"], frame["group"] = [row["seed"] for _, row in done], pandas.factorize(pandas.Series(keys))[0]
    groups_of_runs = [_group(part, [done[i][1] for i in part.index], [decided[i] for i in part.index], names)
           for _, part in frame.groupby("group")]  # fmt: skip
    # A seed that occurs twice in a group defines no pair.
    once = frame[~frame.duplicated(["group", "seed"], keep=False)].set_index("seed")
    _compare_with_baseline(groups_of_runs, [once[once["group"] == number] for number in range(len(groups_of_runs))], baseline)
    return groups_of_runs


def full_name(word: str, decided: list[dict[str, Any]], option: str = "`by`") -> str:
    """Full name for a short word, such as ``inject-noise --noise`` for ``noise``.

    Parameters
    ----------
    word : str
    decided : list of dict
        Settings of each run, as `fnlkit.results.evaluation.deciding_settings` returns them.
    option : str
        Option that contains the word, for messages.

    Raises
    ------
    InputError
        If no run has the word, or if it could mean several settings.
    """
    known = dict.fromkeys(name for facts in decided for name in facts)
    exact = [name for name in known if name in (word, word.replace("-", "_"))]
    ends = [name for name in known if name.endswith(f" --{word.replace('_', '-')}")]
    if exact or len(ends) == 1:
        return (exact or ends)[0]
    if ends:
        raise InputError(f"{option} {word} could mean {' or '.join(ends)}; write one of them in full")
    short = [name.rpartition(" --")[2] for name in known]
    raise InputError(f"{option} {word}: no run has it{nearest(word, short)}; write one of {list_names(dict.fromkeys(short))}")


def _group(frame, rows, facts, names):
    """Collect the numbers of some runs as a data frame, their rows, and their settings."""
    others = dict.fromkeys(name for settings in facts for name in settings if name != "seed" and name not in names.values())
    numbers = frame[list(MEASURES)].agg(["mean", "std", "count"])
    measures = {}
    for name, of in numbers.items():
        if of["count"]:
            spread = float(of["std"]) if of["count"] > 1 else None
            measures[name] = {"mean": float(of["mean"]), "spread": spread, "runs": int(of["count"])}
    group = {
        "group": {word: facts[0].get(name) for word, name in names.items()},
        "runs": len(rows),
        "seeds": [row["seed"] for row in rows],
        "differ": [name for name in others if len({str(settings.get(name)) for settings in facts}) > 1],
        "measures": measures,
    }
    if chances := [row["chance"] for row in rows if "chance" in row]:
        group["chance"] = max(chances)
    if "target" in rows[0]:
        group["target"] = rows[0]["target"]
        group["reached"] = int(frame["target_client_rounds"].notna().sum())
    return group


def _compare_with_baseline(groups, frames, wanted):
    """Add to each group the difference from the baseline's group with the same other values; frames have seeds as index."""
    compared = _compared(groups[0])
    name = baseline_among([str(group["group"][compared]) for group in groups], wanted, methods=compared == "method")
    bases = {_setting(group): place for place, group in enumerate(groups) if str(group["group"][compared]) == name}
    for place, group in enumerate(groups):
        base = bases.get(_setting(group))
        group |= {"baseline": name, "ahead": {}}
        if base is not None:
            known = [number for number in MEASURES if number in group["measures"] and number in groups[base]["measures"]]
            ours, theirs = ({number: frames[i][number].dropna().to_dict() for number in known} for i in (place, base))
            pairs = {number: statistics.compare_pairs(ours[number], theirs[number]) for number in known}
            group["ahead"] = dict.fromkeys(known) if place == base else pairs
    for number in MEASURES:
        tested = [group["ahead"][number] for group in groups if group["ahead"].get(number)]
        for ahead, corrected in zip(tested, statistics.holm([ahead["p"] for ahead in tested]), strict=True):
            ahead["holm"], ahead["clear"] = corrected, statistics.significant(corrected)


def _compared(group):
    """Name whose values are compared: ``method``, or the first name."""
    return "method" if "method" in group["group"] else next(iter(group["group"]), None)


def _setting(group):
    """Values of all names that are not compared."""
    return tuple(str(value) for word, value in group["group"].items() if word != _compared(group))


def table(groups: list[dict[str, Any]], title: str = "runs", measures: tuple[Any, ...] = tuple(MEASURES)) -> Table:
    """Tabulate groups (`fnlkit.results.tables.Table`), with the selected numbers that any group has."""
    names = dict.fromkeys(word for group in groups for word in group["group"])
    shown = [name for name in measures if any(name in group["measures"] for group in groups)]
    compared = [name for name in AHEAD if name in shown and any(group["ahead"].get(name) for group in groups)]
    reached = any("reached" in group for group in groups) and any(name.startswith("target_") for name in measures)
    texts = {
        name: shorten(["" if group["group"][name] is None else str(group["group"][name]) for group in groups]) for name in names
    }
    heads = zip(names, shorten([name if ":" in name else name.replace("_", " ") for name in names]), strict=True)
    columns: dict[str, list[Any]] = {{"dataset": "data set"}.get(head, head): texts[name] for name, head in heads}
    columns["runs"] = [str(group["runs"]) for group in groups]
    leading = _leading(groups, shown)
    for name in shown:
        heading, factor, digits = MEASURES[name]
        columns[heading] = [_value(group, name, bold=(place, name) in leading) for place, group in enumerate(groups)]
        if name in compared:
            ahead = [group["ahead"].get(name) for group in groups]
            columns[f"{heading}, {AHEAD[name]}"] = [_ahead(difference, factor, digits) for difference in ahead]
            columns[f"{heading}, p"] = [Value(difference and difference["holm"], None, 3) for difference in ahead]
    notes = [LEGEND.format(baseline=groups[0]["baseline"])] if groups else []
    notes += [statistics.METHOD] if compared else []
    if reached:
        columns["reached target"] = [f"{group['reached']} of {group['runs']}" for group in groups]
        notes.append(
            f"target: {100 * groups[0]['target']:g} %, by the first evaluation that reached it; what it took is a mean over "
            "the runs that did, more than the baseline: over the seeds of which both did"
        )
    notes += _note_chance(value for column in columns.values() for value in column)
    for place, group in enumerate(groups):
        if group["differ"]:
            label = ", ".join(texts[name][place] for name in names if name in group["group"])
            notes.append(f"{label}: its runs also differ in {', '.join(group['differ'])}")
    return Table(title, list(columns), list(map(list, zip(*columns.values(), strict=True))), notes)


def _value(group, name, **marks):
    """Make a number of a group a `Value`, marked if it is an accuracy at chance."""
    _, factor, digits = MEASURES[name]
    of = group["measures"].get(name)
    if of is None:
        return Value(None)
    chance = name.startswith(("accuracy_", "agreement_")) and of["mean"] <= group.get("chance", -1) + AT_CHANCE
    spread = None if of["spread"] is None else factor * of["spread"]
    return Value(factor * of["mean"], spread, digits, chance=chance, **marks)


def _note_chance(values):
    marked = any(isinstance(value, Value) and value.chance for value in values)
    return [CHANCE] if marked else []


def _leading(groups, shown):
    """Find {(place of a group, number)} of the best groups of each setting with at least two groups."""
    import pandas

    frame = pandas.DataFrame({name: [group["measures"].get(name, {}).get("mean") for group in groups]
                              for name in shown if name in LARGER}, dtype=float)  # fmt: skip
    if frame.empty:
        return set()
    settings = frame.groupby(pandas.Series([_setting(group) for group in groups]))
    best = (frame == settings.transform("max")) & (settings.transform("count") > 1)
    return {(place, name) for name in frame for place in best.index[best[name]]}


def pivot(groups: list[dict[str, Any]], word: str, measure: str = "late") -> Table:
    """Tabulate groups with a row per method, a column per value of `word`, and counts of wins.

    Parameters
    ----------
    groups : list of dict
        Groups by ``method`` (or another first name) and `word`, and by nothing else.
    word : str
        Name whose values become columns, for example ``noise``.
    measure : str
        best, last, late or chosen; macro_f1, balanced_accuracy or auc of tested runs.

    Raises
    ------
    InputError
        If the groups lack the name or the measure.
    """
    if measure not in PIVOT:
        raise InputError(f"{measure}: write one of {', '.join(PIVOT)}", parameter="show")
    names = list(groups[0]["group"]) if groups else []
    others = [name for name in names if name != word]
    if groups and (word not in names or len(others) != 1):
        raise InputError(f"{word} requires `by` with two names, for example `by='method,{word}'`", parameter="pivot")
    number = next((name for name in PIVOT[measure] if any(name in group["measures"] for group in groups)), None)
    if number is None:
        raise InputError(f"{measure}: no group has it", parameter="show")
    import pandas

    leading, cells = _leading(groups, [number]), []
    for place, group in enumerate(groups):
        ahead, best = group["ahead"].get(number), (place, number) in leading
        clear = bool(ahead and statistics.significant(ahead["holm"]))
        value, mean = _value(group, number, star=clear, bold=best), ahead["mean"] if ahead and clear else 0
        cells.append((str(group["group"][others[0]]), str(group["group"][word]), value, best, mean > 0, mean < 0))
    frame = pandas.DataFrame(cells, columns=["method", "column", "value", "best", "ahead", "behind"])
    wide = frame.pivot_table("value", "method", "column", aggfunc="first", sort=False, fill_value=Value(None))
    counts = frame.groupby("method", sort=False)[["best", "ahead", "behind"]].sum().astype(str)
    columns, labels = list(wide.columns), shorten(list(wide.index))
    rows = [[label, *values, best, f"{ahead}, {behind}"] for label, values, (best, ahead, behind)
            in zip(labels, wide.to_numpy().tolist(), counts.to_numpy(), strict=True)]  # fmt: skip
    heading = MEASURES[number][0]
    notes = [
        f"{heading} in %, mean ± standard deviation over runs; columns: {word}; best in: columns with the highest mean; * and "
        f"ahead, behind: columns with a clear difference from {groups[0]['baseline']} (paired t-test, p below 0.05 after "
        "Holm's correction for all cells)"
    ]
    notes += _note_chance(value for row in rows for value in row)
    return Table(f"{heading} by {word}", [others[0], *shorten(columns), "best in", "ahead, behind"], rows, notes)


def _ahead(gap, factor, digits):
    if gap is None:
        return Value(None)
    half = gap["half"]
    return Value(factor * gap["mean"], None if half is None else factor * half, digits, signed=True, star=gap["clear"])

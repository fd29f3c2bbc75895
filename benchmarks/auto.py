"""Regret of `--method auto` in the worlds of league 2, with thresholds fitted on the other worlds.

    for r in digits heart people scans speech text images; do fnlkit reproduce benchmarks/auto.toml --only $r: -o auto; done
    python -m benchmarks.auto --folder auto --write benchmarks/results/auto.jsonl
    python -m benchmarks.auto

The first command trains `auto` and its fixed treatments on the federations and seeds of league 2; the data sets are in the
folder (`benchmarks.worlds`).  Regret is the best mean score of a fixed treatment in a regime minus the score of a rule.

Rules: `auto` as measured; `auto` with `level` and `errors` fitted on the other worlds, replayed from the recorded
evidence and trials on the scores of the fixed treatments; always the best treatment on the other worlds; the best treatment of
the regime with the most similar evidence in another world; always plain training.  Two rules train all treatments, three times
the budget: the treatment with the best agreement on held-out noisy labels, and the mean of the probabilities of all models.
"""

import argparse
import itertools
import json
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.league import world_of
from fnlkit.artifacts.run import Run
from fnlkit.experiment.network import load_trained
from fnlkit.methods.auto import TREATMENTS
from fnlkit.reproduce import recipe, reproduce
from fnlkit.results.evaluation import late_score
from fnlkit.results.statistics import compare_pairs

STORED = Path(__file__).parent / "results/auto.jsonl"
EVIDENCE = ("memorized", "gap", "changes", "level", "groups", "apart", "margin", "skew", "missing")
GRID = {"level": (0.0, 0.05, 0.1, 0.2), "errors": (0.0, 1.0, 2.0, 3.0, 1e9)}
RULES = ("auto", "auto, fitted", "always the best constant", "nearest regime", "always plain",
         "best agreement on held-out labels (3 trainings)", "ensemble of all treatments (3 trainings)")  # fmt: skip
DEFAULTS = {"level": 0.1, "errors": 2.0}


def collected(folder):
    """Return a dict per finished run in a folder: regime, seed, treatment, late score, and the evidence of `auto`."""
    out = []
    models = {}
    for job in reproduce.jobs(recipe.load_recipe("benchmarks/auto.toml")):
        path = Path(folder) / f"{job.name}.pt"
        run = Run.read(str(path)) if path.exists() else None
        if run is None or not run.finished:
            continue
        name = "accuracy" if any("accuracy" in row for row in run.history) else "agreement"
        fixed = job.label.partition("treatment=")[2].rstrip(")") or job.label
        score = late_score(run.history, name)
        line = {"regime": job.regime, "seed": job.seed, "treatment": fixed, "score": round(100 * score, 3)}
        line["agreement"] = round(100 * late_score(run.history, "held_out_agreement"), 3)
        if fixed in TREATMENTS:
            models.setdefault((job.regime, job.seed), []).append((job, run))
        row = next((row for row in run.history if "runner_up" in row), None)
        if row is not None and fixed == "auto":
            facts = {key: round(row[key], 4) for key in (*EVIDENCE, "ahead", "ahead_error")}
            line |= facts | {key: TREATMENTS[int(row[key])] for key in ("treatment", "runner_up")} | {"treatment": "auto"}
            line |= {"chosen": TREATMENTS[int(row["treatment"])], "returned": any(row.get("returned") for row in run.history)}
        out.append(line)
    complete = {key: runs for key, runs in models.items() if len(runs) == len(TREATMENTS)}
    for (regime, seed), runs in complete.items():
        data = reproduce.dataset_of(runs[0][0], Path(folder))
        score = round(100 * ensemble([run for _, run in runs], data), 3)
        out.append({"regime": regime, "seed": seed, "treatment": "ensemble", "score": score})
    return out


def ensemble(runs, data):
    """Return the test accuracy of the mean of the runs' probabilities."""
    networks = [load_trained(run, data) for run in runs]
    mean_of_all = sum(network.logits(network.x_test).double().softmax(-1) for network in networks)
    return float((mean_of_all.argmax(-1).numpy() == data.y_test).mean())


class Scores:
    """Scores of treatments by regime, and the lines of `auto`; regimes without all treatments are left out."""

    def __init__(self, lines):
        found = {}
        for line in lines:
            found.setdefault(line["regime"], {}).setdefault(line["treatment"], {})[line["seed"]] = line["score"]
        self.agreement = {(x["regime"], x["treatment"], x["seed"]): x["agreement"] for x in lines if "agreement" in x}
        self.by = {regime: each for regime, each in found.items() if {"auto", "ensemble", *TREATMENTS} <= each.keys()}
        self.auto = [line for line in lines if line["treatment"] == "auto" and line["regime"] in self.by and "chosen" in line]
        self.worlds = list(dict.fromkeys(map(world_of, self.by)))

    def mean(self, regime, treatment):
        return mean(self.by[regime][treatment].values())

    def regret(self, regime, score):
        return max(self.mean(regime, treatment) for treatment in TREATMENTS) - score

    def of(self, world, inside=True):
        return [regime for regime in self.by if (world_of(regime) == world) == inside]

    def constant(self, regimes):
        """Return the treatment with the smallest mean regret in regimes."""
        return min(TREATMENTS, key=lambda name: mean(self.regret(r, self.mean(r, name)) for r in regimes))

    def end_replay(self, line, level, errors):
        """Return the score of the treatment that other thresholds would have chosen, among the two finalists.

        The finalists of the recorded run are kept, and the favorite is the finalist that the thresholds prefer.
        """
        pair, ahead = [line["chosen"], line["runner_up"]], line["ahead"]
        wanted = "infer" if line["level"] + max(0, line["gap"]) >= level else "plain"
        if pair[1] == wanted:
            pair, ahead = pair[::-1], -ahead
        if pair[0] == wanted and line["ahead_error"]:
            chosen = pair[1] if -ahead > errors * line["ahead_error"] else pair[0]
        else:
            chosen = line["chosen"]
        return self.by[line["regime"]][chosen].get(line["seed"], self.mean(line["regime"], chosen))

    def replay(self, regime, thresholds):
        return mean(self.end_replay(line, **thresholds) for line in self.auto if line["regime"] == regime)

    def fitted(self, regimes):
        """Return the thresholds with the smallest mean regret in regimes, the defaults if they are as good."""
        known = [regime for regime in regimes if any(line["regime"] == regime for line in self.auto)]
        options = [DEFAULTS, *(dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values()))]
        return min(options, key=lambda values: mean(self.regret(r, self.replay(r, values)) for r in known))

    def selected(self, regime):
        """Return the mean score if each seed uses the treatment with the best agreement on held-out noisy labels."""
        scores, known = self.by[regime], self.agreement
        seeds = [seed for seed in scores["auto"] if all((regime, name, seed) in known for name in TREATMENTS)]
        best = {seed: max(TREATMENTS, key=lambda name: known[regime, name, seed]) for seed in seeds}  # noqa: B023
        return mean(scores[best[seed]][seed] for seed in seeds)

    def nearest(self, regime, others):
        """Return the best treatment of the regime among `others` with the most similar evidence."""
        rows = {r: [[x[key] for key in EVIDENCE] for x in self.auto if x["regime"] == r] for r in [regime, *others]}
        vectors = {name: np.mean(each, 0) for name, each in rows.items()}
        scale = np.std(list(vectors.values()), 0) + 1e-9
        near = min(others, key=lambda name: np.linalg.norm((vectors[regime] - vectors[name]) / scale))
        return max(TREATMENTS, key=lambda name: self.mean(near, name))


def regrets(scores):
    """Return {rule: {regime: regret}}, each world judged by rules that were fitted on the other worlds."""
    out = {name: {} for name in RULES}
    for world in scores.worlds:
        others = scores.of(world, inside=False)
        constant, thresholds = scores.constant(others), scores.fitted(others)
        for regime in scores.of(world):
            near = scores.nearest(regime, others)
            found = (scores.mean(regime, "auto"), scores.replay(regime, thresholds), scores.mean(regime, constant),
                     scores.mean(regime, near), scores.mean(regime, "plain"), scores.selected(regime),
                     scores.mean(regime, "ensemble"))  # fmt: skip
            for rule, score in zip(out, found, strict=True):
                out[rule][regime] = scores.regret(regime, score)
    return out


def choice(scores):
    """Return what the choice of `auto` adds to always training with `infer`.

    Returns
    -------
    dict
        runs of `auto`; chosen, {treatment: runs}; returned, the runs that fell back to plain training; ahead, `auto`
        minus `infer` over regimes, with its p-value (paired t-test); regrets, {rule: mean regret} of the chosen treatments
        trained alone, without trials, and of always `infer`.
    """
    chosen = {name: sum(line["chosen"] == name for line in scores.auto) for name in TREATMENTS}
    found = compare_pairs({r: scores.mean(r, "auto") for r in scores.by}, {r: scores.mean(r, "infer") for r in scores.by})
    alone = {}
    for line in scores.auto:
        alone.setdefault(line["regime"], []).append(scores.by[line["regime"]][line["chosen"]][line["seed"]])
    regrets = {"the treatments that `auto` chose": mean(scores.regret(r, mean(each)) for r, each in alone.items())}
    regrets["always `infer`"] = mean(scores.regret(r, scores.mean(r, "infer")) for r in scores.by)
    returned = sum(line["returned"] for line in scores.auto)
    return {"runs": len(scores.auto), "chosen": chosen, "returned": returned, "ahead": found, "regrets": regrets}


def statements(scores):
    """Yield sentences about the choice."""
    found = choice(scores)
    counts = ", ".join(f"`{name}` {count}" for name, count in found["chosen"].items())
    yield f"- **Choices** in {found['runs']} runs: {counts}. The fallback to plain training was used in {found['returned']}."
    yield (
        f"- **Compared with always `infer`**, `auto` is {found['ahead']['mean']:+.2f} points ahead over "
        f"{len(scores.by)} regimes (p = {found['ahead']['p']:.2f})."
    )
    parts = ", ".join(f"{rule} {value:.2f}" for rule, value in found["regrets"].items())
    yield f"- **Regret of the choice alone**, each treatment trained without trials: {parts} points."


def report(scores):
    """Yield the tables as Markdown."""
    columns = (*(["fedavg"] if all("fedavg" in found for found in scores.by.values()) else []), *TREATMENTS, "auto")
    yield "| regime | " + " | ".join(f"`{name}`" for name in columns) + " | chosen by seed |"
    yield "|---" * (len(columns) + 2) + "|"
    for regime in scores.by:
        cells = [f"{scores.mean(regime, name):.1f}" for name in columns]
        chosen = ", ".join(line["chosen"] for line in scores.auto if line["regime"] == regime)
        yield f"| {regime} | {' | '.join(cells)} | {chosen} |"
    yield ""
    yield "| rule | mean regret | worst regret | worst regime |"
    yield "|---|---|---|---|"
    for rule, found in regrets(scores).items():
        worst = max(found, key=found.get)
        yield f"| {rule} | {mean(found.values()):.1f} | {found[worst]:.1f} | {worst} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", help="folder of the runs, to collect them")
    parser.add_argument("--write", help="file for the collected lines")
    options = parser.parse_args()
    if options.folder:
        lines = collected(options.folder)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        Path(options.write or STORED).write_text(text, encoding="utf-8")
    lines = [json.loads(line) for line in Path(options.write or STORED).read_text(encoding="utf-8").splitlines()]
    scores = Scores(lines)
    print("\n".join([*report(scores), "", *statements(scores)]))


if __name__ == "__main__":
    main()

"""Write the computed parts of README.md and docs/ from stored results.

    python -m benchmarks.pages            # write them
    python -m benchmarks.pages --check    # print the pages that it would change; exit code 1 if there are any

A part of a page is between ``<!-- computed: NAME -->`` and ``<!-- end -->``.  `parts` returns the lines of each name;
``output FILE: TEXT`` is the paragraph of benchmarks/results/FILE that begins with the text.

A table of measurements that is not computed follows ``<!-- numbers: FILE, FILE -->``: the files, relative to the repository,
that contain its numbers. Rows with other numbers are printed, and the exit code is 1.
"""

import argparse
import itertools
import json
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from statistics import mean, stdev

from scipy import stats

from benchmarks import league
from fnlkit.core.errors import InputError

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
TABLE = re.compile(r"(?m)^(?:<!-- numbers: (.+?) -->\n)?((?:^\|.*\n)+)")
CODE = re.compile("`[^`]*`")
NUMBER, DECIMAL, FEW = re.compile(r"\d+(?:\.\d+)?"), re.compile(r"\d+\.\d+"), 4
PART = re.compile(r"<!-- computed: (.+?) -->\n(.*?)<!-- end -->", re.DOTALL)
# Worlds of the league in README's table.
KINDS_OF_DATA = {
    "cifar10n": "photographs (encoder), labels of crowd workers",
    "crowdtruth": "medical sentences, labels by distant supervision",
    "jira": "software metrics, heuristic labels",
    "spambase": "e-mail statistics, simulated noise",
    "vowel": "recorded vowels, simulated noise",
}
# Bytes that differ by less from FedAvg's are not listed.
SAME = 0.05


def pages():
    """Return the pages that can have computed parts."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@cache
def parts():
    """Return {name: lines} of all computed parts."""
    return league.tables() | {
        "bytes": list(bytes_table()),
        "times": list(time_table()),
        "readme kinds": list(readme_kinds()),
        "table10": list(table10()),
        "estimators": list(estimator_table()),
        "regimes-images": list(images_table("regimes-images.txt")),
        "gate": list(gate_table()),
        "convention-costs": list(cost_table()),
    }


def filled(text):
    """Return a page with its computed parts as the stored results give them.

    Raises
    ------
    InputError
        If a part has an unknown name.
    """

    def fill(match):
        name = match[1]
        if name.startswith("output "):
            file, _, first = name.removeprefix("output ").partition(": ")
            return "\n".join([f"<!-- computed: {name} -->", *output(file, first), "<!-- end -->"])
        if name not in parts():
            raise InputError(f"no computed part {name!r}; known are {', '.join(parts())}")
        return "\n".join([f"<!-- computed: {name} -->", *parts()[name], "<!-- end -->"])

    return PART.sub(fill, text)


def output(file, first):
    """Yield a paragraph of a stored output as it is, from the line that begins with a text to the next empty line.

    Raises
    ------
    InputError
        If no line begins with the text.
    """
    found = re.search(rf"(?ms)^{re.escape(first)}.*?(?=\n\s*\n|\Z)", (RESULTS / file).read_text(encoding="utf-8"))
    if not found:
        raise InputError(f"benchmarks/results/{file}: no line begins with {first!r}")
    yield from ("```text", *found[0].rstrip().splitlines(), "```")


def unsupported(text):
    """Return the rows of tables whose decimal numbers do not occur in the files that the page names for the table.

    A number occurs in a file if a number of the file, or 100 times this number, rounds to it. Computed parts are left out.
    Code between backticks is left out, and tables with fewer than `FEW` decimal numbers need no file.
    """
    rows = []
    for files, table in TABLE.findall(PART.sub("", text)):
        lines = [(line, DECIMAL.findall(CODE.sub("", line))) for line in table.splitlines()]
        if not files and sum(len(numbers) for _, numbers in lines) < FEW:
            continue
        stored = stored_numbers(files)
        rows += [line for line, numbers in lines if not all(occurs(number, stored) for number in numbers)]
    return rows


@cache
def stored_numbers(files):
    """Return the numbers of comma-separated files, relative to the repository."""
    texts = [(ROOT / file.strip()).read_text(encoding="utf-8") for file in files.split(",") if file.strip()]
    return [float(number) for text in texts for number in NUMBER.findall(text)]


def occurs(number, stored):
    """Return whether a decimal number (text) is a rounded stored number, or 100 times one."""
    places = len(number.partition(".")[2])
    return any(f"{value * scale + tie:.{places}f}" == number for value in stored for scale in (1, 100) for tie in (0, 1e-9))


def bytes_table():
    """Yield the methods that send or receive other bytes than FedAvg at equal client-rounds (data/costs.toml)."""
    costs = tomllib.loads((ROOT / "data/costs.toml").read_text(encoding="utf-8"))
    yield "| method | bytes from clients | bytes to clients |"
    yield "|---|---|---|"
    rows = {}
    for name, cost in sorted(costs.items(), key=lambda pair: -max(pair[1]["up"], pair[1]["down"])):
        if max(abs(cost["up"] - 1), abs(cost["down"] - 1)) > SAME and cost["client_rounds"] == 1:
            rows.setdefault(f"{cost['up']:.2f} | {cost['down']:.2f}", []).append(f"`{name}`")
    for numbers, names in rows.items():
        yield f"| {', '.join(names)} | {numbers} |"


def time_table():
    """Yield methods by CPU time per client-round relative to FedAvg: medians of `benchmarks.methods`."""
    text = (RESULTS / "methods.txt").read_text(encoding="utf-8")
    found = {}
    for network in ("mlp", "lenet5"):
        section = re.search(rf"(?ms)^{network}, .*?\n(.*?)\n\n", text)[1]
        rows = re.findall(r"(?m)^(\S+)\s+[\d.]+\s+[\d.]+\s+([\d.]+) \(", section)
        found[network] = {name: float(ratio) for name, ratio in rows}
    yield "| time relative to FedAvg | perceptron, 20 rounds | LeNet-5, 8 rounds |"
    yield "|---|---|---|"
    limits = (0.0, 0.9, 1.3, 1.7, 2.0, 99.0)
    for low, high in zip(limits, limits[1:], strict=False):
        cells = [
            ", ".join(f"`{name}`" for name, ratio in sorted(each.items(), key=lambda pair: pair[1]) if low <= ratio < high)
            for each in found.values()
        ]
        label = f"below {high}" if not low else f"{low} to {high}" if high < 99 else f"{low} and more"
        yield f"| {label} | {' | '.join(cells)} |"


def readme_kinds():
    """Yield README's table: the accuracy of FedAvg, of `auto` and with true labels on five kinds of data.

    `auto` and the default settings were chosen on other kinds of data (the first three parts of the league).
    """
    fourth = league.fourth_league()
    yield "| kind of data | FedAvg | `auto` | true labels |"
    yield "|---|---|---|---|"
    for world, kind in KINDS_OF_DATA.items():
        plain = fourth.score("fedavg", world)
        auto, oracle = (plain + fourth.leads(name)[world] for name in ("auto", "oracle"))
        yield f"| {kind} | {plain:.1f} | {auto:.1f} | {oracle:.1f} |"


def estimator_table():
    """Yield the errors of the estimators on digits: means over seeds, and the range of the AUC."""
    lines = [json.loads(line) for line in (RESULTS / "estimators.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {}
    for line in lines:
        found.setdefault(line["estimator"], []).append(line)
    yield "| estimator | AUC samples | AUC clients | level error, bias | ranges cover | flags | T cosine, error | relabel |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, each in found.items():
        average = {key: mean(line[key] for line in each) for key in each[0] if key not in ("estimator", "seed")}
        low, high = (limit(line["sample_auc"] for line in each) for limit in (min, max))
        cells = [f"{low:.2f} to {high:.2f}", f"{average['client_auc']:.2f}"]
        cells += [f"{average['level_error']:.2f}, {average['level_bias']:+.2f}", f"{average['level_coverage']:.2f}"]
        cells += [f"{average['flag_precision']:.2f}, {average['flag_recall']:.2f}"]
        cells += [f"{average['transition_cosine']:.2f}, {average['transition_error']:.2f}"]
        cells += [f"{average['label_accuracy']:.2f} to {average['suggested_accuracy']:.2f}"]
        yield f"| `{name}` | {' | '.join(cells)} |"


def table10():
    """Yield the best accuracies of FedCorr's Table 10 by the stages with mixup, next to the published ones."""
    text = (RESULTS / "fedcorr-table10-lenet5.txt").read_text(encoding="utf-8")
    yield "| row | published | mixup in all stages | seeds | difference | mixup in stage 1 | seeds | difference |"
    yield "|---|---|---|---|---|---|---|---|"
    score = r"[\d.]+(?: ± [\d.]+)?"
    row = rf"(?m)^ (rho \S+ tau \S+)\s+(fedcorr\S*)\s+(\d+)\s+({score})\s+{score}\s+([\d.]+ ± [\d.]+)"
    rows = {}
    for name, method, seeds, best, published in re.findall(row, text):
        difference = float(best.split()[0]) - float(published.split()[0])
        rows.setdefault((name, published), {})[method] = f"{best} | {seeds} | {difference:+.2f}"
    for (name, published), cells in sorted(rows.items()):
        methods = ("fedcorr", "fedcorr(mixup_in=first)")
        yield f"| {name} | {published} | {' | '.join(cells.get(method, ' |  | ') for method in methods)} |"


def images(file="regimes-images.txt"):
    """Yield the cells of a stored recipe by row: regime, method, runs, best, ahead, p, late, ahead, p, memorized, ..."""
    lines = (RESULTS / file).read_text(encoding="utf-8").splitlines()
    top = next(i for i, line in enumerate(lines) if re.match(" *regime +method +runs ", line))
    starts = [found.start() for found in re.finditer(r"\S+", lines[top])]
    for line in itertools.takewhile(lambda line: "accuracy in %" not in line, lines[top + 1 :]):
        yield [line[start:end].strip().removesuffix(" *") for start, end in itertools.pairwise([*starts, None])]


def images_table(file):
    """Yield methods in the noise of their own papers, with the numbers of seeds, of at least three."""
    yield "| regime | method | seeds | best | late | ahead | wrong labels repeated |"
    yield "|---|---|---|---|---|---|---|"
    last = None
    for regime, method, runs, best, _, _, late, ahead, _, memorized, *_ in images(file):
        if int(runs) > 2:
            yield f"| {'' if regime == last else regime} | `{method}` | {runs} | {best} | {late} | {ahead} | {memorized} |"
            last = regime


def cost_table():
    """Yield by how many points of late accuracy readings of the same words differ, the largest first, of paired seeds."""
    lines = [json.loads(line) for line in (RESULTS / "convention-costs.jsonl").read_text(encoding="utf-8").splitlines()]
    scores, best = {}, {}
    for line in lines:
        method = line["method"].partition("(")[0]
        readings = scores.setdefault((line["words"], line["network"], method), {})
        readings.setdefault(line["reading"], {})[line["seed"]] = line["late"]
        if line["reading"] == next(iter(readings)):
            best.setdefault((line["network"], method), {}).setdefault(line["seed"], []).append(line["best"] - line["late"])
    for key, seeds in best.items():
        zeros, gains = dict.fromkeys(seeds, 0.0), {seed: mean(values) for seed, values in seeds.items()}
        scores["accuracy of a run", *key] = {"the last fifth of the rounds": zeros, "the best round": gains}
    rows = []
    for (words, network, method), readings in scores.items():
        (name, first), *others = readings.items()
        for reading, each in others:
            seeds = sorted(set(first) & set(each))
            differences = [each[seed] - first[seed] for seed in seeds]
            half = float(stats.t.ppf(0.975, len(seeds) - 1)) * stdev(differences) / len(seeds) ** 0.5
            size = f"{mean(differences):+.1f} ± {half:.1f}"
            change = reading if name == "the default" else f"{reading} instead of {name}"
            who = f"`{method}`" + ", LeNet-5" * (network == "lenet5")
            rows.append((abs(mean(differences)), f"| {words}: {change} | {who} | {size} |"))
    yield "| words: reading instead of the first one, or of the default | method | points |"
    yield "|---|---|---|"
    yield from (row for size, row in sorted(rows, key=lambda pair: -pair[0]) if size >= 5)
    yield f"| {sum(size < 5 for size, _ in rows)} other readings | | below 5.0 |"


def gate_table():
    """Yield the requests that a site answers in a project with the default settings: images and fedavg."""
    from fnlkit.experiment import Settings
    from fnlkit.experiment.plan import Plan
    from fnlkit.sites import project, scale
    from fnlkit.sites.site import steps

    yield f"| {' | '.join(steps.TITLES)} |"
    yield "|---" * len(steps.TITLES) + "|"
    tasks = [*project.TASKS, scale.TASK]
    about = project.Project(names=list("abcde"), kind="image", shape=[8, 8, 1], classes=["a", "b"], mean=[], std=[],
                            settings={}, tasks=tasks, keys=[])  # fmt: skip
    for name in tasks:
        for row in steps.table(project.Task(name, about, Settings(), Plan.of(Settings()))):
            yield f"| {' | '.join(row.cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    outdated = [page for page, text in texts.items() if filled(text) != text]
    wrong = {page: rows for page, text in texts.items() if (rows := unsupported(text))}
    for page in outdated:
        print(page.relative_to(ROOT))
        if not options.check:
            page.write_text(filled(texts[page]), encoding="utf-8")
    for page, rows in wrong.items():
        print(f"{page.relative_to(ROOT)}: numbers that no named file contains", *rows, sep="\n  ")
    sys.exit(bool(wrong or (options.check and outdated)))


if __name__ == "__main__":
    main()

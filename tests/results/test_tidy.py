"""Tidy tables, pivot tables with counts of wins, and bold cells."""

import dataclasses
import itertools
import json

import pytest

import fnlkit as library
from fnlkit import evaluate
from fnlkit.artifacts.names import REAL_SITES
from fnlkit.results import grouping, plots, tidy
from fnlkit.results.plots import curves
from tests.commands import fnlkit, refuse_call, succeed
from tests.experiment.test_experiment import finish, problem, settings
from tests.recipes.test_reproduce import here as here  # noqa: PLC0414
from tests.tables import parse_csv


@pytest.fixture(scope="module")
def runs():
    """Two methods at two rates, two seeds."""
    cases = itertools.product(("fedavg", "flr"), (0.05, 0.2), (0, 1))
    return [finish(*problem(), settings(m, lr=lr, seed=seed, rounds=4)) for m, lr, seed in cases]


def test_a_tidy_table_has_every_option_and_unique_names(runs):
    rows = evaluate(*runs, say=None).tidy()
    assert len(rows) == 8
    assert len({tuple(row) for row in rows}) == 1
    for run, row in zip(runs, rows, strict=True):
        for name in ("method", "lr", "seed", "rounds", "select", "aggregator"):
            assert row[f"option_{name}"] == run.settings[name]
        best = max(one["accuracy"] for one in run.history)
        assert row["accuracy_best_percent"] == pytest.approx(100 * best)
        assert row["client_rounds"] == run.traffic.client_rounds


def test_an_evaluation_per_row_repeats_the_history(runs):
    rows = evaluate(*runs, say=None).tidy("evaluation")
    wanted = [(run.settings["seed"], row["round"] + 1, 100 * row["accuracy"]) for run in runs for row in run.history]
    assert [(row["option_seed"], row["round"], row["accuracy_percent"]) for row in rows] == wanted
    assert all(row["seconds"] >= 0 for row in rows)


def test_tidy_files_are_read_back(runs, tmp_path):
    rows = evaluate(*runs, say=None).tidy()
    tidy.write_tidy(rows, str(tmp_path / "a.csv"))
    lines = parse_csv(tmp_path / "a.csv")
    assert [float(line["accuracy_late_percent"]) for line in lines] == [row["accuracy_late_percent"] for row in rows]
    refuse_call("a.txt", tidy.write_tidy, rows, str(tmp_path / "a.txt"))
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    tidy.write_tidy([*rows, {**rows[0], "option_lr": "auto", "option_clip": None}], str(tmp_path / "a.parquet"))
    found = pandas.read_parquet(tmp_path / "a.parquet")
    assert found.shape == (9, len(rows[0]))
    assert found["option_lr"].tolist()[-1] == "auto"


def test_a_pivot_counts_columns_in_which_a_method_is_best(runs):
    found = evaluate(*runs, say=None)
    table, groups = found.pivot("method,lr", "lr"), found.groups("method,lr")
    means = {tuple(one["group"].values()): one["measures"]["accuracy_late"]["mean"] for one in groups}
    assert table.columns == ["method", "0.05", "0.2", "best in", "ahead, behind"]
    for row in table.rows:
        assert [100 * means[row[0], lr] for lr in (0.05, 0.2)] == [pytest.approx(cell.mean) for cell in row[1:3]]
        wins = [means[row[0], lr] == max(means[m, lr] for m in ("fedavg", "flr")) for lr in (0.05, 0.2)]
        assert [cell.bold for cell in row[1:3]] == wins
        assert row[3] == str(sum(wins))
    for words in ("method", "method,lr,rounds", "lr,rounds"):
        refuse_call("`pivot`", found.pivot, words, "seed" if words == "lr,rounds" else "lr")
    refuse_call("`show`", found.pivot, "method,lr", "lr", show="chosen")


def group(method, lr, mean, ahead=None, p=None):
    measures = {"accuracy_late": {"mean": mean, "spread": 0.01, "runs": 2}}
    difference = None if ahead is None else {"mean": ahead, "holm": p}
    return {
        "group": {"method": method, "lr": lr},
        "measures": measures,
        "ahead": {"accuracy_late": difference},
        "baseline": "a",
    }


def test_clear_differences_are_counted_after_holms_correction():
    found = [
        group("a", 1, 0.5), group("b", 1, 0.6, 0.1, 0.01),
        group("a", 2, 0.5), group("b", 2, 0.4, -0.1, 0.01),
        group("a", 3, 0.5), group("b", 3, 0.7, 0.2, 0.06),
    ]  # fmt: skip
    table = grouping.pivot(found, "lr")
    assert table.rows[1][4:] == ["2", "1, 1"]
    assert [cell.star for cell in table.rows[1][1:4]] == [True, True, False]


def test_groups_have_corrected_p_values(runs):
    from fnlkit.results.statistics import holm

    groups = evaluate(*runs, say=None).groups("method,lr")
    tests = [one["ahead"]["accuracy_late"] for one in groups if one["ahead"].get("accuracy_late")]
    assert len(tests) == 2
    assert [one["holm"] for one in tests] == holm([one["p"] for one in tests])


def test_commands_write_tidy_and_pivot_tables(runs, tmp_path):
    (tmp_path / "all").mkdir()
    for i, run in enumerate(runs):
        run.write(str(tmp_path / "all" / f"{i}.pt"))
    done = succeed("fnlkit evaluate all --by method,lr --pivot lr --latex --tidy t.csv --each evaluation", tmp_path)
    assert done.stdout.count(r"\mathbf") == 2
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 33
    for line in ("--pivot lr", "--pivot lr --json", "--tidy t.txt", "--by method,lr --pivot rounds"):
        assert fnlkit(f"fnlkit evaluate all {line}", tmp_path).returncode == 2
    assert fnlkit("fnlkit plot all --facet lr --size 6x3 -o a.pdf", tmp_path).returncode == 0
    for line in ("--size 6", "--size 0x3", "--facet nothing"):
        assert fnlkit(f"fnlkit plot all {line} -o a.pdf", tmp_path).returncode == 2


def test_a_run_over_real_sites_states_nothing_about_placeholders(runs):
    """Its labels are placeholders, and the command that wrote the project repeats the settings of the run."""
    about = {"dataset": REAL_SITES, "provenance": [{"command": "flower-app", "parameters": dict(runs[0].settings)}]}
    labels = {name: values for name, values in runs[0].labels.items() if name != "true"}
    away = dataclasses.replace(runs[0], labels=labels, meta={**runs[0].meta, **about})
    found = evaluate(away, runs[1], say=None)
    assert "labels_changed" not in found.rows[0] and not any("flower-app" in name for name in found.rows[0]["group"])
    refuse_call("at the sites", plots.draw, [("away.pt", away)], "partition")
    refuse_call("at the sites", plots.draw, [("away.pt", away)], "calibration")


# ---- runs are put together when they differ by seeds alone
RUNS = {
    "a0": ("symmetric(eta=0.2)", 0, ""),
    "a1": ("symmetric(eta=0.2)", 1, ""),
    "noise": ("symmetric(eta=0.4)", 0, ""),
    "lr": ("symmetric(eta=0.2)", 0, "--lr 0.1"),
    "dyn": ("symmetric(eta=0.2)", 0, "--optimizer 'feddyn(alpha=0.1)'"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    for name, (noise, seed, options) in RUNS.items():
        line = (
            f"fnlkit partition --clients 4 --seed {seed} | fnlkit inject-noise --noise '{noise}' --seed {seed} | "
            f"fnlkit train --rounds 1 --fraction 0.5 --epochs 1 --engine sequential --seed {seed} {options} -o {name}.pt"
        )
        succeed(line, folder)
    return folder


def test_only_seeds_make_repetitions(folder):
    done = fnlkit("fnlkit evaluate a0.pt a1.pt --json", folder)
    groups = [json.loads(line)["group"] for line in done.stdout.splitlines()]
    assert groups == [{"dataset": "digits", "method": "fedavg"}] * 2
    assert "group" not in json.loads(fnlkit("fnlkit evaluate a0.pt --json", folder).stdout)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ("lr", {"lr": (0.03, 0.1)}),
        ("dyn", {"optimizer": ("fedavg", "feddyn(alpha=0.1)")}),
        ("noise", {"inject-noise --noise": ("symmetric(eta=0.2)", "symmetric(eta=0.4)")}),
    ],
)
def test_any_other_difference_is_a_group_of_its_own_and_named(other, difference, folder):
    done = fnlkit(f"fnlkit evaluate a0.pt a1.pt {other}.pt --json", folder)
    groups = [json.loads(line)["group"] for line in done.stdout.splitlines()]
    ((name, (ours, theirs)),) = difference.items()
    assert [group[name] for group in groups] == [ours, ours, theirs]
    assert set(groups[0]) == {"dataset", "method", name}
    table = fnlkit(f"fnlkit evaluate a0.pt a1.pt {other}.pt", folder).stdout
    means = table[table.index("mean ± standard deviation") :]
    rows = [line.split() for line in means.splitlines() if line.strip().startswith("digits")]
    assert len(rows) == 2 and name.split()[-1] in means and str(theirs) in means
    assert sum("±" in row for row in rows) == 1


# ---- names of a recipe's rows in evaluate, tidy tables, plots and Python
RECIPE = """
dataset = "digits"
seeds = [0, 1]
methods = ["fedavg", { method = "fedavg", name = "fast", train = { lr = 0.1 } }]
[train]
rounds = 2
fraction = 0.5
epochs = 1
model = "mlp(hidden=[8])"
engine = "sequential"
[[regime]]
name = "first"
steps = ["partition --clients 4 --holdout 0.2"]
"""


@pytest.fixture
def named_runs(tmp_path, here):
    (tmp_path / "r.toml").write_text(RECIPE)
    succeed("fnlkit reproduce r.toml --jobs 1 -o runs --tidy runs.csv", tmp_path)
    return tmp_path


def test_names_of_rows_reach_evaluate_tidy_and_legends(named_runs):
    done = fnlkit("fnlkit evaluate runs --by name --json", named_runs)
    assert {json.loads(line)["group"]["name"] for line in done.stdout.splitlines()} == {None, "fast"}
    header, *lines = (named_runs / "runs.csv").read_text().splitlines()
    place = header.split(",").index("name")
    assert "regime" in header.split(",") and {line.split(",")[place] for line in lines} == {"", "fast"}
    runs = [library.load(path) for path in sorted((named_runs / "runs").glob("0-*.pt"))]
    assert "row" not in runs[0].meta  # the names are read from the named_runs when runs are evaluated
    found = library.evaluate(named_runs / "runs", say=None)
    figure = curves.accuracy(found.runs)
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert [label.partition(" (")[0] for label in labels] == ["fedavg", "fast"]


def test_a_recipe_runs_from_python(named_runs):
    said = []
    found = library.reproduce(str(named_runs / "r.toml"), output=str(named_runs / "runs"), jobs=1, seeds=1, say=said.append)
    assert [row["method"] for row in found.rows] == ["fedavg", "fast"] and not found.failed and "2/2" in said[-1]
    assert [row["name"] for row in found.tidy()] == [None, "fast"]
    assert found.summary().columns[:2] == ["method", "first"]
    refuse_call("no recipe", library.reproduce, "nothing")

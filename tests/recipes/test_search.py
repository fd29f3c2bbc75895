"""Searches of recipes, methods with different options, and stored results."""

import json
import shlex

import numpy as np
import pytest

from fnlkit.artifacts.run import Run
from fnlkit.errors import InputError
from fnlkit.recipes import recipe, reproduce, search, spaces, stored
from fnlkit.results.statistics import holm, p_value
from tests.commands import fnlkit, succeed
from tests.recipes.test_reproduce import here as here  # noqa: PLC0414

BASE = """
dataset = "digits"
seeds = [0]
methods = ["fedavg", { method = "fedavg", name = "kept", train = { select = "best-holdout", lr = 0.1 } }]
[train]
rounds = 4
fraction = 0.5
epochs = 1
model = "mlp(hidden=[4])"
engine = "sequential"
[[regime]]
name = "first"
steps = ["partition --clients 4 --holdout 0.2", "inject-noise --noise 'symmetric(eta=0.4)'"]
"""
SEARCH = """
[search]
budget = 4
seeds = [1]
[search.space]
lr = [0.01, 0.1, 0.3]
[search.spaces.kept]
momentum = { low = 0.0, high = 0.9 }
"""


def written(folder, text):
    path = folder / "r.toml"
    path.write_text(text)
    return recipe.load_recipe(str(path))


def train_all(jobs, folder):
    return reproduce.run(jobs, folder, at_once=1)


def test_methods_of_a_regime_differ_in_options(tmp_path):
    plain, kept = reproduce.jobs(written(tmp_path, BASE))
    assert (plain.label, plain.method, kept.label, kept.method) == ("fedavg", "fedavg", "kept", "fedavg")
    assert set(kept.train) - set(plain.train) == {"--select=best-holdout", "--lr=0.1"}
    assert plain.name != kept.name
    unnamed = written(tmp_path, BASE.replace('name = "kept", ', ""))
    assert [job.label for job in reproduce.jobs(unnamed)] == ["fedavg", "fedavg, select=best-holdout, lr=0.1"]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('name = "kept"', 'name = "fedavg"', "fedavg"),
        ("select = ", "selct = ", "selct"),
        ('method = "fedavg", ', "", "method"),
        ('"best-holdout", lr', '"worst", lr', "worst"),
        ("budget = 4", "budget = 1", "budget"),
        ("budget = 4", "budgets = 4", "budgets"),
        ("budget = 4", 'budget = 4\nstrategy = "grid"', "strategy"),
        ("seeds = [1]", "seeds = [0]", "seed"),
        ("lr = [0.01, 0.1, 0.3]", "lr = []", "lr"),
        ("lr = [0.01, 0.1, 0.3]", "lr = [-1.0]", "lr"),
        ("lr = [0.01, 0.1, 0.3]", "lrr = [1.0]", "lrr"),
        ("lr = [0.01, 0.1, 0.3]", "rounds = [1, 2]", "rounds"),
        ("lr = [0.01, 0.1, 0.3]", "method.beta = [1]", "beta"),
        ("low = 0.0", "low = 1.0", "momentum"),
        ("high = 0.9", "high = 1.9", "momentum"),
        ("high = 0.9", "high = 0.9, log = true", "low"),
        ("[search.spaces.kept]", "[search.spaces.lost]", "lost"),
        (" --holdout 0.2", "", "holdout=0.1"),
    ],
)
def test_a_mistake_in_a_recipe_is_named(old, new, named, tmp_path):
    text = BASE + SEARCH
    assert old in text
    with pytest.raises(InputError, match=named):
        written(tmp_path, text.replace(old, new))


def test_draws_are_different_within_their_space_and_begin_with_the_recipes_own_options():
    space = {"lr": {"low": 0.001, "high": 0.1, "log": True}, "epochs": {"low": 1, "high": 5}, "loss": ["ce", "gce"]}
    found = spaces.draw_configurations(space, 200, key="a")
    assert found[0] == {}
    assert len({json.dumps(one) for one in found}) == len(found) == 200
    assert all(
        0.00099 < one["lr"] < 0.101 and one["epochs"] in range(1, 6) and one["loss"] in space["loss"] for one in found[1:]
    )
    assert np.median([one["lr"] for one in found[1:]]) == pytest.approx(0.01, rel=0.5)  # the geometric middle
    assert found == spaces.draw_configurations(space, 200, key="a") != spaces.draw_configurations(space, 200, key="b")
    assert len(spaces.draw_configurations({"loss": ["ce", "gce"]}, 10, key="a")) == 3


@pytest.mark.parametrize("budget", [3, 6, 7, 30])
@pytest.mark.parametrize("strategy", spaces.STRATEGIES)
def test_a_search_costs_at_most_its_budget(budget, strategy):
    plan = spaces.rungs({"budget": budget, "strategy": strategy}, 64)
    assert sum(rung.configurations * rung.rounds for rung in plan) <= budget * 64
    assert plan[-1].rounds == 64
    assert all(a.configurations >= b.configurations for a, b in zip(plan, plan[1:], strict=False))


def test_a_search_chooses_by_held_out_labels_before_the_test_set_is_read(tmp_path, here):
    made = written(tmp_path, BASE + SEARCH)
    found, order = search.cells(made), []

    def make(jobs):
        order.append([job.name for job in jobs])
        return train_all(jobs, tmp_path / "runs")

    choices = search.search(found, tmp_path / "runs", make)
    assert {line["runs"] for line in choices} == {4}  # 1 own + 3 drawn of the list; also 4 of the wider space
    for cell, line in zip(found, choices, strict=True):
        scores = {}
        for one in cell.lines:
            for name in one["runs"]:
                run = Run.read(str(tmp_path / "runs" / f"{name}.pt"))
                assert not any("accuracy" in row for row in run.history)
                rows = [row["agreement"] for row in run.history]
                about = run.meta["selection"]
                scores[name] = max(rows) if about else rows[-1]  # the last fifth of four rounds is the last round
        assert line["score"] == max(scores.values())
        assert line["own_score"] == scores[cell.lines[0]["runs"][0]]
    jobs = reproduce.jobs(made, chosen=search.choices_by_cell(choices))
    for job, line in zip(jobs, choices, strict=True):
        given = dict(word.removeprefix("--").split("=", 1) for word in job.train)
        assert all(float(given[name]) == value for name, value in line["chosen"].items())
        assert "measure" not in given
    assert search.read_choices([tmp_path / "runs"]) == choices
    other = tmp_path / "other"
    other.mkdir()
    search.write_log([choices[0] | {"chosen": {"lr": 9}}], other)
    with pytest.raises(InputError, match="other values"):
        search.read_choices([tmp_path / "runs", other])


def test_halving_keeps_the_best_of_each_rung(tmp_path, here):
    made = written(tmp_path, BASE + SEARCH.replace("budget = 4", 'budget = 3\nstrategy = "halving"'))
    found = search.cells(made)
    search.search(found, tmp_path / "runs", lambda jobs: train_all(jobs, tmp_path / "runs"))
    for cell in found:
        for rung in range(2):
            lines = [line for line in cell.lines if line["rung"] == rung]
            following = [line["values"] for line in cell.lines if line["rung"] == rung + 1]
            best = sorted(lines, key=lambda line: -line["score"])[: len(following)]
            assert [line["values"] for line in lines if line in best] == following


def test_a_recipe_with_a_search_runs_as_a_command_and_again_from_its_log(tmp_path, here):
    (tmp_path / "r.toml").write_text(BASE + SEARCH)
    line = "fnlkit reproduce r.toml --jobs 1 -o runs --json"
    done = succeed(line, tmp_path)
    rows = [json.loads(text) for text in done.stdout.splitlines()]
    assert [row["search"]["method"] for row in rows if "search" in row] == ["fedavg", "kept"]
    again = succeed(f"{line} --no-train", tmp_path)
    assert [json.loads(text) for text in again.stdout.splitlines()] == rows
    table = fnlkit("fnlkit reproduce r.toml --no-train -o runs --latex", tmp_path).stdout
    assert table.count(r"\mathbf") == 1
    assert "first" in table
    lines = fnlkit("fnlkit reproduce r.toml --dry-run", tmp_path).stdout.splitlines()
    assert all(shlex.split(text, comments=True)[:1] in ([], ["fnlkit"]) for text in lines)
    assert fnlkit("fnlkit reproduce r.toml --no-train -o empty", tmp_path).returncode == 2


def test_one_more_method_is_compared_with_stored_results(tmp_path, here):
    (tmp_path / "r.toml").write_text(BASE)
    (tmp_path / "mine.py").write_text(
        "from fnlkit.methods.fedavg import fedavg\n\n\n"
        "def m(clients, model, opt, select, *, rounds):\n"
        "    return (yield from fedavg(clients, model, opt, select, rounds=rounds))\n"
    )
    succeed("fnlkit reproduce r.toml --jobs 1 -o runs --export cells.jsonl", tmp_path)
    header, cells = stored.read_cells(str(tmp_path / "cells.jsonl"))
    assert [cell["method"] for cell in cells] == ["fedavg", "kept"]
    done = succeed("fnlkit reproduce r.toml --jobs 1 -o new --add mine.py:m --stored cells.jsonl --json", tmp_path)
    rows = [json.loads(text) for text in done.stdout.splitlines()]
    assert [row["method"] for row in rows] == ["fedavg", "kept", "mine.py:m"]
    assert rows[2]["late_mean"] == pytest.approx(rows[0]["late_mean"], abs=1e-3)  # the same training, from another file
    assert sorted(path.name for path in (tmp_path / "new").glob("*.pt")) == ["0-add0-mine.py-m-0.pt"]
    for more in ("--rounds 2", "--add fedavg", "--stored r.toml"):
        line = f"fnlkit reproduce r.toml --jobs 1 -o new --add mine.py:m --stored cells.jsonl {more}"
        assert fnlkit(line, tmp_path).returncode == 2
    assert fnlkit("fnlkit reproduce r.toml --add flr", tmp_path).returncode == 2
    assert header["kind"] == stored.KIND


def test_holm_and_the_t_test_by_hand():
    """Holm: 0.01 x 3, then max(previous, 0.03 x 2), then max(previous, 0.04 x 1)."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    # differences 1, 2, 3: t = 2 / (1 / sqrt(3)) = 3.4641 with 2 degrees of freedom, p = 1 - t / sqrt(2 + t^2)
    assert p_value([1.0, 2.0, 3.0]) == pytest.approx(1 - 3.4641016 / np.sqrt(2 + 12))
    assert p_value([1.0]) is None
    assert p_value([0.0, 0.0]) == 1
    assert p_value([2.0, 2.0]) == 0


def test_the_log_keeps_regimes_that_ran_in_another_call(tmp_path, here):
    """Files of metrics next to the runs of a search are no logs."""
    made = written(tmp_path, BASE + SEARCH)
    found = search.cells(made)
    search.search(found, tmp_path / "runs", lambda jobs: train_all(jobs, tmp_path / "runs"))
    (tmp_path / "runs" / "search-0-0-0-0-9.metrics.jsonl").write_text('{"round": 0}\n')
    other = {"regime": "earlier", "method": "fedavg", "chosen": {"lr": 0.1}, "runs": 1}
    search.write_log([other, *found[0].lines], tmp_path / "runs")
    choices = search.search(search.cells(made), tmp_path / "runs", lambda jobs: train_all(jobs, tmp_path / "runs"))
    assert search.read_choices([tmp_path / "runs"]) == [other, *choices]

"""What a target accuracy cost: client-rounds, bytes and seconds at the first evaluation that reached it."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fnlkit
from fnlkit.artifacts.run import Run
from fnlkit.errors import InputError
from fnlkit.results import evaluation, grouping
from tests.commands import fnlkit as command
from tests.commands import succeed
from tests.tables import parse_csv


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    for method, lr in (("fedavg", 0.03), ("slow", 1e-6)):
        for seed in (0, 1):
            fed = fnlkit.partition("digits", clients=5, seed=seed)
            run = fnlkit.train(fed, rounds=6, fraction=0.4, epochs=1, lr=lr, seed=seed, say=None)
            run.write(folder / f"{method}-{seed}.pt")
    return folder


def test_each_row_of_the_history_has_its_time_also_after_a_resume(folder, tmp_path):
    fed = fnlkit.partition("digits", clients=5)
    first = fnlkit.train(fed, rounds=2, fraction=0.4, epochs=1, output=tmp_path / "run.pt", say=None)
    whole = fnlkit.train(fed, rounds=4, fraction=0.4, epochs=1, resume=tmp_path / "run.pt", say=None)
    before, after = (run.meta["machine"]["row_seconds"] for run in (first, whole))
    assert len(before) == len(first.history) == 2 and len(after) == len(whole.history) == 4
    assert after[:2] == before and np.all(np.diff([0.0, *after, whole.meta["machine"]["seconds"]]) >= 0) and after[0] > 0
    old = replace(first, meta=first.meta | {"machine": {k: v for k, v in first.meta["machine"].items() if k != "row_seconds"}})
    old.write(tmp_path / "old.pt")  # a run of before there were such times
    assert evaluation.summary(fnlkit.load(tmp_path / "old.pt"), target=0.01)["target_seconds"] is None
    continued = fnlkit.train(fed, rounds=4, fraction=0.4, epochs=1, resume=tmp_path / "old.pt", say=None)
    assert continued.meta["machine"]["row_seconds"][:2] == [None, None] and continued.meta["machine"]["row_seconds"][2] > 0


def test_times_that_do_not_fit_are_refused(folder, tmp_path):
    run = fnlkit.load(folder / "fedavg-0.pt")
    for times, says in (([1.0], "row_seconds has 1 entries for 6 rows"), (["soon"] * 6, "row_seconds")):
        replace(run, meta=run.meta | {"machine": run.meta["machine"] | {"row_seconds": times}}).write(tmp_path / "bad.pt")
        with pytest.raises(InputError, match=says):
            fnlkit.load(tmp_path / "bad.pt")


def test_the_target_is_the_first_row_that_reached_it(folder):
    run = fnlkit.load(folder / "fedavg-0.pt")
    scores = [row["accuracy"] for row in run.history]
    target = sorted(scores)[3]
    place = next(i for i, score in enumerate(scores) if score >= target)
    found = evaluation.summary(run, target=target)
    assert found["target_seconds"] == run.meta["machine"]["row_seconds"][place]
    for name in ("client_rounds", "bytes_up", "bytes_down"):
        assert found[f"target_{name}"] == run.history[place][name] > 0
    never = evaluation.summary(run, target=1.0)
    assert [never[f"target_{name}"] for name in ("client_rounds", "bytes_up", "bytes_down", "seconds")] == [None] * 4


def test_every_form_of_the_table_has_what_the_target_cost(folder):
    line = f"fnlkit evaluate {folder} --target 0.3 --by lr"
    groups = [json.loads(text) for text in command(f"{line} --json", folder).stdout.splitlines()]
    runs = [fnlkit.load(folder / f"fedavg-{seed}.pt") for seed in (0, 1)]
    cost = [evaluation.summary(run, target=0.3) for run in runs]
    fast = groups[0]
    assert [(one["reached"], one["runs"]) for one in groups] == [(2, 2), (0, 2)]
    for name in ("target_client_rounds", "target_bytes_up", "target_bytes_down", "target_seconds"):
        assert fast["measures"][name]["mean"] == pytest.approx(np.mean([row[name] for row in cost]))
        assert name not in groups[1]["measures"]  # what never was has no mean
    titles = [grouping.MEASURES[name][0] for name in grouping.MEASURES if name.startswith("target_")]
    for form in ("", "--latex", "--markdown", "--csv"):
        text = command(f"{line} {form}", folder, columns=500).stdout
        assert all(title in text for title in [*titles, "reached target", "2 of 2", "0 of 2"]), form
    first, last = parse_csv(command(f"{line} --csv", folder).stdout)
    assert float(first["seconds to target"]) == pytest.approx(fast["measures"]["target_seconds"]["mean"])
    assert last["seconds to target"] == "" and last["reached target"] == "0 of 2"


def test_several_runs_show_the_target_or_never(folder):
    text = command(f"fnlkit evaluate {folder} --target 0.3", folder).stdout
    lines = {line.split()[0].rpartition("/")[2]: line for line in text.splitlines() if ".pt" in line}
    assert "never" in lines["slow-0.pt"] and "never" not in lines["fedavg-0.pt"]
    assert "2 of 2" in text and "0 of 2" in text and "macro-F1" not in text
    assert "macro-F1" in command(f"fnlkit evaluate {folder} --test", folder).stdout


def test_differences_to_the_first_are_over_the_seeds_of_which_both_came_there(folder):
    runs = [fnlkit.load(folder / f"fedavg-{seed}.pt") for seed in (0, 1)]
    rows = [evaluation.summary(run, target=0.3) for run in runs]
    more = [row | {"target_client_rounds": row["target_client_rounds"] + 2 * (row["seed"] + 1)} for row in rows]
    more[1]["target_client_rounds"] = None
    others = [replace(run, settings=run.settings | {"method": "flr"}) for run in runs]
    _, two = grouping.groups([*runs, *others], [*rows, *more], ["method"])
    assert two["reached"] == 1 and two["ahead"]["target_client_rounds"] == {
        "mean": 2, "spread": None, "half": None, "pairs": 1, "clear": False, "p": None, "holm": None,
    }  # fmt: skip


def test_a_run_explains_a_number_of_rounds_that_is_not_the_budget(noisy, tmp_path):
    train = f"fnlkit train {noisy} --epochs 1 --model 'mlp(hidden=[8])' --rounds 20 --engine sequential"
    succeed(f"{train} --method fedcorr -o c.pt && {train} -o a.pt", tmp_path)
    shown = {name: command(f"fnlkit evaluate {name}.pt", tmp_path).stdout for name in "ca"}
    run = Run.read(str(tmp_path / "c.pt"))
    rounds = sum(row["stage"] != "final" for row in run.history)
    assert rounds != 20 and f"{rounds} rounds made 40 client-rounds (the budget of 20 rounds;" in shown["c"]
    assert "(the budget of 20 rounds;" in repr(run) and "budget" not in shown["a"]

"""What a target accuracy cost: client-rounds, bytes and seconds at the first evaluation that reached it."""

from dataclasses import replace

import numpy as np
import pytest

import fnlkit
from fnlkit.results import evaluation, grouping
from tests.commands import refuse_call


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
        refuse_call(says, fnlkit.load, tmp_path / "bad.pt")


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

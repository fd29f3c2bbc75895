"""Runs are put together when they differ by seeds alone; every other difference is named."""

import json

import pytest

from tests.commands import fnlkit, succeed

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

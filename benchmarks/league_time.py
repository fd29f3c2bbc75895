"""Training time of the league with this code and with other code, in turn.

    pip install --no-deps --target OLD git+URL@COMMIT     (and --target NEW . for this code)
    python -m benchmarks.league_time --dataset features.npz --old OLD --new NEW [--only 'symmetric 0.5'] [--rounds 60]

All methods of the old code's recipe `league` with one seed in each named regime, one run at a time, as `fnlkit reproduce`
executes them.  The seconds are those that the runs record, with training and evaluation, by the clock: leave a core free.  A
first call with few rounds compiles the kernels and is not counted.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from fnlkit.artifacts.run import Run

COMMAND = "from fnlkit.cli import main; main()"
REGIMES = ["clients(0.6, 0.5)", "sparse(0.4, 0.8), skewed"]


def league(folder, recipe, dataset, regime, rounds):
    """Return (seconds of training, finished runs) of the league's methods in a regime with the code of a folder."""
    with tempfile.TemporaryDirectory() as output:
        line = ["reproduce", recipe, "--dataset", dataset, "--only", regime, "--seeds", "1", "--jobs", "1", "-o", output]
        environment = os.environ | {"PYTHONPATH": str(folder.resolve()), "OMP_NUM_THREADS": "1"}
        whole = [sys.executable, "-P", "-c", COMMAND, *line, "--rounds", str(rounds)]
        subprocess.run(whole, env=environment, cwd=output, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        runs = [Run.read(str(path)) for path in Path(output).rglob("*.pt")]
    return sum(run.meta["machine"]["row_seconds"][-1] for run in runs), len(runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--only", action="append", help="a regime; can be repeated. Default: " + " and ".join(REGIMES))
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    path = next(options.old.resolve().rglob("league.toml"))  # its methods exist in both
    recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    all_runs = len(recipe["methods"]) * len(recipe["regime"]) * len(recipe["seeds"])
    print(f"league, {options.rounds} rounds, one seed, one run at a time: seconds of training")
    print(f"{'regime':28}{'runs':>6}{'old':>10}{'new':>10}{'new / old':>12}")
    totals, count = [0.0, 0.0], 0
    for folder in (options.old, options.new):
        league(folder, str(path), options.dataset, REGIMES[0], 12)
    for regime in options.only or REGIMES:
        found = [league(folder, str(path), options.dataset, regime, options.rounds) for folder in (options.old, options.new)]
        totals, count = [total + seconds for total, (seconds, _) in zip(totals, found, strict=True)], count + found[1][1]
        (old, runs), (new, again) = found
        assert runs == again, f"{runs} runs with the old code, {again} with the new code"
        print(f"{regime:28}{runs:6}{old:10.1f}{new:10.1f}{new / old:12.2f}", flush=True)
    hours = [total / count * all_runs / 3600 for total in totals]
    share = hours[1] / hours[0]
    print(f"scaled to {all_runs:,} runs: {hours[0]:.1f} and {hours[1]:.1f} hours, {share:.2f} of the old time")


if __name__ == "__main__":
    main()

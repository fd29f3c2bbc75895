"""Kill processes of a Flower deployment repeatedly and print how each run ended.

    python -m benchmarks.flower_failures --times 5

Starts the SuperLink and the SuperNodes of examples/flower_app once.  Each repetition kills one SuperNode during a round and
then the ServerApp, and prints one line.  A repetition is good if the round continued and client 2 was reported, the run of
the killed server failed, and the next submission resumed and finished it.
"""

import argparse
import json
import os
import runpy
import signal
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from fnlkit.artifacts.run import Run

SETTINGS = ["--rounds", "2", "--fraction", "1", "--epochs", "1", "--model", "mlp(hidden=8)", "--wait", "300"]


def until(condition, federation, run, seconds=400):
    """Wait for a condition; raise if the run ends or the time is over before it is met."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline or federation.status(run).startswith("finished"):
            raise RuntimeError(f"run {run} is {federation.status(run)}")
        time.sleep(0.5)


def serverapps(folder):
    """Return the ids of ServerApp processes whose working directory is in a folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and Path(os.readlink(process / "cwd")).is_relative_to(folder):
                if b"flwr-serverapp" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        except OSError:
            continue
    return found


def visits(folder):
    """Return the number of training messages in the log of site 2's SuperNode."""
    return (folder / "site-2.log").read_bytes().count(b"Receiving: train message")


def once(federation, folder):
    """Kill site 2 in round 0 and the server afterwards; return the outcome."""
    for name in ("run.pt", "run.pt.id", "run.metrics.jsonl"):
        (folder / name).unlink(missing_ok=True)
    asked = visits(folder)
    run = federation.submit()
    until(lambda: visits(folder) > asked, federation, run)
    os.killpg(federation.processes["site-2"].pid, signal.SIGKILL)
    federation.processes["site-2"].wait()
    until(lambda: (folder / "run.pt").exists(), federation, run)
    first = Run.read(str(folder / "run.pt"))
    for process in serverapps(folder):
        os.kill(process, signal.SIGKILL)
    killed = federation.wait(run)
    again = federation.wait(federation.submit(), each=federation.revive)
    whole = Run.read(str(folder / "run.pt"))
    named = [(entry["round"], entry["client"], entry["reason"]) for entry in first.rejected]
    kept = first.history[0]["clients"]
    good = killed != "finished:completed" and again == "finished:completed" and whole.finished and len(whole.history) == 2
    good = good and (named == [(0, 2, "its node did not reply")] and kept == [0, 1] or not named and kept == [0, 1, 2])
    return {"good": bool(good), "lost": named, "kept": kept, "killed_server": killed, "continued": again}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    example = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "examples/flower_app/run.py")))
    folder = Path(tempfile.mkdtemp(prefix="fnlkit-kills-"))
    example.prepare(folder, SETTINGS)
    good = 0
    with example.Federation(folder) as federation:
        for _ in range(times):
            began, found = time.monotonic(), once(federation, folder)
            good += found["good"]
            print(json.dumps(found | {"seconds": round(time.monotonic() - began)}), flush=True)
    print(f"{good} of {times}")


if __name__ == "__main__":
    main()

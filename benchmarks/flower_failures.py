"""Kill processes of a Flower deployment repeatedly and print how each run ended.

    python -m benchmarks.flower_failures --times 5

Starts the SuperLink and the SuperNodes of examples/flower_app once.  Each repetition kills one SuperNode during a round and
then the ServerApp, and prints one line.  A repetition is good if the round continued and client 2 was reported, the run of
the killed server failed, and the next submission resumed and finished it.

Then it starts a demonstration of `fnlkit flower-app` and prints one line for each other fault: a site that agreed to other
settings, a full disk, Ctrl-C and `sites stop`, a killed server, another version at a site, and a site that is killed and
started again at once.
"""

import argparse
import contextlib
import hashlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import datetime
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
    for name in ("run.pt", "run.pt.steps/id", "run.metrics.jsonl"):
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


DIGITS = ["--dataset", "digits", "--rounds", "8", "--fraction", "1", "--model", "mlp(hidden=16)", "--wait", "300"]


class Sites:
    """The server and the sites of a demonstration of `fnlkit flower-app`; a context manager that stops them.

    Parameters
    ----------
    folder : Path
    options : sequence of str
        Options of `fnlkit flower-app`.
    count : int
        Number of sites.
    """

    def __init__(self, folder, options=DIGITS, count=3):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.project, self.processes = folder, folder / "project", {}
        self.names = [f"site-{k}" for k in range(count)]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        about = ["--sites", str(count), "--address", f"localhost:{port}", "--demo"]
        if (done := self.command("flower-app", "project", *about, *options)).returncode:
            raise RuntimeError(done.stderr)

    def command(self, *words):
        """Return the finished process of a command of fnlkit in the folder."""
        return subprocess.run(["fnlkit", *words], cwd=self.folder, env=self.environment, capture_output=True, text=True)

    def __enter__(self):
        self.start("coordinator")
        keys = [f"project/sites/{name}/{name}.key.pub" for name in self.names]
        if (done := self.command("sites", "admit", "project", *keys)).returncode:
            raise RuntimeError(done.stderr)
        for name in self.names:
            self.start(f"sites/{name}")
        return self

    def start(self, part, **environment):
        with open(self.folder / f"{part.replace('/', '-')}.log", "ab") as log:
            how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            command = [self.project / part / "start.sh"]
            self.processes[part] = subprocess.Popen(command, env=self.environment | environment, **how)

    def connected(self, name, since):
        """Wait until the server lists a site as connected after a time (epoch); return the seconds until then.

        The server drops the entry of a killed process when its heartbeats stop, and refuses the new process until then.
        """
        while time.time() < since + 300:
            (row,) = [row for row in json.loads(self.command("sites", "status", "project", "--json").stdout)["sites"]
                      if row["site"] == name]  # fmt: skip
            if row["state"] == "online" and datetime.fromisoformat(row["contact"]).timestamp() > since:
                return round(time.time() - since, 1)
            time.sleep(1)
        raise RuntimeError(f"{name} did not connect again")

    def kill(self, part):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[part].pid, signal.SIGKILL)
        self.processes[part].wait()

    def __exit__(self, *error):
        for part in self.processes:
            self.kill(part)


class Followed:
    """`fnlkit sites run` of a task, a training by default, and the lines that it prints."""

    def __init__(self, sites, name, task="train", *options):
        self.sites, self.path, self.began = sites, sites.folder / f"{name}.log", time.monotonic()
        self.offset = self.path.stat().st_size if self.path.exists() else 0
        self.output = self.path.with_suffix(".pt" if task == "train" else ".json")
        words = ["fnlkit", "sites", "run", "project", "--task", task, *options, "-o", self.output.name]
        with open(self.path, "ab") as log:
            self.process = subprocess.Popen(words, cwd=sites.folder, env=sites.environment, stdout=log, stderr=log)

    def lines(self):
        """Return the printed lines."""
        return self.path.read_bytes()[self.offset :].decode().splitlines()

    def line(self, *parts, seconds=300):
        """Return the first printed line with these parts and the seconds until it, or (None, None)."""
        began = time.monotonic()
        while True:
            ended = self.process.poll() is not None
            for line in self.lines():
                if all(part in line for part in parts):
                    return line, round(time.monotonic() - began, 1)
            if ended or time.monotonic() > began + seconds:
                return None, None
            time.sleep(0.2)

    def end(self):
        """Return the exit code and the digest of the weights."""
        code = self.process.wait(600)
        run = Run.read(str(self.output)) if self.output.exists() else None
        return {"exit": code, "weights": run and hashlib.sha256(run.weights.numpy().tobytes()).hexdigest()[:16],
                "rejected": run and len(run.rejected)}  # fmt: skip


def undisturbed(sites):
    return {"line": "", "after": 0.0} | Followed(sites, "undisturbed").end()


def refusing(sites):
    """Site 1 has agreed to another method."""
    agreed = sites.project / "sites/site-1/project.json"
    before = agreed.read_text()
    agreed.write_text(before.replace('"method": "fedavg"', '"method": "elr"'))
    task = Followed(sites, "refusing")
    line, after = task.line("site-1", "did not agree", "method")
    agreed.write_text(before)
    return {"line": line, "after": after} | task.end()


def other_version(sites):
    """Site 1 is killed and starts with another version of fnlkit; later it is restarted at once with the right one."""
    place = sites.folder / "version"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        "from importlib import metadata\nfind = metadata.version\n"
        "metadata.version = lambda name: '0.0.1' if name == 'fnlkit' else find(name)\n"
    )
    sites.kill("sites/site-1")
    began = time.time()
    sites.start("sites/site-1", PYTHONPATH=str(place))
    connected = sites.connected("site-1", began)
    task = Followed(sites, "other_version")
    line, after = task.line("site-1", "0.0.1")
    sites.kill("sites/site-1")
    sites.start("sites/site-1")
    return {"line": line, "after": after, "connected": connected} | task.end()


def full_disk(sites):
    """The disk with the memory of site 2 is full for ten seconds."""
    memory = sites.project / "sites/site-2/memory"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", memory], capture_output=True).returncode:
        return {"skipped": "this user cannot mount a small disk"}
    try:
        task = Followed(sites, "full_disk")
        task.line("round 1")
        with contextlib.suppress(OSError), open(memory / "filling", "wb") as file:
            while True:
                file.write(bytes(1024))
                file.flush()
        line, after = task.line("site-2", "disk is full")
        time.sleep(10)
        (memory / "filling").unlink()
        return {"line": line, "after": after} | task.end()
    finally:
        subprocess.run(["umount", memory], check=True)


def follow_again(sites):
    """Ctrl-C, and the same command."""
    task = Followed(sites, "follow_again")
    task.line("round 1")
    task.process.send_signal(signal.SIGINT)
    interrupted = task.process.wait()
    again = Followed(sites, "follow_again")
    line, after = again.line("following")
    return {"line": line, "after": after, "interrupted": interrupted} | again.end()


def stopped(sites):
    """`fnlkit sites stop`, and the same command."""
    task = Followed(sites, "stopped")
    task.line("round 1")
    done = sites.command("sites", "stop", "project")
    line, after = task.line("was stopped")
    task.process.wait(60)
    return {"line": line, "after": after, "stop": done.returncode} | Followed(sites, "stopped").end()


def killed_server(sites):
    """The ServerApp is killed; `fnlkit sites status` shows it, and the same command continues."""
    task = Followed(sites, "killed_server")
    task.line("round 1")
    for process in serverapps(sites.project):
        os.kill(process, signal.SIGKILL)
    began, state = time.monotonic(), ""
    while state != "ended" and time.monotonic() < began + 120:
        found = json.loads(sites.command("sites", "status", "project", "--json").stdout)
        state = found["task"]["state"]
    after = round(time.monotonic() - began, 1)
    line, _ = task.line("the server process ended")
    return {"line": line, "after": after, "status": state} | Followed(sites, "killed_server").end()


def killed_site(sites):
    """The processes of site 2 are killed in mid-run and started again at once."""
    task = Followed(sites, "killed_site")
    task.line("round 1")
    sites.kill("sites/site-2")
    sites.start("sites/site-2")
    line, after = task.line("site-2")
    return {"line": line, "after": after} | task.end()


FAULTS = (undisturbed, refusing, full_disk, follow_again, stopped, killed_server, other_version, killed_site)


def faults(folder):
    """Yield {"fault", "line", "after", "exit", "weights", "rejected", "good"} for each fault.

    `line` is the line at the coordinator and `after` the seconds from the fault to it; of another version, from the
    connection of the site, whose seconds after a kill are `connected`.  A fault is good if its line is printed within a
    minute, the task ends with 0, and its weights are those of the undisturbed training unless the line names a lost round.
    """
    expected = None
    with Sites(folder) as sites:
        for fault in FAULTS:
            found = {"fault": fault.__name__} | fault(sites)
            expected = expected or found["weights"]
            if "skipped" not in found:
                good = found["exit"] == 0 and found["after"] is not None and found["after"] <= 60
                found["good"] = good and (found["weights"] == expected or found["rejected"] > 0)
            yield found


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
    for found in faults(folder / "faults"):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

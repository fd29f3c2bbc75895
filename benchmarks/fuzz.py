"""Fuzz campaign: changed inputs must not cause an internal error, a hang, or excessive memory.

    python -m benchmarks.fuzz --mutants 40000 --seed 0 [--only KIND] [--jobs 2] [--show 5]

A mutant is a valid input with one to three changes to the content (arrays, JSON, TOML, words of a spec), written with right
checksums, or with changed bytes.  Forked children read it with the commands, under a memory limit and a limit of five seconds
of computing.  Failures are: "internal error", a traceback, an undocumented exit code, a control character on the terminal,
a crash, a hang, and too much memory.  Two kinds are Flower messages, to a site and to a server: benchmarks/fuzz_flower.py.
"""

import argparse
import base64
import importlib.util
import io
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks import fuzz_flower
from benchmarks.mutations import (
    broken_spec,
    changed_array,
    changed_arrays,
    changed_artifact,
    changed_bytes,
    changed_tree,
    npz_of,
    pick,
    toml,
)
from fnlkit.artifacts import files, packing
from fnlkit.cli import main as fnlkit
from fnlkit.results import plots

# Kinds of plots that need only a run.
DRAWN = [name for name, kind in plots.KINDS.items() if kind.takes != "ranks" and name != "embeddings"]
SECONDS, WAITING, MEMORY, BATCH = 5, 30, 2**30, 40
MESSAGES = {"messages to a site": fuzz_flower.to_site, "messages to the server": fuzz_flower.to_server}
KINDS = ("run", "recipe", "user npz", "label and matrix files", "specs", "embeddings", "federation", "votes, metrics and keys")
KINDS += tuple(MESSAGES) if importlib.util.find_spec("flwr") else ()
# Shares of the campaign; a recipe is cheap, a run has the most content, and a message to the server needs a separate run.
SHARES = {"run": 5, "recipe": 4, "user npz": 4, "label and matrix files": 4, "specs": 5, "embeddings": 2, "federation": 4,
          "votes, metrics and keys": 3, "messages to a site": 4, "messages to the server": 2}  # fmt: skip
RECIPE = {
    "title": "t", "dataset": "digits", "seeds": [0, 1],
    "train": {"rounds": 2, "fraction": 0.5, "model": "mlp", "lr": 0.1},
    "regime": [{
        "name": "a", "steps": ["partition --clients 5", "inject-noise --noise 'symmetric(eta=0.4)'"],
        "methods": ["fedavg", "fedcorr(iterations=1)"], "published": {"fedcorr": [90.0, 1.0]}, "train": {"rounds": 3},
    }],
}  # fmt: skip
SPECS = {
    "train --method": ["fedcorr(beta=5, iterations=1)", "flr(strength=3, warmup=1)", "nnc(k=2, ties=lowest)",
                       "fedefc(latest=1)", "feddpcont(epsilon=1.0)", "na-fedavg(at=1)", "elr(momentum=0.5)",
                       "akd(source=logits)"],
    "train --optimizer": ["feddyn(alpha=0.1)", "fedprox(mu=0.01)"],
    "train --aggregator": ["trimmed-mean(share=0.2)", "median"],
    "train --selector": ["power-of-choice(d=3)", "uniform"],
    "train --model": ["mlp(hidden=[8, 4])", "lenet5", "auto"],
    "train --augment": ["augment(pad=1, flip=true, cutout=2)", "none"],
    "inject-noise --noise": ["clients(rho=0.6, tau=0.5)", "symmetric(eta=0.4)", "sparse(level=0.4, sparsity=0.5)",
                             "asymmetric(eta=0.2)", "instance(eta=0.3)", "random(eta=0.3)", "pairflip(eta=0.4)"],
    "partition --scheme": ["dirichlet(alpha=0.5)", "shards(per_client=2)", "openset(q=0.5)",
                           "sizes(sigma=0.25)", "bernoulli-dirichlet(p=0.7, alpha=10)"],
    "estimate-noise --estimator": ["knn(k=3)", "confident", "loss", "anchor(percentile=90)", "energy",
                                   "lid(k=4)", "em(steps=3)"],
    "estimate-noise --embeddings": ["pca(dim=3)", "pca(dim=2, seed=1)"],
    "train --backbone": ["wordllama", "torchvision(name=resnet19)", "none"],
    "methods NAME": ["fedcorr", "loss", "digits.py:f"],
    "methods --template": ["loss", "method"],
    "consensus --method": ["dawid-skene", "majority", "crowdlab"],
    "evaluate --by": ["method", "method,noise", "seed"],
    "flower-app --method": ["fedcorr(beta=5)", "feddpcont(epsilon=1.0)", "nnc"],
    "flower-app --protect": ["secagg(clip=2)"],
}  # fmt: skip


# ---- what is broken
def prepare(folder):
    """Create a valid input of each kind in a folder."""
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 6)).astype(np.float32), np.arange(60) % 3
    data = {"x_train": x, "y_train": y, "x_test": x[:9], "y_test": y[:9], "class_names": np.array(["a", "b", "c"])}
    np.savez(folder / "data.npz", **data, site_train=y % 2)
    np.savez(folder / "waves.npz", x_train=np.tile(x, (1, 300)), y_train=y, x_test=x[:9].repeat(300, 1), y_test=y[:9],
             sample_rate=np.array(8000))  # fmt: skip
    np.savez(folder / "images.npz", **data | {"x_train": rng.integers(0, 256, (60, 5, 5, 3), dtype=np.uint8),
                                              "x_test": rng.integers(0, 256, (9, 5, 5, 3), dtype=np.uint8)})  # fmt: skip
    rows = "".join(f"{y[i]},{x[i, 0]:.3f},{x[i, 1]:.3f},s{i % 2},{'train' if i % 5 else 'test'}\n" for i in range(60))
    (folder / "table.csv").write_text(f"label,f1,f2,site,split\n{rows}")
    np.savez(folder / "site.npz", x=x, y=y, split=np.array(["train"] * 50 + ["test"] * 10), ids=np.arange(60), y_true=y)
    np.save(folder / "labels.npy", y)
    np.save(folder / "matrix.npy", np.full((3, 3), 0.1) + 0.7 * np.eye(3))
    np.savez(folder / "probs.npz", probabilities=np.full((60, 3), 1 / 3))
    (folder / "votes.csv").write_text("id,Ann,Bob\n" + "".join(f"{i},{a},{(a + i % 2) % 3}\n" for i, a in enumerate(y)))
    np.savez(folder / "votes.npz", votes=np.stack([y, np.where(y > 0, y, -1)], 1))
    key = base64.b64encode(b"\0\0\0\x13ecdsa-sha2-nistp384" + bytes(100)).decode()
    (folder / "site.key.pub").write_text(f"ecdsa-sha2-nistp384 {key} somebody@somewhere\n")
    (folder / "labels.csv").write_text("given,clean\n" + "".join(f"{a},{a}\n" for a in y))
    fed, features = folder / "federation.npz", folder / "embeddings.npz"
    np.savez(features, embeddings=x[:, :3])
    train = ["train", fed, *QUICK]
    steps = [
        ["partition", "--dataset", folder / "data.npz", "--clients", 5, "--labels", "true", "-o", folder / "clean.npz"],
        ["inject-noise", folder / "clean.npz", "--noise", "clients(rho=0.6, tau=0.5)", "-o", fed],
        ["estimate-noise", fed, "--embeddings", features, "--estimator", "knn(k=3)", "-o", fed],
        ["audit", fed, *AUDIT, "-o", folder / "judged.npz"],
        ["review", "export", folder / "judged.npz", "--client", 1, "--budget", 5, "-o", folder / "review"],
        *[[*train, *options, "-o", folder / name] for name, options in RUNS.items()],
    ]
    if importlib.util.find_spec("matplotlib"):  # the first import is slow
        steps.append(["plot", folder / "run.pt", "-o", folder / "run.svg"])
    for step in steps:
        code, said, _ = call(step)
        if code:
            raise SystemExit(f"{step}: {said}")
    if MESSAGES.keys() & set(KINDS):
        fuzz_flower.prepare(folder)


QUICK = ["--rounds", 2, "--fraction", 0.4, "--epochs", 1, "--engine", "sequential", "--model", "mlp(hidden=[4])"]


WARM_UP = ["--rounds", 1, "--epochs", 1, "--engine", "sequential"]  # other engines compile, and each child would compile again
AUDIT = ["--detectors", "none"]
# Runs with different state: stages and rows, server and client state, releases, a frozen network with a head.
RUNS = {
    "run.pt": ["--method", "fedcorr(iterations=1)", "--rounds", 6],
    "memory.pt": ["--method", "flr(strength=3, warmup=1)", "--optimizer", "feddyn(alpha=0.1)"],
    "releases.pt": ["--method", "feddpcont(epsilon=1.0)", "--optimizer", "scaffold"],
}


def commands(kind, path, folder, rng):
    """Return the command lines that read a mutant."""
    fed, data, features = folder / "federation.npz", folder / "data.npz", folder / "embeddings.npz"
    place = folder / f"out-{os.getpid()}"
    out, train = ["-o", place], ["train", *QUICK]
    if kind == "run":
        options = RUNS.get(path.name.split("-", 2)[2], RUNS["run.pt"])
        return [pick(rng, [
            ["evaluate", path, "--json"], ["evaluate", path], ["info", path], ["info", path, "--json"],
            *2 * [[*train, fed, *options, "--resume", path, *out]],
            ["estimate-noise", fed, "--estimator", "loss", "--run", path, *out], ["evaluate", path, folder / "run.pt"],
            ["report", path, "-o", f"{place}.html"],
            ["predict", path, data, *out], ["predict", path, features], ["export", path, "-o", f"{place}.pt"],
            ["evaluate", path, folder / "memory.pt", "--by", "method"],
            ["report", path, folder / "run.pt", "-o", f"{place}.html"],
            ["plot", pick(rng, DRAWN), path, "-o", f"{place}.svg"],
        ])]  # fmt: skip
    if kind == "recipe":
        return [["reproduce", path, "--dry-run"]]
    if kind == "user npz":
        split, scheme = (
            folder / f"split-{os.getpid()}.npz",
            pick(rng, ["iid", "iid", "dirichlet(alpha=0.5)", "field(name=site)"]),
        )
        first = ["partition", "--dataset", path, "--clients", 3, "--scheme", scheme, "-o", split]
        noise = pick(rng, ["symmetric(eta=0.3)", "asymmetric(eta=0.2)", "instance(eta=0.2)"])
        second = pick(rng, [
            [*train, split, "--model", "auto", *out], ["inject-noise", split, "--noise", noise, *out],
            ["estimate-noise", split, "--embeddings", "pca(dim=2)", *out], ["audit", split, *AUDIT, *out],
            ["estimate-noise", split, *WARM_UP, "--estimator", pick(rng, ["loss", "anchor"]), *out],
        ])  # fmt: skip
        if rng.random() < 0.1:
            return [project(place, path)]
        return [first, second] if rng.random() < 0.9 else [["predict", folder / "run.pt", path, *out]]
    if kind == "votes, metrics and keys":
        if path.name.endswith(".jsonl"):
            return [["watch", path, "--once"]]
        if path.name.endswith(".pub"):
            return [[*project(place, data), "--key", path]]
        method = pick(rng, ["majority", "dawid-skene", "crowdlab"])
        probs = ["--probs", folder / "probs.npz"] if method == "crowdlab" else []
        return [["consensus", fed, path, "--method", method, *probs, *pick(rng, [[], ["--json"]]), *out]]
    if kind == "label and matrix files":
        if path.name.endswith("decisions.csv") and rng.random() < 0.5:
            return [["review", "import", folder / "judged.npz", path, *out]]
        return [pick(rng, [
            ["inject-noise", fed, "--noise", f'labels(path="{path}")', *out],
            ["inject-noise", fed, "--noise", f'matrix(path="{path}")', *out],
            ["partition", "--dataset", data, "--scheme", f'file(path="{path}")', *out],
            ["estimate-noise", fed, "--estimator", "confident", "--probs", path, *out],
            ["predict", folder / "run.pt", path, *out],
        ])]  # fmt: skip
    if kind == "specs":
        (command, option), spec = path
        where = {"train": [*train, fed], "partition": ["partition", "--dataset", data, "--clients", 3],
                 "consensus": ["consensus", fed, folder / "votes.csv"],
                 "evaluate": ["evaluate", folder / "run.pt", folder / "memory.pt"], "methods": ["methods"]}  # fmt: skip
        if command == "flower-app":
            return [[*project(place, data), f"{option}={spec}"]]
        rest = WARM_UP if command == "estimate-noise" else []
        line = [*where.get(command, [command, fed]), *rest, *([f"{option}={spec}"] if option != "NAME" else ["--", spec])]
        return [line if command in ("methods", "evaluate") else [*line, *out]]
    if kind == "embeddings":
        return [pick(rng, [
            [*train, fed, "--method", "nnc(k=2)", "--embeddings", path, *out],
            ["estimate-noise", fed, "--estimator", "knn(k=3)", "--embeddings", path, *out],
            ["inject-noise", fed, "--noise", f'labels(path="{path}", key=given)', *out],
        ])]  # fmt: skip
    return [pick(rng, [
        ["info", path], ["info", path, "--json"], [*train, path, *out], ["inject-noise", path, *out],
        ["partition", path, *out], ["evaluate", path], ["audit", path, *AUDIT, *out], ["correct", path, *out],
        ["review", "export", path, "--client", 1, "--budget", 4, "-o", f"{place}-review"],
        ["review", "import", path, folder / "review" / "decisions.csv", *out], ["plot", path, "-o", f"{place}.svg"],
        [*train, path, "--resume", folder / "run.pt", *RUNS["run.pt"], *out],
        ["estimate-noise", path, "--estimator", "knn(k=3)", "--embeddings", features, *out],
    ])]  # fmt: skip


def project(place, data):
    """Return the command line that writes a Flower project into a new folder."""
    shutil.rmtree(f"{place}-project", ignore_errors=True)
    return ["flower-app", f"{place}-project", "--dataset", data, "--sites", 1]


def mutant(kind, folder, rng):
    """Return the path of a changed input, or ((command, option), spec)."""
    if kind == "specs":
        where = pick(rng, list(SPECS))
        return tuple(where.split()), broken_spec(pick(rng, SPECS[where]), rng)
    source = {
        "run": [*RUNS], "recipe": ["recipe.toml"],
        "user npz": ["data.npz", "images.npz", "waves.npz", "site.npz", "table.csv"],
        "label and matrix files": ["labels.npy", "matrix.npy", "probs.npz", "labels.csv", "review/decisions.csv"],
        "embeddings": ["embeddings.npz"], "federation": ["federation.npz", "judged.npz"],
        "votes, metrics and keys": ["votes.csv", "votes.npz", "run.metrics.jsonl", "site.key.pub"],
    }[kind]  # fmt: skip
    name = pick(rng, source)
    path = folder / f"mutant-{os.getpid()}-{name.replace('/', '-')}"
    if kind == "recipe":
        raw = toml(changed_tree(RECIPE, rng)).encode("utf-8", "surrogatepass")
    elif name.endswith(".csv"):
        raw = (folder / name).read_bytes()
        raw = raw.replace(*pick(rng, [(b"1,", b"1.5,"), (b"2,2\n", b"\n"), (b",", b";"), (b"0", b"-9"), (b"1", b"9" * 30),
                                      (b"given", b""), (b"2,", b"nan,"), (b"\n", b"\r\n"), (b"0,0\n", b'"0\n,0\n')]),
                          int(rng.integers(1, 40)))  # fmt: skip
    elif name.endswith(".jsonl"):
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        raw = "".join(f"{json.dumps(row)}\n" for row in changed_tree(rows, rng)).encode("utf-8", "surrogatepass")
    elif name.endswith(".pub"):
        raw = changed_bytes((folder / name).read_bytes(), rng)
    elif kind in ("run", "federation"):
        raw = changed_artifact(files.read(folder / name), "pt" if kind == "run" else "npz", rng)
    elif name.endswith(".npy"):
        raw = b"".join(map(bytes, packing.npy(packing.plain(changed_array(np.load(folder / name), rng), "array"))))
    else:
        with np.load(folder / name) as found:
            raw = npz_of(changed_arrays(dict(found), rng))
    if rng.random() < 0.15:
        raw = changed_bytes(raw, rng)
    if name == "site.npz":  # a file of a folder
        path = path.with_suffix("")
        path.mkdir(exist_ok=True)
        (path / "b.npz").write_bytes((folder / name).read_bytes())
        path = path / "a.npz"
    path.write_bytes(raw)
    return path.parent if name == "site.npz" else path


# ---- running it
def call(arguments):
    """Run a command in this process; return (exit code, stderr, stdout)."""
    before = sys.stdin, sys.stdout, sys.stderr
    said, shown = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), shown, said
    try:
        fnlkit(list(map(str, arguments)))
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        said.flush(), shown.flush()
    return code, *(stream.buffer.getvalue().decode(errors="replace") for stream in (said, shown))


class Hang(BaseException):
    """A mutant took too long."""


def _alarm(*_):
    raise Hang


def judge(kind, folder, seed, index, loud=False):
    """Return "" for a mutant that was handled correctly, otherwise the failure."""
    rng = np.random.default_rng([seed, KINDS.index(kind), index])
    if kind in MESSAGES:
        return judge_message(kind, folder, rng, loud)
    lines = commands(kind, mutant(kind, folder, rng), folder, rng)
    for line in lines:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            code, said, shown = call(["-vv", *line] if loud else line)
            if loud:
                print(*line, said)
        except Hang:
            return f"{line[0]}: no end after {SECONDS} s of computing"
        except BaseException as error:  # noqa: BLE001 - what got past the last line of defence
            return f"{line[0]}: {type(error).__name__} {error}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        last = said.strip().splitlines()[-1] if said.strip() else ""
        if "internal error" in said or "Traceback" in said:
            return f"{line[0]}: {last[:300]}"
        if "this machine's memory" in last:
            return f"{line[0]}: memory: {last[:300]}"
        odd = next((c for c in said + shown if not c.isprintable() and c not in "\n\t"), None)
        if odd is not None:
            return f"{line[0]}: control character {ascii(odd)} on the terminal"
        if code not in (0, 1, 2):
            return f"{line[0]}: exit code {code}: {last[:300]}"
        if code and not last:
            return f"{line[0]}: exit code {code} without a word"
        if code:
            break
    return ""


def judge_message(kind, folder, rng, loud=False):
    """Return "" for a Flower message that was handled correctly, otherwise the failure."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return MESSAGES[kind](folder, rng, loud)
    except Hang:
        return f"{kind}: no end after {SECONDS} s of computing"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def work(kind, folder, seed, first, count, pipe):
    """Judge mutants in a forked child; the parent receives a line per mutant."""
    with open("/proc/self/statm", encoding="ascii") as handle:
        now = int(handle.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    for index in range(first, first + count):
        with fuzz_flower.unsynced():
            found = judge(kind, folder, seed, index)
        os.write(pipe, (json.dumps([index, found]) + "\n").encode())
    os.write(pipe, (json.dumps([-1, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]) + "\n").encode())


class Child:
    """A forked child and the output so far."""

    def __init__(self, kind, folder, seed, first, count):
        self.kind, self.first, self.count, self.done, self.rest = kind, first, count, 0, b""
        self.pipe, theirs = os.pipe()
        self.process, self.heard, self.used = os.fork(), time.monotonic(), 0.0
        if not self.process:
            try:
                os.close(self.pipe)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # output of libraries
                work(kind, folder, seed, first, count, theirs)
            finally:
                os._exit(0)
        os.close(theirs)

    def listen(self):
        """Return ([(index, result)] since the last call, whether the child has ended)."""
        raw = os.read(self.pipe, 65536)
        self.heard, self.used = time.monotonic(), self.compute()[0]
        *lines, self.rest = (self.rest + raw).split(b"\n")
        return [json.loads(line) for line in lines], not raw

    def compute(self):
        """Return (seconds of computing so far, process state of ps)."""
        with open(f"/proc/{self.process}/stat", encoding="ascii") as handle:
            words = handle.read().rpartition(") ")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"), words[0]

    def late(self):
        """Return whether the child hangs: it waits, or computes in compiled code that no alarm interrupts."""
        if time.monotonic() - self.heard < WAITING:
            return False
        now, state = self.compute()
        waits = state == "S" and now - self.used < 0.2
        if not waits:
            self.heard = time.monotonic()
        return waits or now - self.used > 3 * SECONDS

    def end(self):
        os.kill(self.process, signal.SIGKILL) if self.done < self.count else None
        os.close(self.pipe)
        os.waitpid(self.process, 0)


def campaign(folder, mutants, seed, *, kinds=KINDS, jobs=2, minutes=0, began=None):
    """Return ({kind: mutants}, [(kind, index, failure)], peak bytes of a child), and print each failure to stderr at once.

    Parameters
    ----------
    folder : Path
        Folder of the valid inputs of `prepare`.
    mutants, seed, jobs : int
    minutes : float
        Time after which running mutants are ended and not counted; 0 has no limit.
    began : float, optional
        Time (`time.monotonic`) from which `minutes` counts. Default: now.
    """

    def fail(kind, index, failure):
        failures.append((kind, index, failure))
        print(f"{kind} {index}: {failure}", file=sys.stderr, flush=True)

    whole = sum(SHARES[kind] for kind in kinds)
    todo, counts, failures, peak, running = [], {}, [], 0, []
    for kind in kinds:
        counts[kind] = max(1, round(mutants * SHARES[kind] / whole))
        todo += [(kind, first, min(BATCH, counts[kind] - first)) for first in range(0, counts[kind], BATCH)]
    todo = [todo[i] for i in np.random.default_rng(seed).permutation(len(todo))]  # an early end covers all kinds
    end = (time.monotonic() if began is None else began) + 60 * minutes if minutes else np.inf
    while todo or running:
        if time.monotonic() > end:
            for kind, _, count in todo:
                counts[kind] -= count
            for child in running:
                counts[child.kind] -= child.count - child.done
                child.end()
            break
        while todo and len(running) < jobs:
            kind, first, count = todo.pop()
            running.append(Child(kind, folder, seed, first, count))
        ready, _, _ = select.select([child.pipe for child in running], [], [], 1)
        for child in list(running):
            lines, gone = child.listen() if child.pipe in ready else ([], False)
            for index, found in lines:
                if index < 0:
                    peak = max(peak, found)
                    continue
                child.done += 1
                if found:
                    fail(child.kind, index, found)
            late = child.late()
            if gone or late:
                if child.done < child.count:
                    at = child.first + child.done
                    slow = f"no end after {WAITING} s of waiting, or in compiled code"
                    fail(child.kind, at, slow if late else "the process died")
                    if child.done + 1 < child.count:
                        todo.append((child.kind, at + 1, child.count - child.done - 1))
                child.end()
                running.remove(child)
    return counts, failures, peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=0, help="End after so many, whatever is running; 0 goes on.")
    parser.add_argument("--at", type=int, nargs="+", help="Only these mutants of the kind --only names, with tracebacks.")
    chosen = parser.parse_args()
    kinds = [kind for kind in KINDS if chosen.only in kind]
    began = time.monotonic()
    signal.signal(signal.SIGPROF, _alarm)  # children inherit it
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place))
        if chosen.at:
            for index in chosen.at:
                print(f"---- {kinds[0]} {index}:", judge(kinds[0], Path(place), chosen.seed, index, loud=True))
            return
        for kind in kinds:
            judge(kind, Path(place), 0, 10**6)  # import before the children fork
        counts, failures, peak = campaign(
            Path(place),
            chosen.mutants,
            chosen.seed,
            kinds=kinds,
            jobs=chosen.jobs,
            minutes=chosen.minutes,
            began=began,
        )
    for kind, count in counts.items():
        found = [f for f in failures if f[0] == kind]
        print(f"{kind:24} {count:7,} mutants {len(found):6,} failures")
        alike = Counter(text[:80] for _, _, text in found)
        for text, times in alike.most_common():
            examples = [(i, t) for _, i, t in found if t[:80] == text][:3]
            print(f"    {times:5} x {examples[0][1]}   at {', '.join(str(i) for i, _ in examples)}")
    seconds = time.monotonic() - began
    print(
        f"{sum(counts.values()):,} mutants, {len(failures):,} failures, {seconds:.0f} s, peak {peak / 2**20:.0f} MiB a process"
    )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

"""CPU and wall seconds of short commands, of compiling and loading kernels, and the heavy libraries that each imports.

    python -m benchmarks.startup [--repeats 3] [--only TEXT ...] [--against COMMIT] [--busy]
    python -m benchmarks.startup --all
    python -m benchmarks.startup --readme
    python -m benchmarks.startup --kernels

Without --all, only the commands of README's pipe and audit, report and plot run: about 130 CPU seconds, most of it audit.

Each command runs in a new process: the help of every command, and every command that needs no server on 1,797 digits.  The
first use of a method runs with an empty cache of compiled kernels.  CPU seconds are user plus system time with quartiles,
wall seconds the median.  With --against an older commit of the repository runs in turn with this one, with the same installed
packages, and the ratio of the medians is printed.  --busy runs each command alone and beside a busy process on one of two
cores, and prints the ratio.  --readme runs the first command of README.md in a clone of the repository and a new virtual
environment, and prints its parts.  --kernels compiles all kernels and prints the CPU seconds of each.  Bytecode is written
and read as users do, whatever PYTHONDONTWRITEBYTECODE is here.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
PIPE = [
    "partition -o clean.npz",
    "inject-noise clean.npz -o noisy3.npz",
    "estimate-noise noisy.npz -o judged3.npz",
    "estimate-noise noisy.npz --estimator confident -o judged4.npz",
    "train noisy.npz -o run4.pt",
    "evaluate run.pt",
    "audit noisy.npz -o audited.npz",
    "audit five.npz -o audited.npz",
    "report run.pt -o report.html",
    "plot accuracy run.pt -o curves.svg",
]
WORK = [
    "partition --clients 4 -o fed2.npz",
    "inject-noise fed.npz -o noisy2.npz",
    "estimate-noise fed.npz --embeddings emb.npz -o judged2.npz",
    "train fed.npz --rounds 2 -o run2.pt",
    "train fed.npz --rounds 2 --engine workers --workers 4 --fraction 1 -o run3.pt",
    "review suspects judged.npz -o suspects.csv",
    "review export judged.npz --client 1 --budget 5 -o review",
    "review import judged.npz decisions.csv -o reviewed.npz",
    "correct judged.npz -o corrected.npz",
    "consensus fed.npz people.csv -o agreed.npz",
    "plot partition fed.npz -o partition.svg",
    "plot noise judged.npz -o noise.svg",
    "watch run.metrics.jsonl --once",
    "reproduce",
    "reproduce regimes --dry-run",
    "reproduce fedcorr/table10 --dry-run",
    "predict run.pt samples.npy",
    "export run.pt -o model.pt",
    "flower-app demo --dataset digits --sites 2",
    "estimate-noise fed.npz --embeddings pca(dim=8) -o judged3.npz",
    "methods",
    "methods fedcorr",
    "methods --template loss",
    "data list",
    "data info digits",
    "info fed.npz",
    "info judged.npz",
    "info run.pt",
    "doctor --no-test",
    "--version",
]
RUN = """
import sys
from fnlkit.cli import main
try:
    main(sys.argv[1:])
finally:
    heavy = "torch", "numba", "sklearn", "matplotlib"
    print("imports:", *[name for name in heavy if name in sys.modules], file=sys.stderr)
"""
# A step of both networks: everything that `train` loads at the first visit of a client.
LOAD = """
import sys, time
import numpy as np
from fnlkit.kernels import fused
def step(net, *shape):
    x = np.zeros((2, *shape), "f4")
    theta = np.zeros(fused.fused_parameters(net), "f4")
    fused.fused_fit(net, theta, x, np.array([0, 1]), np.array([[0, 1]]), fused.FusedSteps(0.1))
cpu, wall = time.process_time(), time.perf_counter()
{STEPS}
print("seconds:", time.process_time() - cpu, time.perf_counter() - wall, file=sys.stderr)
print("imports:", *({"torch", "numba"} & set(sys.modules)), file=sys.stderr)
"""
FIRST = [f"train fed.npz --method {name} --rounds 5 -o first.pt" for name in ("fedavg", "fedcorr", "flr")]
# Both messages of a site with 100,000 samples of 256 columns; the sums of two other sites come before.
LARGE = f"""
import sys, time
sys.path.append({str(ROOT)!r})
from benchmarks.by_mail import cost
cost(1_000, 128)
first, second, _ = cost(100_000, 256)
print("seconds:", first + second, first + second, file=sys.stderr)
print("imports:", *({{"torch", "sklearn"}} & set(sys.modules)), file=sys.stderr)
"""
STEPS = {"MLP": 'step(("mlp", (4, 3, 2)), 4)', "LeNet-5": 'step(("lenet5", 1, 2), 28, 28, 1)'}


def commands_with_help():
    """Return the words of every command, with the subcommands."""
    from fnlkit.cli import COMMANDS, group

    out = []
    for name in COMMANDS:
        inner = getattr(group.get_command(None, name), "commands", {})
        out += [[name], *([name, each] for each in inner)]
    return out


def prepare(folder):
    """Write the input files of the commands."""
    import fnlkit

    noisy = fnlkit.inject_noise(fnlkit.partition("digits", clients=4, say=None), say=None)
    fnlkit.save(noisy, folder / "fed.npz")
    fnlkit.save(fnlkit.inject_noise(fnlkit.partition("digits", say=None), say=None), folder / "noisy.npz")
    fnlkit.save(fnlkit.partition("digits", say=None), folder / "clean.npz")
    fnlkit.save(fnlkit.partition("digits", clients=5, labels="observed", say=None), folder / "five.npz")
    vectors = np.random.default_rng(0).random((len(noisy.given), 8), np.float32)
    fnlkit.save(fnlkit.estimate_noise(noisy, "knn", embeddings=vectors, say=None), folder / "judged.npz")
    fnlkit.export_review(fnlkit.load(folder / "judged.npz"), 1, folder / "page", budget=5, say=None)
    (folder / "decisions.csv").write_text((folder / "page/decisions.csv").read_text().replace(",,,,", ",keep,,,"))
    (folder / "people.csv").write_text("id,a,b\n0,1,1\n1,2,2\n")
    (folder / "run.metrics.jsonl").write_text('{"round": 1, "stage": "train", "accuracy": 0.5}\n')
    np.save(folder / "samples.npy", np.zeros((3, 8, 8, 1), np.uint8))
    np.savez(folder / "emb.npz", embeddings=vectors)
    once(None, RUN, "train fed.npz --rounds 2 -o run.pt".split(), folder)


def once(root, code, arguments, folder):
    """Return (CPU seconds, wall seconds, imported libraries) of a process with the fnlkit of a folder, or the installed one."""
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | ({"PYTHONPATH": root} if root else {})
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in ("review", "demo", "no-kernels"):
        shutil.rmtree(folder / name, ignore_errors=True)  # commands that write a folder require a new one
    if arguments[-1:] == ["first.pt"]:
        environment["NUMBA_CACHE_DIR"] = str(folder / "no-kernels")
    with tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode, wall = os.waitstatus_to_exitcode(status), time.perf_counter() - began
        errors.seek(0)
        lines = errors.read().splitlines()
    if process.returncode:
        raise SystemExit(f"{shlex.join(arguments)}: exit code {process.returncode}: {lines[-2:]}")
    found = {key: rest.split() for key, _, rest in (line.partition(":") for line in lines) if key in ("imports", "seconds")}
    inside = [float(word) for word in found.get("seconds", [])]
    cpu, wall = inside or (usage.ru_utime + usage.ru_stime, wall)
    return cpu, wall, " ".join(sorted(found["imports"], reverse=True))


def readme():
    """Print the CPU and wall seconds of the parts of README's first command in a new environment."""
    line = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("pip install "))
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(["git", "clone", "-q", str(ROOT), f"{name}/fnlkit"], check=True)
        subprocess.run([sys.executable, "-m", "venv", f"{name}/venv"], check=True)
        environment = os.environ | {"PATH": f"{name}/venv/bin{os.pathsep}{os.environ['PATH']}"}
        environment.pop("NUMBA_CACHE_DIR", None)
        for part in line.split(" && "):
            began = time.perf_counter()
            process = subprocess.Popen(["bash", "-c", part], cwd=f"{name}/fnlkit", env=environment)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode, wall = os.waitstatus_to_exitcode(status), time.perf_counter() - began
            print(
                f"{part:40}{usage.ru_utime + usage.ru_stime:8.2f} CPU s{wall:8.2f} s, exit code {process.returncode}",
                flush=True,
            )


def kernels():
    """Compile all kernels with an empty cache, and print the CPU seconds of each; the first one also loads the compiler."""
    with tempfile.TemporaryDirectory() as name:
        os.environ["NUMBA_CACHE_DIR"] = name
        from numba.core import event

        from fnlkit.pipeline.compiling import compile_kernels

        class Listener(event.Listener):
            depth = 0

            def on_start(self, event):
                self.depth, self.began = self.depth + 1, time.process_time() if self.depth == 0 else self.began

            def on_end(self, event):
                self.depth -= 1
                if self.depth == 0:
                    function, kinds = event.data["dispatcher"].py_func, str(event.data["args"])
                    seconds, real = time.process_time() - self.began, "float32" if "float32" in kinds else "float64"
                    name = f"{function.__module__.removeprefix('fnlkit._kernels.')}.{function.__qualname__}"
                    print(f"{name:32} {real}{seconds:7.2f}", flush=True)

        event.register("numba:compile", Listener())
        compile_kernels()


@contextlib.contextmanager
def older(commit):
    """Unpack a commit of this repository so that PYTHONPATH makes it importable, and yield the folder."""
    with tempfile.TemporaryDirectory() as name:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", name], input=archive, check=True)
        for inner in ("cli", "data"):  # as setup.py maps them
            os.symlink(f"../{inner}", f"{name}/fnlkit/{inner}")
        yield name


@contextlib.contextmanager
def busy():
    """Keep the first of the allowed cores busy with another process."""
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(root, code, arguments, folder, beside=contextlib.nullcontext):
    with beside():
        return once(root, code, arguments, folder)


def listed(everything):
    """Return the rows (label, code, arguments)."""
    rows = [(f"fnlkit {line}", RUN, line.split()) for line in PIPE]
    rows.append(("audit of a site with 100,000 x 256 values", LARGE, []))
    if not everything:
        return rows
    rows += [(f"kernels of {name}, from the cache", LOAD.replace("{STEPS}", code), []) for name, code in STEPS.items()]
    rows += [("kernels of both networks, from the cache", LOAD.replace("{STEPS}", "\n".join(STEPS.values())), [])]
    rows += [
        ("import fnlkit", "import sys, fnlkit\nprint('imports:', *{'torch', 'numba'} & {*sys.modules}, file=sys.stderr)", [])
    ]
    rows += [(f"first use: fnlkit {line}", RUN, line.split()) for line in FIRST]
    rows += [(f"fnlkit {line}", RUN, line.split()) for line in WORK]
    return rows + [(f"fnlkit {' '.join(words)} --help", RUN, [*words, "--help"]) for words in commands_with_help()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[""], metavar="TEXT", help="run only rows with one of these texts")
    parser.add_argument("--all", action="store_true", help="run every command, the help pages, and loading of kernels")
    parser.add_argument("--readme", action="store_true", help="run only the first command of README.md, installation included")
    parser.add_argument("--kernels", action="store_true", help="compile all kernels and print the CPU seconds of each")
    parser.add_argument("--against", metavar="COMMIT", help="commit that runs in turn with this one, for a ratio")
    parser.add_argument("--busy", action="store_true", help="run each command also beside a busy process, for a ratio")
    options = parser.parse_args()
    if options.readme:
        readme()
        return
    if options.kernels:
        kernels()
        return
    if options.against and options.busy:
        parser.error("--against and --busy are two measurements; write one of them")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        columns = {"this": (None, contextlib.nullcontext)}
        if options.against:
            columns = {options.against: (stack.enter_context(older(options.against)), contextlib.nullcontext)} | columns
        if options.busy:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
            columns = {"alone": columns["this"], "beside a busy process": (None, busy)}
        print(f"median of {options.repeats} processes (quartiles): {', then '.join(columns)}")
        print(f"{'':52}" + f"{'CPU s':21}{'wall s':8}{'imports':28}" * len(columns) + ("ratio" if len(columns) > 1 else ""))
        prepare(folder)
        for label, code, arguments in listed(options.all or options.only != [""]):
            if not any(text in label for text in options.only):
                continue
            for root, _ in columns.values():  # bytecode and kernels are compiled by an earlier use
                once(root, code, arguments, folder)
            samples = [
                [measure(root, code, arguments, folder, beside) for root, beside in columns.values()]
                for _ in range(options.repeats)
            ]
            cells, medians = [], []
            for column in zip(*samples, strict=True):
                low, middle, high = statistics.quantiles([cpu for cpu, _, _ in column], n=4)
                wall = statistics.median(wall for _, wall, _ in column)
                cells.append(f"{f'{middle:5.2f} ({low:.2f}-{high:.2f})':21}{wall:5.2f}   {column[0][2]:28}")
                medians.append(middle)
            ratio = f"{medians[1] / medians[0]:5.2f}" if len(medians) > 1 else ""
            print(f"{label:52}" + "".join(cells) + ratio, flush=True)


if __name__ == "__main__":
    main()

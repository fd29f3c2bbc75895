"""A part of any kind is one file: named by a line of its registry, or by FILE.py:NAME, and then it runs from the shell."""

import functools
import json
import re
import shutil

import numpy as np
import pytest
import torch

from benchmarks.size import ROOT
from fnlkit import models
from fnlkit.artifacts.run import Run
from fnlkit.core import own, registry
from fnlkit.encoders import embed
from fnlkit.estimators import ESTIMATORS
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.settings import Settings
from fnlkit.federated import engines
from fnlkit.federated.engines.travel import pack, unpack
from fnlkit.simulate import partitioning
from fnlkit.simulate.noise.injection import MODELS
from tests.commands import fnlkit, refuse, refuse_call, succeed

TABLES = {
    "method": registry.METHODS,
    "loss": registry.LOSSES,
    "optimizer": registry.OPTIMIZERS,
    "aggregator": registry.AGGREGATORS,
    "selector": registry.SELECTORS,
    "schedule": registry.SCHEDULES,
    "model": models.NETWORKS,
    "noise": MODELS,
    "scheme": partitioning.SCHEMES,
    "estimator": ESTIMATORS,
    "backbone": embed.BACKBONES,
}
SHORT = "--rounds 2 --fraction 0.5 --epochs 1 --batch-size 60 --engine sequential"
TRAIN = f"fnlkit train fed.npz --model 'mlp(hidden=[8])' {SHORT} -o run.pt"
LINES = {
    "noise": "fnlkit inject-noise fed.npz --noise '{}' -o out.npz",
    "scheme": "fnlkit partition --clients 5 --scheme '{}' -o out.npz",
    "estimator": "fnlkit estimate-noise fed.npz --estimator '{}' --rounds 2 -o out.npz",
    "backbone": "fnlkit estimate-noise fed.npz --embeddings '{}' -o out.npz",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    succeed("fnlkit partition --clients 4 | fnlkit inject-noise -o fed.npz", folder)
    for kind in TABLES:
        shutil.copy(ROOT / f"data/templates/{kind}.py", folder / f"my_{kind}.py")
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A folder with a small federation and a file of each part; its modules are importable."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def line(kind, name):
    return LINES[kind].format(name) if kind in LINES else f"{TRAIN} --{kind} '{name}'"


@pytest.mark.parametrize("kind", TABLES)
def test_one_file_and_one_line_of_the_registry_add_a_part(kind, folder, monkeypatch):
    """Templates, which tests/cli/test_methods.py runs without a line of the registry."""
    (parameter,) = re.findall(r"mine\.py:part\((\w+)=", (folder / f"my_{kind}.py").read_text())
    monkeypatch.setitem(TABLES[kind], "mine", f"my_{kind}:part")
    succeed(line(kind, "mine"), folder)
    refuse(line(kind, "mine(wrong=1)"), folder, f"it takes: {parameter}")
    assert (folder / "run.pt").exists() or (folder / "out.npz").exists()


def test_user_components_are_used(folder):
    """Not only that they run: the method's report, the clients of at least 360 samples, and another model of the server."""
    parts = "--method my_method.py:part --selector 'my_selector.py:part(least=360)'"
    runs = []
    for more in ("", " --optimizer my_optimizer.py:part"):
        succeed(f"{TRAIN} {parts}{more}", folder)
        runs.append(Run.read(str(folder / "run.pt")))
    assert [row["clients"] for row in runs[1].history] == [[0, 1]] * 2 and runs[1].history[0]["took_part"] == 2
    assert not torch.equal(runs[0].weights, runs[1].weights)
    rows = [json.loads(row) for row in (folder / "run.metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["mine"] * 2


def test_an_engine_is_one_line_too(folder, monkeypatch):
    (folder / "my_engine.py").write_text("from fnlkit.federated.engines.sequential import Sequential as Mine\n")
    monkeypatch.setitem(engines.ENGINES, "mine", "my_engine:Mine")
    assert fnlkit(f"{TRAIN} --engine mine", folder).returncode == 0
    assert Run.read(str(folder / "run.pt")).meta["machine"]["engine"] == "mine"


def test_parts_of_a_file_travel_to_worker_processes_by_its_path(folder):
    """Loss, drift term and network of the user's; the workers end with the bytes of sequential."""
    parts = "--model my_model.py:part --optimizer my_optimizer.py:part --loss 'my_loss.py:part(power=1.5)'"
    found = []
    for engine in ("sequential", "workers --workers 1"):
        succeed(f"{TRAIN} {parts} --engine {engine}", folder)
        found.append(Run.read(str(folder / "run.pt")).weights)
    assert torch.equal(*found)
    loss = functools.partial(own.load_function(f"{folder / 'my_loss.py'}:part", "loss"), power=3.0)
    packed = pack(loss)
    assert packed[1] == ("own", str(folder / "my_loss.py"), "part")
    assert unpack(packed).func is loss.func and unpack(packed).keywords == {"power": 3.0}


def test_a_user_file_can_import_its_neighbors(folder):
    (folder / "powers_of_a_part.py").write_text("POWER = 3\n")
    loss = "def part(logits, batch):\n    return logits[..., 0] ** POWER\n"
    (folder / "uses.py").write_text(f"from powers_of_a_part import POWER\n\n{loss}")
    assert fnlkit(f"{TRAIN} --loss uses.py:part --lr 0.001", folder).returncode == 0


ROWS = """import torch
from fnlkit.methods.fedavg import Round

def step(client, model, received):
    client.rows["score"] = {}

def part(clients, model, opt, select, *, rounds):
    replies = clients.round([0, 1], model, step)
    yield Round(model, "train", replies, {{}})
"""
MISTAKES = {
    "no file": ("loss", None, "there is no file my.py"),
    "no name": ("loss", "def parts(logits, batch): pass", "my.py has no 'part'; did you mean 'parts'?"),
    "no function": ("loss", "part = 3", "is int; expected a function of (logits, batch, *, parameters)"),
    "syntax": ("loss", "def part(logits, batch):\n    return (", "my.py, line 2: SyntaxError"),
    "import": ("loss", "\nimport nowhere_at_all", "my.py, line 2: ModuleNotFoundError"),
    "leaves": ("loss", "import sys\nsys.exit(3)", "my.py, line 2: SystemExit"),
    "signature": ("loss", "def part(logits): pass", "my.py, line 1, in part: takes (logits); a loss is called as"),
    "too many": ("loss", "def part(logits, batch, rate): pass", "parameters after a `*`"),
    "before the star": ("loss(rate=1)", "def part(logits, batch, rate=2): pass", "'rate' cannot be set; write it after"),
    "raises": ("loss", "def part(logits, batch):\n    return oops", "my.py, line 2, in part: NameError: name 'oops' is not"),
    "a key": (
        "loss",
        "def part(logits, batch):\n    return batch.rows['nowhere']",
        "my.py, line 2, in part: KeyError: 'nowhere'; batch.rows has no entries",
    ),
    "short rows": ("method", ROWS.format("torch.zeros(2)"), "left client.rows['score'] without one entry per sample"),
    "rows of numpy": ("method", ROWS.format("client.y.numpy()"), "left client.rows['score'] without one entry per sample"),
    "a mean": ("loss", "def part(logits, batch):\n    return logits.mean()", "my.py, line 1, in part: returned shape ()"),
    "nothing": ("loss", "def part(logits, batch):\n    pass", "returned NoneType; expected one value per sample"),
    "no generator": ("method", "def part(clients, model, opt, select, *, rounds): pass", "a method is a generator"),
    "yields": ("method", "def part(clients, model, opt, select, *, rounds):\n    yield 3", "yielded int; a method yields"),
    "divides": ("method", "def part(clients, model, opt, select, *, rounds):\n    yield 1 / 0", "my.py, line 2, in part: Zero"),
    "no FedOpt": ("optimizer", "def part(fit, **settings): pass", "returned NoneType; expected a FedOpt"),
    "half a vector": ("aggregator", "def part(stacked, weights):\n    return stacked[0, :3]", "returned (3,); expected one"),
    "no selector": ("selector", "def part(*, fraction): pass", "returned NoneType; expected a function (clients, model"),
    "fails to select": (
        "selector",
        "class part:\n    def __init__(self, *, fraction):\n        self.fraction = fraction\n"
        "    def __call__(self, clients, model, among=None):\n        return clients.nobody",
        "my.py, line 5, in __call__: AttributeError",
    ),
    "no corruption": ("noise", "def part(ground): pass", "returned NoneType; expected fnlkit.simulate.noise.Corruption"),
    "no parts": ("scheme", "def part(labels, classes, clients, rng): pass", "returned None; expected a list of"),
    "no judgment": ("estimator", "def part(evidence): pass", "returned NoneType; expected a Judgment"),
    "no vectors": ("backbone", "def part(dataset, forward):\n    return [1, 2]", "expected (n, d)"),
    "no module": ("model", "def part(*, input_shape, classes): pass", "it must return a torch.nn.Module"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_part_is_one_line_that_names_it(mistake, folder):
    kind, text, says = MISTAKES[mistake]
    kind, _, rest = kind.partition("(")
    if text is not None:
        (folder / "my.py").write_text(text + "\n")
    done = refuse(line(kind, f"my.py:part{'(' * bool(rest)}{rest}"), folder, says)
    assert says in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_exception_texts_of_user_components_stay_on_the_client(folder):
    """Its own sentence may quote them; the interpreter's about a name does not."""
    (folder / "my.py").write_text("def part(logits, batch):\n    raise TypeError(f'{batch.y.tolist()} of someone')\n")
    assert "someone" not in refuse(line("loss", "my.py:part"), folder, "my.py, line 2, in part: TypeError\n").stderr


def test_the_key_of_a_sample_stays_on_the_client(folder):
    (folder / "my.py").write_text("def part(logits, batch):\n    key = str(batch.y.tolist())\n    return {}[key]\n")
    assert "[" not in refuse(line("loss", "my.py:part"), folder, "my.py, line 3, in part: KeyError; batch").stderr


def test_a_step_without_a_name_is_refused_in_one_line_before_it_is_sent(folder):
    (folder / "my.py").write_text(ROWS.format("None").replace("model, step)", "model, lambda client, model, received: None)"))
    named = "<lambda>", "bind its parameters with functools.partial"
    refuse(line("method", "my.py:part") + " --engine workers --workers 1", folder, *named)


def test_unnamed_files_are_not_imported(folder):
    (folder / "ce.py").write_text("raise SystemExit('imported')\n")
    assert fnlkit(f"{TRAIN} --loss ce", folder).returncode == 0


# ---- data sets and measures
LOADER = """import numpy as np

def blobs(*, samples=80, shift=3.0):
    rng = np.random.default_rng(0)
    y = np.arange(samples) % 2
    x = (rng.normal(size=(samples, 4)) + shift * y[:, None]).astype(np.float32)
    return {"x_train": x, "y_train": y, "x_test": x[:20], "y_test": y[:20]}

def nothing():
    return 3
"""


def test_a_user_loads_a_data_set(tmp_path):
    (tmp_path / "mine.py").write_text(LOADER)
    data = "--dataset 'mine.py:blobs(samples=60)'"
    first = f"fnlkit partition {data} --clients 3 --labels true -o fed.npz && fnlkit inject-noise fed.npz -o n.npz {data}"
    train = "fnlkit train n.npz --rounds 2 --fraction 1 --epochs 1 --engine sequential -o run.pt"
    done = succeed(f"{first} && {train} {data} && fnlkit evaluate run.pt {data} --json", tmp_path)
    assert '"dataset": "mine.py:blobs(samples=60)"' in done.stdout
    # A file that names a loader does not run it.
    for line in (train, "fnlkit evaluate run.pt", "fnlkit audit fed.npz -o a.npz"):
        refuse(line, tmp_path, "a loader of yours: reading it runs that code")
    # It can lie in another folder, and the next command names it.
    (tmp_path / "my code").mkdir()
    shutil.copy(tmp_path / "mine.py", tmp_path / "my code/mine.py")
    spec = '"my code/mine.py:blobs"(samples=60)'
    there = succeed(f"fnlkit partition --clients 2 --labels observed --dataset '{spec}' -o there.npz", tmp_path)
    whole = succeed(f"fnlkit inject-noise --dataset '{spec}' -o whole.npz", tmp_path)
    for done in (there, whole):
        assert done.stderr.splitlines()[-1].endswith(f"--dataset '{spec}'")
    refuse("fnlkit partition --dataset mine.py", tmp_path, "write mine.py:NAME")
    refuse("fnlkit partition --dataset mine.py:nothing", tmp_path, "returned int; return arrays x_train")
    refuse("fnlkit partition --dataset 'mine.py:blobs(samplse=3)'", tmp_path, "did you mean 'samples'?")
    refuse("fnlkit train n.npz --dataset 'mine.py:blobs(samples=60, shift=2.0)' -o run.pt", tmp_path, "--dataset")


def test_a_run_that_fails_before_its_first_row_keeps_the_rows_of_the_run_in_its_place(folder):
    succeed(TRAIN, folder)
    before = (folder / "run.metrics.jsonl").read_bytes()
    (folder / "scores.py").write_text("def bad(probs, labels):\n    return probs\n")
    done = refuse(f"{TRAIN} --overwrite --measure scores.py:bad", folder, "return finite numbers")
    assert (folder / "run.metrics.jsonl").read_bytes() == before and len(done.stderr.splitlines()[-1]) < 200
    succeed(f"{TRAIN} --overwrite", folder)
    assert (folder / "run.metrics.jsonl").read_bytes().count(b"\n") == before.count(b"\n")


def test_a_user_measures_each_evaluated_model(folder):
    text = "import numpy as np\n\ndef balanced(probs, labels, *, power=1.0):\n"
    text += "    hit = probs.argmax(-1) == labels\n"
    text += "    return float(np.mean([hit[labels == c].mean() for c in np.unique(labels)]) ** power)\n\n"
    text += "def both(probs, labels):\n    return {'sharp': probs.max(-1).mean(), 'rows': len(labels)}\n\n"
    text += "def bad(probs, labels):\n    return {'accuracy': 1.0}\n\ndef fails(probs, labels):\n    return probs['x']\n"
    (folder / "scores.py").write_text(text)
    row = json.loads(succeed(f"{TRAIN} --measure scores.py:balanced && fnlkit evaluate run.pt --json", folder).stdout)
    run = Run.read(str(folder / "run.pt"))
    assert all(0 <= each["balanced"] <= 1 for each in run.history) and row["balanced_last"] == run.history[-1]["balanced"]
    assert row["balanced_last"] == pytest.approx(np.mean(row["class_accuracy"]))
    assert fnlkit(f"{TRAIN} --measure scores.py:both", folder).returncode == 0
    assert Run.read(str(folder / "run.pt")).history[-1]["rows"] == 359
    for name, says in {
        "bad": "'accuracy' cannot be a column",
        "fails": "scores.py, line 14, in fails: IndexError",
        "none": "has no 'none'",
        "balanced(p=1)": "has no parameter 'p'",
    }.items():
        refuse(f"{TRAIN} --measure 'scores.py:{name}'", folder, says)
    refuse(f"{TRAIN} --measure accuracy", folder, "write auto, holdout, or FILE.py:NAME")


# ---- losses and methods
@pytest.mark.parametrize("method", registry.METHODS)
def test_methods_with_their_own_loss_refuse_a_user_loss(method):
    if registry.brings_loss(method):
        refuse_call(f"{method}.* has its own loss; remove `loss`", Plan.of, Settings(method=method, loss="gce"))
    assert Plan.of(Settings(method=method)).loss.__name__ == "cross_entropy"


@pytest.mark.parametrize("line", ["from .util import factor", "from . import util", "from ..common import factor"])
def test_a_digest_covers_relative_imports(line, tmp_path):
    """mine.py imports helpers/inner/loss.py, which imports a file of its own package or of the package above."""
    package = tmp_path / "helpers" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "mine.py").write_text("from helpers.inner.loss import loss\n")
    (package / "loss.py").write_text(f"{line}\n\n\ndef loss(logits, batch):\n    return factor\n")
    (edited := package.parent / "common.py" if ".." in line else package / "util.py").write_text("factor = 1\n")
    before = own.digest(f"{tmp_path}/mine.py:loss")
    edited.write_text("factor = 2\n")
    assert own.digest(f"{tmp_path}/mine.py:loss") != before

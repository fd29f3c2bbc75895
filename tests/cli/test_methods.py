"""`fnlkit methods` explains every component, and `fnlkit doctor` finds what works and, above all, what does not."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata

import pytest

from fnlkit.cli.parts import KINDS, describe_parameters, find_all, purpose
from fnlkit.core import own
from fnlkit.core.spec import find
from fnlkit.federated.engines import ENGINES
from fnlkit.pipeline import doctor
from tests.commands import fnlkit, refuse, succeed

# ---- `fnlkit methods`: every part of every kind explains itself, and a template of each kind runs as its first lines say
PARTS = [(kind, name) for kind, each in KINDS.items() for name in each.parts()]


def test_every_kind_can_also_be_a_user_component():
    assert set(KINDS) == set(own.CALLS)


def test_descriptions_leave_out_the_arguments_of_the_caller(tmp_path):
    for kind, name in PARTS:
        function = find(name, KINDS[kind].parts(), kind)
        inner = {*own.CALLS[kind][0], *own.CALLS[kind][1], *KINDS[kind].given}
        rows = describe_parameters(kind, function)
        assert not inner & {row[0] for row in rows}, name
        for parameter, _, may_be, meaning in rows:
            assert may_be and meaning, f"{kind} {name}: nothing says what {parameter} means"
    for name in ("fedprox", "symmetric", "power-of-choice", "gce", "knn"):
        done = fnlkit(f"fnlkit methods {name}", tmp_path)
        ((kind, function),) = find_all(name)
        head, _, rest = done.stdout.partition("\n")
        assert done.returncode == 0 and head.startswith(f"{name}, a") and f" {kind}: fnlkit " in head, done.stderr
        assert purpose(function).split()[-1].rstrip(".") in rest
        assert not re.search(r"^ *(clients|model|opt|select|evidence|ground|stacked|logits)\b +:", rest, re.MULTILINE)


OWN = """
def mine(logits, batch, *, power=2.0):
    \"\"\"Count easy samples less.

    Parameters
    ----------
    power : float
        How much less.
    \"\"\"

def program(clients, model, opt, select, *, rounds, every: int = 1):
    yield

class chosen:
    def __init__(self, *, fraction, first=0):
        pass

def network(*, input_shape, classes):
    pass

def two(x, y):
    pass

def six(a, b, c, d, e, f):
    pass
"""


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("mine", ["loss"]),
        ("program", ["method"]),
        ("chosen", ["selector"]),
        ("network", ["model"]),
        ("two", ["loss", "aggregator", "regularizer", "schedule", "backbone"]),
    ],
)
def test_a_user_component_is_described(name, kinds, tmp_path):
    """Of the kind whose arguments it has; of every kind that it can be called as, if its arguments have other names."""
    (tmp_path / "my_own.py").write_text(OWN)
    done = succeed(f"fnlkit methods my_own.py:{name}", tmp_path)
    assert re.findall(rf"^my_own\.py:{name}, an? (\w+): fnlkit", done.stdout, re.MULTILINE) == kinds
    if name == "mine":
        assert "Count easy samples less" in done.stdout and "How much less" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_template_of_each_kind_runs(kind, tmp_path):
    done = succeed(f"fnlkit methods --template {kind}", tmp_path)
    (tmp_path / "mine.py").write_text(done.stdout)
    lines = re.findall(r"^    (fnlkit .*)$", done.stdout, re.MULTILINE)
    ran, line = fnlkit(" && ".join(lines), tmp_path), lines[-1]
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / line.split()[-1]).exists()
    (parameter,) = re.findall(r"mine\.py:part\((\w+)=", line)
    refuse(line.replace(f"({parameter}=", "(nonsense="), tmp_path, f"it takes: {parameter}")


def test_json_has_a_line_per_component(tmp_path):
    done = fnlkit("fnlkit methods --json", tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["kind"], row["name"]) for row in rows] == PARTS, done.stderr
    (one,) = [json.loads(line) for line in fnlkit("fnlkit methods gce --json", tmp_path).stdout.splitlines()]
    assert one in rows and [p["name"] for p in one["parameters"]][0] == "q" and one["purpose"]
    losses = fnlkit("fnlkit methods losses --json", tmp_path).stdout.splitlines()
    assert {json.loads(line)["kind"] for line in losses} == {"loss"}
    assert fnlkit("fnlkit methods gec --json", tmp_path).returncode == 2


# ---- doctor finds what works and, above all, what does not
def test_engines_are_tried_and_agree(tmp_path):
    found = json.loads(succeed("fnlkit doctor --json", tmp_path).stdout)
    assert [one["engine"] for one in found["engines"] if one["device"] == "cpu"] == list(ENGINES)
    ran = {one["engine"]: one for one in found["engines"] if one["runs"]}
    assert {"sequential", "stacked", "workers", "fused"} <= set(ran) and found["fit"] and not found["broken"]
    assert ran["sequential"]["difference"] == 0 and ran["workers"]["difference"] == 0
    assert all(one["why"] for one in found["engines"] if not one["runs"])


def test_version_prints_the_versions_of_the_libraries(tmp_path, monkeypatch):
    lines = fnlkit("fnlkit --version", tmp_path).stdout.splitlines()
    assert lines[0] == f"fnlkit {metadata.version('fnlkit')}" and f"torch {metadata.version('torch')}" in lines
    before = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "scipy" else before(name))
    assert "scipy not installed" in fnlkit("fnlkit --version", tmp_path).stdout.splitlines()


def test_an_engine_that_disagrees_is_broken(monkeypatch, tmp_path):
    """Training is replaced: what is tested is the judgment of what comes out of it."""
    import torch

    def tiny(federation, engine, device):
        if engine == "stacked":
            return torch.tensor([1.0, 1.1])
        if engine == "workers":
            raise OSError("no such\ndevice")
        return torch.tensor([1.0, float("nan") if engine == "fused" else 1.0])

    monkeypatch.setattr(doctor, "_tiny", tiny)
    done = fnlkit("fnlkit doctor", tmp_path)
    assert done.returncode == 1 and "fnlkit: error: 3 broken, the first: engine stacked" in done.stderr
    assert "engine workers on cpu fails: OSError: no such device" in done.stdout and "engine fused on cpu" in done.stdout


@pytest.mark.parametrize(
    ("library", "version", "words"), [("rich", None, "rich is not installed"), ("torch", "0.1", "torch is 0.1, fnlkit needs")]
)
def test_a_library_that_does_not_fit_is_broken(library, version, words, monkeypatch, tmp_path):
    before = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: version if name == library else before(name))
    done = fnlkit("fnlkit doctor --json", tmp_path)
    facts = json.loads(done.stdout)
    assert done.returncode == 1 and not facts["fit"] and words in facts["broken"][0]
    assert facts["engines"] == []


@pytest.mark.slow
def test_compile_covers_every_kernel():
    """In a process of its own, because kernels that another test has called would count."""
    code = """
import json
from fnlkit.pipeline.compiling import list_cached_functions, compile_kernels
found = compile_kernels()
used = {name: len(function.signatures) for name, function in list_cached_functions().items()}
print(json.dumps([found, used]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found, used = json.loads(done.stdout)
    entries = {name for name in used if ".fused." not in name or name.rsplit(".", 1)[1] in ("fit", "predict")}
    assert len(entries) > 20 and not {name for name in entries if not used[name]}
    assert found["compiled"] + found["loaded"] >= len(entries) and os.path.isdir(found["folder"])


def test_compile_prints_numbers_and_folder_and_names_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    from fnlkit.pipeline import compiling

    monkeypatch.setattr(compiling, "_call_numerical", lambda real: None)
    monkeypatch.setattr(compiling, "_call_fused", lambda: None)
    monkeypatch.setattr(compiling, "cache_folders", lambda: (tmp_path / "missing", tmp_path))
    facts = json.loads(succeed("fnlkit doctor --compile --json", tmp_path).stdout)
    assert facts["folder"] == str(tmp_path) and facts.keys() == {"compiled", "loaded", "seconds", "folder"}
    monkeypatch.setattr(compiling, "cache_folders", lambda: (tmp_path / "missing",))
    done = fnlkit("fnlkit doctor --compile", tmp_path)
    assert done.returncode == 1 and "missing" in done.stderr and "NUMBA_CACHE_DIR" in done.stderr

"""`fnlkit methods`: every part of every kind explains itself, and a template of each kind runs as its first lines say."""

import json
import re

import pytest

from fnlkit.cli.parts import KINDS, describe_parameters, find_all, purpose
from fnlkit.core import own
from fnlkit.core.spec import find
from tests.commands import fnlkit, refuse, succeed

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

"""The commands of docs/your-data.md, in their order, on the data that its example makes."""

import csv
import re
import runpy
from pathlib import Path

import pytest

from fnlkit.artefacts.federation import Federation
from tests.commands import fnlkit

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/your-data.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (fnlkit .*)$", TEXT, re.MULTILINE)
PARTITIONS = [line for line in COMMANDS if line.startswith("fnlkit partition")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    runpy.run_path(str(ROOT / "examples/your_data.py"))["main"](folder)
    return folder


def run(line, folder):
    done = fnlkit(line, folder)
    assert done.returncode == 0, (line, done.stderr)
    return done


@pytest.mark.parametrize("line", PARTITIONS)
def test_every_form_gives_five_clients_with_their_names(line, folder):
    if "parquet" in line:
        pytest.importorskip("pyarrow")
    said = run(line, folder).stderr
    federation = Federation.read(str(folder / line.split()[-1]))
    assert federation.names == ["Aix", "Bonn", "Cork", "Delft", "Örebro"] and federation.true is None
    assert not any(number.isdecimal() for number in federation.meta["class_names"]), said


def test_samples_without_a_label_are_predicted(folder):
    train, predict = COMMANDS[-2:]
    run(PARTITIONS[0], folder)
    assert "without a label" in run("fnlkit info fed.npz", folder).stdout
    run(train, folder)
    run(predict, folder)
    with (folder / "suggested.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(range(4, 720, 50)) and all(row["sample"].startswith("P-") for row in rows)
    assert {row["name"] for row in rows} <= {"zero", "one", "two", "three", "four"}


def test_the_tables_of_the_page_are_those_of_the_example(folder):
    for block, name in (("path,diagnosis", "cases.csv"), ("age;crp", "patients.csv")):
        head = re.search(rf"^    ({block}.*)$", TEXT, re.MULTILINE)[1]
        assert (folder / name).read_text(encoding="utf-8").splitlines()[0] == head

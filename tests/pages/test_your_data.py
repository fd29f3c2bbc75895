"""The commands of docs/your-data.md, in their order, on the data that its example makes."""

import csv
import re

import pytest

from fnlkit.artifacts.federation import Federation
from tests.pages.steps import ROOT, steps, walk

pytestmark = pytest.mark.slow
TEXT = (ROOT / "docs/your-data.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return folder, walk("docs/your-data.md", folder)


PARTITIONS = [
    step.text
    for step in steps("docs/your-data.md")
    if step.text.startswith("fnlkit partition --dataset") and "--clients" not in step.text  # those make clients without sites
]


@pytest.mark.parametrize("line", PARTITIONS)
def test_every_data_format_gives_five_named_clients(line, walked):
    folder, said = walked
    federation = Federation.read(str(folder / line.split()[-1]))
    assert federation.names == ["Aix", "Bonn", "Cork", "Delft", "Örebro"] and federation.true is None
    assert not any(number.isdecimal() for number in federation.meta["class_names"]), said[line].stderr


def test_samples_without_a_label_are_predicted(walked):
    folder, said = walked
    assert "no label" in said[PARTITIONS[0]].stderr or "without a label" in said[PARTITIONS[0]].stderr
    with (folder / "suggested.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(range(4, 720, 50)) and all(row["sample"].startswith("P-") for row in rows)
    assert {row["name"] for row in rows} <= {"zero", "one", "two", "three", "four"}


def test_tables_on_the_page_equal_the_example_files(walked):
    for block, name in (("path,diagnosis", "cases.csv"), ("age;crp", "patients.csv")):
        head = re.search(rf"^({block}.*)$", TEXT, re.MULTILINE)[1]
        assert (walked[0] / name).read_text(encoding="utf-8").splitlines()[0] == head

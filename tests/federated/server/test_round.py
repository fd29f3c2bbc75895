"""The files that run in a round are those of docs/how-a-round-works.md."""

import re
import sys
from pathlib import Path

from fnlkit.experiment import Experiment
from tests.experiment.test_experiment import problem, settings

ROOT = Path(__file__).resolve().parents[3]


def files_in_round(experiment):
    """Return the files of fnlkit in which a function is called in the second round of an experiment.

    Round one reads declarations, which are bound for the run.
    """
    next(experiment.program)
    experiment.clients.commit()
    codes, before = set(), sys.getprofile()
    sys.setprofile(lambda frame, event, _: codes.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        next(experiment.program)
        experiment.clients.commit()
    finally:
        sys.setprofile(before)
    paths = [Path(name) for name in codes if name.endswith(".py")]
    return {str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT / "fnlkit")}


def test_a_round_runs_in_the_files_of_the_page():
    page = (ROOT / "docs/how-a-round-works.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    listed = [file for row in rows for file in re.findall(r"\(\.\./(fnlkit/[^)]+\.py)\)", row)]
    assert len(listed) == len(set(listed))
    assert files_in_round(Experiment(*problem(), settings(), engine="sequential")) == set(listed)

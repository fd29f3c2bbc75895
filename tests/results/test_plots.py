"""Figures come out as files that hold something, or say what is missing."""

import pytest

from fnlkit.errors import InputError
from fnlkit.results.plots import KINDS, plot
from tests.experiment.test_experiment import finish, problem, settings

pytest.importorskip("matplotlib", reason="needs the extra `plot`")


@pytest.fixture(scope="module")
def run():
    federation, dataset = problem()
    return finish(federation, dataset, settings("fedcorr", memorization=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_draws(kind, run, tmp_path):
    plot([("run", run)] * (2 if kind == "accuracy" else 1), kind, str(tmp_path / "figure.svg"))
    text = (tmp_path / "figure.svg").read_text()
    assert text.count("<path") > 10 and len(list(tmp_path.iterdir())) == 1


def test_what_is_missing_is_said(tmp_path):
    federation, dataset = problem()
    plain = finish(federation, dataset, settings(rounds=3))
    for kind, says in (
        ("lid", "recorded no cumulative_lid"),
        ("memorization", "--memorization"),
        ("pie", "--kind is 'pie'"),
    ):
        with pytest.raises(InputError, match=says):
            plot([("run", plain)], kind, str(tmp_path / "figure.svg"))
    with pytest.raises(InputError, match=".png, .svg or .pdf"):
        plot([("run", plain)], "accuracy", str(tmp_path / "figure.gif"))
    assert not list(tmp_path.iterdir())

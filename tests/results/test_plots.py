"""Figures come out as files that hold something, or say what is missing."""

from dataclasses import replace

import pytest

import fnlkit
from fnlkit.errors import InputError
from fnlkit.results import plots
from fnlkit.results.plots import KINDS, plot
from tests.experiment.test_experiment import finish, problem, settings

pytest.importorskip("matplotlib", reason="needs the extra `plot`")


@pytest.fixture(scope="module")
def run():
    federation, dataset = problem()
    return finish(federation, dataset, settings("fedcorr", memorization=True))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "estimates"])
def test_every_kind_draws(kind, run, tmp_path):
    plot([("run", run)] * (2 if kind == "accuracy" else 1), kind, str(tmp_path / "figure.svg"))
    text = (tmp_path / "figure.svg").read_text()
    assert text.count("<path") > 10 and len(list(tmp_path.iterdir())) == 1


def test_estimates_of_a_federation_draw_and_their_absence_is_said(tmp_path):
    federation = fnlkit.inject_noise(fnlkit.partition("digits", clients=4), "symmetric(eta=0.3)")
    judged = fnlkit.estimate_noise(federation, "knn", say=None)
    plot([("judged", judged)], "estimates", str(tmp_path / "figure.svg"))
    assert (tmp_path / "figure.svg").read_text().count("<path") > 50
    with pytest.raises(InputError, match="estimate-noise"):
        plot([("noisy", federation)], "estimates", str(tmp_path / "none.svg"))
    for missing in ("client_level_low", "client_score", "transition"):  # a file from elsewhere may hold a part of them
        part = {name: array for name, array in judged.extra.items() if name != f"estimate_{missing}"}
        with pytest.raises(InputError, match="or not all"):
            plot([("part", replace(judged, extra=part))], "estimates", str(tmp_path / "none.svg"))


def test_28_curves_differ_and_the_legend_hides_none():
    from matplotlib import pyplot

    looks = [tuple(plots._look(number).items()) for number in range(28)]
    assert len(set(looks)) == 28
    figure, axis = pyplot.subplots()
    axis.plot([0, 1], label="a")
    plots._beside(axis)
    figure.canvas.draw()
    assert axis.get_legend().get_window_extent().x0 >= axis.get_window_extent().x1
    pyplot.close(figure)


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

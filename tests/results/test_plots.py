"""Figures come out as files that hold something, or say what is missing."""

import copy
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


def shown(runs, kind):
    """The figure itself, on which the tests below read what a person would."""
    pyplot = plots._pyplot()
    draw = {"accuracy": plots._accuracy, "labels": plots._labels, "lid": plots._lid, "noise": plots._noise,
            "memorization": plots._memorization, "estimates": plots._estimates}[kind]  # fmt: skip
    figure = draw(pyplot, [("run", run) for run in runs] if kind == "accuracy" else runs[0])
    pyplot.close(figure)
    titles = [axis.get_title() for axis in figure.axes]
    return figure, [*titles, figure._suptitle.get_text() if figure._suptitle else ""]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "estimates"])
def test_every_figure_names_its_data_set(kind, run):
    _, titles = shown([run], kind)
    assert any(str(run.meta["dataset"]) in title for title in titles), titles


def test_a_legend_counts_one_run_and_two_runs(run):
    for runs, counted in (([run], "(1 run)"), ([run, run], "(2 runs)")):
        figure, _ = shown(runs, "accuracy")
        (text,) = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        assert text.startswith("fedcorr") and text.endswith(counted)


def test_bins_and_counts_fit_the_clients(run):
    figure, _ = shown([run], "lid")
    (axis,) = figure.axes
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    count = len(run.records["cumulative_lid"][1][-1])
    assert sum(int(text.split(", ")[1].split()[0]) for text in texts if " client" in text) == count
    heights = [bar.get_height() for bar in axis.patches]
    per_group = len(heights) // sum(" client" in text for text in texts)
    assert sum(heights) == count and 5 <= per_group <= max(5, 2 * count**0.5 + 1)
    assert sum("of the mixture" in text for text in texts) >= 1


def test_label_matrices_have_numbers_and_the_classes_names(run):
    names, named = [f"kind {letter}" for letter in "abcdefghij"[: run.meta["classes"]]], copy.copy(run)
    named.meta = run.meta | {"class_names": names}
    figure, _ = shown([named], "labels")
    for axis in figure.axes:
        assert [tick.get_text() for tick in axis.get_xticklabels()] == names
        (image,) = axis.get_images()
        written = {(round(text.get_position()[1]), round(text.get_position()[0])): text.get_text() for text in axis.texts}
        shares = image.get_array()
        assert len(written) == int((shares >= 0.005 + 1e-9).sum())
        for (i, j), text in written.items():
            assert text == f"{100 * shares[i, j]:.0f}"

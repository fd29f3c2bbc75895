"""Figures show the numbers of their input files, or an error names the missing data."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import fnlkit
from fnlkit.results import plots
from fnlkit.results.plots import KINDS, plot, style
from fnlkit.simulate.noise.injection import mean_requested_transition
from tests.commands import refuse, refuse_call, succeed
from tests.experiment.test_experiment import finish, problem, settings

pytest.importorskip("matplotlib", reason="needs the extra `plot`")
OF_A_RUN = [n for n, kind in KINDS.items() if kind.takes in ("run", "runs") and n not in ("prestopping", "calibration")]
OF_LABELS = [name for name, kind in KINDS.items() if kind.takes == "labels"]


@pytest.fixture(scope="module")
def run():
    federation, dataset = problem()
    return finish(federation, dataset, settings("fedcorr", memorization=True))


@pytest.fixture(scope="module")
def judged():
    federation = fnlkit.inject_noise(fnlkit.partition("digits", clients=4), "clients(rho=0.6, tau=0.3)")
    return fnlkit.estimate_noise(federation, "knn", say=None)


def drawn(thing, kind, **options):
    """Return the figure itself, from which the tests below read what a person would."""
    things = thing if isinstance(thing, list) else [thing]
    with style.sheet():
        return plots.draw([("file", one) for one in things], kind, **options)


def texts(figure):
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    legends = [text.get_text() for axis in figure.axes if axis.get_legend() for text in axis.get_legend().get_texts()]
    return [*titles, figure.get_suptitle(), *legends]


def line(axis, label):
    (found,) = [one for one in axis.get_lines() if str(one.get_label()).startswith(label)]
    return found.get_xydata()


@pytest.mark.parametrize("kind", OF_A_RUN)
def test_every_kind_of_a_run_is_written_and_names_its_data_set(kind, run, tmp_path, monkeypatch):
    figures, save = [], style.save
    monkeypatch.setattr(style, "save", lambda figure, target: (figures.append(figure), save(figure, target)))
    plot([("run", run)] * (2 if KINDS[kind].takes == "runs" else 1), kind, str(tmp_path / "figure.svg"))
    assert (tmp_path / "figure.svg").read_text().count("<path") > 10 and len(list(tmp_path.iterdir())) == 1
    assert any(str(run.meta["dataset"]) in text for text in texts(figures[0]))


@pytest.mark.parametrize("kind", OF_LABELS)
def test_every_kind_of_a_federation_is_written_and_names_its_data_set(kind, judged):
    figure = drawn(judged, kind)
    figure.draw_without_rendering()
    assert any("digits" in text for text in texts(figure))


@pytest.mark.parametrize("form", ["svg", "pdf", "png"])
def test_equal_figures_are_equal_files(form, run, tmp_path):
    for name in "ab":
        plot([("run", run)], "accuracy", str(tmp_path / f"{name}.{form}"))
    assert (tmp_path / f"a.{form}").read_bytes() == (tmp_path / f"b.{form}").read_bytes()


def other_seed(run, seed, by):
    """The same run as another seed might have gone: accuracies `by` higher, one round shorter."""
    rows = [row | ({"accuracy": min(1.0, row["accuracy"] + by)} if "accuracy" in row else {}) for row in run.history[:-1]]
    return replace(run, settings=run.settings | {"seed": seed}, history=rows)


def test_curves_are_the_histories_with_mean_band_and_stages(run):
    (axis,) = drawn(run, "accuracy").axes
    scored = [(row["client_rounds"], 100 * row["accuracy"]) for row in run.history if "accuracy" in row]
    assert np.allclose(line(axis, "fedcorr"), scored)
    begins = {}
    for before, row in zip(run.history, run.history[1:], strict=False):
        if row["stage"] != before["stage"]:
            begins[row["stage"]] = before["client_rounds"]
    assert {text.get_text().strip(): text.get_position()[0] for text in axis.texts} == begins and len(begins) == 2
    (axis,) = drawn([run, other_seed(run, 1, 0.02)], "accuracy").axes
    mean = line(axis, "fedcorr")
    assert np.allclose(mean[:, 1], [y + 1 for x, y in scored if x <= mean[-1, 0]]) and mean[-1, 0] < scored[-1][0]
    (band,) = axis.collections
    ends = band.get_paths()[0].vertices[:, 1]
    half = np.std([0, 2], ddof=1)
    assert [ends.max(), ends.min()] == pytest.approx([mean[:, 1].max() + half, mean[:, 1].min() - half])


def test_runs_without_a_common_stretch_are_drawn_one_by_one(run):
    first = replace(run, history=run.history[:4])
    late = [row if i > 5 else {k: v for k, v in row.items() if k != "accuracy"} for i, row in enumerate(run.history)]
    (axis,) = drawn([first, replace(run, history=late, settings=run.settings | {"seed": 1})], "accuracy").axes
    points = sum(len(one.get_xydata()) for one in axis.get_lines())
    assert points == sum("accuracy" in row for row in [*first.history, *late]) and not axis.collections


def test_a_run_without_evaluation_does_not_decide_about_the_score(run):
    agreed = [{name.replace("accuracy", "agreement"): value for name, value in row.items()} for row in run.history]
    figure = drawn([replace(run, history=agreed), replace(run, history=[])], "accuracy")
    assert "agreement" in figure.axes[0].get_ylabel().lower()


def test_groups_that_differ_only_in_files_are_separate_curves(run):
    """Two files of the same name, two versions of a file, and a file whose name matplotlib would leave out of the legend."""

    def of(method, **own):
        return replace(run, settings=run.settings | {"method": method}, meta=run.meta | {"own": own})

    for runs, labels in [
        ([of("/a/m.py:f"), of("/b/m.py:f")], ["/a/m.py:f", "/b/m.py:f"]),
        ([of("m.py:f", **{"m.py:f": "1234"}), of("m.py:f", **{"m.py:f": "5678"})],
         ["m.py:f, code of m.py:f 1234", "m.py:f, code of m.py:f 5678"]),
        ([of("/a/_m.py:f"), of("fedavg")], [" _m.py:f", "fedavg"]),
    ]:  # fmt: skip
        (axis,) = drawn(runs, "accuracy").axes
        assert [text.get_text() for text in axis.get_legend().get_texts()] == [f"{label} (1 run)" for label in labels]


def test_a_facet_is_a_panel_with_common_limits(run):
    many = [
        replace(run, settings=run.settings | {"lr": lr, "method": method})
        for lr, method in ((0.1, "fedavg"), (0.1, "flr"), (0.2, "flr"), (0.2, "elr"))
    ]
    figure = drawn(many, "accuracy", facet="lr")
    first, second = figure.axes
    assert [axis.get_title(loc="left") for axis in (first, second)] == ["0.1", "0.2"]
    assert first.get_ylim() == second.get_ylim()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fedavg (1 run)", "flr (1 run)", "elr (1 run)"]
    refuse_call("`facet`", drawn, run, "accuracy", facet="nothing")


def test_memorization_has_gaps_in_rounds_without_wrong_labels(run):
    whole, local = drawn(run, "memorization").axes
    rows = [row for row in run.history if "global_noisy_memorized" in row]
    for axis, where in ((whole, "global"), (local, "local")):
        wanted = [100 * row.get(f"{where}_noisy_memorized", np.nan) for row in rows]
        assert np.array_equal(line(axis, "memorized")[:, 1], wanted, equal_nan=True)
    one = replace(run, history=[{k: v for k, v in rows[0].items() if not k.startswith("local")} | {"round": 0}])
    assert np.isnan(line(drawn(one, "memorization").axes[1], "correct")[:, 1]).all()


def test_the_prestopping_round_is_marked():
    federation, dataset = problem()
    found = finish(federation, dataset, settings("fedefc(latest=4)"))
    (axis,) = drawn(found, "prestopping").axes
    watched = [(r["round"] + 1, 100 * r["estimated_accuracy"]) for r in found.history if "estimated_accuracy" in r]
    assert np.allclose(line(axis, "agreement"), watched) and len(watched) == 5
    assert line(axis, "prestopping round 5")[0, 0] == 5
    assert np.allclose(line(axis, "test accuracy")[:, 1], [100 * r["accuracy"] for r in found.history if "accuracy" in r])
    never = finish(federation, dataset, settings("fedefc(patience=99)", rounds=3))
    assert "no prestopping round found" in texts(drawn(never, "prestopping"))
    refuse_call("of fedavg", drawn, finish(federation, dataset, settings(rounds=1)), "prestopping")


def test_known_transitions_are_drawn_side_by_side(judged, run):
    figure = drawn(judged, "transition")
    shown = {axis.get_title(loc="left"): np.asarray(axis.get_images()[0].get_array()) for axis in figure.axes}
    assert list(shown) == ["requested", "achieved", "estimated"]
    assert np.allclose(shown["requested"], mean_requested_transition(judged))
    assert np.allclose(shown["estimated"], judged.extra["estimate_transition"])
    assert np.allclose(shown["achieved"], judged.achieved_transition())
    for axis, shares in zip(figure.axes, shown.values(), strict=False):
        for text in axis.texts:
            column, row = map(round, text.get_position())
            assert text.get_text() == f"{100 * shares[row, column]:.0f}"
    assert [axis.get_title(loc="left") for axis in drawn(replace(judged, true=None), "transition").axes] == ["estimated"]
    federation, dataset = problem()
    reported = finish(federation, dataset, settings("fedefc(latest=2, report_transition=true)", rounds=5))
    figure = drawn(reported, "transition")
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["achieved", "estimated by fedefc, round 5"]
    assert np.allclose(figure.axes[1].get_images()[0].get_array(), reported.records["transition"][1][-1])


def many(clients, classes, size=3):
    """A judged federation without truth, of many clients and classes, some clients without a class."""
    rng, n = np.random.default_rng(0), clients * size
    given = rng.integers(0, classes, n)
    extra = {
        "estimate_client_level": rng.random(clients) * 0.9, "estimate_client_level_low": np.zeros(clients),
        "estimate_client_level_high": np.ones(clients), "estimate_client_score": rng.random(clients),
        "estimate_transition": np.eye(classes), "estimate_issue_score": rng.random(n),
        "estimate_flagged": rng.random(n) < 0.3, "estimate_suggested_label": given,
    }  # fmt: skip
    offsets = np.arange(clients + 1) * size
    meta = {"class_names": [f"$x_{{{c}}}$ \\undefined 类 class {c}" for c in range(classes)]}
    return fnlkit.artifacts.federation.Federation("many", classes, offsets, rng.permutation(n), given, extra=extra, meta=meta)


@pytest.mark.parametrize("kind", [kind for kind in OF_LABELS if kind != "noise"])
@pytest.mark.parametrize("size", [(1, 2), (120, 40)])
def test_no_truth_many_clients_many_classes_and_names_that_look_like_formulas(kind, size, tmp_path):
    federation = many(*size, size=6)
    options = {"vectors": np.random.default_rng(1).normal(size=(len(federation.given), 5))} if kind == "embeddings" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot([("many", federation)], kind, str(tmp_path / "figure.png"), **options)
    refuse_call("no true labels", drawn, federation, "noise")
    if kind == "partition" and size[0] == 120:
        assert "the first 100 of 120 clients" in " ".join(texts(drawn(federation, kind)))


def test_levels_of_the_estimator_and_the_method_are_both_drawn(judged, run):
    (axis,) = drawn(judged, "noise").axes
    assert np.allclose(line(axis, "_nolegend_"), np.stack([judged.wrong_share(), judged.extra["estimate_client_level"]], 1))
    (bars,) = [one for one in axis.collections if len(one.get_segments()) == 4]
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    assert np.allclose(ends, np.stack([judged.extra[f"estimate_client_level_{end}"] for end in ("low", "high")], 1))
    both = replace(run, truth=run.truth | {f"estimate_client_level{end}": np.full(8, 0.25) for end in ("", "_low", "_high")})
    (axis,) = drawn(both, "noise").axes
    points = [one.get_xydata() for one in axis.get_lines() if one.get_label() == "_nolegend_"]
    assert np.allclose(points[0][:, 1], run.records["noise_level"][1][0]) and np.allclose(points[1][:, 1], 0.25)


def test_issue_curves_are_evaluates_numbers(judged):
    figure = drawn(judged, "issues")
    histogram, roc, precision = figure.axes
    facts = fnlkit.estimators.judgment.compare(judged)
    assert sum(bar.get_height() for bar in histogram.patches) == len(judged.client_indices)
    assert f"AUC {facts['sample_auc']:.3f}" in texts(figure)
    curve = line(roc, "AUC")
    assert np.trapezoid(curve[:, 1], curve[:, 0]) == pytest.approx(facts["sample_auc"])
    assert line(precision, "flagged")[0] == pytest.approx([facts["flag_recall"], facts["flag_precision"]])
    clean = replace(judged, true=judged.given)
    figure = drawn(clean, "issues")
    assert len(figure.axes) == 1 and "right, 1,438" in texts(figure)
    assert "flagged" in " ".join(texts(drawn(replace(judged, true=None), "issues")))


def test_a_calibration_curve_has_the_shares_by_confidence(tmp_path):
    run = fnlkit.train(fnlkit.partition("digits", clients=4, say=None), rounds=2, epochs=1, say=None)
    part = fnlkit.evaluate(run).rows[0]["measured"]["test"]
    (axis,) = drawn([run, run], "calibration").axes
    curve = axis.get_lines()[1].get_xydata()
    assert curve == pytest.approx(100 * np.array(part["reliability"])[:, 1:])
    assert any(f"ECE {100 * part['ece']:.1f} %" in text for text in texts(axis.figure))
    refuse_call("stores no probabilities", drawn, replace(run, logits={}), "calibration")
    np.savez(tmp_path / "own.npz", x_train=np.random.default_rng(0).normal(size=(60, 3)), y_train=np.arange(60) % 2)
    agreed = fnlkit.train(fnlkit.partition(str(tmp_path / "own.npz"), clients=2, say=None), rounds=1, epochs=1, say=None)
    refuse_call("plot them separately", drawn, [run, agreed], "calibration")


def test_figures_without_data_are_refused(tmp_path, run, judged):
    federation, dataset = problem()
    plain = finish(federation, dataset, settings(rounds=3))
    for kind, thing, says in (
        ("lid", plain, "recorded no cumulative_lid"),
        ("memorization", plain, "memorization=True"),
        ("pie", plain, "plot pie: unknown kind"),
        ("labels", federation, "this is not a run"),
        ("estimates", federation, "estimate-noise"),
        ("issues", federation, "no sample has been judged"),
        ("noise", federation, "no estimated noise levels"),
        ("transition", replace(federation, true=None), "no transition"),
        ("accuracy", replace(plain, history=[], finished=False), "resume="),
        ("accuracy", replace(plain, history=[]), "no test or held-out samples"),
        (
            "estimates",
            replace(judged, extra={"estimate_client_level": judged.extra["estimate_client_level"]}),
            "estimate-noise",
        ),
    ):
        refuse_call(says, plot, [("file", thing)], kind, str(tmp_path / "figure.svg"))
    refuse_call("shows one file, found 2", plot, [("a", run), ("b", run)], "labels", str(tmp_path / "figure.svg"))
    refuse_call(".png, .svg or .pdf", plot, [("run", plain)], "accuracy", str(tmp_path / "figure.gif"))
    refuse_call("the folder .* does not exist", plot, [("run", plain)], "accuracy", str(tmp_path / "no/figure.svg"))
    assert not list(tmp_path.iterdir())


def test_the_command_accepts_kinds_files_and_folders(judged, run, tmp_path):
    judged.write(str(tmp_path / "judged.npz"))
    (tmp_path / "runs").mkdir()
    (tmp_path / "issues").mkdir()  # a name that is a kind and a folder is the kind, before other words
    run.write(str(tmp_path / "runs/a.pt"))
    for line_ in ("judged.npz", "runs", "bytes runs", "partition runs/a.pt", "issues judged.npz"):
        done = succeed(f"fnlkit plot {line_} -o figure.svg", tmp_path).stderr
        assert "wrote figure.svg" in done and ("next: fnlkit train" in done) == ("judged" in line_)
    for line_, says in (
        ("accuracy", "plot accuracy"), ("acuracy runs", "did you mean 'accuracy'"), ("nothing.pt", "nothing.pt"),
        ("lid judged.npz", "judged.npz"), ("noise judged.npz --embeddings e.npz", "scikit-learn"),
        ("partition runs", "runs"),
    ):  # fmt: skip
        refuse(f"fnlkit plot {line_} -o figure.svg", tmp_path, says)


@pytest.mark.parametrize("size", [(3.3, 2.5), (7.0, 5.0)])
def test_rows_of_a_searched_recipe_fit_a_papers_column(run, size):
    """One panel per regime, and a legend without options or folders inside the figure."""
    regimes = ("symmetric 0.4", "pairflip 0.3")[: 1 if size == (3.3, 2.5) else 2]
    rows = [{}, {"name": '"/tmp/a b/idea.py:mine"(cap=2.0)'}, {"name": "fedavg, best on held-out labels"}]
    many = [
        replace(run, settings=run.settings | {"lr": 0.01 * (i + 1)}, meta=run.meta | {"row": {"regime": regime} | row})
        for regime in regimes
        for i, row in enumerate(rows)
    ]
    with style.sheet():
        figure = plots.draw([(str(i), one) for i, one in enumerate(many)], "accuracy", wide=size[0])
        style.fit(figure, size)
        assert style._fits(figure) and len(figure.axes) == len(regimes)
        (legend,) = [*figure.legends, *(axis.get_legend() for axis in figure.axes if axis.get_legend())]
        shown = [text.get_text().removesuffix(" (1 run)") for text in legend.get_texts()]
        assert shown[0].startswith("fedcorr") and shown[1:] == ["idea.py:mine(cap=2.0)", rows[2]["name"]]
        assert all(text.get_fontsize() >= 6 for text in legend.get_texts())

"""Few numbers, told honestly: intervals by hand, groups, and tables that other programs read."""

import copy
import json
import shutil
from types import SimpleNamespace

import pytest

import fnlkit
from fnlkit.results import grouping, statistics
from fnlkit.results.tables import Table, Value
from tests.commands import fnlkit as command
from tests.commands import refuse, refuse_call, succeed


def test_the_interval_of_paired_differences_by_hand():
    ours, theirs = {0: 0.6, 1: 0.7, 2: 0.9, 7: 0.1}, {0: 0.5, 1: 0.5, 2: 0.6, 8: 0.9}
    found = statistics.compare_pairs(ours, theirs)
    # Differences 0.1, 0.2, 0.3: mean 0.2, spread 0.1; t of 2 degrees of freedom at 97.5 % is 4.3027; / sqrt(3).
    assert found["pairs"] == 3 and found["mean"] == pytest.approx(0.2) and found["spread"] == pytest.approx(0.1)
    assert found["half"] == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-6)
    assert statistics.compare_pairs({0: 1.0}, {1: 1.0}) is None
    equal = statistics.compare_pairs({0: 0.123, 1: 0.134}, {0: 0.111, 1: 0.122})  # differ in the last bit
    assert equal["spread"] == 0 and equal["half"] is None and equal["p"] is None  # coarse scores of two seeds are no evidence
    alone = statistics.compare_pairs({0: 1.0}, {0: 0.5})
    assert alone["half"] is None and alone["spread"] is None and alone["p"] is None


def test_a_p_value_of_exactly_5_percent_is_not_below_it():
    assert [statistics.significant(p) for p in (0.0499, 0.05, None)] == [True, False, False]


@pytest.mark.parametrize(
    ("measured", "said"), [(67.0, "within"), (68.02, "within"), (68.03, "above"), (66.93, "below"), (None, None)]
)
def test_the_verdict_is_about_one_published_standard_deviation(measured, said):
    assert statistics.verdict(measured, 67.48, 0.54) == said
    assert statistics.verdict(measured, 67.48) is None


def made(method, noise, seed, best, *, finished=True, **settings):
    steps = [
        {"command": "inject-noise", "parameters": {"noise": noise}},
        {"command": "partition", "parameters": {"scheme": "iid"}},
    ]
    meta = {"dataset": "digits", "provenance": steps}
    run = SimpleNamespace(finished=finished, settings={"method": method, "seed": seed, **settings}, meta=meta)
    row = {"method": method, "seed": seed, "accuracy_best": best, "accuracy_last": best, "accuracy_late": best}
    return run, row | {"client_rounds": 10, "bytes_up": 2_000_000, "seconds": 1.5}


def grouped(members, by=None, baseline=None):
    return grouping.groups([run for run, _ in members], [row for _, row in members], by, baseline)


MANY = [
    made(method, f"symmetric(eta={eta})", seed, 0.5 + 0.01 * seed + (0.099 + 0.001 * seed if method == "flr" else 0) - eta / 10)
    for eta in (0.2, 0.4)
    for method in ("fedavg", "flr")
    for seed in (0, 1, 2)
]


def test_one_baseline_is_compared_with_in_every_setting():
    """Whatever the order of the files: fedavg, or the method that is named."""
    mixed = [MANY[i] for i in (3, 4, 5, 0, 1, 2, 6, 7, 8, 9, 10, 11)]  # flr first, then fedavg first
    for members in (mixed, mixed[::-1]):
        found = grouped(members, ["method", "noise"])
        assert {one["baseline"] for one in found} == {"fedavg"}
        assert [one["ahead"]["accuracy_best"] is None for one in found] == [one["group"]["method"] == "fedavg" for one in found]
        assert "of fedavg in the same setting" in grouping.table(found).notes[0]
        ahead = [one["ahead"]["accuracy_best"]["mean"] for one in grouped(members, ["method", "noise"], "flr") if
                 one["group"]["method"] == "fedavg"]  # fmt: skip
        assert ahead == pytest.approx([-0.1, -0.1])
    found = grouped(MANY, ["method", "noise"])
    assert found[3]["ahead"]["accuracy_best"]["mean"] == pytest.approx(0.1) and found[3]["ahead"]["accuracy_best"]["clear"]
    assert found[0]["measures"]["accuracy_best"] == pytest.approx({"mean": 0.49, "spread": 0.01, "runs": 3})
    assert not any(one["differ"] for one in found)
    assert all(one["ahead"] == {} for one in grouped(mixed[3:6] + mixed[9:], ["method", "noise"])[1:])  # no fedavg there
    assert grouped(mixed, ["noise"])[1]["baseline"] == "symmetric(eta=0.2)"
    refuse_call("`baseline`", grouped, mixed, ["method"], "fedcor")


def test_a_method_of_a_file_is_compared_with_others_unless_its_code_has_two_versions():
    members = [made("fedavg", "none", 0, 0.5), made("/me/my_x.py:f", "none", 0, 0.6), made("/me/my_x.py:f", "none", 1, 0.7)]
    for (run, _), digest in zip(members[1:], ("a" * 64, "a" * 64), strict=True):
        run.meta["own"] = {"/me/my_x.py:f": digest}
    assert grouped(members)[1]["ahead"]["accuracy_best"]["mean"] == pytest.approx(0.1)
    members[2][0].meta["own"] = {"/me/my_x.py:f": "b" * 64}
    versions = grouping.table(grouped(members))
    assert versions.columns[1:3] == ["method", "code of my_x.py:f"] and len(versions.rows) == 3


def test_a_run_that_is_given_twice_counts_once(tmp_path):
    one, other = (fnlkit.train(fnlkit.partition("digits", clients=4), rounds=1, epochs=1, seed=seed, engine="sequential",
                               say=None) for seed in (0, 1))  # fmt: skip
    one.write(str(tmp_path / "a.pt"))
    other.write(str(tmp_path / "b.pt"))
    shutil.copy(tmp_path / "a.pt", tmp_path / "copy.pt")
    said = []
    found = fnlkit.evaluate(*(str(tmp_path / name) for name in ("a.pt", "b.pt", "copy.pt", "a.pt")), say=said.append)
    assert len(found.rows) == 2 and found.groups()[0]["runs"] == 2
    assert len(said) == 2 and "copy.pt" in said[0] and "a.pt" in said[1]
    assert len(fnlkit.evaluate(one, one, say=None).rows) == 1


def test_a_group_with_different_settings_is_noted():
    (fedavg, flr) = grouped(MANY, ["method"])
    assert fedavg["runs"] == 6 and fedavg["differ"] == ["inject-noise --noise"]
    assert flr["ahead"]["accuracy_best"] is None  # a seed that occurs twice tells no pair
    assert "its runs also differ in inject-noise --noise" in " ".join(grouping.table([fedavg, flr]).notes)


def test_half_runs_and_strange_names():
    half = [made("fedavg", "none", 0, 0.5), made("fedavg", "none", 1, 0.1, finished=False)]
    (one,) = grouped(half, ["method"])
    assert one["runs"] == 1 and one["measures"]["accuracy_best"]["spread"] is None
    assert grouped(half[1:]) == [] and grouping.table([]).rows == []
    refuse_call("`by` nois: no run has it; did you mean 'noise'?", grouped, MANY, ["nois"])
    (one,) = grouped([made("fedavg", "none", 0, None), made("fedavg", "none", 1, 0.5)], ["method"])  # no score is not 0
    assert one["measures"]["accuracy_best"] == {"mean": 0.5, "spread": None, "runs": 1} and one["runs"] == 2


def test_tables_leave_out_empty_columns_and_folders_and_mark_chance():
    """A model that predicts the most frequent class has 0.5: 0.51 is marked, 0.53 is not."""
    members = [made("/home/me/mine.py:method", "none", 0, 0.51), made("fedavg", "none", 0, 0.53)]
    for _, row in members:
        row["chance"] = 0.5
    table = grouping.table(grouped(members, ["method"]))
    assert [row[0] for row in table.rows] == ["mine.py:method", "fedavg"]
    best = table.columns.index("best")
    assert [row[best].chance for row in table.rows] == [True, False] and "most frequent class" in " ".join(table.notes)
    assert "51.00\\text{ (chance)}" in table.latex()
    assert "best, p" not in table.columns  # one pair of runs has no test
    twins = grouping.table(grouped([made("/a/m.py:f", "none", 0, 1.0), made("/b/m.py:f", "none", 0, 1.0)], ["method"]))
    assert [row[0] for row in twins.rows] == ["/a/m.py:f", "/b/m.py:f"]


UGLY = "a_b&50%|*x*\\{}$#~^<i>\n\x1b[31m"


def test_every_text_of_a_table_is_escaped():
    rows = [[UGLY, Value(1234.5, 2.25, star=True)], ["", Value(None)]]
    latex = Table("title", ["name", UGLY], rows, ["a note\nof two lines"]).latex()
    body = [line for line in latex.splitlines() if not line.startswith("%")]
    assert (
        r"a\_b\&50\%\textbar{}*x*\textbackslash{}\{\}\$\#\textasciitilde{}\textasciicircum{}\textless{}i\textgreater{} [31m"
        in latex
    )
    assert r"$1{,}234.50 \pm 2.25^{*}$" in latex and all(line.count(" & ") <= 1 for line in body)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two methods of two seeds from one tiny run, which tells their settings apart and nothing else; and what is no run."""
    folder = tmp_path_factory.mktemp("runs")
    run = fnlkit.train(fnlkit.partition("digits", clients=4), rounds=2, fraction=0.5, epochs=1, say=None)
    for method in ("fedavg", "median"):
        for seed in (0, 1):
            one = copy.copy(run)
            one.settings = run.settings | {"seed": seed, "aggregator": "median" if method == "median" else "mean"}
            one.write(folder / f"{method}-{seed}.pt")
    (folder / "model.pt").write_bytes(b"no run at all")
    (folder / "notes.txt").write_text("nothing")
    return folder


def test_a_folder_of_runs_in_every_form(folder, tmp_path):
    done = succeed(f"fnlkit evaluate {folder} --by aggregator --target 0.01", tmp_path)
    assert "left out" in done.stderr and "model.pt" in done.stderr
    assert "mean" in done.stdout and "median" in done.stdout and "2 of 2" in done.stdout and "t of the paired" in done.stdout
    lines = command(f"fnlkit evaluate {folder} --by aggregator --json", tmp_path).stdout.splitlines()
    assert [json.loads(line)["group"] for line in lines] == [{"aggregator": "mean"}, {"aggregator": "median"}]
    assert r"\toprule" in command(f"fnlkit evaluate {folder} --by aggregator --latex", tmp_path).stdout
    assert len(command(f"fnlkit evaluate {folder} --json", tmp_path).stdout.splitlines()) == 4
    assert len(fnlkit.evaluate(folder, say=None).table("aggregator,seed").rows) == 4


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{empty}", "no run of `fnlkit train`"),
        ("{folder} --by nothing", "no run has it"),
        ("{folder} --by method --json --latex", "--latex"),
        ("{folder} --by method -o x.npz", "-o x.npz"),
        ("{folder} --target 70", "is no accuracy"),
    ],
)
def test_mistakes_are_one_line(line, words, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    line = line.format(folder=folder, empty=tmp_path / "empty")
    assert not refuse(f"fnlkit evaluate {line}", tmp_path, words).stdout


def test_scores_over_clients_use_held_out_samples(tmp_path):
    fed = fnlkit.partition("digits", clients=4, holdout=0.2)
    run = fnlkit.train(fed, rounds=2, fraction=0.5, epochs=1, say=None)
    (row,) = fnlkit.evaluate(run).rows
    parts = row["measured"]
    shares = [site["share"] for site in parts["held_out_true"]["sites"]]
    assert len(shares) == 4 and row["client_accuracy_worst_tenth"] == min(shares)
    assert row["client_accuracy_spread"] == statistics.spread(shares)
    assert row["macro_f1"] == parts["test"]["macro_f1"] and row["balanced_accuracy"] == parts["test"]["balanced"]
    other = fnlkit.train(fed, rounds=2, fraction=0.5, epochs=1, seed=1, engine="sequential", say=None)
    several = fnlkit.evaluate(run, other, test=True)
    assert [one["macro_f1"] for one in several.rows] == [row["macro_f1"], fnlkit.evaluate(other).rows[0]["macro_f1"]]
    assert {"macro-F1", "worst tenth of clients"} <= set(several.table("method").columns)
    mean = sum(100 * one["auc"] for one in several.rows) / 2
    assert several.pivot("method,dataset", "dataset", show="auc").rows[0][1].mean == pytest.approx(mean)
    assert "macro_f1" not in fnlkit.evaluate(run, other).rows[0]

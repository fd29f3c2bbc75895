"""The papers' numbers, and the runs that would measure them."""

import json
import math
import re
import shlex
from collections import Counter
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core import registry
from fnlkit.core.spec import bind, find, parse
from fnlkit.estimators import ESTIMATORS
from fnlkit.experiment import Settings
from fnlkit.experiment.plan import Plan
from fnlkit.federated.client.client import Batch
from fnlkit.recipes import published, scores
from fnlkit.recipes.jobs import expand
from fnlkit.recipes.recipe import step
from fnlkit.simulate import partitioning
from fnlkit.simulate.noise import MODELS
from tests.commands import refuse_call, succeed
from tests.recipes.test_reproduce import here as here  # noqa: PLC0414

# Rows of each table, counted in the papers.
SIZES = {
    "fedcorr/table2": 63, "fedcorr/table3": 36, "fedcorr/table4": 21, "fedcorr/table5": 9, "fedcorr/table6": 49,
    "fedcorr/table9": 7, "fedcorr/table10": 21, "fedcorr/table11": 49, "fedcorr/table12": 49, "fedcorr/table13": 28,
    "fedefc/table2": 81, "fedefc/table3": 75,
    "feddpcont/table2": 88, "feddpcont/table6": 112, "feddpcont/table7": 57, "feddpcont/table8": 24, "feddpcont/table9": 16,
    "feddpcont/table10": 33, "feddpcont/table11": 18, "feddpcont/table12": 3,
    "flr/table1": 88, "flr/table2": 9, "flr/table3": 75, "flr/table7": 24,
    "fedln/table2": 36, "fedln/table3": 396, "fedln/table4": 90, "fedln/table5": 32, "fedln/table6": 56, "fedln/table7": 36,
}  # fmt: skip


def test_every_table_has_its_rows_and_no_row_comes_twice():
    assert {name: len(published.load_rows(name)) for name in published.tables()} == SIZES and len(published.rows()) == 1681
    twice = Counter((row.paper, row.table, row.title) for row in published.rows())
    assert max(twice.values()) == 1
    for row in published.rows():
        if row.measure == "accuracy":
            assert 0 < row.value < 100 and (row.spread is None or 0 <= row.spread < 30), row


def test_every_published_row_runs():
    runs, names = 0, {field.name for field in fields(Settings)}
    specs, noises, schemes, estimators = set(), set(), set(), set()
    for name in published.tables():
        regimes = published.recipe(name)["regime"]
        rows = [row.run for row in published.load_rows(name)]
        assert [regime["name"] for regime in regimes] == list(dict.fromkeys(rows))
        for regime in regimes:
            runs += 1
            (method,), train = regime["methods"], regime["train"]
            assert set(train) <= names
            if "estimate" in regime:
                estimators.add(regime["estimate"]["estimator"])
            else:
                specs.add((method, tuple(sorted(train.items()))))
            for text in regime["steps"]:
                words = step(text)
                noises |= {words[words.index("--noise") + 1]} if "--noise" in words else set()
                schemes |= {words[words.index("--scheme") + 1]} if "--scheme" in words else set()
    # Ten shares of labels and an accuracy of FLR's Table 1, and a time and an accuracy of FedDPCont's Table 9, are of one run.
    assert runs == 1681 - 8 * 10 - 8
    for method, train in specs:
        settings = Settings(method=method, **dict(train))
        Plan.of(settings)
    for table, found, what in ((MODELS, noises, "noise"), (partitioning.SCHEMES, schemes, "scheme"),
                               (ESTIMATORS, estimators, "estimator")):  # fmt: skip
        for spec in map(parse, found):
            bind(spec, find(spec.name, table, what), what)


def planned(name, only):
    (row,) = published.select(published.load_rows(name), only)
    return published.regime_of(row)


def test_flrs_temperature_scaling_divides_the_logits_by_4():
    # p = softmax((4 log 3, 0) / 4) = (3/4, 1/4).  Multiplied by 4, p would be 1 - 2e-8 for class 0.
    spec = planned("flr/table7", "temperature scaling, asymmetric, 0.8")["train"]["loss"]
    logits, batch = torch.tensor([[4 * math.log(3), 0.0]] * 2, dtype=torch.float64), Batch(y=torch.tensor([0, 1]))
    for loss in (registry.loss(spec), registry.loss("temperature")):
        assert loss(logits, batch).tolist() == pytest.approx([-math.log(0.75), -math.log(0.25)])


def test_published_settings_become_the_options_of_the_papers():
    """Each typed from its paper: noise, partition, and what the method changes."""
    how = planned("fedcorr/table4", "fedprox, 0.3, 10, 0.6, 0.5")
    assert how["steps"] == ["partition --clients 100 --scheme 'bernoulli-dirichlet(p=0.3, alpha=10)'",
                            "inject-noise --noise 'clients(rho=0.6, tau=0.5)'"]  # fmt: skip
    assert how["methods"] == ["fedavg"] and how["train"]["optimizer"] == "fedprox(mu=1)" and how["train"]["lr"] == 0.01
    # The caption of FedCorr's Table 9 and the authors' errata: tau is 0.
    assert "tau=0)" in planned("fedcorr/table9", "fedavg")["steps"][1]
    assert planned("flr/table3", "flr, asymmetric")["methods"][0] == "flr(strength=5, warmup=50)"
    assert planned("flr/table7", "negative label smoothing, asymmetric, 0.8")["train"]["loss"] == "smoothing(rate=-0.05)"
    # Table 6 of FedLN: clean clients carry a quarter of 0.4.
    assert "clean_level=0.1)" in planned("fedln/table6", "nnc, 0.4, 0.7, carry 25%")["steps"][1]
    noise, split = planned("feddpcont/table2", "scaffold, symmetric, 0.6")["steps"]
    assert "symmetric(eta=0.6)" in noise and "openset(uniform=true)" in split
    assert planned("fedefc/table2", "fedefc, mnist, p=0.2")["methods"][0].endswith("weighting=paper)")
    assert planned("fedefc/table2", "fedefc, cifar-100, p=0.2")["methods"][0] == "fedefc(start=40, patience=6)"
    assert len(planned("fedefc/table3", "fedavg without noise, mnist")["steps"]) == 1
    # FedDPCont, appendix 9.2: 150 rounds of FedAvg, 150 with the corrected loss.  The rounds of `latest` start at 0.
    assert "release=exact" in planned("feddpcont/table10", "feddpcont, symmetric, 0.2, 0.01")["note"]
    assert "latest=149" in planned("feddpcont/table6", "forward correction, symmetric, 0.4")["methods"][0]
    # FedLN's public code (src/baselines/fedavg__loss.py): temperatures 0.8 and 1.4, which the paper does not print.
    assert planned("fedln/table3", "bi-tempered, eurosat, 0.7, 1.0")["train"]["loss"] == "bi-tempered(t1=0.8, t2=1.4)"


def test_centralized_rows_have_the_settings_of_their_papers():
    """FedCorr, Table 8: alpha, beta and learning rate of JointOpt by noise; appendix B: lambda_u of DivideMix."""
    low, high = (planned("fedcorr/table2", f"centralized jointopt, {noise}") for noise in ("0.4, 0.5", "0.6, 0.5"))
    assert "beta=1.5" in low["methods"][0] and low["train"]["lr"] == 0.1
    assert "beta=0.8" in high["methods"][0] and high["train"]["lr"] == 0.2
    assert (high["train"]["rounds"], high["train"]["fraction"], high["train"]["epochs"]) == (200, 1.0, 1)
    for where in ("", "centralized "):
        for table, noise, weight in ((2, "0.6, 0.0", 0), (2, "0.8, 0.0", 25), (3, "0.4, 0.5", 25), (3, "0.8, 0.5", 150)):
            assert f"unlabeled={weight})" in planned(f"fedcorr/table{table}", f"{where}dividemix, {noise}")["methods"][0]
    assert "momentum=0.9" in planned("flr/table3", "centralized elr, asymmetric")["methods"][0]
    assert planned("flr/table3", "centralized gce, 0.6, 0.5")["train"]["loss"] == "gce(q=0.1, truncate=0.3)"
    recipe = published.recipe("fedcorr/table2", scale=0.1)
    name = "centralized JointOpt, CIFAR-10 ResNet-18, iid rho=0.0 tau=0.0"
    (scaled,) = [regime for regime in recipe["regime"] if regime["name"] == name]
    assert scaled["train"]["rounds"] == 20 and "warmup" not in scaled["methods"][0]


def test_a_selection_takes_numbers_in_their_order_and_methods_by_their_names():
    found = published.load_rows("fedcorr/table2")
    assert [row.title for row in published.select(found, "fedcorr, 0.6, 0.5")] == [
        "FedCorr, CIFAR-10 ResNet-18, iid rho=0.6 tau=0.5"
    ]
    assert {row.method for row in published.select(found, "dividemix")} == {"DivideMix"}
    assert all(row.method.startswith("centralized ") for row in published.select(found, "centralized"))
    refuse_call("matches no row; methods: .*FedAvg", published.select, found, "0.5, 0.6")
    refuse_call("did you mean 'fedcorr/table2'", published.load_rows, "fedcorr/tabel2")


def test_scaled_tables_let_methods_choose_their_stages():
    recipe = published.recipe("fedcorr/table10", scale=0.1)
    first = recipe["regime"][0]
    assert first["train"]["rounds"] == 100 and "rounds" not in first["methods"][0]
    for scale in (0, 1.5, float("nan")):
        refuse_call("`scale`", published.recipe, "fedcorr/table10", scale=scale)


def test_dry_run_lines_are_independent(tmp_path):
    def lines(arguments):
        return succeed(f"fnlkit reproduce {arguments} --dry-run", tmp_path).stdout.splitlines()

    assert "--epochs=20" in lines("fedcorr/table3 --only 'jointopt, 0.4'")[0]
    assert "method=centralized(" in lines("fedcorr/table3 --only 'centralized jointopt, 0.4'")[0]
    (line,) = lines("fedln/table2 --only 'energy, cifar-10, 0.4, 0.0' --seeds 1")
    verbs = [[shlex.split(part)[1] for part in each.split(" | ")] for each in line.split(" && ")]
    assert verbs == [["partition", "inject-noise", last] for last in ("train", "estimate-noise")]
    found = lines("feddpcont/table2 --only 'symmetric, 0.4' --seeds 1")
    (line,) = [line for line in found if "method=feddpcont" in line]
    stages = [shlex.split(stage) for stage in line.split(" | ")]
    assert [stage[1] for stage in stages] == ["inject-noise", "partition", "train"]
    assert "--dataset=cifar10" in stages[0] and "-" not in stages[0] and "-" in stages[1] and stages[2][2] == "-"
    assert stages[2][stages[2].index("--resume") + 1] == stages[2][stages[2].index("-o") + 1]
    assert len({re.search(r"-o (\S+)$", line)[1] for line in found}) == 11


def test_a_dry_run_suggests_the_same_command_without_it(tmp_path):
    words = ["fnlkit", "reproduce", "fedcorr/table10", "--only", "lenet, 0.6, 0.5", "--seeds", "1", "-o", "my runs"]
    assert f"next: {shlex.join(words)}\n" in succeed(shlex.join([*words, "--dry-run"]), tmp_path).stderr


def test_a_row_runs_resumes_and_gets_its_verdict(tmp_path, here):
    """A row of FedCorr's, shortened, on digits in place of CIFAR-10; in real processes: test_reproduce.py."""
    line = "fnlkit reproduce fedcorr/table2 --only 'fedavg, 0.4, 0.5' --dataset digits --model mlp --scale 0.002"
    line += " --seeds 2 -o runs"
    done = succeed(f"{line} --json", tmp_path)
    (row,) = [json.loads(text) for text in done.stdout.splitlines()]
    assert row["published"] == [88.31, 0.8] and row["runs"] == 2 and row["measured"] == row["best_mean"]
    # Other data, another network and fewer rounds: the row names them and is not compared.
    assert row["overrides"] == {"scale": "0.002", "model": "mlp", "dataset": "digits (1,438 training samples)"}
    assert row["apart"] is None and row["verdict"] is None
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.pt")}
    done = succeed(line, tmp_path)
    assert "0.002 x the rounds, model mlp, dataset digits (1,438 training samples): FedAvg" in done.stdout
    assert "not compared" in done.stdout
    assert r" & 2 & $88.31 \pm 0.80$ & " in succeed(f"{line} --no-train --latex", tmp_path).stdout
    assert len(before) == 2 and {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.pt")} == before


def jobs_of(name, only=None):
    return expand(published.recipe(name, only=only), ".", seeds=1)


def test_the_numbers_of_jobs_do_not_follow_from_the_selection():
    jobs = jobs_of("fedcorr/table10")
    (some,) = jobs_of("fedcorr/table10", "lenet, 0.6, 0.5")
    assert some in jobs and len({job.name for job in jobs}) == len(jobs) == 21 and len(some.stages) == 3


def test_a_row_is_compared_only_without_overrides(monkeypatch):
    """FedAvg at (0.4, 0.5) is published as 88.31 ± 0.80; a file with 50,000 training samples counts as the same data."""
    (job,) = jobs_of("fedcorr/table2", "fedavg, 0.4, 0.5")
    monkeypatch.setattr(scores, "measure", lambda jobs: [])
    monkeypatch.setattr(type(job), "state", lambda self: "finished")
    monkeypatch.setattr(published, "compute_measure", lambda measure, reports, job: 88.0)

    def verdict(samples=50_000, **changed):
        run = SimpleNamespace(labels={"given": range(samples)})
        monkeypatch.setattr(published.Run, "read", lambda path: run)
        (found,) = published.measure_rows("fedcorr/table2", [job], changed, "fedavg, 0.4, 0.5")
        return found["verdict"], found["overrides"]

    assert verdict() == verdict(dataset="mine.npz") == verdict(dataset="cifar10") == ("within", {})
    assert verdict(5_000, dataset="mine.npz") == (None, {"dataset": "mine.npz (5,000 training samples)"})
    assert verdict(model="lenet5") == (None, {"model": "lenet5"})


def results_of(line, folder):
    done = succeed(f"fnlkit reproduce {line} --dataset digits --model mlp --seeds 1 -o runs --json", folder)
    return [json.loads(text) for text in done.stdout.splitlines()]


def test_costs_and_shares_of_memorized_labels_are_read_from_runs(tmp_path, here):
    found = results_of("flr/table1 --only 'slr*iid symmetric rho=0.8*' --scale 0.01", tmp_path)
    by_measure = {row["measure"]: row for row in found}
    assert len(list((tmp_path / "runs").glob("*.pt"))) == 1 and len(found) == 11
    run = Run.read(str(next((tmp_path / "runs").glob("*.pt"))))
    last = next(row for row in reversed(run.history) if "global_noisy_memorized" in row)
    for measure in ("global clean correct", "local noisy memorized"):
        assert by_measure[f"memorization: {measure}"]["measured"] == 100 * last[measure.replace(" ", "_")]
    assert by_measure["accuracy"]["measured"] == 100 * run.history[-1]["accuracy"]  # caption: "at last round"
    assert {row["reports"] for row in found} == {"last"} and list(published.papers()["flr"]["tables"]) == ["1"]

    (cost,) = results_of("fedcorr/table13 --only 'rofl, 0.6, 0.5' --rounds 6 --dataset digits", tmp_path)
    (path,) = (tmp_path / "runs").glob("fedcorr-13-*.pt")
    history = Run.read(str(path)).history
    hits = [row["client_rounds"] for row in history if row.get("accuracy", 0) >= 0.5]
    assert cost["unit"] == "client-rounds" and cost["measured"] == (hits[0] if hits else None)
    assert cost["reached"] == bool(hits) and cost["published"] == [4740, None] and cost["apart"] is None


@pytest.mark.parametrize(("method", "files"), [("softmax", 1), ("fedcorr", 0)])
def test_aucs_are_read_from_estimates(method, files, tmp_path, here):
    (row,) = results_of(f"fedln/table2 --only '{method}, cifar-10, 0.4, 0.0' --scale 0.02", tmp_path)
    assert len(list((tmp_path / "runs").glob("*.pt"))) == files
    (path,) = (tmp_path / "runs").glob("*-estimate-0.npz")
    federation = Federation.read(str(path))
    wrong = (federation.given != federation.true)[federation.client_indices]
    scores = np.asarray(federation.extra["estimate_issue_score"])[federation.client_indices]
    assert row["measured"] == pytest.approx(100 * roc_auc_score(wrong, scores))


@pytest.mark.parametrize(
    ("text", "sets"),
    [("cifar-10", {"CIFAR-10"}), ("cifar", {"CIFAR-10", "CIFAR-100"}), ("*cifar-10*", {"CIFAR-10", "CIFAR-100"})],
)
def test_words_select_rows_and_patterns_select_parts_of_words(text, sets):
    found = [row for row in published.rows() if row.paper == "fedcorr" and row.dataset.startswith("CIFAR")]
    assert {row.dataset for row in published.select(found, text)} == sets

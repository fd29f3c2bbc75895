"""The page about runs: its numbers are evaluate's, nothing from a file is markup, and a browser has no complaint."""

import copy
import html
import json
import os
import re

import numpy as np
import pytest

import fnlkit
from fnlkit.pipeline import report
from fnlkit.results.comparison import CALLED
from tests.commands import fnlkit as command
from tests.commands import succeed

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A short run of FedCorr, and the same, hostile in every text that a file may hold."""
    folder = tmp_path_factory.mktemp("report")
    fed = fnlkit.inject_noise(fnlkit.partition("digits", clients=5), "clients(rho=1, tau=0.5)")
    fed = fnlkit.estimate_noise(fed, "knn(k=10)", say=None)
    quick = {"epochs": 1, "model": "mlp(hidden=[8])", "engine": "sequential", "say": None}
    run = fnlkit.train(fed, "fedcorr(iterations=1)", rounds=8, fraction=0.4, **quick)
    run.write(folder / "a.pt")
    other = copy.deepcopy(run)
    other.settings = run.settings | {"aggregator": HOSTILE}
    other.meta["samples"]["class_names"] = [f"{HOSTILE}{c}" for c in range(10)]
    other.meta["provenance"] = [{"command": HOSTILE, "parameters": {HOSTILE: HOSTILE}, "seed": 0}]
    other.write(folder / "b.pt")
    return folder


def cells(text, name):
    """The cells of the rows of a table by its id."""
    body = re.search(rf'<table id="{name}">.*?<tbody>(.*?)</table>', text, re.S)[1]
    return [
        [html.unescape(cell).strip() for cell in re.findall(r"<td[^>]*>(?:<a [^>]*>)?([^<]*)", row)]
        for row in body.split("</tr>")[:-1]
    ]


def test_the_numbers_are_evaluates(folder, tmp_path):
    succeed(f"fnlkit report {folder} -o page.html", tmp_path)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in command(f"fnlkit evaluate {folder} --json", tmp_path).stdout.splitlines()]
    for row, shown in zip(rows, cells(text, "rows"), strict=True):
        numbers = [f"{100 * row[f'accuracy_{at}']:.2f}" for at in ("best", "last", "late")]
        assert shown[:6] == [os.path.basename(row["run"]), row["method"], "accuracy", *numbers]
        sent, corrected = f"{row['bytes_up'] / 1e6:,.1f}", f"{100 * row['label_accuracy_corrected']:.2f}"
        assert shown[6:9] == [f"{row['client_rounds']:,}", sent, corrected]
    for number, name in enumerate(("a.pt", "b.pt"), 1):  # each run has its own part
        run = fnlkit.load(folder / name)
        levels = run.truth["noise_client_level"]
        order = sorted(range(5), key=lambda k: -levels[k])
        low, high = (run.truth[f"estimate_client_level_{end}"] for end in ("low", "high"))
        wanted = [
            [str(k), f"{100 * levels[k]:.1f} %", f"{100 * run.truth['estimate_client_level'][k]:.1f} %",
             f"{100 * low[k]:.1f} to {100 * high[k]:.1f} %"] for k in order
        ]  # fmt: skip
        assert [[row[0], *row[-3:]] for row in cells(text, f"clients-{number}")] == wanted
        sent = {row[0]: (int(row[2].replace(",", "")), int(row[3].replace(",", ""))) for row in cells(text, f"sent-{number}")}
        assert sum(all_ for all_, _ in sent.values()) == run.traffic.bytes_up
        assert sent["lid"] == (run.traffic.sent["lid"], round(run.traffic.sent["lid"] / 5))
        made = html.unescape(re.search(rf'<pre id="commands-{number}">(.*?)</pre>', text, re.S)[1]).splitlines()
        assert made == report.commands(run)
    table = fnlkit.evaluate(folder).table()
    assert cells(text, "groups") == [[str(cell).strip() for cell in row] for row in table.texts()]


def test_a_single_run_is_also_tested_as_evaluate_does(tmp_path):
    fed = fnlkit.inject_noise(fnlkit.partition("digits", clients=5, holdout=0.2), "symmetric(eta=0.3)")
    quick = {"epochs": 1, "model": "mlp(hidden=[8])", "engine": "sequential", "say": None}
    fnlkit.train(fed, "feddpcont(epsilon=2.0)", rounds=3, output=tmp_path / "run.pt", **quick)
    assert command("fnlkit report run.pt -o page.html --ledger none", tmp_path).returncode == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    row = json.loads(command("fnlkit evaluate run.pt --json --ledger none", tmp_path).stdout)
    shown = cells(text, "tested")
    assert [(one[0], one[2], one[3]) for one in shown] == [
        (CALLED.get(part["measures"], part["measures"]), f"{part['samples']:,}", f"{100 * part['share']:.1f} %")
        for part in row["measured"].values()
    ]
    held = next(one for one, part in zip(shown, row["measured"].values(), strict=True) if part["measures"] == "agreement")
    assert held[-1] == f"{100 * row['client_agreement_worst_tenth']:.1f} %"
    assert html.escape(row["label_statement"], quote=False) in text.replace("&#39;", "'")


def test_nothing_from_a_file_is_markup(folder, tmp_path):
    for runs in ("b.pt", "b.pt a.pt"):
        succeed(f"fnlkit report {runs} -o {tmp_path}/page.html", folder)
        text = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert "<script" not in text and "&lt;script&gt;" in text
        assert not re.search(r"""(?:src|href)=["'](?!data:|#run-)""", text)


def test_the_commands_make_the_run_again(folder):
    run = fnlkit.load(folder / "a.pt")
    lines = report.commands(run)
    assert lines[0].startswith("fnlkit partition --dataset digits --scheme iid --clients 5")
    train = "fnlkit train --method 'fedcorr(iterations=1)' --model 'mlp(hidden=[8])' --rounds 8 --fraction 0.4 --epochs 1"
    assert lines[-1] == f"{train} --engine sequential"
    run.meta["provenance"] = [
        {"command": "consensus", "parameters": {"votes": "votes.csv", "method": "majority"}},
        {"command": "consensus", "parameters": {"votes": "of the federation", "method": "majority"}},
        {"command": "flower-app", "parameters": {"rounds": 2, "lr": 0.03, "sites": 3, "samples": [4, 5, 6]}},
    ]
    assert report.commands(run) == [
        "fnlkit consensus votes.csv --method majority",
        "fnlkit consensus --method majority",
        "fnlkit flower-app --rounds 2 --sites 3",
    ]


def test_a_report_without_true_labels_or_data(folder, tmp_path):
    run = fnlkit.load(folder / "a.pt")
    blind = copy.copy(run)
    blind.labels = {name: values for name, values in run.labels.items() if name != "true"}
    facts = report.facts(fnlkit.evaluate(blind, blind))
    for one in facts["runs"]:
        assert one["clients"][0]["true"] is None and one["clients"][0]["estimated"] is not None
        assert one["suspects"]["samples"][0]["picture"] is None and one["suspects"]["samples"][0]["true"] is None
    assert "unknown" in report.page(facts)
    blind.truth = run.truth | {"estimate_judged": np.arange(len(run.client_offsets) - 1) > 0}  # the first is withheld
    assert report.page(report.facts(fnlkit.evaluate(blind))).count("not judged") == 1


def test_the_sentences_name_the_best_group(folder, tmp_path):
    first = fnlkit.load(folder / "a.pt")
    first.write(tmp_path / "0.pt")
    other = copy.deepcopy(first)
    other.settings = first.settings | {"seed": 1}
    other.write(tmp_path / "1.pt")
    assert "Best on average: digits, fedcorr" in report.words(fnlkit.evaluate(tmp_path / "0.pt", tmp_path / "1.pt"))[-1]
    other.settings = first.settings | {"lr": 1e-5}
    other.write(tmp_path / "1.pt")
    assert "Best on average: lr " in report.words(fnlkit.evaluate(tmp_path / "0.pt", tmp_path / "1.pt"))[-1]

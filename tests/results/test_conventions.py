"""The line of conventions names what differs between two runs, and `fnlkit info` prints it."""

import numpy as np

import fnlkit
from fnlkit.results.conventions import conventions_line
from tests.commands import succeed


def trained(noise_first=False, method="fedavg", **options):
    steps = [lambda fed: fnlkit.partition(fed, "dirichlet(alpha=5)", clients=4, say=None)]
    steps.insert(0 if noise_first else 1, lambda fed: fnlkit.inject_noise(fed, "symmetric(eta=0.4)"))
    federation = "digits"
    for step in steps:
        federation = step(federation)
    return fnlkit.train(federation, method, model="mlp", rounds=1, epochs=1, engine="sequential", say=None, **options)


def line(run):
    wrong = float(np.mean(run.labels["given"] != run.labels["true"]))
    return conventions_line(run.meta["provenance"], wrong_share=wrong, tested="test" in run.predicted)


def test_runs_that_differ_in_a_convention_have_different_lines_and_info_prints_them(tmp_path):
    run = trained()
    changes = (
        {"noise_first": True},
        {"method": "flr"},
        {"aggregator": "median"},
        {"mixup": 1.0},
        {"select": "label-wave"},
        {"seed": 1},
    )
    lines = [line(run), *(line(trained(**change)) for change in changes)]
    assert len(set(lines)) == len(lines)
    assert all("\n" not in text for text in lines)
    wrong = np.mean(run.labels["given"] != run.labels["true"])
    assert f"{wrong:.3f} of the labels wrong" in lines[0]
    fnlkit.save(run, tmp_path / "run.pt")
    assert f"conventions: {lines[0]}\n" in succeed("fnlkit info run.pt", tmp_path).stdout

"""Presets: every one is accepted by the settings, names a method and a network, and costs what its paper says."""

from dataclasses import fields

import pytest

from fnlkit import catalogue, presets
from fnlkit.errors import InputError
from fnlkit.experiment import Settings
from fnlkit.methods.fedcorr import budget
from fnlkit.models import NETWORKS
from fnlkit.spec import parse


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_can_be_run(name):
    said, (options, _) = presets.describe(name), presets.load(name)
    assert set(said) <= {"source", "dataset", "steps", "train", "unstated"}
    assert set(options) <= {f.name for f in fields(Settings)}
    settings = Settings(**options)
    assert catalogue.method(settings.method)
    assert parse(settings.method).name == name.partition("/")[0]
    assert parse(settings.model).name in NETWORKS
    assert all(step.startswith(("partition ", "inject-noise ")) for step in said["steps"])


def test_there_is_one_for_each_method_and_data_set_of_the_papers():
    found = set(presets.names())
    assert {f"{m}/{d}" for m in ("fedcorr", "flr", "flr-plus") for d in ("cifar10", "cifar100", "clothing1m")} <= found
    assert {f"fedefc/{d}" for d in ("mnist", "cifar10", "cifar100")} <= found
    assert {f"feddpcont/{d}" for d in ("cifar10", "cifar100", "clothing1m")} <= found
    fedln = ("cifar10", "fashion-mnist", "pathmnist", "eurosat", "speechcommands")
    assert {f"{m}/{d}" for m in ("nnc", "akd", "na-fedavg") for d in fedln} <= found


@pytest.mark.parametrize("name", [n for n in presets.names() if n.startswith(("fedcorr", "flr-plus"))])
def test_the_three_stages_fill_the_rounds(name):
    options, _ = presets.load(name)
    given = parse(options["method"]).parameters
    stages = given["iterations"], given["finetune_rounds"], given["usual_rounds"]
    assert stages[0] / options["fraction"] + stages[1] + stages[2] == options["rounds"]
    assert budget(options["rounds"], options["fraction"], *stages) == stages


def test_automatic_stages_are_the_published_ones_at_the_published_budget():
    assert budget(1000, 0.1, -1, -1, -1) == (5, 500, 450)


def test_an_unknown_preset_is_named():
    with pytest.raises(InputError, match="did you mean 'fedcorr/cifar10'"):
        presets.load("fedcor/cifar10")

"""Presets: every one is accepted by the settings, names a method and a network, and costs what its paper says."""

from dataclasses import fields

import pytest

from fnlkit.components import presets, registry
from fnlkit.components.spec import parse
from fnlkit.errors import InputError
from fnlkit.experiment import Settings
from fnlkit.methods.fedcorr import budget
from fnlkit.models import NETWORKS


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_can_be_run(name):
    said, options = presets.describe(name), presets.load_preset(name)
    assert set(said) <= {"source", "dataset", "steps", "train", "unstated"}
    assert set(options) <= {f.name for f in fields(Settings)}
    settings = Settings(**options)
    assert registry.method(settings.method)
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
    options = presets.load_preset(name)
    given = parse(options["method"]).parameters
    stages = given["iterations"], given["finetune_rounds"], given["usual_rounds"]
    assert stages[0] / options["fraction"] + stages[1] + stages[2] == options["rounds"]
    assert budget(options["rounds"], options["fraction"], *stages) == stages


def test_automatic_stages_are_the_published_ones_at_the_published_budget():
    assert budget(1000, 0.1, -1, -1, -1) == (5, 500, 450)


def test_an_unknown_preset_is_named():
    with pytest.raises(InputError, match="did you mean 'fedcorr/cifar10'"):
        presets.load_preset("fedcor/cifar10")


# Typed from the papers: preset -> partition, noise and what training is told.
IID, OPENSET = "iid(balanced=true)", "openset(uniform={})"
FLR = [  # Kim 2024: Section 2, Tables 3, 5, 6, 7, Figure 8, appendix E.5
    ("flr/cifar10", "cifar10", 100, IID, "clients(rho=0.8, tau=0, exact=true)", 0.03, {"strength": 2, "warmup": 50}),
    ("flr/cifar10-asymmetric", "cifar10", 100, IID, "clients(rho=0.6, tau=0.4, exact=true, kind=asymmetric)", 0.03,
     {"strength": 3, "warmup": 50}),
    ("flr/cifar10-noniid", "cifar10", 100, "bernoulli-dirichlet(p=1, alpha=1, at_least_one=true)",
     "clients(rho=1, tau=0, exact=true)", 0.03, {"strength": 2, "warmup": 50}),
    ("flr/cifar10n-worst", "cifar10", 100, "bernoulli-dirichlet(p=1, alpha=1, at_least_one=true)",
     "labels(path=cifar10n-worse.csv)", 0.03, {"strength": 2, "warmup": 50}),
    ("flr/cifar100", "cifar100", 50, IID, "clients(rho=0.8, tau=0, exact=true)", 0.01, {"strength": 2.5, "warmup": 50}),
    ("flr/cifar100-asymmetric", "cifar100", 50, IID, "clients(rho=0.6, tau=0.4, exact=true, kind=asymmetric)", 0.01,
     {"strength": 5, "warmup": 50}),
    ("elr/cifar10", "cifar10", 100, IID, "clients(rho=0.8, tau=0, exact=true)", 0.03, {"strength": 4, "momentum": 0.5}),
    ("elr/cifar10-asymmetric", "cifar10", 100, IID, "clients(rho=0.6, tau=0.4, exact=true, kind=asymmetric)", 0.03,
     {"strength": 4, "momentum": 0.9}),
    ("elr/cifar100", "cifar100", 50, IID, "clients(rho=0.8, tau=0, exact=true)", 0.01, {"strength": 4, "momentum": 0.5}),
    ("flr-plus/cifar10", "cifar10", 100, IID, "clients(rho=0.8, tau=0, exact=true)", 0.03, {"strength": 3, "warmup": 50}),
    ("flr-plus/cifar100", "cifar100", 50, IID, "clients(rho=0.8, tau=0, exact=true)", 0.01, {"strength": 5, "warmup": 50}),
]  # fmt: skip
FEDDPCONT = [  # Di 2024, Section 5.2: symmetric noise with the uniform open set, random noise with the other
    ("feddpcont/cifar10", "cifar10", 100, OPENSET.format("false"), "random(eta=0.4)", 0.01, {"epsilon": 0.81}),
    ("feddpcont/cifar100", "cifar100", 100, OPENSET.format("false"), "random(eta=0.4)", 0.01, {"epsilon": 3.21}),
    ("feddpcont/cifar10-symmetric", "cifar10", 100, OPENSET.format("true"), "symmetric(eta=0.4)", 0.01, {"epsilon": 0.81}),
    ("feddpcont/cifar100-symmetric", "cifar100", 100, OPENSET.format("true"), "symmetric(eta=0.4)", 0.01, {"epsilon": 3.21}),
]


@pytest.mark.parametrize("row", FLR + FEDDPCONT, ids=lambda row: row[0])
def test_presets_equal_the_settings_of_their_papers(row):
    name, dataset, clients, scheme, noise, rate, told = row
    said, options = presets.describe(name), presets.load_preset(name)
    steps = [f"partition --clients {clients} --scheme {scheme!r}", f"inject-noise --noise {noise!r}"]
    # FedDPCont corrupts first and partitions what clients then see.
    assert said["steps"] == (steps[::-1] if name.startswith("feddpcont") else steps)
    assert said["dataset"] == dataset and options["lr"] == rate and options["fraction"] == 0.1 and options["epochs"] == 5
    assert parse(options["method"]).parameters.items() >= told.items()
    assert str(parse(noise)) and str(parse(scheme))
    if name.startswith("flr/"):
        assert "R: 1000" in said["unstated"]

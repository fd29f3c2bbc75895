"""Presets against the papers' tables, typed here once more: noise, partition and their order; what local training does."""

import shlex
from dataclasses import fields

import pytest

from fnlkit.core import presets, registry
from fnlkit.core.spec import parse
from fnlkit.experiment import Settings
from fnlkit.methods.fedcorr import budget
from fnlkit.models import NETWORKS

# FedCorr: Table 1 (clients, fraction, network), Tables 2 to 5, 9, 10 (partition, noise), Table 7 (learning rate), B.
# FedEFC: Section 4.2, Tables 1 to 3.  FedLN: Table 1b, Sections 5.2 and 5.3, Table 4, Figure 8.
#                             first       partition of (clients)                                    noise
FEDCORR = {
    "cifar10":                ("partition", 100, "iid",                                  "clients(rho=0.6, tau=0.5)"),
    "cifar10-lenet5":         ("partition", 100, "iid",                                  "clients(rho=0.6, tau=0.5)"),
    "cifar10-noniid":         ("partition", 100, "bernoulli-dirichlet(p=0.7, alpha=10)", "clients(rho=0.6, tau=0.5)"),
    "cifar10-noniid-alpha1":  ("partition", 100, "bernoulli-dirichlet(p=0.7, alpha=1)",  "clients(rho=0.6, tau=0.5)"),
    "cifar10-noniid-p0.3":    ("partition", 100, "bernoulli-dirichlet(p=0.3, alpha=10)", "clients(rho=0.6, tau=0.5)"),
    "cifar100":               ("partition", 50,  "iid",                                  "clients(rho=0.6, tau=0.5)"),
    "cifar100-noniid":        ("partition", 50,  "bernoulli-dirichlet(p=0.7, alpha=10)", "clients(rho=0.4, tau=0)"),
    "clothing1m":             ("partition", 500, "bernoulli-dirichlet(p=0.7, alpha=10)", None),
}  # fmt: skip
FEDEFC = {
    "mnist":                  ("noise", 100, "bernoulli-dirichlet(p=0.5, alpha=10)", "sparse(level=0.4, sparsity=0.8)"),
    "cifar10":                ("noise", 100, "bernoulli-dirichlet(p=0.5, alpha=10)", "sparse(level=0.4, sparsity=0.8)"),
    "cifar100":               ("noise", 100, "bernoulli-dirichlet(p=0.5, alpha=10)", "sparse(level=0.4, sparsity=0.8)"),
    "mnist-imbalanced":       ("noise", 100, "bernoulli-dirichlet(p=0.2, alpha=1)",  "sparse(level=0.2, sparsity=0.8)"),
    "cifar10-imbalanced":     ("noise", 100, "bernoulli-dirichlet(p=0.2, alpha=1)",  "sparse(level=0.2, sparsity=0.8)"),
}  # fmt: skip
_OWN = ("partition", 30, "sizes(sigma=0.25)", "sparse(level=0.4, sparsity=0, per_client=true, noisy_share=0.8)")
FEDLN = {
    **{d: _OWN for d in ("cifar10", "fashion-mnist", "pathmnist", "eurosat", "speechcommands")},
    **{d: _OWN for d in ("cifar10-convmixer", "eurosat-convmixer")},
    "cifar10n":  ("partition", 30, "sizes(sigma=0.25)", "labels(path=CIFAR-10_human.pt, key=worse_label)"),
    "cifar100n": ("partition", 30, "sizes(sigma=0.25)", "labels(path=CIFAR-100_human.pt, key=noisy_label)"),
}  # fmt: skip
STEPS = {
    **{f"fedcorr/{name}": row for name, row in FEDCORR.items()},
    **{f"fedefc/{name}": row for name, row in FEDEFC.items()},
    **{f"{method}/{name}": row for method in ("nnc", "akd", "na-fedavg") for name, row in FEDLN.items()},
    **{f"akd/{name}-logits": _OWN for name in ("cifar10", "fashion-mnist", "pathmnist", "eurosat", "speechcommands")},
}
#                         network                           rounds fraction epochs batch, then what the optimizer is told
LOCAL = {
    "fedcorr/cifar10":    ("resnet18",                      1000, 0.1, 5, 10, {"lr": 0.03, "momentum": 0.5}),
    "fedcorr/cifar100":   ("resnet34",                      1000, 0.1, 5, 10, {"lr": 0.01, "momentum": 0.5}),
    "fedcorr/clothing1m": ("resnet50(weights=imagenet)",    200, 0.02, 5, 16, {"lr": 0.001, "momentum": 0.5}),
    "fedcorr/cifar10-lenet5": ("lenet5",                    1000, 0.1, 5, 10, {"lr": 0.003, "momentum": 0.5}),
    "fedefc/mnist":       ("cnn9(init=xavier)",             100, 0.1, 5, 64, {"lr": 0.03, "momentum": 0.5}),
    "fedefc/cifar10":     ("resnet18(init=xavier)",         200, 0.1, 5, 10, {"lr": 0.03, "momentum": 0.5}),
    "fedefc/cifar100":    ("resnet34(init=xavier)",         300, 0.1, 5, 10, {"lr": 0.03, "momentum": 0.5}),
}  # fmt: skip


def steps_of(name):
    """Return (what comes first, clients, scheme, noise or None) of a preset."""
    said, order = {}, []
    for step in presets.describe(name)["steps"]:
        verb, *words = shlex.split(step)
        order.append({"partition": "partition", "inject-noise": "noise"}[verb])
        said.update(zip(words[::2], words[1::2], strict=True))
    noise = said.get("--noise")
    return order[0], int(said["--clients"]), parse(said["--scheme"]), noise and parse(noise)


@pytest.mark.parametrize("name", STEPS)
def test_noise_and_partition_are_the_papers(name):
    first, clients, scheme, noise = STEPS[name]
    assert steps_of(name) == (first, clients, parse(scheme), noise and parse(noise))


def test_no_preset_of_the_three_papers_is_missing_from_the_table():
    mine = ("fedcorr/", "fedefc/", "nnc/", "akd/", "na-fedavg/")
    assert {name for name in presets.names() if name.startswith(mine)} == set(STEPS)


def nearest(name):
    """The row of LOCAL that a preset's settings are of."""
    return max((row for row in LOCAL if name.startswith(row)), key=len)


@pytest.mark.parametrize("name", [name for name in STEPS if name.startswith(("fedcorr/", "fedefc/"))])
def test_local_training_is_the_papers(name):
    model, rounds, fraction, epochs, batch_size, optimizer = LOCAL[nearest(name)]
    expected = {"model": model, "rounds": rounds, "fraction": fraction, "epochs": epochs, "batch_size": batch_size}
    found = presets.load_preset(name)
    assert {**found, "method": None} == {"method": None, **expected, **optimizer}


# Public code of FedLN (src/utils/image_utils.py): the cutout has half the side of the image.
SIDES = {"cifar": 16, "fashion-mnist": 14, "pathmnist": 14, "eurosat": 32}


@pytest.mark.parametrize("name", [n for n in STEPS if n.startswith(("nnc/", "akd/", "na-fedavg/")) and "speech" not in n])
def test_the_cutout_and_penalty_of_fedln_are_those_of_its_code(name):
    """The penalty of ResNet-20 is 1e-4 w^2 (src/models/resnet20.py), not of biases and batch norm; it has no ConvMixer."""
    side = next(side for data, side in SIDES.items() if name.partition("/")[2].startswith(data))
    found = presets.load_preset(name)
    assert parse(found["augment"]).parameters == {"pad": 4, "flip": True, "cutout": side}
    assert found.get("weight_decay", 0) == (0.0002 if found["model"] == "resnet20" else 0)


# FedDiv (Li 2024): Tables 1 to 4 and 7, section "Implementations": eta is 1 where clients are not alike.  JointOpt,
# DivideMix and RoFL as FedCorr compares with them: appendix B.
NOISY, ALIKE, UNLIKE = "clients(rho=0.6, tau=0.5)", "iid(balanced=true)", "bernoulli-dirichlet(p=0.7, alpha=10)"
BASELINES = {
    "feddiv/cifar10":        (100, ALIKE, NOISY, "resnet18", 1000, 0.1, 5, 10, 0.03, {"warmup": 50, "prior": 0}),
    "feddiv/clothing1m":     (500, UNLIKE, None, "resnet50(weights=imagenet)", 200, 0.02, 5, 16, 0.001,
                              {"warmup": 100, "prior": 1}),
    "jointopt/cifar10":      (100, "iid", NOISY, "resnet18", 100, 0.1, 20, 10, 0.01,
                              {"warmup": 20, "alpha": 1.2, "beta": 0.8}),
    "dividemix/cifar10":     (100, "iid", NOISY, "resnet18", 100, 0.1, 20, 10, 0.02, {"warmup": 20, "unlabeled": 25}),
    "rofl/cifar10":          (100, "iid", NOISY, "resnet18", 1000, 0.1, 5, 10, 0.03, {"start": 100}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "scheme"), [("fedgr/cifar10", "iid"), ("fedgr/cifar10-noniid", "dirichlet(alpha=0.3)")])
def test_fedgr_trains_as_in_the_scripts_of_its_public_code(name, scheme):
    """n06ls510: 60 % of the clients, symmetric noise from 50 to 100 %; 10 visits of each client before labels are revised."""
    assert steps_of(name) == ("partition", 100, parse(scheme), parse(NOISY))
    local = {"fraction": 0.1, "epochs": 10, "batch_size": 32, "lr": 0.01, "momentum": 0.5, "weight_decay": 0.0005}
    method = "fedgr(sniffing=100, silent=100)"
    assert presets.load_preset(name) == {"method": method, "model": "resnet18", "rounds": 500, **local}


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_train_as_published(name):
    clients, scheme, noise, model, rounds, fraction, epochs, batch_size, lr, own = BASELINES[name]
    assert steps_of(name) == ("partition", clients, parse(scheme), noise and parse(noise))
    found = presets.load_preset(name)
    local = {"fraction": fraction, "epochs": epochs, "batch_size": batch_size, "lr": lr, "momentum": 0.5}
    assert found == {"method": found["method"], "model": model, "rounds": rounds, **local}
    assert parse(found["method"]).parameters == own | ({"confidence": 0.75} if name.startswith("feddiv") else {})


# ---- every preset
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


@pytest.mark.parametrize("name", [n for n in presets.names() if n.startswith(("fedcorr", "flr-plus"))])
def test_the_three_stages_fill_the_rounds(name):
    options = presets.load_preset(name)
    given = parse(options["method"]).parameters
    stages = given["iterations"], given["finetune_rounds"], given["usual_rounds"]
    assert stages[0] / options["fraction"] + stages[1] + stages[2] == options["rounds"]
    assert budget(options["rounds"], options["fraction"], *stages) == stages


# Typed from the papers, one preset of each kind: partition, noise and what training is told.
IID, OPENSET = "iid(balanced=true)", "openset(uniform={})"
ROWS = [  # Kim 2024: Section 2, Tables 3, 5, 6, 7, Figure 8, appendix E.5
    ("flr/cifar10", "cifar10", 100, IID, "clients(rho=0.8, tau=0, exact=true)", 0.03, {"strength": 2, "warmup": 50}),
    ("flr/cifar10-noniid", "cifar10", 100, "bernoulli-dirichlet(p=1, alpha=1, at_least_one=true)",
     "clients(rho=1, tau=0, exact=true)", 0.03, {"strength": 2, "warmup": 50}),
    ("elr/cifar10-asymmetric", "cifar10", 100, IID, "clients(rho=0.6, tau=0.4, exact=true, kind=asymmetric)", 0.03,
     {"strength": 4, "momentum": 0.9}),
    ("flr-plus/cifar100", "cifar100", 50, IID, "clients(rho=0.8, tau=0, exact=true)", 0.01, {"strength": 5, "warmup": 50}),
    # Di 2024, Section 5.2: symmetric noise with the uniform open set, random noise with the other
    ("feddpcont/cifar10", "cifar10", 100, OPENSET.format("false"), "random(eta=0.4)", 0.01, {"epsilon": 0.81}),
    ("feddpcont/cifar100-symmetric", "cifar100", 100, OPENSET.format("true"), "symmetric(eta=0.4)", 0.01, {"epsilon": 3.21}),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_presets_equal_the_settings_of_their_papers(row):
    name, dataset, clients, scheme, noise, rate, told = row
    said, options = presets.describe(name), presets.load_preset(name)
    first = "noise" if name.startswith("feddpcont") else "partition"  # of what clients then see
    assert steps_of(name) == (first, clients, parse(scheme), parse(noise))
    assert said["dataset"] == dataset and options["lr"] == rate and options["fraction"] == 0.1 and options["epochs"] == 5
    assert parse(options["method"]).parameters.items() >= told.items()
    if name.startswith("flr/"):
        assert "R: 1000" in said["unstated"]

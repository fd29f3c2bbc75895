"""A name is resolved by where it was read: on the command line, in a file, or in a message of a Flower server."""

import sys
from functools import partial

import pytest
import torch

from fnlkit import models
from fnlkit.artifacts.run import Run
from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.core.spec import FileText, MessageText, own_names, parse, rename_components
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses import correction
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines.travel import pack, unpack
from tests.commands import fnlkit, refuse, refuse_call, succeed

MARK = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n"
METHOD = """
from fnlkit.core import method
from fnlkit.methods.fedavg import fedavg

@method()
def x(clients, model, opt, select, *, rounds):
    return (yield from fedavg(clients, model, opt, select, rounds=rounds))
"""
TRAIN = "fnlkit train fed.npz --model 'mlp(hidden=[8])' --rounds 2 --epochs 1 --batch-size 60 --engine sequential"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a run of FedAvg and a run of a user's method whose import leaves the file `imported`."""
    folder = tmp_path_factory.mktemp("origins")
    (folder / "helper.py").write_text(MARK + METHOD)
    succeed(f"fnlkit partition --clients 4 -o fed.npz && {TRAIN} -o a.pt && {TRAIN} --method helper.py:x -o b.pt", folder)
    assert (folder / "imported").exists()
    return folder


@pytest.fixture
def place(made):
    """The folder, with nothing imported from it."""
    for name in [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).startswith(str(made))]:
        del sys.modules[name]
    (made / "imported").unlink(missing_ok=True)
    return made


def altered(source, target, meta=None, **settings):
    run = Run.read(str(source), trust=True)
    run.settings |= settings
    run.meta |= meta or {}
    run.write(str(target))


def imported(folder):
    return (folder / "imported").exists()


@pytest.mark.parametrize("line", ["report a.pt b.pt", "report .", "evaluate b.pt", "evaluate a.pt b.pt", "report b.pt",
                                  "evaluate . --test", "evaluate b.pt --cross-site"])  # fmt: skip
def test_a_run_of_a_users_method_is_judged_without_importing_the_method(line, place):
    """The recorded needs of the method and the network suffice, for one run as for several."""
    verb = line.split()[0]
    done = fnlkit(f"fnlkit {line}{' -o page.html' if verb == 'report' else ''}", place)
    refused = "--cross-site" in line  # the federation holds nothing out
    assert done.returncode == (2 if refused else 0) and not imported(place), done.stderr


def test_a_report_imports_a_method_for_what_it_declares_only_if_the_files_are_trusted(place):
    assert fnlkit("fnlkit report b.pt --trust -o page.html", place).returncode == 0 and imported(place)


def test_a_report_of_a_deployment_imports_nothing(place):
    altered(place / "a.pt", place / "sites.pt", {"dataset": "real-sites"}, method="helper.py:x")
    done = fnlkit("fnlkit report sites.pt -o page.html", place)
    (place / "sites.pt").unlink()
    assert done.returncode == 0 and not imported(place), done.stderr


@pytest.mark.parametrize("name", ["model", "loss"])
def test_building_a_user_network_requires_trust(name, place, tmp_path):
    """The network to test a run; the loss to train the sites' models of --cross-site beside a run of `local`."""
    fed = f"fnlkit partition --clients 3 --holdout 0.2 -o {tmp_path}/fed.npz"
    local = f"fnlkit train {tmp_path}/fed.npz --method local --model 'mlp(hidden=[8])' --rounds 1 -o {tmp_path}/run.pt"
    assert fnlkit(f"{fed} && {local}", place).returncode == 0
    altered(tmp_path / "run.pt", tmp_path / "run.pt", **{name: f"{place}/helper.py:x"})
    refuse(f"fnlkit evaluate {tmp_path}/run.pt --cross-site", place, "helper.py:x", "--trust")
    assert not imported(place)


RESOLVERS = {
    "method": registry.method,
    "nested": lambda text: registry.method(type(text)(f"nnc(usual={text})")),
    "loss": registry.loss,
    "optimizer": lambda text: registry.optimizer(text, Fit()),
    "aggregator": registry.aggregator,
    "schedule": registry.schedule,
    "selector": lambda text: registry.selector(text, 0.5),
    "model": lambda text: models.build(text, input_shape=(3,), classes=2),
}


@pytest.mark.parametrize("origin", [FileText, MessageText])
@pytest.mark.parametrize("kind", RESOLVERS)
def test_every_resolver_refuses_a_users_component_of_a_file_or_message(kind, origin, place):
    for name in (f"{place}/helper.py:x", "json.tool:main"):
        refuse_call("names|named", RESOLVERS[kind], origin(name))
    assert not imported(place)
    assert parse(origin("nnc(usual='a:b', k=3)")).parameters["usual"].__class__ is origin  # texts within keep the origin


def test_the_command_line_may_name_the_same(place):
    assert registry.method(f"{place}/helper.py:x").func.__name__ == "x" and imported(place)


# ---- messages
BATCH = Batch(torch.tensor([0, 1]))


def sent(transition):
    """Return a loss as a site gets it in a message."""
    from fnlkit.sites.site.allowed import functions

    loss = partial(correction.forward_given, transition=transition)
    return unpack(pack(Fit(loss=loss)), lambda *named: named in functions()).loss


@pytest.mark.parametrize("text", ["{}/helper.py:f/..", "json.tool:x/..", "helper:f", "{}/T.csv", "matrix(path='{}/T.csv')"])
def test_a_message_neither_imports_nor_reads_a_file_at_a_site(text, place, monkeypatch):
    """Nor does a value that was accepted before from the user of this process."""
    pytest.importorskip("flwr", reason="needs flwr (extra `flower`)")
    monkeypatch.syspath_prepend(place)
    (place / "T.csv").write_text("0.9,0.1\n0.2,0.8\n")
    text = text.format(place)
    if "T.csv" in text:
        assert correction.transition_matrix(text, 2)[0, 0] == 0.9
    refuse_call("transition", sent(text), torch.zeros(2, 2), BATCH)
    assert not imported(place)


def test_a_message_may_name_a_noise_model(place):
    pytest.importorskip("flwr", reason="needs flwr (extra `flower`)")
    z, plain = torch.tensor([[1.0, -1.0], [0.5, 0.0]]), partial(correction.forward_given, transition="pairflip(eta=0.3)")
    assert torch.equal(sent("pairflip(eta=0.3)")(z, BATCH), plain(z, BATCH))


# ---- the text of specs
def test_names_of_files_in_folders_with_spaces_are_quoted():
    spec = parse('"my files/a.py:x"(b=1, usual="my files/c.py:y"())')
    assert spec.name == "my files/a.py:x" and spec.parameters["usual"].name == "my files/c.py:y"
    assert parse(str(spec)) == spec and parse(str(parse('"a b.py:x"'))).name == "a b.py:x"
    assert own_names(str(spec)) == ["my files/a.py:x", "my files/c.py:y"]
    assert own_names("forward(transition='a.py:t', floor=0.1)") == ["a.py:t"] and own_names("gce(q=0.7)") == []


def test_names_change_and_everything_else_stays():
    assert rename_components("gce(q = 0.7)", str.upper) == "gce(q = 0.7)"
    assert (
        rename_components("nnc(usual=a.py:x(k=1), k=[2, 3])", lambda name: f"/at/{name}")
        == "nnc(usual=/at/a.py:x(k=1), k=[2, 3])"
    )


@pytest.mark.parametrize(("name", "kind"), [("fedprox", "optimizer"), ("gce(q=0.5)", "loss"), ("krum", "aggregator")])
def test_a_component_that_is_no_method_is_named_with_its_option(name, kind):
    refuse_call(f"is of the kind {kind}: write `{kind}='{name[:3]}", registry.method, name)


def test_a_component_inside_a_method_is_not_named_with_an_option_of_the_run():
    for spec in ("fedcorr(usual=fedprox)", "auto(of=[fedavg, gce])"):
        with pytest.raises(InputError, match="unknown method '(fedprox|gce)'") as caught:
            registry.method(spec)
        assert "write `" not in str(caught.value)

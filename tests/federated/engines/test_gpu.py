"""The stacked engine on a GPU. Without a GPU, the CPU replays recorded steps, and the tests marked gpu are skipped."""

import contextlib
from functools import partial

import pytest
import torch

from fnlkit.artifacts.run import Run
from fnlkit.federated.client.losses.cross_entropy import cross_entropy
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines import stacked
from fnlkit.federated.engines.descent import Descent
from fnlkit.federated.engines.forward import FORMS
from fnlkit.federated.engines.stacked_training import match_layout
from fnlkit.models import build
from tests.commands import succeed
from tests.experiment.test_experiment import same
from tests.federated.engines.shapes import check_steps
from tests.federated.engines.tape import stand_in
from tests.federated.engines.test_engines import FITS, agree, equal_rounds, federation, in_turn, run, same_round, specification
from tests.toy import IN_SESSION

# Epochs are short, so that a step is recorded in the first round.
SHORT = Fit(epochs=1, lr=0.1, batch_size=16)


# Recordings depend on the loss and on what clients remember: teachers and averages, embeddings, pairs with views and two
# losses, features, soft labels, and labels of earlier rounds. Other methods train with what one of these has.
RECORDED = {"flr", "akd", "dividemix", "rofl", "fedem", "selfie"}
CASES = [
    pytest.param(*case.values, marks=[*case.marks, *([] if case.values[0] in RECORDED else [pytest.mark.slow])])
    for case in in_turn(IN_SESSION, FORMS, quick=1)
]


@pytest.mark.parametrize(("method", "form"), CASES)
def test_every_method_trains_by_recordings_of_both_forms(method, form, monkeypatch):
    ways, taken = stand_in(monkeypatch), check_steps(monkeypatch)
    monkeypatch.setattr("fnlkit.federated.engines.graphs.ways", lambda training: (form,))
    case = {"rounds": 2, "fit": SHORT}
    found = run("stacked", method, "fedavg", "uniform", **case)
    agree(found, specification(method, "fedavg", "uniform", **case))
    assert set(ways) == {form} and not [note for note in found[0].notes if "stacked" in note] and taken


@pytest.mark.parametrize("optimizer", ["feddyn", "scaffold", "feddecorr"])
def test_no_optimizer_mixes_devices_in_a_step(optimizer, monkeypatch):
    """What others do on a client is the gradient term of one of these, or nothing."""
    taken = check_steps(monkeypatch)
    fed, _ = run("stacked", "fedavg", optimizer, "uniform", rounds=2, fit=SHORT)
    assert taken and not [note for note in fed.notes if "stacked" in note]


def constant_elsewhere(logits, batch):
    """A loss with numbers in the memory of the host."""
    return cross_entropy(logits, batch) * torch.ones(batch.y.shape[-1], dtype=logits.dtype)


def reads_values(logits, batch):
    """A loss that a GPU cannot compute without the host."""
    return cross_entropy(logits, batch) * max(1.0, logits.abs().max().item())


@pytest.mark.parametrize("loss", [constant_elsewhere, reads_values])
def test_a_loss_that_a_gpu_cannot_record_is_found_without_one(loss, monkeypatch):
    check_steps(monkeypatch)
    fed, model = federation("stacked", [9, 4])
    fed.round([0, 1], model, FITS["plain"].changed(loss=loss))
    assert [note for note in fed.notes if "cannot be stacked" in note]


# ---- steps of SGD on the gradients of branches
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("leading", [True, False])
def test_gradients_of_branches_are_applied_like_stacked_gradients(momentum, leading):
    """Three of five clients; a convolution has gradients in another memory layout, a vector gradients in bfloat16."""
    fit, pick = Fit(momentum=momentum, weight_decay=0.1), slice(0, 3) if leading else torch.tensor([1, 2, 4])
    ends = []
    for by_client in (False, True):
        torch.manual_seed(0)
        weights = [torch.randn(5, 4, 3, 3, 3), torch.randn(5, 7)]
        separate = [g for _ in range(3) for g in (torch.randn(3, 3, 3, 4).permute(3, 0, 1, 2), torch.randn(7).bfloat16())]
        descent = Descent(fit, weights)
        for _ in range(2):
            chosen = [w[pick] for w in weights]
            gradients = separate if by_client else match_layout(separate, chosen)
            descent.step(chosen, gradients, pick, leading, by_client)
        ends.append([*weights, *chosen, *descent.velocity])
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-6)


class Kernels:
    """The step of SGD that a GPU kernel takes."""

    @staticmethod
    def descend(w, g, v, low, rate, momentum, decay):
        step = g.float() + decay * w
        if v is not None:
            step = v.mul_(momentum).add_(step)
        low.copy_(w.sub_(rate * step))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("leading", [True, False])
def test_large_tensors_take_their_step_during_backpropagation(momentum, leading, monkeypatch):
    monkeypatch.setattr("fnlkit.federated.engines.descent.LARGE", 50)
    fit, pick, ends = Fit(momentum=momentum, weight_decay=0.1), slice(0, 3) if leading else torch.tensor([1, 2, 4]), []
    for kernels in (None, Kernels):
        monkeypatch.setattr("fnlkit.federated.engines.descent.kernels_for", lambda device, kernels=kernels: kernels)
        torch.manual_seed(0)
        weights = [torch.randn(5, 4, 3, 3, 3), torch.randn(5, 7), torch.randn(5, 40)]
        low = [weights[0].bfloat16(), weights[1].bfloat16(), None]
        descent = Descent(fit, weights)
        for _ in range(2):
            chosen, lower = [w[pick] for w in weights], [part if part is None else part[pick] for part in low]
            leaves = [(w if part is None else part).detach().requires_grad_() for w, part in zip(chosen, lower, strict=True)]
            if leading:
                descent.start(leaves, chosen, lower, contextlib.nullcontext)
            gradients = torch.autograd.grad(sum(leaf.float().square().sum() for leaf in leaves), leaves)
            descent.step(chosen, gradients, pick, leading, low=lower)
        ends.append([*weights, *chosen, *lower[:2], *descent.velocity])
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-6)


# ---- memory
GIB = 2**30


@pytest.fixture
def memory(monkeypatch):
    """Return a function that sets the free bytes of a device; the CPU stands for it."""

    def free(amount):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (amount, 80 * GIB))
        monkeypatch.setattr(stacked, "free_memory", lambda device: free_memory("cuda"))

    free_memory = stacked.free_memory
    stand_in(monkeypatch)
    return free


def test_samples_stay_on_a_device_if_they_need_half_of_the_free_memory(memory):
    """Four clients have 22 images of 6 x 6 x 3 bytes, 2,376 bytes."""
    sizes = [9, 2, 4, 7]
    for amount, resident in ((2 * 2376, True), (2 * 2376 - 1, False)):
        memory(amount)
        fed = same_round("stacked", FITS["plain"], sizes, at_once=4)
        assert (fed.engine.pool is not None) == resident


@pytest.mark.parametrize(("share", "together"), [(8.0, 4), (4.0, 2), (3.9, 1), (0.5, 1)])
def test_as_many_clients_train_at_once_as_fit_into_half_of_the_free_memory(share, together, memory, monkeypatch):
    """`share` is the free memory in units of a client's need."""
    sizes, fit, seen = [9, 2, 4, 7], FITS["plain"], []
    fed, _ = federation("stacked", sizes)
    memory(int(share * fed.engine._need(fed.members[0], fit)))
    training = stacked.StackedTraining

    def counted(network, twin, clients, *arguments):
        seen.append(len(clients))
        return training(network, twin, clients, *arguments)

    monkeypatch.setattr(stacked, "StackedTraining", counted)
    fed = same_round("stacked", fit, sizes)
    assert seen == [together] * (4 // together) and bool(fed.notes) == (together < 4)


# ---- whole runs
@pytest.mark.parametrize(("device", "model", "precision"), [
    ("cpu", "mlp(hidden=16)", "fp32"),
    *(pytest.param("cuda", model, precision, marks=pytest.mark.gpu)
      for model in ("mlp(hidden=16)", "lenet5(upsample=true)", "resnet20") for precision in ("fp32", "tf32", "bf16")),
])  # fmt: skip
def test_two_runs_of_a_seed_are_equal(device, model, precision, noisy, tmp_path):
    """FedCorr predicts on clients, mixes, corrects labels and changes the loss of local training."""
    short = "--rounds 12 --fraction 0.25 --epochs 1 --batch-size 60"
    line = f"fnlkit train {noisy} --method fedcorr {short} --engine stacked --device {device}"
    runs = []
    for name in ("first.pt", "second.pt"):
        succeed(f"{line} --model '{model}' --precision {precision} -o {name}", tmp_path)
        runs.append(Run.read(str(tmp_path / name)))
    same(*runs)


# ---- a real GPU
@pytest.mark.gpu
@pytest.mark.parametrize("method", IN_SESSION)
def test_every_method_on_a_gpu_equals_sequential(method):
    found = run("stacked", method, "fedavg", "uniform", rounds=2, device="cuda")
    agree(found, specification(method, "fedavg", "uniform", rounds=2))
    assert not [note for note in found[0].notes if "no CUDA graph" in note or "cannot be stacked" in note]


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_a_gpu_trains_like_sequential(fit, form, monkeypatch):
    monkeypatch.setattr("fnlkit.federated.engines.graphs.ways", lambda training: (form,))
    sizes = [9, 1, 4, 3, 13, 8]
    slow, fast = federation("sequential", sizes), federation("stacked", sizes, device="cuda")
    equal_rounds(slow, fast, [fit, fit], ([0, 1, 4], [2, 5, 3]))
    assert not fast[0].notes


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_a_gpu_trains_like_sequential_in_float32(name):
    network = partial(build, name, input_shape=(3, 32, 32), classes=10)
    (slow, start), (fast, model) = (
        federation(engine, [9, 4, 13], network, torch.float32, side=32, classes=10, device=device)
        for engine, device in (("sequential", "cpu"), ("stacked", "cuda"))
    )
    fit = FITS["plain"].changed(epochs=1, lr=0.01)
    wanted, found = slow.round(range(3), start, fit)["weights"], fast.round(range(3), model, fit)["weights"].cpu()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)
    assert not fast.notes

"""Steps on tensors without values: they fail where a step on a GPU would mix devices or wait for values."""

import copy
from dataclasses import replace

import torch

from fnlkit.federated.engines.cohort_memory import PooledRows, StackedValues
from fnlkit.federated.engines.descent import Descent
from fnlkit.federated.engines.forward import FORMS, Forward
from fnlkit.federated.engines.stacked_training import StackedTraining

META = torch.device("meta")


def check_steps(monkeypatch):
    """Before each local training, take the first step in both forms on the device `meta`; return a list of the forms."""
    taken = []

    def checked(self, step=None):
        for form in FORMS:
            training, group = without_values(self), self.groups[0]
            training.forward.form = form
            training.network.module.train()
            training.step(len(group.who), group.size, bool((group.who == range(len(group.who))).all()))
            taken.append(form)
        return own(self, step)

    own = StackedTraining.train
    monkeypatch.setattr(StackedTraining, "train", checked)
    return taken


def without_values(training):
    """Return a copy of a training with tensors on the device `meta`, which have a shape and no values."""
    out = copy.copy(training)
    for name, value in vars(training).items():
        if isinstance(value, torch.Tensor):
            setattr(out, name, value.to(META))
    for name in ("parameters", "buffers", "broadcast"):
        setattr(out, name, {key: value.to(META) for key, value in getattr(training, name).items()})
    out.low = [part if part is None else part.to(META) for part in training.low]
    out.share = training.share and tuple(value.to(META) for value in training.share)
    out.device, out.network, out.twin = META, _network(training.network), training.twin and _network(training.twin)
    out.clients = [replace(c, inputs=replace(c.inputs, device="meta")) for c in training.clients]
    out.rows = PooledRows(training.clients, META, training.room)
    out.state, out.scatter = (StackedValues(part.memories, META) for part in (training.state, training.scatter))
    out.descent = Descent(training.fit, list(out.parameters.values()))
    out.descent._fused_sgd = out.descent._plain_sgd  # the fused step has no kernel for this device
    out.forward = Forward(out.network, out.twin, training.fit.features, list(out.parameters))
    return out


def _network(network):
    out = copy.copy(network)
    out.module = copy.deepcopy(network.module)
    for p in out.module.parameters():
        p.grad = None
    out.module, out.device = out.module.to(META).eval(), META
    return out

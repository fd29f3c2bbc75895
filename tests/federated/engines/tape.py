"""What stands for a CUDA graph on the CPU: a step's operations with the memory they used, played again without its Python."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from fnlkit.federated.engines.graphs import Graphs

# What makes the host wait, or copies from it, cannot be captured.
ILLEGAL = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "lift_fresh", "bincount"}


class Tape(TorchDispatchMode):
    """Records the operations within it; `replay` does them again, into the same places."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.partition("::")[2]
        masks = [i for i in args[1] if i is not None] if name in ("index", "index_put", "index_put_") else []
        if name in ILLEGAL or any(i.dtype in (torch.bool, torch.uint8) for i in masks):
            raise RuntimeError(f"{name} while a step is recorded")
        out = function(*args, **(kwargs or {}))
        self.done.append((function, args, kwargs or {}, out))
        return out

    def replay(self):
        with torch.no_grad():
            for function, args, kwargs, out in self.done:
                given = {place(t) for t in tensors((args, kwargs))}
                for old, new in zip(tensors(out), tensors(function(*args, **kwargs)), strict=True):
                    if place(old) not in given and old.numel():
                        old.detach().copy_(new)


def stand_in(monkeypatch):
    """Let the CPU record and replay, so that all but the capture itself runs; return the forms of what is recorded."""
    ways = []

    def captured(self, warm, plain):
        warm()
        tape = Tape()
        with tape:
            plain()
        return tape

    def record(self, training, plain, before):
        ways.append(training.forward.form)
        return own(self, training, plain, before)

    def one_hot(y, classes):  # on the CPU PyTorch reads the largest label, which it does not on a GPU
        return torch.zeros(*y.shape, classes, dtype=torch.int64).scatter_(-1, y[..., None], 1)

    own = Graphs._record
    monkeypatch.setattr(Graphs, "usable", lambda self, device: True)
    monkeypatch.setattr(Graphs, "_record", record)
    monkeypatch.setattr(Graphs, "_capture", captured)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.nn.functional, "one_hot", one_hot)
    return ways


def tensors(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def place(tensor):
    return tensor.untyped_storage()._cdata

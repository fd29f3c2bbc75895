"""Joint memory of several clients: stacked values and joined rows, created on demand."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch


class PooledRows(Mapping[str, torch.Tensor]):
    """Rows of all clients of a cohort, with a tensor per name.

    A tensor is created when it is first read, and written back if it was changed. Each client has space for `room` rows and
    fills the first of them.
    """

    def __init__(self, clients, device, room):
        self.clients = clients
        self.device = device
        self.room = room
        self.made = {}
        self.written = set()

    def __getitem__(self, name):
        if name not in self.made:
            self.made[name] = self.join([c.rows[name] for c in self.clients])
        return self.made[name]

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join the tensors (n, ...) of all clients to a tensor (K room, ...)."""
        joined = parts[0].new_zeros((len(parts), self.room, *parts[0].shape[1:]))
        for place, part in zip(joined, parts, strict=True):
            place[: len(part)] = part
        return joined.flatten(0, 1).to(self.device)

    def __iter__(self):
        return iter(self.clients[0].rows)

    def __len__(self):
        return len(self.clients[0].rows)

    def changed(self, name: str) -> torch.Tensor:
        """Tensor of a row for writing."""
        self.written.add(name)
        return self[name]

    def write_back(self) -> None:
        for name in self.written:
            parts = self.made[name].split(self.room)
            for client, part in zip(self.clients, parts, strict=True):
                client.rows[name].copy_(part[: len(client)])


class BatchRows(Mapping[str, torch.Tensor]):
    """Rows of the current batch, loaded on demand."""

    def __init__(self, pooled, index):
        self.pooled = pooled
        self.index = index
        self.fetched = {}

    def __getitem__(self, name):
        if name not in self.fetched:
            self.fetched[name] = self.pooled[name][self.index]
        return self.fetched[name]

    def __iter__(self):
        return iter(self.pooled)

    def __len__(self):
        return len(self.pooled)


class StackedValues(Mapping[str, torch.Tensor]):
    """Entries of the clients' memories, stacked on demand. `pick` selects clients."""

    def __init__(self, memories, device, pick=None, made=None):
        self.memories = memories
        self.device = device
        self.pick = pick
        self.made = {} if made is None else made

    def __getitem__(self, name):
        if name not in self.made:
            self.made[name] = torch.stack([torch.as_tensor(m[name]).to(self.device) for m in self.memories])
        return self.made[name] if self.pick is None else self.made[name][self.pick]

    def __iter__(self):
        return iter(self.memories[0])

    def __len__(self):
        return len(self.memories[0])

    def whole(self) -> list[str]:
        """Names with values of equal shape."""
        numbers = (torch.Tensor, np.ndarray, np.generic, bool, int, float)
        names = [name for name in self if all(isinstance(m[name], numbers) for m in self.memories)]
        shapes = {name: {torch.as_tensor(m[name]).shape for m in self.memories} for name in names}
        return [name for name, distinct in shapes.items() if len(distinct) == 1]

    def at(self, pick: torch.Tensor | slice) -> "StackedValues":
        return StackedValues(self.memories, self.device, pick, self.made)

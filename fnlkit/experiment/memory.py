"""What clients and server remember between rounds, as named tensors of a run and back."""

import torch


def pack(clients, server):
    """Return {name: tensor}: rows joined over the clients that have them, states stacked, the server's as they are."""
    out = {f"server/{name}": torch.as_tensor(value) for name, value in server.items()}
    for group in ("rows", "state"):
        names = sorted({name for c in clients for name in getattr(c, group) if not name.startswith("input/")})
        for name in names:
            held = [c for c in clients if name in getattr(c, group)]
            values = [torch.as_tensor(getattr(c, group)[name]) for c in held]
            out[f"{group}/{name}"] = torch.cat(values) if group == "rows" else torch.stack(values)
            out[f"{group}/{name}/clients"] = torch.tensor([c.id for c in held])
    return out


def foreseen(clients, visits):
    """Return how many bytes clients will remember together once `visits` of them were visited, from those that were so far.

    Parameters
    ----------
    clients : list of Client
        Those that remember anything.
    visits : int
    """
    if not clients:
        return 0
    parts = [(name, value) for c in clients for part in (c.rows, c.state) for name, value in part.items()]
    held = [torch.as_tensor(value) for name, value in parts if not name.startswith("input/")]
    return visits * sum(v.numel() * v.element_size() for v in held) / len(clients)


def unpack(memory, clients, opt, device):
    for name, value in memory.items():
        group, _, rest = name.partition("/")
        if group == "server":
            opt.memory[rest] = value.to(device)
        elif not rest.endswith("/clients"):
            held = [clients[i] for i in memory[f"{name}/clients"].tolist()]
            parts = value.split([len(c) for c in held]) if group == "rows" else value.unbind(0)
            for client, part in zip(held, parts, strict=True):
                getattr(client, group)[rest] = part.clone()

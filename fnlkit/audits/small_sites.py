"""Sites with fewer than five samples: an audit cannot judge their labels, and their counts would describe single samples."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from fnlkit.audits.shifts import LEAST
from fnlkit.components.declarations import Sent

if TYPE_CHECKING:
    from fnlkit.client.client import Client


def hide_few(client: "Client", reply: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Return a reply; all entries are 0 if the client has fewer than `LEAST` samples."""
    return {name: torch.zeros_like(values) if len(client) < LEAST else values for name, values in reply.items()}


def hidden(sends: Mapping[str, Sent]) -> dict[str, Sent]:
    """Return the declarations of replies after `hide_few`: sites with fewer than `LEAST` samples send zeros."""
    return {name: sent._replace(fewest=LEAST) for name, sent in sends.items()}

"""A second stream of a GPU for work that can run beside the main stream."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch


class Beside:
    """A second stream, created at first use. On a device without streams, the work runs at once.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device):
        self.device, self.stream = device, None

    def __call__(self, *reads: torch.Tensor) -> AbstractContextManager[Any]:
        """Return a context whose work starts after all work that is already queued.

        Parameters
        ----------
        reads : Tensor
            What the work reads, so that this memory is not reused before the work ends.
        """
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        self.stream = self.stream or torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        for tensor in reads:
            tensor.record_stream(self.stream)
        return torch.cuda.stream(self.stream)

    def join(self) -> None:
        """Let the main stream wait for the second stream."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

"""Drift terms: functions (w (..., P), w_start (..., P), batch) -> term (..., P) that is added to the gradient.

They operate on the last axis and broadcast over the others, so that one client and a stacked cohort share the code.
"""

from typing import TYPE_CHECKING

from fnlkit.core.declarations import declare

if TYPE_CHECKING:
    import torch

    from fnlkit.federated.client.client import Batch


@declare(fused_kernel="proximal")
def proximal(w: "torch.Tensor", w_start: "torch.Tensor", batch: "Batch", *, mu: float) -> "torch.Tensor":
    """Gradient of mu/2 ||w - w_start||^2 (FedProx, Li 2020, eq. 2)."""
    return mu * (w - w_start)


@declare(fused_kernel="control_variate")
def control_variate(w: "torch.Tensor", w_start: "torch.Tensor", batch: "Batch") -> "torch.Tensor":
    """Correction c - c_k, c ``received["control"]`` (P,), c_k ``state["control"]`` (..., P) (SCAFFOLD, Karimireddy 2020)."""
    return (batch.received["control"].to(w) - batch.state["control"]).expand_as(w)


@declare(fused_kernel="towards_global")
def towards_global(w: "torch.Tensor", w_start: "torch.Tensor", batch: "Batch", *, strength: float) -> "torch.Tensor":
    """Gradient of strength/2 ||w - w_global||^2 with w_global ``state["global"]`` (..., P) (Ditto, Li 2021)."""
    return strength * (w - batch.state["global"])


@declare(fused_kernel="dynamic")
def dynamic(w: "torch.Tensor", w_start: "torch.Tensor", batch: "Batch", *, alpha: float) -> "torch.Tensor":
    """Gradient of alpha/2 ||w - w_start||^2 - <g, w> with g ``state["dual"]`` (FedDyn, Acar 2021, eq. 1)."""
    return alpha * (w - w_start) - batch.state["dual"]

"""Arithmetic precision of a GPU."""

from typing import Any

import torch


def exactness(device: "str | torch.device", *, rounded: bool = False) -> None:
    """Compute products and convolutions on a GPU in float32, or in TF32 if `rounded`, for the whole process.

    The default of PyTorch rounds convolutions.  Only convolution algorithms with reproducible bytes are selected.
    """
    if torch.device(device).type != "cuda":
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounded
    # The newer settings of PyTorch take precedence if somebody has set them.
    cudnn: Any = torch.backends.cudnn  # without types for these
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32" if rounded else "ieee"
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

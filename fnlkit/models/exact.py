"""How exactly a GPU computes."""

import torch


def exactness(device, *, rounded=False):
    """Let products and convolutions on a GPU be computed in float32, or `rounded` to TF32, for the whole process.

    PyTorch's own default rounds convolutions.  Algorithms of convolutions are those that give the same bytes each time.
    """
    if torch.device(device).type != "cuda":
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounded
    # The same in PyTorch's newer words, which would otherwise win where somebody has used them.
    torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = "tf32" if rounded else "ieee"
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

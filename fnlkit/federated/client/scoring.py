"""Scores that a client computes for its samples from a model's logits."""

import numpy as np
import torch


def sample_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each sample, (n,), for logits (n, C) and labels (n,)."""
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def double_softmax_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy (n,) of a softmax of the softmax, as in FedCorr's public code; it orders samples differently."""
    return sample_losses(logits.softmax(-1), labels)


def energy(logits: torch.Tensor) -> torch.Tensor:
    """Energy score logsumexp(logits), (...): high if the network is confident (FedLN, Section 4.2)."""
    return logits.logsumexp(-1)


def confidence(logits: torch.Tensor) -> torch.Tensor:
    """Largest softmax probability, (...): the softmax score that FedLN's Table 2 compares with the energy."""
    return logits.softmax(-1).amax(-1)


def softmax_numpy(logits: torch.Tensor) -> np.ndarray:
    """Turn logits into softmax probabilities (n, C) as a numpy array."""
    return torch.softmax(logits, -1).cpu().numpy()

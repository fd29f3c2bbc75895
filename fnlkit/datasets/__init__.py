"""Load training and test samples with labels by name, file or folder."""

from fnlkit.datasets.dataset import Dataset, moments
from fnlkit.datasets.loading import (
    cache_folder,
    card,
    load,
    new_samples,
    present,
    registry,
    required_parameters,
    sibling_path,
)

__all__ = [
    "Dataset",
    "cache_folder",
    "card",
    "load",
    "moments",
    "new_samples",
    "present",
    "registry",
    "required_parameters",
    "sibling_path",
]

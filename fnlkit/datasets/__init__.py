"""Load training and test samples with labels by name, file or folder."""

from fnlkit.datasets.dataset import Dataset, moments
from fnlkit.datasets.loading import cache_folder, card, load, new_samples, present, registry, sibling_path

__all__ = ["Dataset", "sibling_path", "cache_folder", "card", "registry", "load", "moments", "new_samples", "present"]

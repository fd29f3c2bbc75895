"""Load training and test samples with labels by name, file or folder."""

from fnlkit.datasets.dataset import Dataset, moments
from fnlkit.datasets.loading import beside, cache_folder, card, load, new_samples, present, registry

__all__ = ["Dataset", "beside", "cache_folder", "card", "registry", "load", "moments", "new_samples", "present"]

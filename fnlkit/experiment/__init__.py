"""Experiments: assemble a run from settings, train it, save checkpoints and resume."""

import importlib

_HOME = {
    "Experiment": "fnlkit.experiment.experiment",
    "machine": "fnlkit.experiment.conditions",
    "Settings": "fnlkit.experiment.settings",
    "augmentation": "fnlkit.experiment.augmentation",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'fnlkit.experiment' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)

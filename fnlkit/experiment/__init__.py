"""Experiments: assemble a run from settings, train it, save checkpoints and resume."""

from fnlkit.core.lazy import attach

_HOME = {
    "Experiment": "fnlkit.experiment.experiment",
    "machine": "fnlkit.experiment.identity",
    "Settings": "fnlkit.experiment.settings",
    "augmentation": "fnlkit.experiment.augmentation",
}
__all__ = sorted(_HOME)

__getattr__ = attach(__name__, _HOME)

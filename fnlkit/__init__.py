"""Federated learning with noisy labels: composable commands, exact methods, compiled kernels."""

import importlib

# Name -> module; imported at first use, so that `import fnlkit` costs nothing.
_HOME = {
    "InputError": "fnlkit.errors",
    "count_matrix": "fnlkit.kernels",
    "class_thresholds": "fnlkit.kernels",
    "lid": "fnlkit.kernels",
    "lid_score": "fnlkit.kernels",
    "invert_transition": "fnlkit.kernels",
    "apply_inverse": "fnlkit.kernels",
    "project_to_simplex": "fnlkit.kernels",
    "knn_vote": "fnlkit.kernels",
    "flip_labels": "fnlkit.kernels",
    "randomised_response": "fnlkit.kernels",
    "augment_batch": "fnlkit.kernels",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'fnlkit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__():
    return __all__

"""cleanlab's counts of labels and true classes, with sites; see fnlkit.cleanlab.count."""

from fnlkit.cleanlab.count import (
    calibrate_confident_joint,
    compute_confident_joint,
    estimate_joint,
    estimate_py_and_noise_matrices_from_probabilities,
    get_confident_thresholds,
    num_label_issues,
)

__all__ = [
    "calibrate_confident_joint",
    "compute_confident_joint",
    "estimate_joint",
    "estimate_py_and_noise_matrices_from_probabilities",
    "get_confident_thresholds",
    "num_label_issues",
]

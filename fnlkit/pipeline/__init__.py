"""Functions behind the commands, for use from Python."""

import importlib

_HOME = {
    "partition": "labels",
    "inject_noise": "labels",
    "estimate_noise": "labels",
    "audit": "reviewing",
    "find_label_issues": "issues",
    "suspects": "reviewing",
    "cleaned": "reviewing",
    "correct": "reviewing",
    "consensus": "reviewing",
    "export_review": "reviewing",
    "import_review": "reviewing",
    "plan_reviews": "reviewing",
    "predict": "prediction",
    "export": "prediction",
    "train": "training",
    "evaluate": "judging",
    "load": "judging",
    "save": "judging",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'fnlkit.pipeline' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fnlkit.pipeline.{_HOME[name]}"), name)

"""Federated learning with noisy labels: composable commands, exact methods, compiled kernels."""

from fnlkit.core.lazy import attach

__version__ = "0.3.0"

# Name -> module, imported at first use, so that `import fnlkit` is fast.
_HOME = {
    "InputError": "fnlkit.core.errors",
    "partition": "fnlkit.pipeline",
    "inject_noise": "fnlkit.pipeline",
    "estimate_noise": "fnlkit.pipeline",
    "train": "fnlkit.pipeline",
    "evaluate": "fnlkit.pipeline",
    "audit": "fnlkit.pipeline",
    "audit_samples": "fnlkit.pipeline",
    "suspects": "fnlkit.pipeline",
    "cleaned": "fnlkit.pipeline",
    "correct": "fnlkit.pipeline",
    "consensus": "fnlkit.pipeline",
    "export_review": "fnlkit.pipeline",
    "import_review": "fnlkit.pipeline",
    "predict": "fnlkit.pipeline",
    "export": "fnlkit.pipeline",
    "load": "fnlkit.pipeline",
    "reproduce": "fnlkit.recipes.running",
    "save": "fnlkit.pipeline",
    "find_label_issues": "fnlkit.cleanlab.filter",
    "get_label_quality_scores": "fnlkit.cleanlab.rank",
    "count_matrix": "fnlkit.kernels",
    "class_thresholds": "fnlkit.kernels",
    "lid": "fnlkit.kernels",
    "lid_score": "fnlkit.kernels",
    "invert_transition": "fnlkit.kernels",
    "apply_inverse": "fnlkit.kernels",
    "project_to_simplex": "fnlkit.kernels",
    "knn_vote": "fnlkit.kernels",
    "flip_labels": "fnlkit.kernels",
    "randomized_response": "fnlkit.kernels",
}
__all__ = sorted(_HOME)

# The same names for type checkers, which do not run `__getattr__`. This line is cheaper than an import of typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fnlkit.cleanlab.filter import find_label_issues as find_label_issues
    from fnlkit.cleanlab.rank import get_label_quality_scores as get_label_quality_scores
    from fnlkit.core.errors import InputError as InputError
    from fnlkit.kernels import apply_inverse as apply_inverse
    from fnlkit.kernels import class_thresholds as class_thresholds
    from fnlkit.kernels import count_matrix as count_matrix
    from fnlkit.kernels import flip_labels as flip_labels
    from fnlkit.kernels import invert_transition as invert_transition
    from fnlkit.kernels import knn_vote as knn_vote
    from fnlkit.kernels import lid as lid
    from fnlkit.kernels import lid_score as lid_score
    from fnlkit.kernels import project_to_simplex as project_to_simplex
    from fnlkit.kernels import randomized_response as randomized_response
    from fnlkit.pipeline import audit as audit
    from fnlkit.pipeline import audit_samples as audit_samples
    from fnlkit.pipeline import cleaned as cleaned
    from fnlkit.pipeline import consensus as consensus
    from fnlkit.pipeline import correct as correct
    from fnlkit.pipeline import estimate_noise as estimate_noise
    from fnlkit.pipeline import evaluate as evaluate
    from fnlkit.pipeline import export as export
    from fnlkit.pipeline import export_review as export_review
    from fnlkit.pipeline import import_review as import_review
    from fnlkit.pipeline import inject_noise as inject_noise
    from fnlkit.pipeline import load as load
    from fnlkit.pipeline import partition as partition
    from fnlkit.pipeline import predict as predict
    from fnlkit.pipeline import save as save
    from fnlkit.pipeline import suspects as suspects
    from fnlkit.pipeline import train as train
    from fnlkit.recipes.running import reproduce as reproduce


__getattr__ = attach(__name__, _HOME)


def __dir__():
    return __all__

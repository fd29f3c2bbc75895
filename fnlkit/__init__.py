"""Federated learning with noisy labels: composable commands, exact methods, compiled kernels."""

from fnlkit.core.lazy import attach
from fnlkit.core.version import __version__ as __version__

# Name -> module, imported at first use, so that `import fnlkit` is fast.
_HOME = {
    "InputError": "fnlkit.core.errors",
    "partition": "fnlkit.pipeline.labels",
    "inject_noise": "fnlkit.pipeline.labels",
    "estimate_noise": "fnlkit.pipeline.labels",
    "train": "fnlkit.pipeline.training",
    "evaluate": "fnlkit.pipeline.judging",
    "audit": "fnlkit.pipeline.auditing",
    "audit_samples": "fnlkit.pipeline.issues",
    "suspects": "fnlkit.pipeline.reviewing",
    "cleaned": "fnlkit.pipeline.reviewing",
    "correct": "fnlkit.pipeline.reviewing",
    "consensus": "fnlkit.pipeline.annotators",
    "export_review": "fnlkit.pipeline.reviewing",
    "import_review": "fnlkit.pipeline.reviewing",
    "predict": "fnlkit.pipeline.prediction",
    "export": "fnlkit.pipeline.prediction",
    "load": "fnlkit.pipeline.judging",
    "reproduce": "fnlkit.recipes.running",
    "save": "fnlkit.pipeline.judging",
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
    from fnlkit.pipeline.annotators import consensus as consensus
    from fnlkit.pipeline.auditing import audit as audit
    from fnlkit.pipeline.issues import audit_samples as audit_samples
    from fnlkit.pipeline.judging import evaluate as evaluate
    from fnlkit.pipeline.judging import load as load
    from fnlkit.pipeline.judging import save as save
    from fnlkit.pipeline.labels import estimate_noise as estimate_noise
    from fnlkit.pipeline.labels import inject_noise as inject_noise
    from fnlkit.pipeline.labels import partition as partition
    from fnlkit.pipeline.prediction import export as export
    from fnlkit.pipeline.prediction import predict as predict
    from fnlkit.pipeline.reviewing import cleaned as cleaned
    from fnlkit.pipeline.reviewing import correct as correct
    from fnlkit.pipeline.reviewing import export_review as export_review
    from fnlkit.pipeline.reviewing import import_review as import_review
    from fnlkit.pipeline.reviewing import suspects as suspects
    from fnlkit.pipeline.training import train as train
    from fnlkit.recipes.running import reproduce as reproduce


__getattr__ = attach(__name__, _HOME)


def __dir__():
    return __all__

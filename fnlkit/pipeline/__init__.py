"""Functions behind the commands, for use from Python."""

from fnlkit.core.lazy import attach

_HOME = {
    "partition": "labels",
    "inject_noise": "labels",
    "estimate_noise": "labels",
    "audit": "auditing",
    "audit_samples": "issues",
    "suspects": "reviewing",
    "cleaned": "reviewing",
    "correct": "reviewing",
    "consensus": "annotators",
    "export_review": "reviewing",
    "import_review": "reviewing",
    "predict": "prediction",
    "export": "prediction",
    "train": "training",
    "evaluate": "judging",
    "load": "judging",
    "save": "judging",
}
__all__ = sorted(_HOME)

# The same names for type checkers, which do not run `__getattr__`.
TYPE_CHECKING = False
if TYPE_CHECKING:
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

__getattr__ = attach(__name__, {name: f"{__name__}.{module}" for name, module in _HOME.items()})

"""Options of a run beside its settings: data, engine and files, declared once for Python, `fnlkit train` and recipes."""

import os
from dataclasses import dataclass

from fnlkit.components.options import option
from fnlkit.components.parameters import Count, SpecText
from fnlkit.engines import EngineOptions

# Types of values; the command line, which reads this module, does not need their modules.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from fnlkit.artifacts.run import Run
    from fnlkit.datasets.dataset import Dataset

_Path = str | os.PathLike[str]
LEDGER = "Ledger of privacy spent over all runs. Default: next to the data set (train: with `privacy_key`); none: no ledger."


@dataclass(frozen=True, kw_only=True)
class TrainOptions(EngineOptions):
    """Options of a run that do not belong to its settings; `fnlkit train --help-all` describes them.

    `dataset` and `output` have the same option in several commands, which declare it.
    """

    dataset: "_Path | Dataset | None" = option(None, section="Federation")
    preset: str | None = option(
        None,
        "Options of a paper, for example fedcorr/cifar10; options given here take precedence.",
        section="Method",
        after="method",
        metavar="NAME",
        recipe=True,
    )
    embeddings: "_Path | ArrayLike | None" = option(
        None,
        "A backbone or a file of vectors, for methods that compare samples. Default: as `backbone`.",
        section="Federation",
        rare=True,
        metavar="SPEC|FILE",
    )
    backbone: SpecText = option(
        "auto",
        "Pretrained network that encodes the samples: a spec, none, or auto: an installed one for photographs, texts and "
        "sounds, if neither `preset` nor `model` is given.",
        section="Method",
        after="model",
        metavar="SPEC",
        recipe=True,
    )
    checkpoint_every: Count = option(10, "Rounds between checkpoints.", section="Run", rare=True, recipe=True)
    resume: "_Path | Run | None" = option(
        None, "Continue this run; start a new one if the file does not exist.", section="Run", metavar="RUN"
    )
    overwrite: bool = option(False, "Replace an unfinished run at `output`.", section="Run", rare=True)
    ledger: _Path | None = option(None, LEDGER, section="Protection", after="privacy_key", rare=True, metavar="FILE")
    privacy_key: _Path | None = option(
        None,
        "Secret key of privacy noise, to publish the output. Default: draws follow from `seed`.",
        section="Protection",
        after="protect",
        rare=True,
        metavar="FILE",
    )
    metrics: _Path | None = option(
        None,
        "JSON lines with the numbers of each round. Default: RUN.metrics.jsonl next to `output`.",
        section="Measurement",
        after="memorization",
        rare=True,
        metavar="FILE",
        output=True,
    )
    fingerprint: str | None = option(
        None, "Identity of a recipe's job, recorded in the run.", section="Run", rare=True, metavar="TEXT"
    )
    output: _Path | None = option(None, section="Run")

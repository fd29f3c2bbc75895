"""Types of the arguments of the pipeline's functions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

from numpy.typing import ArrayLike as ArrayLike

from fnlkit.artifacts.federation import Federation
from fnlkit.datasets.dataset import Dataset

# Run imports torch, which many functions do not need.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fnlkit.artifacts.run import Run

FilePath = str | os.PathLike[str]
# A name of `fnlkit data list`, a file or folder, or a data set in memory.
Samples = FilePath | Dataset
Labels = FilePath | Federation
Model: TypeAlias = "FilePath | Run"
# Receives a note; None prints nothing.
Say = Callable[[str], object] | None
# Receives the numbers of finished and of all steps, and what is computed.
Progress = Callable[[int, int, str], object] | None

"""Checkpoints of the trainings of an audit, so that a repeated audit continues after an interruption."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit import __version__
from fnlkit.artifacts.run import Run
from fnlkit.artifacts.stored import blocks
from fnlkit.experiment.assembly import digest_of_federation

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation
    from fnlkit.datasets.dataset import Dataset
    from fnlkit.experiment.settings import Settings


# Rounds between checkpoints of a training; an interruption also saves the last finished round.
EVERY = 10


class Checkpoints:
    """Runs of an audit's trainings in a folder.

    The file name of a run is a digest of the version, the data, the labels and the settings. A changed audit therefore starts
    anew and ignores the files of other audits.

    Parameters
    ----------
    folder : str or os.PathLike
        Created when the first run is saved.
    embeddings : float (n, D), optional
        Vectors that replace the samples in training.
    say : callable (str)
        Called with a line for each training that continues.
    """

    def __init__(self, folder, embeddings=None, say=lambda text: None):
        self.folder, self.say = Path(folder), say
        self._digest = hashlib.sha256()
        if embeddings is not None:
            self._digest.update(str(embeddings.shape).encode())
            for a, b in blocks(embeddings):
                self._digest.update(np.ascontiguousarray(embeddings[a:b]).tobytes())

    def training(
        self, title: str, federation: "Federation", dataset: "Dataset", settings: "Settings"
    ) -> tuple[Run | None, Any]:
        """Return the saved Run of a training or None, and the function that saves it.

        Parameters
        ----------
        title : str
        federation : fnlkit.artifacts.federation.Federation
        dataset : fnlkit.datasets.Dataset
        settings : fnlkit.experiment.Settings
        """
        named = [__version__, digest_of_federation(federation), dataset.checksum, self._digest.hexdigest()]
        named.append(asdict(settings))
        path = self.folder / f"{hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]}.pt"

        def save(run: Run) -> None:
            self.folder.mkdir(exist_ok=True)
            run.write(path)

        if not path.exists():
            return None, save
        run = Run.read(path)
        done = "is finished" if run.finished else f"continues after {len(run.history)} rounds"
        self.say(f"{title} {done} in {self.folder}")
        return run, save

    def __len__(self):
        """Return the number of saved runs."""
        return len(list(self.folder.glob("*.pt")))

    def remove(self) -> None:
        """Remove all saved runs, and the folder if it is empty."""
        for path in self.folder.glob("*.pt"):
            path.unlink()
        if self.folder.is_dir() and not os.listdir(self.folder):
            self.folder.rmdir()

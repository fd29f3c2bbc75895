"""Progress and speed of a run."""

from __future__ import annotations

import time
from typing import Any


class Progress:
    """Counter of an experiment's client-rounds from now on.

    Parameters
    ----------
    experiment : fnlkit.experiment.Experiment

    Attributes
    ----------
    total : int
        Client-rounds in the budget.
    start : int
        Client-rounds that a resumed run has already finished.
    """

    def __init__(self, experiment):
        self.experiment = experiment
        self.total = experiment.client_rounds_total
        self.start = self._done(experiment)
        self._began, self._score = time.monotonic(), ""
        self._samples = float(experiment.clients.sizes.mean()) * experiment.settings.epochs

    @staticmethod
    def _done(experiment):
        return experiment.clients.traffic.client_rounds

    @property
    def done(self) -> int:
        return self._done(self.experiment)

    def text(self, row: dict[str, Any]) -> str:
        """Format stage, last scores and samples per second after a round's row of metrics."""
        name = next((name for name in ("accuracy", "agreement") if name in row), None)
        if name:
            self._score = f"{name} {row[name]:.4f}"
            if "label_accuracy" in row:
                self._score += f", labels right {row['label_accuracy']:.4f}"
        rate = (self.done - self.start) * self._samples / max(1e-9, time.monotonic() - self._began)
        return f"{row['stage']}: {self._score}{', ' if self._score else ''}{rate:,.0f} samples/s"

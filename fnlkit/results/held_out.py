"""Compare runs that were tested on different labels of the same held-out samples, such as before and after a review."""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from fnlkit.artifacts.run import Run
from fnlkit.experiment.evaluation_set import held_out_positions
from fnlkit.results.evaluation import score_name


def differing(runs: list[Run]) -> dict[str, tuple[int, int]]:
    """Find {dataset checksum: indices of two runs} that measured agreement with different labels of a sample.

    Parameters
    ----------
    runs : list of fnlkit.artifacts.run.Run
    """
    groups: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        if score_name(run) == "agreement" and "held_out" in run.traffic.sent:
            groups.setdefault(run.meta["dataset_checksum"], []).append(place)
    return {data: pair for data, places in groups.items() if (pair := _first_conflict(runs, places))}


def _first_conflict(runs, places):
    """Find the index of a run and of the first later one with another label of a sample, or None."""
    label, source = (np.full(len(runs[places[0]].labels["given"]), -1) for _ in range(2))
    for place in places:
        run = runs[place]
        held = held_out_positions(run.federation())
        given = run.labels["given"][held]
        if (other := held[(label[held] >= 0) & (label[held] != given)]).size:
            return int(source[other[0]]), place
        label[held], source[held] = given, place
    return None


# Fewer samples whose labels are decided are too few for a difference.
LEAST = 30


@dataclass(frozen=True, slots=True)
class Difference:
    """Predictions of two runs on the same held-out samples.

    Attributes
    ----------
    samples : int
        Common held-out samples whose label is the same in both runs, or was decided by a person.
    undecided : int
        Common held-out samples with different labels that nobody decided.
    first, second : float
        Shares of these samples that the runs predict right. NaN without samples.
    low, high : float
        95 % interval of `second` - `first`, from the samples that only one of the runs predicts right.
    """

    samples: int
    undecided: int
    first: float
    second: float
    low: float
    high: float

    def describe(self) -> str:
        """Describe the difference in a sentence, or how many reviews are missing."""
        if self.samples < LEAST:
            return (
                f"only {self.samples} of these samples have the same label or were reviewed; review at least "
                f"{LEAST - self.samples} of the {self.undecided} others to compare the runs"
            )
        points = 100 * np.array([self.second - self.first, self.low, self.high])
        return (
            f"on the {self.samples:,} samples that have the same label or were reviewed, {100 * self.first:.1f} % and "
            "{:.1f} % agree: a difference of {:+.1f} points ({:+.1f} to {:+.1f})".format(100 * self.second, *points)
        )


def compare_on_decided(first: Run, second: Run) -> Difference | None:
    """Compare two runs on the held-out samples whose labels are decided; None if a run has no stored predictions.

    The interval is that of a difference of paired proportions (normal approximation, Agresti and Min 2005, section 2).
    """
    if any("held_out" not in run.predicted for run in (first, second)):
        return None
    labels, predicted, reviewed = [], [], []
    for run in (first, second):
        federation = run.federation()
        held, size = held_out_positions(federation), len(federation.given)
        labels.append(np.full(size, -1))
        predicted.append(np.full(size, -1))
        labels[-1][held], predicted[-1][held] = federation.given[held], run.predicted["held_out"]
        reviewed.append(np.asarray(federation.extra.get("reviewed", np.zeros(size, bool)), bool))
    label = np.where(reviewed[0], labels[0], labels[1])
    common = (labels[0] >= 0) & (labels[1] >= 0)
    decided = common & ((labels[0] == labels[1]) | reviewed[0] | reviewed[1])
    n = int(decided.sum())
    right = [guess[decided] == label[decided] for guess in predicted]
    gained, lost = int((right[1] & ~right[0]).sum()), int((right[0] & ~right[1]).sum())
    difference, variance = (gained - lost) / max(1, n), (gained + lost) / max(1, n) ** 2
    half = ndtri(0.975) * np.sqrt(max(0.0, variance - difference**2 / max(1, n)))
    first_share, second_share = (float(hits.mean()) if n else float("nan") for hits in right)
    low, high = float(difference - half), float(difference + half)
    return Difference(n, int((common & ~decided).sum()), first_share, second_share, low, high)

"""Find runs that were tested on different labels of the same held-out samples."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.experiment.evaluation_set import held_out_positions
from fnlkit.results.evaluation import score_name

if TYPE_CHECKING:
    from fnlkit.artifacts.run import Run


def differing(runs: "list[Run]") -> dict[str, Any]:
    """Return {dataset checksum: indices of its runs} for runs that measured agreement with different labels of a sample.

    Parameters
    ----------
    runs : list of fnlkit.artifacts.run.Run
    """
    groups: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        if score_name(run) == "agreement" and "held_out" in run.traffic.sent:
            groups.setdefault(run.meta["dataset_checksum"], []).append(place)
    return {data: places for data, places in groups.items() if _conflict([runs[place] for place in places])}


def _conflict(runs):
    label = np.full(len(runs[0].labels["given"]), -1)
    for run in runs:
        held = held_out_positions(run.federation())
        given = run.labels["given"][held]
        if ((label[held] >= 0) & (label[held] != given)).any():
            return True
        label[held] = given
    return False

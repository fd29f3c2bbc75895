"""Agreement of a model with the labels of sites, from ranges of counts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fnlkit.estimators.intervals import wilson

if TYPE_CHECKING:
    from fnlkit.federated.client.private_counts import Ranges


def scores(counts: "Ranges", names: Sequence[str]) -> dict[str, Any]:
    """Score the agreement of a model with the labels of each site.

    A number that is known as a range counts as the middle of the range, and the interval contains both ends.  `agreement` and
    `balanced` (mean over the groups) are None for a site whose samples were not tested.

    Parameters
    ----------
    counts : fnlkit.federated.client.private_counts.Ranges
        Of the sites, (N, G).
    names : sequence of str
    """
    rows, middle = [], (counts.fewest + counts.most) / 2
    for k, name in enumerate(names):
        size, held = int(counts.tested[k].sum()), counts.tested[k] > 0
        row = {"site": name, "samples": size, "agreement": None, "low": 0.0, "high": 1.0, "balanced": None}
        if size:
            row["agreement"] = float(1 - middle[k].sum() / size)
            row["low"] = float(wilson(size - int(counts.most[k].sum()), size)[0])
            row["high"] = float(wilson(size - int(counts.fewest[k].sum()), size)[1])
            row["balanced"] = float((1 - middle[k, held] / counts.tested[k, held]).mean())
        rows.append(row)
    total = int(counts.tested.sum())
    return {"sites": rows, "samples": total, "agreement": float(1 - middle.sum() / total) if total else None}

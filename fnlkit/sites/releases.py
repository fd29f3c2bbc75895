"""Label releases of a site: once per data set, up to the agreed epsilon, for all runs.

The record is stored next to the site's ledger. A second run receives the same counts as the first run, without additional
privacy cost.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.paths import display_path
from fnlkit.errors import InputError

KIND = "fnlkit.released/1"
_MAX_BYTES = 2**24


class Withheld(InputError):
    """Error: a site refuses a request. The server receives only the code."""

    code = "setup"


class LabelsWithheld(Withheld):
    """Error: labels would be released again, or at a different epsilon than agreed."""

    code = "release"


@dataclass(frozen=True)
class Releases:
    """Labels of a site that can be released.

    Attributes
    ----------
    path : str
        File of the record.
    labels : str
        SHA-256 of the site's labels as received, see `digest`.
    names : dict of str to (str or None)
        Replies that reveal labels, each with the name of the reply that contains the epsilon. None means that the labels are
        released without noise.
    limit : float or None
        Largest epsilon that the site agreed to. None if the site agreed to release labels without noise.
    """

    path: str = ""
    labels: str = ""
    names: dict[str, Any] = field(default_factory=dict)
    limit: float | None = None

    def replace_released(self, arrays: dict[str, torch.Tensor], *, run: str) -> dict[str, Any]:
        """Return the arrays of a reply that can be sent.

        If labels were released before, the arrays of the first release are sent again.

        Parameters
        ----------
        arrays : dict of Tensor
        run : str
            Written to the record.

        Raises
        ------
        LabelsWithheld
            If labels would be released at a higher epsilon than agreed, or again at a different epsilon or for different data.
        """
        released = sorted(set(arrays) & set(self.names))
        if not released:
            return arrays
        price = self._price(arrays, released)
        saving.private_folder(os.path.dirname(os.path.abspath(self.path)))
        with FileLock(f"{self.path}.lock"):
            known = self._known()
            if known is None:
                counts = {name: arrays[name].tolist() for name in released}
                known = {"kind": KIND, "labels": self.labels, "epsilon": price, "counts": counts, "run": run}
                saving.write_bytes([json.dumps(known).encode()], self.path)
        if known["labels"] != self.labels:
            raise LabelsWithheld(
                f"{display_path(self.path)} records a release of other labels, and both would add up for every sample in both; "
                "name another `memory` folder only if no sample is in both data sets"
            )
        if known["epsilon"] != price or set(known["counts"]) != set(released):
            raise LabelsWithheld(
                f"labels were released before at epsilon {_words(known['epsilon'])}; another release at {_words(price)} adds up"
            )
        counts = {name: torch.tensor(known["counts"][name], dtype=arrays[name].dtype) for name in released}
        if any(counts[name].shape != arrays[name].shape for name in released):
            raise LabelsWithheld(f"{display_path(self.path)} records counts of other classes")
        return arrays | counts

    def _price(self, arrays, released):
        """Return the epsilon of a reply's labels, None without epsilon, after checking the limit."""
        prices = set()
        for name in released:
            sent = self.names[name]
            if sent is not None and sent not in arrays:
                raise LabelsWithheld(f"{name} was sent without the epsilon")
            prices.add(None if sent is None else float(arrays[sent]))
        price = prices.pop()
        if prices or (self.limit is not None and (price is None or not 0 < price <= self.limit)):
            raise LabelsWithheld(
                f"labels would be released at epsilon {_words(price)}; this site agreed to at most {_words(self.limit)}"
            )
        return price

    def _known(self):
        """Return the contents of the record, or None if there is no record."""
        if not os.path.exists(self.path):
            return None
        text = files.read_text(self.path, max_bytes=_MAX_BYTES)
        try:
            known = json.loads(text)
            if known["kind"] == KIND and isinstance(known["labels"], str) and isinstance(known["counts"], dict):
                known["epsilon"] = None if known["epsilon"] is None else float(known["epsilon"])
                return known
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise LabelsWithheld(f"{display_path(self.path)}: is not a record of fnlkit; restore the original file")


def digest(labels: np.ndarray | torch.Tensor) -> str:
    """Return the SHA-256 of labels (n,) int64 in their order."""
    return hashlib.sha256(np.ascontiguousarray(labels, np.int64).tobytes()).hexdigest()


def _words(epsilon):
    return "infinity (without randomized response)" if epsilon is None else f"{epsilon:g}"

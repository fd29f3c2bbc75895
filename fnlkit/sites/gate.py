"""Gate of a site: the check of a request before it is computed, and the record of the requests that the site answered.

A request that the table (`fnlkit.sites.gate_table`) does not contain is refused: nothing is computed, stored or sent except
the code of the refusal.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import FileLock

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.paths import display_path, from_home
from fnlkit.engines.travel import unpack
from fnlkit.errors import InputError
from fnlkit.sites.gate_limits import NotInTable, must_fit, short
from fnlkit.sites.gate_table import Row, name_of, parts_of, table

if TYPE_CHECKING:
    from fnlkit.client.network import Network
    from fnlkit.experiment.plan import Plan
    from fnlkit.sites.terms import Task


# Seconds of CPU time of a request, unless the sites agreed to a longer timeout.
MOST_SECONDS = 3600
# Largest size of a request: characters of its text, which has all names, lists and single numbers, and bytes of its arrays.
MOST_TEXT, MOST_ARRAY_BYTES, MOST_MODELS = 2**20, 2**26, 8
KIND = "fnlkit.requests/1"
_MAX_BYTES = 2**20


@dataclass(frozen=True)
class Gate:
    """Table of a task, and the record of the requests that the site answered.

    Attributes
    ----------
    rows : dict of str to Row
        By step.
    path : str
        File of the record.
    agreement : str
        SHA-256 of the site's copy of the project. Requests are counted for each agreement.
    seconds : float
        Largest CPU time of a request.
    """

    rows: dict[str, Row]
    path: str
    agreement: str
    seconds: float = MOST_SECONDS

    @property
    def task(self) -> str:
        """Name of the task."""
        return next(iter(self.rows.values())).task

    def may_be_named(self, module: str, name: str) -> bool:
        """Return whether a message can name a function: a step of the table, a loss or a gradient term."""
        return isinstance(module, str) and isinstance(name, str) and f"{module}:{name}" in self.rows

    def admit(self, request: dict[str, Any], remembered: Callable[..., Any] = lambda: "") -> frozenset[Any]:
        """Count a request and return the names of its replies, or refuse it before anything is computed.

        Parameters
        ----------
        request : dict
            As returned by fnlkit.sites.flower.visits.check_request.
        remembered : callable returning str
            Digest of the memory with which the visit begins; called for a row with `different`.

        Raises
        ------
        NotInTable
            If a step, a parameter, an array or the number of requests is not in the table.
        """
        task = self.task
        if not request["steps"]:
            raise NotInTable(f"{task}: the request has no step")
        try:
            steps = [unpack(step, self.may_be_named) for step in request["steps"]]
            parts = [(self.rows[name_of(part)], part) for step in steps for part in parts_of(step)]
        except (InputError, ValueError, TypeError, KeyError, AttributeError, RecursionError, IndexError):
            raise NotInTable(f"{task}: the request contains a step that the table of this site does not have") from None
        received = {**request["broadcast"], **request["visits"][0][3]}
        for row, part in parts:
            must_fit(row, part, received)
        self._count(Counter(map(name_of, steps)), task, partial(_digest, request, received, remembered))
        return frozenset(name for step in steps for name in self.rows[name_of(step)].replies)

    def _count(self, wanted, task, digest):
        saving.private_folder(os.path.dirname(os.path.abspath(self.path)))
        with FileLock(f"{self.path}.lock"):
            known = self.counted()
            counts = known.setdefault(self.agreement, {})
            for name, more in wanted.items():
                key, row = f"{task} {name}", self.rows[name]
                if row.different:
                    self._count_different(counts, key, row, digest())
                if counts.get(key, 0) + more > row.requests:
                    raise NotInTable(
                        f"{task}: {short(name)} was requested {counts.get(key, 0) + more:,} times, and this site agreed to "
                        f"{row.requests:,}; if you permit more, delete {display_path(self.path)}"
                    )
                counts[key] = counts.get(key, 0) + more
            saving.write_bytes([json.dumps({"kind": KIND, "counts": known}).encode()], self.path)

    def _count_different(self, counts, key, row, digest):
        """Count a request by its digest, which is the end of the record's key."""
        known = [each for each in counts if each.startswith(f"{key} ")]
        if f"{key} {digest}" not in known and len(known) >= row.different:
            raise NotInTable(
                f"{row.task}: {short(row.step)} was requested with {len(known)} different models or values, and this site "
                f"agreed to {row.different}; if you permit more, delete {display_path(self.path)}"
            )
        counts[f"{key} {digest}"] = counts.get(f"{key} {digest}", 0) + 1

    def counted(self) -> dict[str, dict[str, int]]:
        """Return the recorded requests, {SHA-256 of the agreement: {"task step": number}}.

        For a row with `different`, "task step DIGEST" has the number of equal requests.
        """
        if not os.path.exists(self.path):
            return {}
        try:
            found = json.loads(files.read_text(self.path, max_bytes=_MAX_BYTES))
            if found["kind"] == KIND and all(type(n) is int for each in found["counts"].values() for n in each.values()):
                return found["counts"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        raise NotInTable(f"{display_path(self.path)}: is not a record of fnlkit; restore the original file, or delete it")


def gate_of(
    plan: "Plan", task: "Task", *, agreed: str | os.PathLike[str], memory: str | os.PathLike[str], timeout: float
) -> Gate:
    """Return the Gate of a site.

    Parameters
    ----------
    plan : fnlkit.experiment.plan.Plan
        Of the site's copy of the project.
    task : fnlkit.sites.terms.Task
    agreed : path
        The site's copy of the project.
    memory : path
        Folder of the site.
    timeout : float
        Seconds that the server waits for a reply, from the site's copy of the project.
    """
    with open(from_home(agreed), "rb") as file:
        agreement = hashlib.sha256(file.read()).hexdigest()
    path, seconds = os.path.join(memory, "requests.json"), max(MOST_SECONDS, float(timeout))
    return Gate({row.step: row for row in table(plan, task)}, path, agreement, seconds)


def must_be_small(content: Any, network: "Network") -> None:
    """Raise NotInTable if the records of a request exceed the size that a site reads.

    Parameters
    ----------
    content : flwr.app.RecordDict
    network : fnlkit.client.network.Network
        Network of the site. Arrays of a request can have `MOST_ARRAY_BYTES` bytes in addition to `MOST_MODELS` models.
    """
    texts = (value for record in content.config_records.values() for value in record.values())
    size = sum(len(value) for value in texts if isinstance(value, str))
    count = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    most = MOST_ARRAY_BYTES + MOST_MODELS * network.size * 8
    for found, limit, what in ((size, MOST_TEXT, "characters of text"), (count, most, "bytes of arrays")):
        if found > limit:
            raise NotInTable(f"the request has {found:,} {what}, and this site reads {limit:,}")


def _digest(request, received, remembered):
    """Return 16 hexadecimal digits of the SHA-256 of all values of a request and of the memory, without names of runs."""
    found = hashlib.sha256(f"{json.dumps(request['steps'], default=_text)} {remembered()}".encode())
    for name, values in sorted({**received, "": request["weights"]}.items()):
        found.update(repr((name, str(values.dtype), tuple(values.shape))).encode())
        found.update(values.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _text(value):
    """Return a bound value that JSON does not have as a text; that of an array has all entries."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{value.dtype} {tuple(value.shape)} {np.asarray(value).tobytes().hex()}"
    return repr(value)

"""Federation: samples of each client, given labels, and metadata of the noise.

Commands exchange federations through pipes.  A federation contains no samples, only positions in the training set of a data
set.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.artifacts import display, files
from fnlkit.artifacts.files import Artifact
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.provenance import must_be_current
from fnlkit.core.errors import InputError
from fnlkit.core.spec import from_file
from fnlkit.kernels.scores import client_levels, confusion, transition

if TYPE_CHECKING:
    import pandas


KIND = "fnlkit.federation/1"
_REQUIRED = ("client_offsets", "client_indices", "given")
_OPTIONAL = ("true", "noise_client_level", "noise_client_noisy", "noise_transition")
# With this many classes, a matrix of all pairs of classes needs 800 MB.
MAX_CLASSES = 10_000
_FEW_CLASSES = 300
# Arrays of single samples that a run keeps.
OF_RUNS = ("holdout_client", "gold_label", "received", "reviewed", "review_part", "group")
# Arrays of `estimate-noise`: shape (N clients, n samples, C classes) and dtype kinds.
ESTIMATES = {
    "estimate_client_level": ("N", "f"), "estimate_client_level_low": ("N", "f"), "estimate_client_level_high": ("N", "f"),
    "estimate_client_score": ("N", "f"), "estimate_transition": ("CC", "f"), "estimate_client_transition": ("NCC", "f"),
    "estimate_issue_score": ("n", "f"), "estimate_flagged": ("n", "b"), "estimate_suggested_label": ("n", "iu"),
    "estimate_confidence": ("n", "f"), "estimate_judged_label": ("n", "iu"), "estimate_far": ("n", "b"),
    "estimate_judged": ("N", "b"), "noise_achieved_transition": ("CC", "f"),
}  # fmt: skip

# Arrays of single samples: shape and dtype kinds.
_OF_SAMPLES = {
    "reviewed": ("n", "b"), "review_part": ("n", "iu"), "sample_id": ("n", "U"), "sample_path": ("n", "U"),
    "sample_of": ("n", "iu"), "annotator": ("n", "U"), "group": ("n", "iu"), "received": ("n", "iu"),
}  # fmt: skip


@dataclass
class Federation:
    """A federation of N clients over a training set of n samples and C classes.

    Attributes
    ----------
    dataset : str
        Name of a data set, or absolute path of a file or folder.
    classes : int
        Number of classes C.
    client_offsets : (N + 1,) int64
        Client k has the samples ``client_indices[client_offsets[k]:client_offsets[k + 1]]``; ``[0]`` before `partition`.
    client_indices : (m,) int64
        Positions in the training set; each at most once.
    given : (n,) int64
        Given label of every position of the training set.
    true : (n,) int64 or None
        True label, before any noise; None if unknown.
    noise_client_level : (N,) float64 or None
        Share of each client's samples with a given label that differs from the true label: achieved, not requested.
    noise_client_noisy : (N,) bool or None
        Whether the noise model has selected the client.
    noise_transition : (C, C) or (N, C, C) float64 or None
        The requested transition matrix, T[true, given]; rows sum to 1.
    extra : dict of str to array
        Other arrays: ``holdout_client`` (n,), the client of a held-out sample (-1: none); ``gold_label`` (n,), a verified label
        (-1: none); ``group`` (n,), the group of each sample
        (fnlkit.datasets.groups); unknown arrays are copied unchanged.
    meta : dict
        Plain JSON values; ``provenance`` lists the commands that created the file.

    Examples
    --------
    >>> from fnlkit.artifacts.federation import Federation
    >>> import numpy as np
    >>> f = Federation("digits", 2, np.array([0, 2, 3]), np.array([2, 0, 1]), np.array([0, 1, 1]))
    >>> [part.tolist() for part in f.clients], f.given_of(0).tolist()
    ([[2, 0], [1]], [1, 0])
    """

    dataset: str
    classes: int
    client_offsets: np.ndarray
    client_indices: np.ndarray
    given: np.ndarray
    true: np.ndarray | None = None
    noise_client_level: np.ndarray | None = None
    noise_client_noisy: np.ndarray | None = None
    noise_transition: np.ndarray | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    def __len__(self):
        return len(self.client_offsets) - 1

    def __bool__(self):
        return True  # also before `partition`, when there are no clients

    def facts(self) -> dict[str, str]:
        """Summarize data set, clients, labels, noise and estimates in short texts."""
        held = self.client_indices if len(self) else np.arange(len(self.given))
        many = f"{self.classes:,} classes"
        rows = {"data set": f"{self.dataset}, {len(self.given):,} samples of {many}"}
        if len(self):
            sizes = np.diff(self.client_offsets)
            rows["clients"] = f"{len(self):,}, of {sizes.min():,} to {sizes.max():,} samples"
        else:
            rows["clients"] = "none yet"
        if "group" in self.extra:
            rows["groups"] = f"{len(np.unique(self.extra['group'])):,}, which are never divided"
        if self.true is None:
            rows["labels"] = "as received; true labels unknown"
        else:
            rows["labels"] = f"{100 * np.mean(self.given[held] != self.true[held]):.2f} % wrong"
        models = [step["model"] for step in self.meta.get("noise", []) if isinstance(step, dict) and "model" in step]
        if models:
            rows["noise"] = " + ".join(map(display.plain, models))
        if "estimate_flagged" in self.extra:
            rows["judged wrong"] = f"{100 * np.mean(self.extra['estimate_flagged'][self.whole().client_indices]):.2f} %"
        return rows

    def __repr__(self):
        return "Federation: " + "; ".join(f"{name} {display.plain(text)}" for name, text in self.facts().items())

    def _repr_html_(self):
        return display.html_table("Federation", None, [(name, display.plain(text)) for name, text in self.facts().items()])

    def to_pandas(self) -> "pandas.DataFrame":
        """Convert to a data frame with one row per client.

        The columns are the number of samples, the share of wrong labels if the true labels are known, and the estimated noise
        level.  The index contains client names, or numbers if the file has no names.
        """
        table: dict[str, np.ndarray | None] = {"samples": np.diff(self.client_offsets)}
        if self.true is not None:
            table["wrong_share"] = self.wrong_share()
        if "estimate_client_level" in self.extra:
            table["estimated_level"] = np.where(self.judged(), self.extra["estimate_client_level"], np.nan)
        frame = display.frame(table)
        if self.meta.get("client_names"):
            frame.index = self.names
        return frame.rename_axis("client")

    @property
    def clients(self) -> list[np.ndarray]:
        """Positions of each client's samples, as a list of N index arrays."""
        return np.split(self.client_indices, self.client_offsets[1:-1]) if len(self) else []

    def ids_of(self, positions: ArrayLike) -> list[str]:
        """Ids of samples as texts, or their positions if there are no ids."""
        ids = self.extra.get("sample_id")
        return [str(i if ids is None else ids[i]) for i in np.asarray(positions).tolist()]

    def given_of(self, client: int) -> np.ndarray:
        """Given labels (n_k,) of one client's samples."""
        start, stop = self.client_offsets[client], self.client_offsets[client + 1]
        return self.given[self.client_indices[start:stop]]

    @property
    def names(self) -> list[str]:
        """Name of each client: the site name if known, otherwise ``client 3``."""
        names = self.meta.get("client_names")
        known = isinstance(names, list) and len(names) == len(self)
        return list(map(str, names or [])) if known else [f"client {k}" for k in range(len(self))]

    @property
    def held_out(self) -> list[np.ndarray]:
        """Positions of each client's held-out samples, as a list of N index arrays.

        Verified samples are included.
        """
        owner = self.extra.get("holdout_client")
        if owner is None:
            return [np.zeros(0, np.int64) for _ in range(len(self))]
        order = np.argsort(owner, kind="stable")
        return np.split(order, np.searchsorted(owner[order], np.arange(len(self) + 1)))[1:-1]

    def whole(self) -> "Federation":
        """Merge held-out samples into their clients.

        The positions of each client are in ascending order.
        """
        if "holdout_client" not in self.extra:
            return self
        parts = [np.sort(np.concatenate(both)) for both in zip(self.clients, self.held_out, strict=True)]
        extra = {name: values for name, values in self.extra.items() if name != "holdout_client"}
        return self.with_clients(parts, extra=extra)

    def with_clients(self, parts: Sequence[np.ndarray], **changes: Any) -> "Federation":
        """Replace the clients by clients with these positions of samples; `changes` replaces other fields."""
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return replace(self, client_offsets=offsets, client_indices=np.concatenate([np.zeros(0, int), *parts]), **changes)

    def wrong_share(self, labels: np.ndarray | None = None) -> np.ndarray | None:
        """Share of wrong labels of each client, (N,) float64.

        The result is None if the true labels are unknown.

        Parameters
        ----------
        labels : (n,) int, optional
            Labels to compare with the true labels.  Default: the given labels.
        """
        if self.true is None:
            return None
        return client_levels(self.given if labels is None else labels, self.true, self.client_offsets, self.client_indices)

    def judged(self) -> np.ndarray:
        """Mask (N,) of the clients whose noise level was estimated; an audit withholds levels that it cannot judge."""
        return np.asarray(self.extra.get("estimate_judged", np.ones(len(self), bool)))

    def achieved_transition(self) -> np.ndarray:
        """Count the transition matrix T (C, C) from true to given labels.

        All clients' samples count, or all samples before `partition`.  The row of a class without
        samples is that of the identity matrix.
        """
        if self.true is None:
            raise InputError("the true labels are unknown, so that there is no achieved transition matrix")
        seen = self.client_indices if len(self) else slice(None)
        return transition(confusion(self.true[seen], self.given[seen], self.classes))

    def check(self) -> None:
        """Raise InputError unless every array has the documented shape, type and range."""
        if not isinstance(self.dataset, str) or not self.dataset:
            raise InputError(f"'dataset' is {self.dataset!r}; expected a name or a path")
        if type(self.classes) is not int or not 2 <= self.classes <= MAX_CLASSES:
            raise InputError(f"`classes` is {self.classes!r}; expected 2 to {MAX_CLASSES:,}")
        self.given = _labels(self.given, "given", self.classes)
        size = len(self.given)
        if "class_names" in self.meta:
            must_be_names(self.meta["class_names"], self.classes)
        if self.classes > _FEW_CLASSES:
            must_be_dense(self.classes, len(np.unique(self.given)))
        if self.true is not None:
            self.true = _labels(self.true, "true", self.classes)
            if len(self.true) != size:
                raise InputError(f"`true` has {len(self.true):,} labels but `given` {size:,}")
        self.client_offsets = _whole(self.client_offsets, "client_offsets")
        self.client_indices = _whole(self.client_indices, "client_indices")
        self._check_clients(size)
        self._check_meta()
        self._check_noise()
        self._check_arrays()

    def _check_clients(self, size):
        offsets, indices = self.client_offsets, self.client_indices
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(indices):
            raise InputError(f"`client_offsets` must run from 0 to the {len(indices):,} entries of `client_indices`")
        short = np.flatnonzero(np.diff(offsets) < 1)
        if len(short):
            raise InputError(f"client {short[0]} has no samples; run `fnlkit partition` with `min_samples` 1 or more")
        if len(indices):
            if indices.min() < 0 or indices.max() >= size:
                wrong = indices[(indices < 0) | (indices >= size)][0]
                raise InputError(f"`client_indices` names position {wrong:,} of {size:,} labels; is it of another data set?")
            seen = np.zeros(size, bool)
            seen[indices] = True
            if seen.sum() != len(indices):
                raise InputError(f"{len(indices) - seen.sum():,} samples belong to two clients; expected at most one")

    def _check_noise(self):
        shape = (len(self),)
        if self.noise_client_level is not None:
            level = self.noise_client_level = _real(self.noise_client_level, "noise_client_level")
            if level.shape != shape or (level < 0).any() or (level > 1).any():
                raise InputError(f"`noise_client_level` must contain {len(self)} shares in [0, 1]; found shape {level.shape}")
        if self.noise_client_noisy is not None:
            noisy = np.asarray(self.noise_client_noisy)
            if noisy.shape != shape or noisy.dtype != bool:
                raise InputError(f"`noise_client_noisy` must contain {len(self)} booleans; found {noisy.dtype} {noisy.shape}")
        if self.noise_transition is not None:
            T = self.noise_transition = _real(self.noise_transition, "noise_transition")
            square = (self.classes, self.classes)
            if T.shape not in (square, (len(self), *square)):
                raise InputError(f"`noise_transition` is {T.shape}; expected {square} or one such matrix per client")
            if T.size and ((T < 0).any() or np.abs(T.sum(-1) - 1).max() > 1e-6):
                raise InputError("`noise_transition` must have entries >= 0 and rows that sum to 1")

    def _check_meta(self):
        """Raise InputError unless the metadata has the form that readers require."""
        must_be_steps(self.meta.get("provenance", []))
        for name, key in (("noise", "model"), ("reviews", ""), ("corrections", "")):
            entries = self.meta.get(name, [])
            right = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
            if not right or (key and not all(isinstance(entry.get(key), str) for entry in entries)):
                raise InputError(f"`{name}` must be a list of objects{f', each with {key!r}' if key else ''}")
        if "estimate" in self.meta:
            must_be_sent(self.meta["estimate"])
        if not isinstance(self.meta.get("dataset_checksum", ""), str):
            raise InputError("`dataset_checksum` must be a text")
        if self.meta.get("client_names") is not None:
            must_be_names(self.meta["client_names"], len(self), "client")
        bare = self.meta.get("client_unlabeled", [0] * len(self))
        if not isinstance(bare, list) or len(bare) != len(self) or not all(type(n) is int and n >= 0 for n in bare):
            raise InputError(f"`client_unlabeled` must be a number of samples for each of {len(self):,} clients")

    def _check_arrays(self):
        sides = {"N": len(self), "n": len(self.given), "C": self.classes}
        for name, (shape, kind) in (ESTIMATES | _OF_SAMPLES).items():
            if name not in self.extra:
                continue
            values, wanted = np.asarray(self.extra[name]), tuple(sides[side] for side in shape)
            if values.shape != wanted or values.dtype.kind not in kind:
                raise InputError(f"`{name}` is {values.dtype} {values.shape}; expected {wanted}: create the file again")
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise InputError(f"`{name}` contains NaN or infinity; run estimate-noise again")
            if kind == "iu" and (name in ESTIMATES or name == "received"):
                _labels(values, name, self.classes)
        for name, high in (("holdout_client", len(self)), ("gold_label", self.classes), ("estimate_copy_of", sides["n"])):
            if name not in self.extra:
                continue
            values = self.extra[name] = _whole(self.extra[name], name)
            if len(values) != sides["n"] or values.min() < -1 or values.max() >= high:
                raise InputError(
                    f"`{name}` must contain a number from -1 to {high - 1} for each of {sides['n']:,} samples; create the file "
                    "again"
                )
            if name != "estimate_copy_of" and (values[self.client_indices] >= 0).any():
                raise InputError(f"`{name}` contains samples that clients train on; create the file again with `partition`")

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> "Federation":
        """Convert a fnlkit.federation artifact; raise InputError if it is invalid."""
        arrays = {name: value if isinstance(value, np.ndarray) else value.numpy() for name, value in artifact.arrays.items()}
        must_be_current(artifact.meta)
        meta = dict(artifact.meta)
        missing = [f"array {name!r}" for name in _REQUIRED if name not in arrays]
        missing += [f"{name!r}" for name in ("dataset", "classes") if name not in meta]
        if missing:
            raise InputError(f"not a federation: {missing[0]} is missing; create the file again with `fnlkit partition`")
        known = {name: arrays.pop(name, None) for name in (*_REQUIRED, *_OPTIONAL)}
        federation = cls(dataset=from_file(meta.pop("dataset")), classes=meta.pop("classes"), **known, extra=arrays, meta=meta)
        federation.check()
        return federation

    def to_artifact(self) -> Artifact:
        """Validate the federation and convert it to an artifact."""
        self.check()
        arrays = {name: getattr(self, name) for name in (*_REQUIRED, *_OPTIONAL) if getattr(self, name) is not None}
        return files.Artifact(KIND, arrays | self.extra, {"dataset": self.dataset, "classes": self.classes, **self.meta})

    @classmethod
    def read(cls, source: str | os.PathLike[str] | bytes) -> "Federation":
        """Read a federation from a file, stdin (``-``) or bytes.

        Parameters
        ----------
        source : str or bytes

        Raises
        ------
        InputError
            If the file is invalid; the one-line message names the file.
        """
        artifact = files.read(source, kinds=("fnlkit.federation",))
        try:
            return cls.from_artifact(artifact)
        except InputError as error:
            raise InputError(f"{display_path(source)}: {error}") from error

    def write(self, target: str | os.PathLike[str]) -> None:
        """Write the federation to a path or to stdout (``-``)."""
        files.write(self.to_artifact(), target)


def must_be_dense(classes: int, present: int) -> None:
    """Raise InputError if a matrix over all classes would be nearly empty.

    This is the case if the labels have wide gaps.

    Parameters
    ----------
    classes : int
        Number of classes: the largest label plus 1, or the number of names.
    present : int
        Number of different labels that occur.
    """
    if classes > MAX_CLASSES or (classes > _FEW_CLASSES and classes > 10 * present):
        raise InputError(
            f"there are {classes:,} classes but {present:,} different labels occur; number the classes from 0 without gaps "
            f"(numpy.unique(labels, return_inverse=True)), at most {MAX_CLASSES:,}"
        )


def must_be_sent(facts: Any) -> None:
    """Raise InputError unless `facts` describe an estimate.

    ``estimator`` and ``form`` are required, and ``sent`` if the form is federated.
    """
    right = isinstance(facts, dict) and all(isinstance(facts.get(name), str) for name in ("estimator", "form"))
    if right and facts["form"] == "federated":
        sent = facts.get("sent")
        right = type(facts.get("bytes_down")) is int and isinstance(sent, dict)
        right = right and all(
            isinstance(row, dict) and type(row.get("bytes")) is int and isinstance(row.get("what"), str)
            for row in sent.values()
        )
    if not right:
        raise InputError("`estimate` does not contain the estimator and form; run estimate-noise again")


def must_be_names(names: object, count: int, what: str = "class") -> None:
    """Raise InputError unless these are printable names of classes or clients."""
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise InputError(f"`{what}_names` must be {count:,} texts, one for each {what}")
    odd = next((name for name in names if not name.isprintable() or len(name) > 200), None)
    if odd is not None:
        raise InputError(f"{what} name {ascii(odd[:60])} contains control characters or is longer than 200; rename it")


def must_be_steps(entries: object) -> None:
    """Raise InputError unless these are provenance records.

    Each record has a command, and optionally parameters by name.
    """
    for entry in entries if isinstance(entries, list) else [None]:
        right = isinstance(entry, dict) and isinstance(entry.get("command"), str) and entry["command"]
        if entry is None or not right or not all(isinstance(entry.get(name) or {}, dict) for name in ("parameters", "own")):
            raise InputError("`provenance` must be a list of objects, each with 'command' and optionally 'parameters'")


def _whole(values, name):
    values = np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError(f"`{name}` is {values.dtype} of shape {values.shape}; expected a list of whole numbers")
    if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
        raise InputError(f"`{name}` contains {values.max()}; expected numbers below 2^63")
    return values.astype(np.int64, copy=False)


def _labels(values, name, classes, least=0):
    values = _whole(values, name)
    if not len(values):
        raise InputError(f"`{name}` is empty; expected a label for every training sample")
    if values.min() < least or values.max() >= classes:
        wrong = values[(values < least) | (values >= classes)][0]
        raise InputError(f"`{name}` contains label {wrong}; expected 0 to {classes - 1}")
    return values


def _real(values, name):
    values = np.asarray(values)
    if values.dtype.kind != "f":
        raise InputError(f"`{name}` is {values.dtype}; expected floats")
    if not np.isfinite(values).all():
        raise InputError(f"`{name}` contains NaN or infinity")
    return values.astype(np.float64, copy=False)

"""Data set: training and test samples with labels; samples are read on first use."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fnlkit.artifacts.stored import Chosen, Joined, Rows, blocks
from fnlkit.core.errors import InputError
from fnlkit.datasets.layout import LAYOUTS, channels_last
from fnlkit.datasets.scales import scale_of


@dataclass
class Unlabeled:
    """Samples without a label.

    They are not used for training or evaluation; `fnlkit predict` reads them.

    Attributes
    ----------
    samples : callable
        Returns x (u, ...) in the layout of the training samples.
    ids : list of u str
        ID of each sample.
    sites : list of u str or None
    """

    samples: Any
    ids: list[str]
    sites: list[str] | None = None

    def __len__(self):
        return len(self.ids)


@dataclass
class Dataset:
    """Training and test samples with their labels.

    Attributes
    ----------
    name : str
        Argument of `load`: a name, a spec, or an absolute path.
    kind : {"image", "wave", "vector"}
    y_train, y_test : (n,) int64
    class_names : list of str
        Names of the C classes; labels are 0 to C - 1.
    samples : callable
        Returns (x_train, x_test): images (n, H, W, channels) uint8 or float32; waves (n, T) int16 or float32; vectors
        (n, d) float32.  Called once, when x_train or x_test is first used.  Images (n, channels, H, W) in memory are detected,
        their channels are moved last, and a note states it.
    statistics : (tuple, tuple) or None
        Published mean and standard deviation per channel.  Default: None, which computes both.
    sample_rate : int
        Sample rate of waves in Hz; 0 otherwise.
    fields : dict of str to (n,) array
        Further metadata of the training samples, for example the speaker.
    superclass : (C,) int64 or None
    observed : bool
        True if y_train is not declared to be true: the labels of a user, or of a data set with real noise.
    y_train_true : (n,) int64 or None
        True labels, if the data set declares them in addition to the observed labels.
    test_true : bool
        Whether the labels of the test samples are declared to be true although the training labels are observed.
    content : callable or None
        ``content(order)`` returns the bytes for the checksum, if reading all samples would take too long; ``order[c]`` is the
        number of class c there.
    order : (C,) int64 or None
        Of `content`, if a file of an earlier version orders the classes differently (`order_classes`).
    features : dict or None
        If a frozen network has encoded the samples (fnlkit.encoders.features): its spec ``backbone``, the checksum ``weights``,
        ``sha256`` over samples and network, and ``kind``, ``shape`` and ``sample_rate`` of the samples.
    encode : callable or None
        Of a table: ``encode(columns)`` returns (x_train, x_test) with another encoding of the columns.
    ids, paths : (n,) texts or None
        ID of each training sample, and the path of its file.
    columns : list of d str or None
        Feature names of vectors.
    table : list of dict or None
        Encoding of table columns as plain values, used to encode new rows (fnlkit.datasets.columns).
    roles, left_out : dict of str to str
        Of a table: column of each role, and kind of each column that identifies rows (fnlkit.datasets.identifying).
    unlabeled : Unlabeled or None
    shown : list of n lists of [name, text], or None
        Names and texts that a review shows instead of the values of a sample.
    votes : (n, A) int64 or None
        Labels of A annotators, -1 for no vote.
    annotators : list of A str
    sample_of : (n,) int64 or None
        If a row is a vote: number of the sample; rows with equal numbers are the same sample (fnlkit.datasets.votes).
    groups, groups_test : (n,), (n_test,) int64 or None
        Number of the group of each training and test sample, such as the patient; samples of one group are never divided
        (fnlkit.datasets.groups).
    notes : list of str
        Assumptions that the user should check, such as the role of each column.
    in_files : bool
        Whether each sample is a separate file.  All files are read when the samples are first used, so that one message can
        list every unusable file.
    whole : callable or None
        Of resized images in files: ``whole(position)`` returns a training image in the size of its file.
    forms : callable or None
        Of images in files: returns (train, test), lists with the size and format of each file, such as ``JPEG 640 480``.
    layout : str
        Layout of images: "channels-last" or "channels-first".  Default: "", which detects it.
    remember : callable
        ``remember(name, compute)`` returns ``compute()`` or its cached result for the same files.
    """

    name: str
    kind: str
    y_train: np.ndarray
    y_test: np.ndarray
    class_names: list[str]
    samples: Any
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    sample_rate: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    superclass: np.ndarray | None = None
    observed: bool = False
    y_train_true: np.ndarray | None = None
    test_true: bool = False
    content: Any = None
    order: np.ndarray | None = None
    features: dict[str, Any] | None = None
    encode: Any = None
    ids: np.ndarray | None = None
    paths: np.ndarray | None = None
    columns: list[str] | None = None
    table: Sequence[dict[str, Any]] | None = None
    roles: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    unlabeled: Unlabeled | None = None
    shown: list[Any] | None = None
    votes: np.ndarray | None = None
    annotators: list[str] = field(default_factory=list)
    sample_of: np.ndarray | None = None
    groups: np.ndarray | None = None
    groups_test: np.ndarray | None = None
    notes: list[str] = field(default_factory=list)
    in_files: bool = False
    whole: Any = None
    forms: Any = None
    layout: str = ""
    remember: Any = field(default=lambda name, compute: compute(), repr=False)

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    @property
    def truth(self) -> np.ndarray | None:
        """True labels (n,) of the training samples, or None if they are unknown."""
        return self.y_train_true if self.y_train_true is not None else None if self.observed else self.y_train

    @property
    def test_verified(self) -> bool:
        """Whether the labels of the test samples are declared to be true."""
        return self.test_true or not self.observed

    @cached_property
    def _x(self):
        train, test = self.samples()
        if len(train) != len(self.y_train) or len(test) != len(self.y_test):
            raise InputError(
                f"{self.name}: {len(train):,} and {len(test):,} samples but {len(self.y_train):,} and "
                f"{len(self.y_test):,} labels"
            )
        if self.kind == "image" and isinstance(train, np.ndarray) and train.ndim == 4 and len(train):
            train, note = channels_last(train, "x_train", self.layout)
            test = channels_last(test, "x_test", LAYOUTS[bool(note)])[0]
            self.notes += [note] if note else []
        return train, test

    @property
    def x_train(self) -> np.ndarray | Rows:
        """Training samples; see `samples`."""
        return self._x[0]

    @property
    def x_test(self) -> np.ndarray | Rows:
        """Test samples; see `samples`."""
        return self._x[1]

    @cached_property
    def _moments(self):
        if self.statistics is not None:
            return self.statistics
        if self.kind != "image":
            return (), ()
        mean, std = self.remember("moments", lambda: moments(self.x_train))
        return tuple(mean), tuple(std)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean per channel of training images, uint8 scaled to [0, 1]; () otherwise."""
        return self._moments[0]

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation per channel, uint8 scaled to [0, 1]; () otherwise."""
        return self._moments[1]

    @cached_property
    def scale(self) -> dict[str, Any]:
        """Type and range of training images (fnlkit.datasets.scales.scale_of); {} for other samples."""
        return scale_of(self.x_train) if self.kind == "image" else {}

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the content, as 64 hexadecimal digits.

        Large samples are read block by block.
        """
        return self.remember("checksum", self._digest)

    def order_classes(self, names: Sequence[str]) -> None:
        """Number the classes in the order of `names`, which are those of the data set; the samples keep their order."""
        number = np.array([names.index(name) for name in self.class_names])

        def renumber(labels: np.ndarray) -> np.ndarray:
            return np.where(labels < 0, labels, number[labels])

        self.y_train, self.y_test = renumber(self.y_train), renumber(self.y_test)
        self.y_train_true = None if self.y_train_true is None else renumber(self.y_train_true)
        self.votes = None if self.votes is None else renumber(self.votes)
        self.superclass = None if self.superclass is None else self.superclass[np.argsort(number)]
        self.order = number if self.order is None else number[self.order]
        self.class_names, self.remember = list(names), lambda name, compute: compute()
        self.__dict__.pop("checksum", None)

    def _digest(self):
        total = hashlib.sha256()
        if self.content is not None:
            for chunk in self.content(np.arange(self.classes) if self.order is None else self.order):
                total.update(chunk)
        else:
            for array in (self.x_train, self.y_train, self.x_test, self.y_test):
                total.update(f"{array.dtype.str}{array.shape}".encode())
                for a, b in blocks(array):
                    total.update(np.ascontiguousarray(array[a:b]).reshape(-1).view(np.uint8))
        return total.hexdigest()


def split_unlabeled(dataset: Dataset) -> Dataset:
    """Move samples without a label (-1 in `y_train` or `y_test`) to `unlabeled`."""
    bare, bare_test = dataset.y_train < 0, dataset.y_test < 0
    if not bare.any() and not bare_test.any():
        return dataset
    tested, untested = np.flatnonzero(~bare_test), np.flatnonzero(bare_test)
    labeled, spare = np.flatnonzero(~bare), np.flatnonzero(bare)
    ids = [f"x_train[{i}]" for i in range(len(bare))] if dataset.ids is None else dataset.ids
    sites = [str(name) for name in dataset.fields["site"][spare]] if "site" in dataset.fields and not len(untested) else None
    names = [*(str(ids[i]) for i in spare), *(f"x_test[{i}]" for i in untested)]
    read = dataset.samples

    def samples() -> tuple[np.ndarray | Rows, np.ndarray | Rows]:
        train, test = read()
        return rows_at(train, labeled), rows_at(test, tested) if len(untested) else test

    def unlabeled() -> np.ndarray | Rows:
        train, test = read()
        parts = [rows_at(x, rows) for x, rows in ((train, spare), (test, untested)) if len(rows)]
        return parts[0] if len(parts) == 1 else Joined(parts)

    return replace(
        dataset,
        y_train=dataset.y_train[labeled],
        y_test=dataset.y_test[tested],
        y_train_true=None if dataset.y_train_true is None else dataset.y_train_true[labeled],
        groups_test=None if dataset.groups_test is None else dataset.groups_test[tested],
        fields={name: values[labeled] for name, values in dataset.fields.items()},
        ids=np.asarray(ids)[labeled],
        paths=None if dataset.paths is None else dataset.paths[labeled],
        votes=None if dataset.votes is None else dataset.votes[labeled],
        groups=None if dataset.groups is None else dataset.groups[labeled],
        samples=samples,
        unlabeled=Unlabeled(unlabeled, names, sites),
    )


def rows_at(x: np.ndarray | Rows, positions: np.ndarray) -> np.ndarray | Rows:
    """Select the rows of an array at some positions; rows of a file are read when they are used."""
    return x[positions] if isinstance(x, np.ndarray) else Chosen(x, positions)


def must_be(dataset: Dataset, meta: Mapping[str, Any], size: int, *, what: str, of_site: bool = False) -> str | None:
    """Raise unless a data set is the source of a file with sample positions.

    Positions in a training set are invalid for another training set, and for the same rows in another order.

    Parameters
    ----------
    dataset : Dataset
    meta : dict
        Metadata of a federation or a run.  Its ``dataset_checksum`` is compared with the checksum of `dataset`.
    size : int
        Number of training samples in the file.
    what : str
        Name of the file in messages, for example ``the federation``.
    of_site : bool
        Whether a person at a site reads the message: commands of a site have no option ``--dataset``.

    Returns
    -------
    str or None
        A warning if the file contains no checksum, otherwise None.

    Raises
    ------
    InputError
        If the sizes or checksums differ.  The message contains both sizes, or the first 12 digits of both checksums.
    """
    name = "join again with the original data" if of_site else "name the original data with `dataset`"
    if len(dataset.y_train) != size:
        raise InputError(f"{what} labels {size:,} samples but {dataset.name} has {len(dataset.y_train):,}; {name}")
    before = meta.get("dataset_checksum")
    if not before:
        return (
            f"{what} contains no checksum of the data set (an older fnlkit or another program wrote it); it is not checked "
            f"whether {dataset.name} has the same rows in the same order"
        )
    named = [str(name) for name in meta.get("class_names") or meta.get("samples", {}).get("class_names", ())]
    if before != dataset.checksum and sorted(named) == sorted(dataset.class_names):
        dataset.order_classes(named)  # earlier versions ordered the classes of folders as texts: 0, 1, 10, 2
    if before != dataset.checksum:
        raise InputError(
            f"{dataset.name} is not the data set of {what}: the SHA-256 is {dataset.checksum[:12]}... now and was "
            f"{str(before)[:12]}... before, so rows or labels were changed or reordered; {name}, or start again with "
            f"{'an audit of' if of_site else '`fnlkit partition` on'} the new data"
        )
    return None


def moments(x: np.ndarray | Rows) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute (mean, std) per channel of images (n, H, W, channels).

    Values of type uint8 are scaled to [0, 1], and the result is exact because it is computed from integer sums.  A constant
    channel gets std 1.  Above 1 GiB, only every k-th image is used, so that about 1 GiB is read.
    """
    every = max(1, x.nbytes // 2**30)
    if every > 1:
        x = Chosen(x, np.arange(0, len(x), every))
    mean, variance = (_whole if x.dtype == np.uint8 else _real)(x)
    std = np.sqrt(np.maximum(variance, 0))
    return tuple(mean.tolist()), tuple(np.where(std > 1e-8, std, 1.0).tolist())


def _whole(x):
    first = second = 0
    for start in range(0, len(x), 1000):
        part = x[start : start + 1000].astype(np.uint16)  # 255 squared fits into uint16
        first = first + part.sum(0, dtype=np.int64)
        second = second + (part * part).sum(0, dtype=np.int64)
    count = x.size // x.shape[-1]
    mean = first.sum((0, 1)) / count / 255
    return mean, second.sum((0, 1)) / count / 255**2 - mean**2


def _real(x):
    """Compute mean and variance of floats in blocks (Chan 1983)."""
    count = mean = variance = 0
    for a, b in blocks(x):
        part = x[a:b].reshape(-1, x.shape[-1])
        means, spread = part.mean(0, dtype=np.float64), part.var(0, dtype=np.float64)
        if not count:
            count, mean, variance = len(part), means, spread
            continue
        both, share = count + len(part), len(part) / (count + len(part))
        variance = variance * (1 - share) + spread * share + (means - mean) ** 2 * share * (1 - share)
        count, mean = both, mean + (means - mean) * share
    return mean, variance

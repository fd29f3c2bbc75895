"""Find equal samples, which must not be on both sides of a split.

Rows of tables and vectors, sounds and images are copies if their values are equal, and images in files also if one is the
other one in another size or format.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from fnlkit.artifacts.stored import Rows, blocks
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.columns import features
from fnlkit.datasets.dataset import Dataset

DUPLICATES = ("together", "drop", "allow")
# Rows of a table are equal by chance if they are at most _CHANCE times as many as expected from their columns.
_CHANCE = 5
# Images of another size or format are compared as gray squares of _SIDE pixels, up to _MOST images.  They are copies if their
# correlation is at least _SURE, or at least _LIKELY and their distance is _RATIO of that to the fifth nearest image.
_SIDE, _MOST, _SURE, _LIKELY, _RATIO = 16, 50_000, 0.995, 0.95, 0.1
# Largest differences of mean and standard deviation of copies, where 1 is white; smaller deviations are blank images.
_MEAN, _SPREAD, _BLANK = 0.05, 0.2, 0.01
# Data sets of users; the others keep their published rows.
_OF_USERS = ("folder", "manifest", "votes")


@dataclass(frozen=True)
class Copies:
    """Numbers of the samples of a data set; samples with equal numbers are copies.

    Attributes
    ----------
    train, test : (n,), (n_test,) int64
    by_chance : int
        Rows of a table that are equal to another row as often as expected from its columns; they count as different rows.
    """

    train: np.ndarray
    test: np.ndarray
    by_chance: int = 0

    @property
    def in_test(self) -> np.ndarray:
        """Whether each training sample (n,) has a copy among the test samples."""
        return np.isin(self.train, self.test)

    def facts(self, sites: Sequence[Any] | np.ndarray | None = None, samples: np.ndarray | None = None) -> dict[str, int]:
        """Count test samples with a copy in training, repeated training samples, and sites that share samples.

        Parameters
        ----------
        sites : (n,) texts, optional
        samples : (n,) int64, optional
            Samples of rows that are votes; rows of one sample are no copies.
        """
        first = np.unique(np.arange(len(self.train)) if samples is None else samples, return_index=True)[1]
        train, shared = self.train[first], 0
        if sites is not None:
            site = np.unique(np.asarray(sites).astype(str)[first], return_inverse=True)[1]
            pairs = np.unique(np.stack([train, site], 1), axis=0)
            number, counts = np.unique(pairs[:, 0], return_counts=True)
            shared = len(np.unique(pairs[np.isin(pairs[:, 0], number[counts > 1]), 1]))
        test = int(np.isin(self.test, train).sum())
        return {"test": test, "training": int(_later(train).sum()), "sites": shared, "by_chance": self.by_chance}


def shared_by_sites(numbers: np.ndarray, sites: np.ndarray) -> list[tuple[str, str, int]]:
    """Count (site, other site, number of samples with a copy at both) of each pair of sites, the largest numbers first.

    Parameters
    ----------
    numbers : (n,) int64
        Equal numbers are copies.
    sites : (n,) texts
    """
    names, site = np.unique(sites, return_inverse=True)
    number, site = np.unique(np.stack([numbers, site.reshape(-1)], 1), axis=0).T
    held: dict[int, list[int]] = {}
    for content, at in zip(number.tolist(), site.tolist(), strict=True):
        held.setdefault(content, []).append(at)
    pairs = Counter(pair for at in held.values() for pair in combinations(at, 2))
    return [(str(names[a]), str(names[b]), count) for (a, b), count in pairs.most_common()]


def _later(numbers):
    later = np.ones(len(numbers), bool)
    later[np.unique(numbers, return_index=True)[1]] = False
    return later


def is_published(name: str) -> bool:
    """Whether a data set has published rows: fnlkit includes or downloads it."""
    from fnlkit.datasets.loading import registry

    head = name.partition("(")[0]
    return head in registry() and head not in _OF_USERS


def find_copies(data: Dataset) -> Copies:
    """Find the copies in a data set; reads all samples once."""
    numbered, size = data.remember("copies", lambda: _number(data)), len(data.y_train)
    numbers = np.array(numbered["numbers"], np.int64)
    return Copies(numbers[:size], numbers[size:], numbered["by_chance"])


def _number(data):
    parts = [x for x in (data.x_train, data.x_test) if len(x)]
    place: dict[bytes, int] = {}
    numbers = np.array([place.setdefault(digest, len(place)) for x in parts for digest in digests(x)], np.int64)
    chance = 0
    if data.kind == "vector" and len(place) < len(numbers) and _are_by_chance(data, parts, numbers):
        chance, numbers = int(_later(numbers).sum()), np.arange(len(numbers))
    if data.kind == "image" and data.forms is not None:
        numbers = _join_resized(parts, sum(data.forms(), []), numbers)
    return {"numbers": numbers.tolist(), "by_chance": chance}


def digests(x: np.ndarray | Rows) -> list[bytes]:
    """Hash the values of each row of an array (n, ...)."""
    hashes: list[bytes] = []
    for a, b in blocks(x):
        rows = np.ascontiguousarray(x[a:b])
        rows = rows + rows.dtype.type(0) if rows.dtype.kind == "f" else rows  # -0 is 0
        hashes += [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows]
    return hashes


def _pairs(numbers):
    """Count the pairs of equal numbers."""
    counts = np.unique(numbers, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum() / 2)


def _are_by_chance(data, parts, numbers):
    """Whether rows are equal because their columns have few values: rows that differ in one column are as frequent.

    Of rows that agree in all other columns, a share q agrees in the last one, too, if q is the probability that two rows agree
    in this column.
    """
    x = np.concatenate([np.asarray(part[:]) for part in parts])
    widths = [len(features([column])) for column in data.table] if data.table else [1] * x.shape[1]
    rng, total, codes = np.random.default_rng(0), np.zeros(len(x), np.uint64), []
    for values in np.split(x, np.cumsum(widths)[:-1], axis=1):
        level = np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
        share = float(((np.bincount(level) / len(x)) ** 2).sum())
        codes.append((rng.integers(0, 2**64, level.max() + 1, np.uint64)[level], share))
        total += codes[-1][0]
    equal = _pairs(numbers)
    near = sum(_pairs(total - code) - equal for code, _ in codes)
    odds = sum((1 - share) / share for _, share in codes)
    return odds == 0 or equal <= _CHANCE * near / odds


def _join_resized(parts, forms, numbers):
    """Number images so that those in another size or format with the same content are equal."""
    form = np.unique(np.array(forms, np.str_), return_inverse=True)[1]
    if form.max(initial=0) == 0 or len(form) > _MOST:
        return numbers
    small = np.concatenate([_shrink(x[a:b]) for x in parts for a, b in blocks(x)])
    mean, spread = small.mean(1), small.std(1)
    small = (small - mean[:, None]) / np.maximum(spread, 1e-9)[:, None] / np.sqrt(small.shape[1])
    links = []
    for start in range(0, len(small), 1024):
        rows = np.arange(start, min(start + 1024, len(small)))
        alike = small[rows] @ small.T
        alike[form[rows, None] == form] = -1
        fifth = np.partition(alike, -min(5, alike.shape[1]), axis=1)[:, -min(5, alike.shape[1])]
        copy = (alike >= _SURE) | ((alike >= _LIKELY) & (1 - alike <= _RATIO * (1 - fifth[:, None])))
        i, j = np.nonzero(copy)
        i = rows[i]
        fit = (
            (np.abs(mean[i] - mean[j]) <= _MEAN) & (np.abs(spread[i] - spread[j]) <= _SPREAD * spread[j]) & (spread[j] > _BLANK)
        )
        links.append(np.stack([i[fit], j[fit]], 1))
    return merge(numbers, links=np.concatenate(links))


def _shrink(images):
    """Average images (n, H, W, C) over areas to gray rows (n, at most _SIDE^2)."""
    gray = images.mean(-1, dtype=np.float32) / (255 if images.dtype == np.uint8 else 1)
    high, wide = (_areas(side) for side in gray.shape[1:])
    return (high @ gray @ wide.T).reshape(len(gray), -1)


def _areas(side):
    """Matrix (m, side) that averages `side` pixels over m = at most _SIDE equal intervals."""
    ends = np.linspace(0, side, min(side, _SIDE) + 1)
    pixels = np.arange(side)
    overlap = np.minimum(ends[1:, None], pixels + 1) - np.maximum(ends[:-1, None], pixels)
    return (np.maximum(overlap, 0) / np.diff(ends)[:, None]).astype(np.float32)


def merge(*numbers: np.ndarray, links: np.ndarray | None = None) -> np.ndarray:
    """Number samples (n,) so that those that one of the given numberings, or a link, connects are equal.

    Parameters
    ----------
    numbers : (n,) int64
    links : (m, 2) int64, optional
        Pairs of positions.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = len(numbers[0])
    pairs = [] if links is None else [links]
    for each in numbers:
        first, inverse = np.unique(each, return_index=True, return_inverse=True)[1:]
        pairs.append(np.stack([np.arange(size), first[inverse]], 1))
    ends = np.concatenate(pairs)
    part = connected_components(coo_array((np.ones(len(ends), bool), ends.T), (size, size)), directed=False)[1]
    first, inverse = np.unique(part, return_index=True, return_inverse=True)[1:]
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def must_be_duplicates(word: str) -> None:
    """Raise InputError unless a text is one of `DUPLICATES`."""
    if word not in DUPLICATES:
        raise InputError(f"is {word!r}; write {', '.join(DUPLICATES[:-1])} or {DUPLICATES[-1]}", parameter="duplicates")


def separate(data: Dataset, copies: Copies, duplicates: str, groups: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Choose the training samples (n,) that are used, and their groups (n,), so that no copies are on both sides of a split.

    Training samples with a copy in the test set are not used, unless no sample would remain.  Of other copies, ``drop`` uses
    the first, and ``together`` makes them one group.

    Parameters
    ----------
    data : Dataset
    copies : Copies
    duplicates : "together", "drop" or "allow"
    groups : (n,) int64 or None
        Groups so far.
    """
    used = np.ones(len(copies.train), bool)
    if duplicates == "allow":
        return used, groups
    if not copies.in_test.all():
        used &= ~copies.in_test
    samples = np.arange(len(used)) if data.sample_of is None else data.sample_of
    if duplicates == "drop":
        first = np.unique(copies.train, return_index=True)[1]
        used &= np.isin(samples, samples[first])
    elif len(np.unique(copies.train)) < len(np.unique(samples)):
        groups = merge(copies.train, samples, *([] if groups is None else [groups]))
    return used, groups


def note_copies(facts: dict[str, int], duplicates: str, sizes: tuple[int, int]) -> list[str]:
    """Note copies in sentences.

    Parameters
    ----------
    facts : dict
        As returned by `Copies.facts`, and ``left_out``, the number of training samples that are not used.
    duplicates : str
    sizes : (int, int)
        Numbers of training and test samples.
    """
    notes = []
    if facts["test"]:
        left = "the training copies are left out" if facts["left_out"] else "scores on them are too good"
        notes.append(f"{facts['test']:,} of {sizes[1]:,} test samples have a copy in training; {left}")
    if facts["training"]:
        words = {
            "together": "copies are never divided",
            "drop": "only the first of equal samples is used",
            "allow": "copies can be divided, so that scores are too good",
        }
        notes.append(f"{facts['training']:,} of {sizes[0]:,} training samples are copies of others; {words[duplicates]}")
    if facts["sites"]:
        notes.append(f"{facts['sites']:,} sites share samples: the same values are at several sites")
    if notes:
        others = list_names(f"`duplicates={word!r}`" for word in DUPLICATES if word != duplicates)
        notes[-1] += f"; other choices are {others}"
    if facts["by_chance"]:
        notes.append(f"{facts['by_chance']:,} rows equal an earlier row, as expected for columns with few values: no copies")
    return notes

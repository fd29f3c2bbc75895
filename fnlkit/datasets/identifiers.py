"""Find the column of a table that names the samples.

One rule for all tables of votes, decisions, verified labels and predictions: every column that can name samples is compared
with them.  If several columns name different samples, or if the best one does not name a sample in every row, nothing is
guessed, because a wrong column would assign labels to other samples.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import MOST_NAMES, InputError, list_names
from fnlkit.datasets.dates import are_dates
from fnlkit.datasets.identifying import has_id_name
from fnlkit.datasets.roles import VOTE_ROLES
from fnlkit.datasets.spelling import spell

# Columns that annotation tools and pandas add; they never name samples.
TOOLS = ("annotation_id", "lead_time", "created_at", "updated_at", "was_cancelled", "agreement", "inner_id", "unnamed:_0")
# A column of numbers is compared only under these names: other numbers, such as an age, can equal the id of another sample.
USUAL = {*VOTE_ROLES["id"], *VOTE_ROLES["path"], "sample_path", "index"}
_NUMBER = re.compile(r"-?\d+(\.0*)?")
# Label Studio puts this before the names of uploaded files.
_UPLOADED = re.compile(r"^[0-9a-f]{8}-")
LONGEST = 4096  # characters of an id or path
NONE, SEVERAL = -1, -2


def normal_name(column: str) -> str:
    """Name of a column in lower case with underscores."""
    return column.strip().lower().replace(" ", "_")


class Samples:
    """Positions of samples by id and by path.

    Parameters
    ----------
    columns : iterable of list of n str
        The ids, and the paths if there are any.
    """

    def __init__(self, columns: Iterable[Sequence[str]]):
        self._exact: dict[str, set[int]] = {}
        self._spelled: dict[str, set[int]] = {}
        self._file: dict[str, set[int]] = {}
        self._cache: dict[str, int] = {}
        for texts in columns:
            for position, text in enumerate(texts):
                self._exact.setdefault(text, set()).add(position)
                self._spelled.setdefault(spell(text), set()).add(position)
                self._file.setdefault(text.rsplit("/", 1)[-1], set()).add(position)

    def example(self) -> str:
        """One id, for messages."""
        return next(iter(self._exact), "")

    def find(self, text: str) -> int:
        """Find the position of the sample with this id, path, URL or unique file name; `NONE` or `SEVERAL` otherwise."""
        if text not in self._cache:
            self._cache[text] = self._find(text)
        return self._cache[text]

    def _find(self, text):
        if len(text) > LONGEST:
            return NONE
        if text in self._exact:
            return _only(self._exact[text])
        if (same := self._spelled.get(spell(text))) or _NUMBER.fullmatch(text):
            return _only(same)
        text = unquote(text).replace("\\", "/")
        try:
            parts = urlsplit(text)
        except ValueError:
            return NONE
        text = parse_qs(parts.query).get("d", [parts.path])[0] if parts.query else text
        pieces = text.split("/")
        if _NUMBER.fullmatch(pieces[-1]):  # the end of batch/7 is not the id 7
            return _only(self._exact.get(text, ()))
        for start in range(len(pieces)):
            if positions := self._exact.get("/".join(pieces[start:])):
                return _only(positions)
        for name in (pieces[-1], _UPLOADED.sub("", pieces[-1])):
            if len(self._file.get(name, ())) == 1:
                return _only(self._file[name])
        return NONE

    def match(self, texts: Iterable[str]) -> np.ndarray:
        """Find the position (m,) of each text, as `find`."""
        return np.array([self.find(text.strip()) for text in texts], np.int64)


def samples_of(federation: Federation) -> Samples:
    """List the Samples of a federation: by id and by path, or by position if it has neither."""
    known = [list(map(str, federation.extra[name])) for name in ("sample_id", "sample_path") if name in federation.extra]
    return Samples(known or [list(map(str, range(len(federation.given))))])


def _only(positions):
    return NONE if not positions else next(iter(positions)) if len(positions) == 1 else SEVERAL


@dataclass(frozen=True)
class Asked:
    """How a table is asked for its samples.

    Attributes
    ----------
    fail : callable(rows, text)
        Raises InputError that names the first row.
    source : str
        Name of the table in messages.
    column : str or None
        The column that the user chose.
    option : str
        Text that tells how to choose a column.
    doubtful : tuple of str
        Columns that are never used alone unless they are chosen, because they can be the number of a task in the tool.
    tools : tuple of str
        Columns that are not compared unless they are chosen, because they are the number of a task in the tool.
    """

    fail: Callable[[Sequence[int], str], NoReturn]
    source: str
    column: str | None = None
    option: str = "`sample_column=NAME`"
    doubtful: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


def find_samples(columns: Mapping[str, Sequence[str]], samples: Samples, asked: Asked) -> tuple[str, np.ndarray]:
    """Find (name of the column, position (m,) of the sample of each row).

    Columns of numbers are compared if they have a usual name, all others always; `TOOLS` never.  If a column of names or hashes
    names a sample in every row, columns of numbers do not count.

    Parameters
    ----------
    columns : dict of str to list of m str
        All columns that can name samples.
    samples : Samples
    asked : Asked

    Raises
    ------
    InputError
        If several columns name different samples, if the best one does not name a sample in every row, or if an id belongs to
        several samples.
    """
    if asked.column is not None:
        if asked.column not in columns:
            known = list_names(columns, quote=True) or "none"
            raise InputError(f"{asked.source}: no column {asked.column!r} that can name samples; these can: {known}")
        return asked.column, _complete(asked.column, columns[asked.column], samples, asked)
    numbers = {
        name for name, texts in columns.items() if all(_NUMBER.fullmatch(text.strip()) for text in texts if text.strip())
    }
    names = [name for name in columns if name not in asked.tools and normal_name(name) not in TOOLS]
    usual = [name for name in names if name not in numbers or normal_name(name) in USUAL]
    places: dict[str, np.ndarray] = {}
    for some in (usual, [name for name in names if name not in usual and has_id_name(name)]):
        matches = {name: samples.match(columns[name]) for name in some if not places}
        places |= {name: rows for name, rows in matches.items() if (rows != NONE).any()}
    places = {name: rows for name, rows in places.items() if name not in numbers and (rows != NONE).all()} or places
    if not places:
        _refuse_unknown(columns, usual, numbers, samples, asked)
    first, *others = places
    if any(not np.array_equal(places[first], places[name]) for name in others):
        counts = list_names(f"{name!r} ({_share(rows)})" for name, rows in places.items())
        raise InputError(f"{asked.source}: several columns name different samples: {counts}; choose one by {asked.option}")
    if first in asked.doubtful:
        raise InputError(
            f"{asked.source}: only the column {first!r} names samples, and it can be the number of the task in the annotation "
            f"tool; if it is the sample, choose it by {asked.option}"
        )
    return first, _complete(first, columns[first], samples, asked, places[first])


def can_name(column: str, texts: Sequence[str], samples: Samples) -> bool:
    """Whether a column is no annotator in a table with a column per annotator.

    It has the name of identifiers, times, or texts that name samples, or a tool added it.
    """
    if normal_name(column) in {*TOOLS, *USUAL} or has_id_name(column) or are_dates(texts):
        return True
    words = [text.strip() for text in texts if text.strip()]
    return not all(map(_NUMBER.fullmatch, words)) and bool((samples.match(words) != NONE).all())


def _share(positions):
    return f"{(positions != NONE).sum():,} of {len(positions):,} rows"


def _complete(name, texts, samples, asked, positions=None):
    """Find the positions of a column; raise InputError if a row names no sample or several."""
    positions = samples.match(texts) if positions is None else positions
    if (positions == NONE).any():
        rows = np.flatnonzero(positions == NONE)
        text = f"no sample {texts[rows[0]].strip()[:80]!r} in the data; {name!r} names a sample in {_share(positions)}"
        asked.fail(rows.tolist(), f"{text}, choose another column by {asked.option}")
    if (positions == SEVERAL).any():
        rows = np.flatnonzero(positions == SEVERAL)
        asked.fail(rows.tolist(), f"{texts[rows[0]].strip()[:80]!r} is the id or path of several samples; use unique ids")
    return positions


def _refuse_unknown(columns, usual, numbers, samples, asked):
    """Raise InputError: no column names samples."""
    more = [name for name in columns if name in numbers and name not in usual and normal_name(name) not in TOOLS]
    more = [name for name in more if (samples.match(columns[name]) != NONE).all()]
    if usual:
        text = next((text.strip() for text in columns[usual[0]] if text.strip()), "")
        rows = [row for row, cell in enumerate(columns[usual[0]]) if cell.strip()]
        compared = f"no sample {text[:80]!r} in the data, whose ids are such as {samples.example()[:80]!r}"
        asked.fail(rows[:1] or [0], f"{compared}; compared: {list_names(usual, quote=True)}; choose by {asked.option}")
    hint = f"; {' or '.join(map(repr, more[:MOST_NAMES]))} has numbers of samples" if more else ""
    raise InputError(f"{asked.source}: no column names the samples{hint}; choose one by {asked.option}")

"""Read a manifest: a table with one row per sample.

A row contains the path of a file or the features, and optionally the label, site, split and id.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fnlkit.artifacts.paths import display_path, from_home, resolve
from fnlkit.artifacts.stored import Rows
from fnlkit.core.errors import InputError, list_names
from fnlkit.core.spec import Spec, bind, parse
from fnlkit.datasets import columns, groups
from fnlkit.datasets.dataset import Dataset, Unlabeled
from fnlkit.datasets.decoding import (
    IMAGES,
    decode_files,
    digest_of,
    find_damaged,
    first_of,
    form_of,
    image,
    must_be_used,
    note_damaged,
    note_pages,
    pixel_range,
    reader,
    sample_rate,
)
from fnlkit.datasets.dicom import choose_window, span
from fnlkit.datasets.identifying import NUMERIC, has_id_name, reason_to_leave_out
from fnlkit.datasets.labels import drop_unknown
from fnlkit.datasets.layout import LAYOUTS, lay_out, layout_of
from fnlkit.datasets.places import cache_json
from fnlkit.datasets.roles import ROLES, find_votes, merge_votes
from fnlkit.datasets.spelling import merge_spellings, spell
from fnlkit.datasets.table import ENDINGS, read_table
from fnlkit.datasets.targets import OTHERS, read_targets
from fnlkit.datasets.votes import as_matrix

# Options for reading the files, and options that are lists of columns.
_READING = {"missing": "", "task": "", "size": 0, "crop": False, "window": "", "pixels": "", "seconds": 0.0, "layout": "",
            "skip_damaged": False}  # fmt: skip
# Largest share of rows that equal another one apart from a column, for which equal rows are copies.
MOST_COPIES = 0.1
_LISTS = ("categorical", "ordinal", "text", "numbers", "date", "drop")
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}


def manifest(
    *,
    file: str,
    label: str | None = None,
    path: str = "",
    site: str = "",
    split: str = "",
    id: str = "",
    true: str = "",
    annotator: str = "",
    group: str = "",
    missing: str | float | Sequence[str | float] | None = None,
    task: str = "",
    size: int = 0,
    crop: bool = False,
    window: str = "",
    pixels: str = "",
    seconds: float = 0.0,
    layout: str = "",
    skip_damaged: bool = False,
    categorical: Sequence[str] | None = None,
    ordinal: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    text: Sequence[str] | None = None,
    numbers: Sequence[str] | None = None,
    date: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    cache: Path,
    download: bool = False,
) -> Dataset:
    """Load the data set of a CSV or Parquet file with one row per sample.

    Parameters
    ----------
    file : str
    label, path, site, split, id, true, annotator, group : str
        Column names.  Default: the usual names (`ROLES`).  ``"-"`` means that there is no such column.  Paths are relative to
        the folder of the file.  A split is train or test; without this column, all rows are training data.  With an annotator
        column, rows with the same path or id are votes on the same sample.  The label of the sample is the majority vote, and
        ties go to the first class.  Rows with the same group, such as a patient, are never divided between training and
        held-out samples, folds and simulated clients (fnlkit.datasets.groups); equal groups at different sites are different
        groups, and a row without a group is a group of its own.
    missing : text, number or list
        Cells with one of these values are missing, as empty cells, in all columns: ``[-999, unknown]``.
    task : str
        ``classification`` states that a label column of many numbers has classes.
    size, crop, window, pixels
        Of images, as for `folder`.
    layout : str
        Layout of images in npy files, "channels-first" or "channels-last".  Default: "", which detects it.
    seconds : float
        Length in seconds to which all sounds are cut or padded with silence.  Default: 0, if all have the same length.
    categorical, text, drop : list of columns, optional
        Numeric columns to encode as categories, one-hot; columns of free text; and columns to exclude.
    ordinal : list of columns, or dict, optional
        Columns to encode by rank: ``[stage]``, or with levels in order ``{grade: [low, medium, high]}``.  The order of other
        levels is that of the file, or that of the numbers in them; a note prints it.
    numbers, date : list of columns, optional
        Columns that are features although they look like identifiers or times (fnlkit.datasets.identifying): as numbers, or as
        year, day of the year and weekday.  Numbers can have a unit, a thousands separator or a detection limit
        (fnlkit.datasets.notation).

    Returns
    -------
    Dataset
        Rows without a label are its `unlabeled` samples.

    Raises
    ------
    InputError
        One line that names file, row and column.
    """
    return Manifest(file, *_split(locals())).dataset(cache)


def is_manifest(text: str) -> bool:
    """Whether a text is the path of a table or a manifest spec."""
    return text.partition("(")[0] == "manifest" or (text.lower().endswith(ENDINGS) and os.path.isfile(from_home(text)))


def with_options(source: str, parameter: str, **options: Any) -> Spec:
    """Make the Spec of a table, or of a folder of images or wav files, with further options of `manifest` or `folder`.

    Raises
    ------
    InputError
        If the source is neither; `parameter` is the option in the message.
    """
    path = from_home(source)
    if os.path.isdir(path):
        spec = Spec("folder", {"path": source})
    elif os.path.isfile(path) and is_manifest(source):
        spec = Spec("manifest", {"file": source})
    else:
        spec = parse(source, "`dataset`")
    if spec.name not in ("folder", "manifest"):
        raise InputError(f"describes a table or folder of files, and {source} is none", parameter=parameter)
    return Spec(spec.name, spec.parameters | options)


def open_manifest(text: str) -> "Manifest":
    """Open the Manifest for the path of a table or a manifest spec."""
    if os.path.isfile(from_home(text)):
        return Manifest(text)
    parameters = bind(parse(text, "DATA"), manifest, "data set", given=("cache", "download")).keywords
    return Manifest(parameters["file"], *_split(parameters))


def _split(parameters):
    """Split parameters of `manifest` into roles, options for reading the files, and lists of columns."""
    return [{name: v for name, v in parameters.items() if name in names} for names in (ROLES, _READING, _LISTS)]


class Manifest:
    """A table with the role of each column.

    The table is read from `file`, unless `table` is given.

    Attributes
    ----------
    table : fnlkit.datasets.table.Table
    roles : dict of str to str
        Role to column name, for the roles that occur.
    voted : tuple of str
        If rows are votes, all labels that annotators gave, including labels without a majority.
    """

    def __init__(self, file, given=None, reading=None, lists=None, table=None):
        file = file.name if isinstance(file, Spec) else file
        if not isinstance(file, (str, os.PathLike)):
            raise InputError(f'manifest: `file` is {file}; write file="TABLE.csv"')
        self.file = resolve(file) if table is None else Path(file)  # a given table has a name, not a file
        self.given = {role: name for role, name in (given or {}).items() if name}
        if isinstance(self.given.get("label"), (list, tuple)):
            raise InputError(f"names several columns; {OTHERS}", parameter="label")
        if isinstance(self.given.get("label"), Spec):
            self.given["label"] = self.given["label"].name
        if not isinstance(self.given.get("label", ""), str):
            raise InputError(f'is {self.given["label"]}; write the name of a column, label="NAME"', parameter="label")
        self.reading = _READING | {name: value for name, value in (reading or {}).items() if value is not None}
        self.lists = {name: _list_names(name, value) for name, value in (lists or {}).items() if value is not None}
        levels = (lists or {}).get("ordinal")
        self.levels = _list_levels(levels) if isinstance(levels, dict) else {}
        span(self.reading["window"])
        pixel_range(self.reading["pixels"])
        if self.reading["layout"]:
            layout_of(np.array(self.reading["layout"]))
        self.table = read_table(self.file) if table is None else table
        self.blank(self.reading["missing"])
        self.roles = {role: name for role in ROLES if (name := self._column(role)) is not None}
        self.unused: set[str] = set()
        self.left_out: dict[str, str] = {}
        self._merge_spellings()
        find_votes(self)
        self._must_be_used()
        self.left_out = self._find_left_out()
        self.cast = []  # {annotator: label} for each row, if rows of the file are votes
        self.voted, self.table = merge_votes(self)
        if self.cast:  # a number of the sample repeats with each vote
            self.left_out = {name: kind for name, kind in self.left_out.items() if name in self.table.columns}
            self.left_out |= self._find_left_out()

    def blank(self, missing: Any) -> None:
        """Make the cells empty that have a value of the option `missing`."""
        if isinstance(missing, dict) or any(isinstance(value, (list, tuple, dict)) for value in _as_list(missing)):
            raise InputError("is for all columns; write a value or a list, such as [-999, unknown]", parameter="missing")
        codes = [value.name if isinstance(value, Spec) else str(value) for value in _as_list(missing)]
        if codes != [""]:
            self.table.blank(codes)

    def _must_be_used(self):
        """Raise if an option names no column or has no effect."""
        option_of = {}
        for option, names in self.lists.items():
            for name in names:
                self.table.must_have(name, option)
                role = next((role for role, column in self.roles.items() if column == name), None)
                other = option_of.setdefault(name, option)
                if other != option:
                    self._fail(f"{other} and {option} both name the column {name!r}; keep it in one of them")
                if option != "drop" and (role or "path" in self.roles):
                    role = f"the {role}" if role else "no feature, because the samples are files"
                    self._fail(f"{option}: column {name!r} is {role}; remove it from {option}")
        files = [name for name in ("size", "crop", "window", "pixels", "seconds", "layout") if self.reading[name]]
        if files and "path" not in self.roles:
            self._fail(f"{files[0]} is for images and sounds, and no column has paths of files; remove it", 'path="NAME"')

    def _column(self, role):
        name = self.given.get(role)
        if name == "-":
            return None
        if name is not None:
            self.table.must_have(name, f"{role}={name!r}")
            return name
        taken = {*(name for name in self.given.values() if isinstance(name, str)), *itertools.chain(*self.lists.values())}
        candidates = [column for column in self.table.find_columns(*ROLES[role]) if column not in taken]
        candidates = groups.find_names(candidates, self.table.texts) if role == "group" else candidates
        if len(candidates) > 1:
            self._fail(f"the {role} can be in {' or '.join(map(repr, candidates))}", f'{role}="{candidates[0]}"')
        return candidates[0] if candidates else None

    def _fail(self, text: str, spec: str = "", more: str = "") -> NoReturn:
        """Raise InputError about the file, with the spec of the data set that is a remedy."""
        name = display_path(self.file)
        remedy = f"; write the data set as 'manifest(file=\"{name}\", {spec})'{more}" if spec else ""
        raise InputError(f"{name}: {text}{remedy}")

    def _merge_spellings(self):
        """Write labels and sites in one spelling (fnlkit.datasets.spelling)."""
        for roles, kind in ((("label", "true"), "labels"), (("site",), "sites")):
            names = [self.roles[role] for role in roles if role in self.roles]
            parts, notes = merge_spellings(*map(self.table.texts, names), what=kind)
            self.table.columns |= dict(zip(names, parts, strict=True)) if notes else {}
            self.table.notes += notes

    def _find_left_out(self):
        """Find the columns that identify rows, and their kinds (fnlkit.datasets.identifying)."""
        chosen = {
            name for option in ("categorical", "ordinal", "text", "numbers", "date") for name in self.lists.get(option, ())
        }
        left_out, once = {}, self.table.chosen(np.flatnonzero(~self.table.repeated()))
        for name in (column for column in self.features if column not in chosen):
            kind = self._reason_to_leave_out(name, self.table)
            # Copies hide that a column identifies rows.  Equal rows are copies if the other columns, too, tell the rows apart.
            if not kind and len(once.rows) < len(self.table.rows) and self.table.repeated(without=name).mean() <= MOST_COPIES:
                kind = self._reason_to_leave_out(name, once)
            if kind:
                left_out[name] = kind
        return left_out

    def _reason_to_leave_out(self, name, table):
        sites = table.texts(self.roles["site"]) if "site" in self.roles else None
        return reason_to_leave_out(name, table.raw(name), table.numbers(name)[0], sites)

    def texts(self, role: str) -> list[str] | None:
        """Read the cells of the column with a role, or None if there is no such column; paths as they are written."""
        read = self.table.raw if role == "path" else self.table.texts
        return read(self.roles[role]) if role in self.roles else None

    @property
    def features(self) -> list[str]:
        """Names of the feature columns: all without a role, if no column has paths."""
        left_out = {*self.roles.values(), *self.lists.get("drop", ()), *self.unused, *self.left_out}
        return [] if "path" in self.roles else [name for name in self.table.columns if name not in left_out]

    def ids(self) -> list[str]:
        """Name each row: its id or path, a column of identifiers that is no feature, or ``row 7``."""
        names = self.texts("id") or self.texts("path")
        able = [
            name for name, kind in self.left_out.items() if "date" not in kind and (kind != "row numbers" or has_id_name(name))
        ]
        others = (self.table.texts(name) for name in able if name in self.table.columns)
        names = names or next((texts for texts in others if all(texts) and len(set(texts)) == len(texts)), None)
        return names or [f"row {row}" for row in self.table.rows]

    def samples(
        self,
        parts: Sequence[Sequence[int] | np.ndarray],
        learned: Sequence[dict[str, Any]] | None = None,
        shape: tuple[int, ...] | None = None,
        remember: Callable[[str, Callable[[], Any]], Any] | None = None,
    ) -> Sequence[np.ndarray | Rows]:
        """Read the samples (n, ...) for each list of row indices.

        Feature columns are encoded as `learned`; files are read by `decoded`.
        """
        if "path" not in self.roles:
            return [columns.encode(learned or [], self.table, np.asarray(rows)) for rows in parts]
        files = [[self.paths[row] for row in rows] for rows in parts]
        kind, read = self._reader(sum(files, []))
        if kind != "array":
            return decode_files(files, read, shape=shape, remember=remember)
        arrays = decode_files(files, read, remember=remember)
        arrays = [lay_out(x, "x", 0, self.reading["layout"])[0] if len(x) else None for x in arrays]
        some = next(x for x in arrays if x is not None)
        return [some[:0] if x is None else x for x in arrays]

    def _reader(self, files):
        return reader(files, **{name: self.reading[name] for name in ("size", "crop", "window", "pixels", "seconds")})

    @cached_property
    def paths(self) -> list[Path]:
        """Path of each row's file.

        Raises
        ------
        InputError
            If files do not exist.  The message names the rows.
        """
        names = self.texts("path") or []
        files = [self.file.parent / name for name in names]
        for row, path in enumerate(files):
            if not path.is_file() and "\\" in names[row]:  # paths written on Windows
                files[row] = self.file.parent / names[row].replace("\\", "/")
        lost = [row for row, path in enumerate(files) if not path.is_file()]
        if lost:
            self.table.fail(lost, f"no file {display_path(files[lost[0]])}")
        return files

    def bare(self) -> list[int]:
        """Find the rows without a label; all rows without a label column."""
        texts = self.texts("label")
        return [row for row in range(len(self.table)) if texts is None or not texts[row]]

    def dataset(self, cache: Path, learned: Sequence[dict[str, Any]] | None = None, *, of_site: bool = False) -> Dataset:
        """Make the Dataset.

        Parameters
        ----------
        cache : pathlib.Path
            The cache folder.
        learned : list of dict, optional
            Encoding of columns, as returned by fnlkit.datasets.columns.learn.  Default: learned from this table.
        of_site : bool
            As for `fnlkit.datasets.labels.classes_of`.  A site can have a single row.
        """
        if "label" not in self.roles:
            names = " or ".join(ROLES["label"])
            self._fail(f"no column is named {names}", 'label="NAME"', f" with one of {self.table.known()}")
        if "path" not in self.roles and not self.features and not learned:
            left = f"; {_note_left_out(self.left_out)[0]}" if self.left_out else ""
            self._fail(f"no column contains file paths or features{left}")
        self._refuse_files_as_features()
        damaged = self.drop_damaged(cache)
        sites = self._sites()
        self._refuse_twins(sites)
        in_test = self._in_test()
        damaged += self._choose_window(cache, of_site)
        try:
            targets = read_targets(
                self.table, self.roles["label"], task=self.reading["task"], true=self.roles.get("true"), others=self.voted,
                of_site=of_site,
            )  # fmt: skip
        except InputError as error:
            self._fail(f"column {self.roles['label']!r}: {error}")
        names, labels, true, notes = drop_unknown(targets.names, targets.labels, targets.true, in_test)
        bare = labels < 0
        train, test, spare = (np.flatnonzero(m) for m in (~in_test & ~bare, in_test & ~bare, bare))
        least = 1 if of_site else 2
        if len(train) < least:
            self._fail(f"{len(train)} training rows have a label; expected at least {least}")
        if "true" in self.roles and len(gaps := train[true[train] < 0]):
            self.table.fail(gaps, f"no {self.roles['true']}; a column of true labels must be complete")
        learned, named = self._learn(train, sites) if learned is None else learned, self.ids()
        kind, moved = ("vector", []) if learned else self._kind(train)
        data: Dataset = Dataset(
            name=self._name(),
            kind=kind,
            layout=LAYOUTS[0],
            y_train=labels[train],
            y_test=labels[test],
            class_names=names,
            samples=lambda: tuple(self.samples([train, test], learned, remember=data.remember)),
            fields=self._fields(train, sites),
            observed="true" not in self.roles,
            y_train_true=true[train] if "true" in self.roles else None,
            ids=np.array([named[row] for row in train]),
            columns=columns.features(learned) if learned else None,
            encode=partial(self.samples, [train, test]),
            table=learned,
            roles=dict(self.roles),
            left_out=self._left_out_but(learned),
            shown=self._display_cells(train, learned),
            notes=[*self._notes(learned), *damaged, *moved, *targets.notes, *notes, *self._note_unseen(learned, test, spare)],
        )
        if "group" in self.roles:
            columns_of = [values for values in (self.texts("group"), sites) if values is not None]
            cells = [[values[row] for row in part] for values in columns_of for part in (train, test)]
            data.groups, data.groups_test, more = groups.of_parts(*cells)
            data.notes += more
        if self.cast:
            data.votes, data.annotators = as_matrix([self.cast[row] for row in train], names)
        if len(spare):
            data.unlabeled = Unlabeled(
                lambda: self.samples([spare], learned, data.x_train.shape[1:])[0],
                [named[row] for row in spare],
                None if sites is None else [sites[row] for row in spare],
            )
        if "path" in self.roles:
            self._of_files(data, train, test, labels, cache)
        return data

    def _of_files(self, data, train, test, labels, cache):
        """Add the paths, sample rate and checksum of samples in files."""
        paths, names = self.paths, self.texts("path")
        parts = [[paths[row] for row in part] for part in (train, test)]
        data.paths = np.array([names[row] for row in train])
        if data.kind == "wave":
            data.sample_rate = sample_rate(parts[0])

        reading = self.reading | {"window": self.stored_window}
        options = {name: value for name, value in reading.items()
                   if name not in ("crop", "skip_damaged") and (value or name not in ("layout", "task", "pixels"))}  # fmt: skip
        options |= {"whole": True} if reading["size"] and not reading["crop"] else {}  # earlier versions cropped

        def content(order: np.ndarray) -> Iterator[bytes]:
            for row, label in zip((*train, *test), (*labels[train], *labels[test]), strict=True):
                yield f"{names[row]} {order[label]} {options}\n".encode("utf-8", "surrogateescape")
                yield digest_of(paths[row])

        data.content, data.in_files = content, True
        data.forms = lambda: tuple(data.remember("forms", lambda: [list(map(form_of, part)) for part in parts]))
        data.remember = partial(cache_json, files=[self.file, *sum(parts, [])], cache=cache, reading=f"3 {data.name}")
        if data.kind == "image" and reading["size"]:
            whole = partial(image, **{name: self.reading[name] for name in ("window", "pixels")})
            data.whole = lambda position: whole(paths[train[position]])
        if data.kind == "image":
            data.notes += data.remember("pages", lambda: note_pages(sum(parts, [])))

    def drop_damaged(self, cache: Path) -> list[str]:
        """Leave out the rows whose file cannot be read, if the spec says so; return notes."""
        if not self.reading["skip_damaged"] or "path" not in self.roles:
            return []
        scale, files = self.reading["pixels"], self.paths
        damaged = cache_json("damaged", lambda: find_damaged(files, pixels=scale), files=files, cache=cache, reading=scale)
        readable = [row for row, file in enumerate(files) if str(file) not in damaged]
        self.table, self.cast = self.table.chosen(readable), [self.cast[row] for row in readable] if self.cast else self.cast
        self.__dict__.pop("paths")
        return note_damaged(damaged)

    def _choose_window(self, cache, of_site):
        """Set the window of DICOM images to the range of all files if none is given; return notes."""
        if "path" not in self.roles:
            return []
        chosen = choose_window(self.paths, self.reading["window"], display_path(self.file), cache, of_site)
        self.reading["window"], self.stored_window, notes = chosen
        return notes

    def _kind(self, train):
        """Find (kind, notes) of the samples in files, from the first readable file."""
        files = [self.paths[row] for row in train]
        kind, read = self._reader(files)
        must_be_used(kind, **{name: self.reading[name] for name in ("size", "crop", "window", "pixels", "seconds")})
        if kind != "array":
            return kind, []
        _, kind, note = lay_out(first_of(files, read)[None], "x", 0, self.reading["layout"])
        return kind, [note] if note else []

    def _learn(self, train, sites):
        if "path" in self.roles:
            return None
        site_names = None if sites is None else np.array([sites[row] for row in train])
        lists = {name: self.lists.get(name, ()) for name in ("categorical", "ordinal", "text", "numbers", "date")}
        lists["ordinal"] = dict.fromkeys(lists["ordinal"], ()) | self.levels
        return columns.learn(self.table, self.features, train, site_names, **lists)

    def _display_cells(self, train, learned):
        """Read the cells of the training rows as texts, for tables with free text; otherwise None."""
        if not any(column["kind"] == "text" for column in learned or ()):
            return None
        cells = [self.table.raw(column["name"]) for column in learned]
        return [[[column["name"], texts[row]] for column, texts in zip(learned, cells, strict=True)] for row in train]

    def _fields(self, train, sites):
        """Collect metadata of the training samples: the site and unused columns."""
        taken = {*self.features, *(column for role, column in self.roles.items() if role not in ("annotator", "group"))}
        fields = {} if sites is None else {"site": np.array([sites[row] for row in train])}
        for name in self.table.columns:
            if name not in taken:
                texts = self.table.texts(name)
                fields.setdefault(name, np.array([texts[row] for row in train]))
        return fields

    def _refuse_files_as_features(self):
        """Raise if a categorical column contains file names."""
        for name in (*self.features, *self.left_out):
            cells = self.table.columns[name]
            texts = self.table.texts(name)[:1] if isinstance(cells, list) and "path" not in self.given else []
            if texts and texts[0].lower().endswith((*IMAGES, ".wav", ".npy")):
                example = display_path(texts[0][:80])
                remedy = f'write path="{name}" in the data set\'s spec, or path="-" if it is a feature'
                self._fail(f"column {name!r} has file names such as {example}; {remedy}")

    def _sites(self):
        sites = self.texts("site")
        empty = [] if sites is None else [row for row, name in enumerate(sites) if not name]
        if empty:
            self.table.fail(empty, f"no {self.roles['site']}; every sample needs a site")
        return sites

    def _refuse_twins(self, sites):
        """Raise if two rows of a site have the same id, or if two rows have the same file."""
        for role in ("id", "path"):
            row_of, names = {}, self.texts(role) or []
            for row, name in enumerate(names):
                if not name:
                    self.table.fail([row], f"no {self.roles[role]}")
                key = (name, sites[row] if sites and role == "id" else "")
                if key in row_of:
                    other = self.table.rows[row_of[key]]
                    self.table.fail(
                        [row], f"{self.roles[role]} {display_path(name)} is also in row {other}; write one row per sample"
                    )
                row_of[key] = row

    def _in_test(self):
        splits = self.texts("split")
        if splits is None:
            return np.zeros(len(self.table), bool)
        unknown = [row for row, text in enumerate(splits) if text.lower() not in SPLITS]
        if unknown:
            self.table.fail(unknown, f"{self.roles['split']} is {splits[unknown[0]][:40]!r}; write train or test")
        return np.array([SPLITS[text.lower()] == "test" for text in splits])

    def _left_out_but(self, learned):
        """Columns that are left out, without those that partners agreed on."""
        agreed = {column["name"] for column in learned or ()}
        return {name: kind for name, kind in self.left_out.items() if name not in agreed}

    def _notes(self, learned):
        roles = ", ".join(f"{role} {name!r}" for role, name in self.roles.items())
        used = {*self.roles.values(), *self.features, *self.left_out}
        rest = [name for name in self.table.columns if name not in used]
        left = f"; not used: {list_names(rest)}" if rest else ""
        return [
            f"{len(self.table):,} rows; {roles}{left}",
            *self.table.notes,
            *_note_left_out(self._left_out_but(learned)),
            *(columns.descriptions(learned) if learned else ()),
            *(() if "group" in self.roles else groups.doubt_groups(self.features, self.table.texts)),
            *columns.doubts(self.table, learned or (), self.lists.get("categorical", ())),
        ]

    def _note_unseen(self, learned, test, spare):
        """Note categories of test rows and rows without a label that no training row has."""
        parts = (("test rows", test), ("rows without a label", spare))
        return [note for kind, rows in parts for note in columns.note_unseen(learned or (), self.table, rows, kind)]

    def _name(self):
        more = {name: value for name, value in self.reading.items() if value != _READING[name]}
        lists = {name: list(names) for name, names in self.lists.items()}
        if self.levels:
            lists["ordinal"] = dict.fromkeys(lists["ordinal"], []) | self.levels
        parameters = {**self.given, **more, **lists}
        return str(Spec("manifest", {"file": str(self.file), **parameters})) if parameters else str(self.file)


def _note_left_out(left_out):
    """Note columns that are no features, given as a dict from the name to the kind."""
    if not left_out:
        return []
    names = list_names(f"{name!r} ({kind})" for name, kind in left_out.items())
    first = {}
    for name, kind in left_out.items():
        first.setdefault("numbers" if kind in NUMERIC else "date" if "date" in kind else "text", name)
    keep = [f'{option}=["{name}"]' for option, name in first.items()]
    return [f"left out, because they identify rows: {names}; write {' or '.join(keep)} to use them as features"]


def _as_list(value):
    return [*value] if isinstance(value, (list, tuple, dict)) else [value]


def _list_names(option, value):
    """Read the column names in a spec: ``[age, "body weight"]``, or a single name."""
    names = [entry.name if isinstance(entry, Spec) else entry for entry in _as_list(value)]
    if not all(isinstance(name, str) for name in names):
        raise InputError(f'{option}: write column names, for example {option}=["age", "ward"]')
    return tuple(names)


def _list_levels(value):
    """Read {column: levels in order} of ``ordinal={grade: [low, medium, high]}``."""
    levels_of = {}
    for column, levels in value.items():
        if not isinstance(levels, (list, tuple)):
            raise InputError(f"`ordinal`: write the levels of {column!r} as a list: {{{column}: [low, medium, high]}}")
        levels_of[column] = [spell(level.name if isinstance(level, Spec) else str(level)) for level in levels]
        if len(set(levels_of[column])) < len(levels):
            raise InputError(f"`ordinal`: write each level of {column!r} once, in order: {{{column}: [low, medium, high]}}")
    return {column: levels for column, levels in levels_of.items() if levels}

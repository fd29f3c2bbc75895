"""Record the specification of each file in a folder of `reproduce`, so that only changed files are made again.

A file is made again unless its specification equals the recorded one: the command, the content of each file that the command
read, the code of each user's component, and the version of fnlkit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fnlkit import __version__, datasets
from fnlkit.components import own
from fnlkit.components.spec import data_files, own_names

NAME = "settled.jsonl"


class Specifications:
    """The specifications of the files in a folder, one line each in `settled.jsonl`.

    Parameters
    ----------
    folder : str or Path
    sources : iterable of str
        Data sets as named in the commands, relative to the folder.

    Raises
    ------
    InputError
        If a folder or file of samples cannot be read.
    """

    def __init__(self, folder, sources):
        self.folder, self.known, self._read = Path(folder), {}, {}
        try:
            lines = (self.folder / NAME).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            try:
                name, key = json.loads(line)
                self.known[name] = key
            except (ValueError, TypeError):
                continue  # incomplete line of a killed process
        with contextlib.chdir(self.folder):
            self._sources = {source: _identity(source) for source in sources}

    def has(self, name: str, key: str) -> bool:
        """Return whether a file exists and was made by this specification."""
        return self.known.get(name) == key and (self.folder / name).exists()

    def add(self, name: str, key: str) -> None:
        """Record the specification of a file."""
        if self.known.get(name) != key:
            self.known[name] = key
            with open(self.folder / NAME, "a", encoding="utf-8") as file:
                file.write(json.dumps([name, key]) + "\n")

    def of_step(self, arguments: Sequence[str]) -> str:
        """Return the specification of a step, given the arguments of fnlkit without the output."""
        return self._key(arguments, [self.content(word) for word in arguments])

    def of_run(self, job: Any, commands: Sequence[Sequence[str]]) -> str:
        """Return the specification of a run with the state of its file, which changes if another process writes it."""
        path = self.folder / f"{job.name}.pt"
        stat = os.stat(path) if path.exists() else None
        made = [self._content(target) for _, target in job.prepare]
        return self._key(commands, [made, stat and (stat.st_size, stat.st_mtime_ns), *map(self.content, job.train)])

    def content(self, word: str) -> Any:
        """Return digests of the data set, the file or the components that a word of a command names."""
        value = word.partition("=")[2] if word.startswith("--") else word
        if value in self._sources and word.startswith("--dataset="):
            return self._sources[value]
        if (self.folder / value).is_file():
            return self._content(value)
        quoted = value.replace("'", '"').split('"')[1::2]
        bare = value.replace("=", " ").replace("(", " ").replace(")", " ").replace(",", " ").split()
        files = [self._content(name) for name in (*bare, *quoted) if (self.folder / name).is_file()]
        return files + [own.digest(name) for name in own_names(value)] + [*data_files(value).values()]

    def _content(self, name):
        """Return the SHA-256 of a file's bytes, cached while the file's size and time do not change."""
        try:
            stat = os.stat(self.folder / name)
        except OSError:
            return None
        state = (stat.st_size, stat.st_mtime_ns)
        if self._read.get(name, (None, None))[0] != state:
            with open(self.folder / name, "rb") as file:
                self._read[name] = state, hashlib.file_digest(file, "sha256").hexdigest()
        return self._read[name][1]

    def _key(self, *what):
        return hashlib.sha256(json.dumps([__version__, *what]).encode()).hexdigest()


def _identity(source):
    """Return an identifier of a data set's content; a known name identifies itself."""
    if source in datasets.registry() and not os.path.exists(source):
        return source
    return datasets.load(source).checksum

"""Tokens with tags: CoNLL files, and features of a token from hashed letters of the word and of the words next to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fnlkit.artifacts import paths
from fnlkit.datasets.columns import hash_texts
from fnlkit.datasets.table import Table, read_text
from fnlkit.errors import InputError

ENDING = ".conll"
# Features of the word, and of each word next to it.
WORD, BESIDE = 192, 48
CONTEXT = 6  # words on either side that a review shows


def read_conll(path: Path) -> Table:
    """Return the Table of a CoNLL file, or of a folder of such files, one per site.

    A line begins with a token and ends with the tag, separated by spaces or tabs.  Empty lines end sentences.  Lines that begin
    with ``# `` or ``-DOCSTART-`` are skipped.

    Raises
    ------
    InputError
        If a line has a single word, or if there is no token.
    """
    files = sorted(path.glob(f"*{ENDING}")) if path.is_dir() else [path]
    columns: dict[str, list[str]] = {name: [] for name in ("site", "sentence", "token", "label")}
    rows: list[int] = []
    for file in files:
        sentence, begun = 0, False
        for number, line in enumerate(read_text(file).splitlines(), 1):
            if line.startswith(("# ", "-DOCSTART-")):
                continue
            parts = line.split()
            if not parts:
                sentence, begun = sentence + begun, False
                continue
            if len(parts) == 1:
                raise InputError(f"{paths.display_path(file)}, line {number}: one word; expected a token and a tag")
            begun = True
            for name, value in zip(columns, (file.stem, str(sentence + 1), parts[0], parts[-1]), strict=True):
                columns[name].append(value)
            rows.append(number)
    if not rows:
        raise InputError(f"{paths.display_path(path)}: no tokens; expected lines of a token and a tag")
    if not path.is_dir():
        del columns["site"]
    return Table(path, columns, rows)


def places(sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return (start (n,), place (n,)) of tokens from the name of the sentence of each token, in the order of the table."""
    new = np.array([i == 0 or sentences[i] != sentences[i - 1] for i in range(len(sentences))])
    start = np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
    return start, np.arange(len(new)) - start


def features(tokens: Sequence[str], sentences: Sequence[str]) -> np.ndarray:
    """Return features (n, d) float32 of tokens: hashed letters, shape, and the words before and after in the sentence."""
    start, place = places(sentences)
    last = np.append(place[1:] == 0, True)
    letters = {"analyzer": "char_wb", "ngram_range": (1, 4), "lowercase": False}
    before = ["" if place[i] == 0 else tokens[i - 1].lower() for i in range(len(tokens))]
    after = ["" if last[i] else tokens[i + 1].lower() for i in range(len(tokens))]
    shape = [[t[:1].isupper(), t.isupper(), any(c.isdigit() for c in t), p == 0] for t, p in zip(tokens, place, strict=True)]
    beside = [hash_texts(words, BESIDE, **letters) for words in (before, after)]
    return np.concatenate([hash_texts(tokens, WORD, **letters), *beside, np.array(shape, np.float32)], 1)


def show_sentences(tokens: Sequence[str], sentences: Sequence[str], rows: Sequence[int]) -> list[list[list[str]]]:
    """Return the token and the sentence as [[name, text]] for each of `rows`."""
    start, place = places(sentences)
    out = []
    for i in rows:
        same = [j for j in range(max(0, i - CONTEXT), min(len(tokens), i + CONTEXT + 1)) if start[j] == start[i]]
        text = " ".join(f"[{tokens[j]}]" if j == i else tokens[j] for j in same)
        out.append([["token", tokens[i]], ["sentence", text]])
    return out

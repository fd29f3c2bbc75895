"""Decode text in the encodings of spreadsheets and other programs."""

from __future__ import annotations

import codecs

from fnlkit.core.errors import InputError


def decode(raw: bytes) -> tuple[str, bool]:
    """Decode the bytes of a text file and return (text, guessed).

    The encoding is UTF-16 if the file begins with its byte order mark, UTF-8 if the bytes are valid UTF-8, and otherwise
    Windows-1252.  In the last case `guessed` is True, because almost any bytes are valid Windows-1252.

    Parameters
    ----------
    raw : bytes

    Raises
    ------
    InputError
        If the bytes are not text in any of these encodings, or if the text contains NUL characters.

    Examples
    --------
    >>> decode("größe".encode("utf-16")), decode("größe".encode("cp1252"))
    (('größe', False), ('größe', True))
    """
    guessed = False
    try:
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            text = raw.decode("utf-16")
        else:
            try:
                text = raw.decode("utf-8-sig")
            except UnicodeDecodeError:
                text, guessed = raw.decode("cp1252"), True
    except UnicodeDecodeError as error:
        raise InputError(f"not text in UTF-8, UTF-16 or Windows-1252: {error.reason} at byte {error.start:,}") from None
    if "\0" in text:
        raise InputError("not text: contains NUL bytes")
    return text, guessed

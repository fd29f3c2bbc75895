"""Files that contain a message."""

import os

from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError

_MAX_BYTES = 2**30


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Read the content of a file.

    Raises
    ------
    InputError
        If there is no such regular file, or if it is too large.
    """
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _MAX_BYTES:
            raise InputError(f"{display_path(path)}: is no file of at most {_MAX_BYTES:,} bytes")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{display_path(path)}: {error.strerror}") from None

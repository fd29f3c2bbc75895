"""Files that contain a message, and the failure that a reply can contain."""

import os

from fnlkit.artifacts import message
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
    shown = display_path(path)
    try:
        size = os.stat(path).st_size
        if not os.path.isfile(path) or size > _MAX_BYTES:
            raise InputError(f"{shown}: is no file of at most {_MAX_BYTES:,} bytes; name a .request or .reply file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{shown}: {error.strerror}; name a file that can be read") from None


def failure_in(data: bytes) -> tuple[str, str] | None:
    """Read the code and the class name of the failure in a reply; None if the reply contains none.

    Raises
    ------
    fnlkit.artifacts.message.Unreadable
    """
    match message.decode(data):
        case {"replies": [[_, ("failure", str(code), str(name), _)]]}:
            return code, name
    return None

"""Privacy key: 32 secret bytes in a file that only the owner can read.

Noise and flipped labels that protect privacy are drawn from this key and from the facts of a run.
"""

import contextlib
import hashlib
import os
import re
import secrets
import stat

from fnlkit.artifacts.paths import display_path, must_be_regular
from fnlkit.core.errors import InputError

KIND = "fnlkit.federated.privacy-key/1"
_LINE = re.compile(rf"{KIND} ([0-9a-f]{{64}})\n?")


def read_or_draw(path: str | os.PathLike[str]) -> bytes:
    """Read the key (32 bytes) from a file; create the file with mode 0600 if missing.

    Parameters
    ----------
    path : str or os.PathLike
        Missing folders are created with mode 0700.

    Raises
    ------
    InputError
        If the file contains no key, if other users can read it, or if it cannot be read or written.
    """
    shown = display_path(path)
    try:
        if not os.path.lexists(path):
            _draw(path)
        must_be_regular(path)
        with open(path, "rb") as handle:
            mode, data = os.fstat(handle.fileno()).st_mode, handle.read(200)
    except OSError as error:
        raise InputError(f"privacy key {shown}: {error.strerror}; name another file with `privacy_key`") from error
    match = _LINE.fullmatch(data.decode("ascii", "replace"))
    if not match:
        raise InputError(f"privacy key {shown}: contains no key of fnlkit; name another file with `privacy_key`")
    if os.name != "nt" and stat.S_IMODE(mode) & 0o077:  # on Windows, a mode has no other users
        raise InputError(f"privacy key {shown}: other users can read it; run `chmod 600 {shown}`, or name another file")
    return bytes.fromhex(match[1])


def fingerprint(key: bytes) -> str:
    """Identify a key by 16 hexadecimal digits that do not reveal it."""
    return hashlib.sha256(b"fingerprint" + key).hexdigest()[:16]


def _draw(path):
    """Write a new key, unless another process has just written one."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    temporary = os.path.join(folder, f".fnlkit-{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as handle:
            handle.write(f"{KIND} {secrets.token_hex(32)}\n")
            handle.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)

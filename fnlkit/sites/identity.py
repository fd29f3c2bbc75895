"""Names and addresses of a project: both become file names, arguments of commands and lines of shell scripts."""

import base64
import hashlib
import re
from collections.abc import Sequence

from fnlkit.core.errors import InputError

PORT = 8000
# A name starts with a letter or digit: "-rf" is an option and ".." another folder.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*")
# A site's folder contains NAME.key beside these files.
_TAKEN = ("own", "ca")


def is_name(text: str) -> bool:
    """Whether `text` is a valid name of a site."""
    return isinstance(text, str) and bool(_NAME.fullmatch(text)) and text.lower() not in _TAKEN


def check_names(names: Sequence[str], count: int) -> None:
    """Raise InputError unless `names` are `count` valid names that differ in more than upper and lower case."""
    for name in names:
        if not is_name(name):
            raise InputError(
                f"{name!r}: expected 1 to 40 letters, digits, points, dashes and underscores, the first one a letter or "
                f"digit, and not {' or '.join(_TAKEN)}",
                parameter="name",
            )
    if len({name.lower() for name in names}) != count:
        message = f": expected {count} different names; upper and lower case are the same on some machines"
        raise InputError(message, parameter="name")


def is_loopback(host: str) -> bool:
    """Whether a host name or IPv4 address reaches this machine only."""
    return host.lower() == "localhost" or bool(re.fullmatch(r"127(\.[0-9]{1,3}){3}", host))


def parse_address(text: str, option: str = "`address`", *, default: int | None = PORT) -> tuple[str, int]:
    """Parse an address HOST or HOST:PORT as (host, port).

    Parameters
    ----------
    text : str
        A host name or an IPv4 address, optionally with a port.
    option : str
        Name of the option or entry in the message.
    default : int or None
        Port of an address without one; None if the address must state it.

    Raises
    ------
    InputError
    """
    host, colon, port = text.partition(":")
    valid = _HOST.fullmatch(host) and (not colon or re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536)
    if not valid or not (port or default):
        raise InputError(f"{option} {text!r}: expected a host and a port, such as server.example.org:{PORT}")
    return host, int(port or default or 0)


def fingerprint(key: bytes) -> str:
    """Identify a public key as `ssh-keygen -l` does, ``SHA256:...``.

    Parameters
    ----------
    key : bytes
        PEM, the format in which Flower stores the keys of SuperNodes. A node without a key has the fingerprint ``none``.
    """
    from cryptography.hazmat.primitives import serialization

    if not key:
        return "none"
    public_key = serialization.load_pem_public_key(key)
    line = public_key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return digest_of(line.split()[1])


def digest_of(encoded: str | bytes) -> str:
    """Compute ``SHA256:...`` of the Base64 part of a public key's line in OpenSSH format."""
    digest = hashlib.sha256(base64.b64decode(encoded, validate=True)).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"

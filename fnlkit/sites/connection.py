"""Test of the connection to the server: Flower repeats failed attempts, or stops, without naming the reason."""

import datetime
import http.client
import os
import ssl
import time
from email.utils import parsedate_to_datetime

from fnlkit.core.errors import InputError, WorkStopped

# OpenSSL's codes of errors that a clock causes.
_EARLY, _EXPIRED = 9, 10
# Flower refuses messages of a site whose clock is more than 5 s ahead of the server's or 305 s behind. Clocks drift.
_AHEAD, _BEHIND = 3, 240
# The server's time is whole seconds, and up to a second old.
_COARSE = 2
_SECONDS = 10


def test(address: str, authority: str | os.PathLike[str]) -> None:
    """Open a TLS connection to the server, compare the clocks, and close the connection.

    Parameters
    ----------
    address : str
        HOST:PORT.
    authority : path
        Certificate authority of the project, ca.crt.

    Raises
    ------
    InputError
        If the address or `authority` is invalid, if the certificate of the server is not accepted, if another program answers,
        or if the clocks differ too much.
    WorkStopped
        If the server does not answer, or closes the connection.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"{address}: is no HOST:PORT of a server; restore site.toml")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{authority}: is no certificate ({error}); restore the file that the coordinator sent") from error
    server = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=_SECONDS, context=context)
    try:
        sent = time.time()
        server.request("HEAD", "/")
        date = server.getresponse().getheader("date")
        received = time.time()
        at = None if date is None else parsedate_to_datetime(date).timestamp()
    except ssl.SSLCertVerificationError as error:
        raise InputError(f"{address}: {_refusal(error)}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        # A closed connection is an SSLEOFError during the handshake, and later both OSError and HTTPException.
        if isinstance(error, OSError) and (isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError)):
            text = f"{address}: the server does not answer ({reason})"
            raise WorkStopped(f"{text}; it may not run, or a firewall stops it") from error
        raise InputError(f"{address}: another program answers ({reason}); is this the address of the server?") from error
    finally:
        server.close()
    if at is not None:
        ahead, behind = sent - at - _COARSE, at - received
        if ahead > _AHEAD or behind > _BEHIND:
            offset = f"{ahead:,.0f} s ahead of" if ahead > 0 else f"{behind:,.0f} s behind"
            raise InputError(
                f"{address}: the clock of this machine is at least {offset} the server's; Flower refuses such a site: set both "
                "clocks, for example by NTP"
            )


def _refusal(error):
    if error.verify_code in (_EARLY, _EXPIRED):
        today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
        state = "has expired" if error.verify_code == _EXPIRED else "is not yet valid"
        return f"the certificate {state}, if the clock of this machine is right ({today}); set the clock or make a new project"
    return f"the certificate is not accepted ({error.verify_message}); ca.crt and the server must be of the same project"

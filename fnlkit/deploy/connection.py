"""Test of the connection to the server: Flower repeats failed attempts, or stops, without naming the reason."""

import datetime
import http.client
import ssl
import time
from email.utils import parsedate_to_datetime

from fnlkit.errors import InputError, WorkStopped

# OpenSSL's codes of errors that a clock causes.
_EARLY, _EXPIRED = 9, 10
# Flower refuses messages of a site whose clock is more than 5 s ahead of the server's or 305 s behind. Clocks drift.
_AHEAD, _BEHIND = 3, 240
# The server's time is whole seconds, and up to a second old.
_COARSE = 2
_SECONDS = 10


def test(address, authority):
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
        If the certificate of the server is not accepted, if another program answers, or if the clocks differ too much.
    WorkStopped
        If the server does not answer.
    """
    host, _, port = address.rpartition(":")
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
    except ssl.SSLCertVerificationError as error:
        raise InputError(f"{address}: {_refusal(error)}") from error
    except (ssl.SSLError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise InputError(f"{address}: another program answers ({reason}); is this the address of the server?") from error
    except OSError as error:
        reason = f"the server does not answer ({error.strerror or error})"
        raise WorkStopped(f"{address}: {reason}; it may not run, or a firewall stops it") from error
    finally:
        server.close()
    if date is not None:
        at = parsedate_to_datetime(date).timestamp()
        ahead, behind = sent - at - _COARSE, at - received
        if ahead > _AHEAD or behind > _BEHIND:
            found = f"{ahead:,.0f} s ahead of" if ahead > 0 else f"{behind:,.0f} s behind"
            raise InputError(
                f"{address}: the clock of this machine is at least {found} the server's; Flower refuses such a site: set both "
                "clocks, for example by NTP"
            )


def _refusal(error):
    if error.verify_code in (_EARLY, _EXPIRED):
        today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
        state = "has expired" if error.verify_code == _EXPIRED else "is not yet valid"
        return f"the certificate {state}, if the clock of this machine is right ({today}); set the clock or make a new project"
    return f"the certificate is not accepted ({error.verify_message}); ca.crt and the server must be of the same project"

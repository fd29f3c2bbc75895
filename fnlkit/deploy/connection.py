"""Test of the connection to the server: Flower repeats failed attempts without naming the reason."""

import datetime
import socket
import ssl

from fnlkit.errors import InputError, WorkStopped

# OpenSSL's codes of errors that a clock causes.
_EARLY, _EXPIRED = 9, 10
_SECONDS = 10


def test(address, authority):
    """Open a TLS connection to the server and close it.

    Parameters
    ----------
    address : str
        HOST:PORT.
    authority : path
        Certificate authority of the project, ca.crt.

    Raises
    ------
    InputError
        If the certificate of the server is not accepted, or if another program answers.
    WorkStopped
        If the server does not answer.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{authority}: is no certificate ({error}); restore the file that the coordinator sent") from error
    try:
        with socket.create_connection((host, int(port)), _SECONDS) as plain, context.wrap_socket(plain, server_hostname=host):
            return
    except ssl.SSLCertVerificationError as error:
        raise InputError(f"{address}: {_refusal(error)}") from error
    except ssl.SSLError as error:
        raise InputError(f"{address}: answers without TLS ({error.reason}); is the address that of the server?") from error
    except OSError as error:
        reason = error.strerror or error
        raise WorkStopped(
            f"{address}: the server does not answer ({reason}); it may not run, or a firewall stops it"
        ) from error


def _refusal(error):
    if error.verify_code in (_EARLY, _EXPIRED):
        today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
        state = "has expired" if error.verify_code == _EXPIRED else "is not yet valid"
        return f"the certificate {state}, if the clock of this machine is right ({today}); set the clock or make a new project"
    return f"the certificate is not accepted ({error.verify_message}); ca.crt and the server must be of the same project"

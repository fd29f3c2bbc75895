"""The test of the connection to the server, with servers on loopback."""

import contextlib
import datetime
import socket
import ssl
import subprocess
import threading
import time
from email.utils import formatdate
from types import SimpleNamespace

import pytest

from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.sites import connection, credentials, folders
from tests.commands import LIMIT, refuse_call

pytest.importorskip("cryptography", reason="certificates need Flower: pip install 'fnlkit[flower]'")


def certificates(folder, monkeypatch, days=0, host="127.0.0.1"):
    """Write the server's certificates of a day that is `days` away."""

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) + datetime.timedelta(days=days)

    shifted = SimpleNamespace(datetime=Shifted, UTC=datetime.UTC, timedelta=datetime.timedelta)
    with monkeypatch.context() as patch:
        patch.setattr(credentials, "datetime", shifted)
        files = credentials.of_server(host)
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@contextlib.contextmanager
def server(folder=None, ahead=0.0, reply="HTTP/1.1 404 Not Found\r\ndate: {date}\r\ncontent-length: 0\r\n\r\n"):
    """Yield the address of a server that answers one request, with TLS if a folder has its certificate.

    The client's clock is `ahead` seconds ahead.
    """
    reply = reply.format(date=formatdate(time.time() - ahead, usegmt=True)).encode()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with contextlib.suppress(OSError):
                client, _ = listening.accept()
                if folder is None:
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                else:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                    context.load_cert_chain(folder / "server.crt", folder / "server.key")
                    client = context.wrap_socket(client, server_side=True)
                    client.recv(1000)
                    client.sendall(reply)
                client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(LIMIT)
        assert not thread.is_alive()


SERVERS = [
    (0, {}, None, ""),
    (-500, {}, InputError, "has expired"),
    (30, {}, InputError, "not yet valid"),
    # Clocks may differ by a few seconds if the client's is ahead, and by minutes if it is behind.
    (0, {"ahead": 1}, None, ""),
    (0, {"ahead": -200}, None, ""),
    (0, {"ahead": 8}, InputError, "ahead of"),
    (0, {"ahead": -400}, InputError, "behind"),
    (0, {"ahead": 1e9}, InputError, "ahead of"),
    (0, {"reply": ""}, WorkStopped, "does not answer"),  # as a server that stops
    (0, {"reply": "hello\r\n"}, InputError, "another program"),
    (0, {"reply": "HTTP/1.1 404 Not Found\r\ndate: today\r\ncontent-length: 0\r\n\r\n"}, InputError, "another program"),
]


@pytest.mark.parametrize(("days", "options", "error", "problem"), SERVERS)
def test_a_server_needs_a_valid_certificate_a_similar_clock_and_a_reply(tmp_path, monkeypatch, days, options, error, problem):
    folder = certificates(tmp_path / "server", monkeypatch, days)
    stops = pytest.raises(error, match=problem) if error else contextlib.nullcontext()
    with server(folder, **options) as address, stops:
        connection.test(address, folder / "ca.crt")


def test_other_servers_are_refused_and_a_missing_server_is_no_input_error(tmp_path, monkeypatch):
    ours = certificates(tmp_path / "ours", monkeypatch)
    other = certificates(tmp_path / "other", monkeypatch)
    with server(other) as address, pytest.raises(InputError, match="same project"):
        connection.test(address, ours / "ca.crt")
    with server() as address, pytest.raises(InputError, match="another program"):
        connection.test(address, ours / "ca.crt")
    refuse_call("does not answer", connection.test, address, ours / "ca.crt", error=WorkStopped)
    refuse_call(r"ca\.key", connection.test, address, ours / "ca.key")
    for wrong in ("host", ":80", "host:", "host:eighty", "host:70000"):
        refuse_call("HOST:PORT", connection.test, wrong, ours / "ca.crt")


def start(folder, **programs):
    """Run the start command of a site with other programs {name: line} in place of fnlkit and of Flower's SuperNode."""
    for name, content in folders.parts(("127.0.0.1", 9092), ["a"], b"").items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    site = folder / "sites/a"
    folders.join(site, str(site / "data.npz"))
    for name, line in programs.items():
        (site / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (site / "bin" / name).chmod(0o755)
    return site, subprocess.run([site / "start.sh"], capture_output=True, text=True)


@pytest.mark.parametrize("code, started", [(0, True), (1, True), (2, False)])
def test_a_site_starts_unless_the_test_of_the_connection_is_final(tmp_path, code, started):
    site, done = start(tmp_path, **{"fnlkit": f"exit {code}", "flower-supernode": "touch started"})
    assert (site / "started").exists() == started and (done.returncode == 0) == started


def test_a_site_that_the_server_does_not_accept_yet_tries_again(tmp_path):
    """Flower's SuperNode ends with 1 while the server waits for the earlier process of the site."""
    node = "echo x >> tries; [ $(wc -l < tries) -eq 3 ] || exit 1; exit 5"
    site, done = start(tmp_path, **{"fnlkit": "exit 0", "sleep": "exit 0", "flower-supernode": node})
    assert done.returncode == 5 and (site / "tries").read_text().count("x") == 3
    assert len(done.stderr.splitlines()) == 2

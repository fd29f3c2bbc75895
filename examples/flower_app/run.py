"""Run one SuperLink and three SuperNodes on this machine with TLS and keys; each site has different label noise.

    python examples/flower_app/run.py [FOLDER]

Starts the processes, trains FedCorr, evaluates the run, and stops all processes.  Requires `pip install 'fnlkit[flower]'`,
openssl and ssh-keygen.  All files are written to FOLDER: a new folder, or the folder of an earlier call to resume its run.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fnlkit import datasets

SITES = 3
SETTINGS = ["--method", "fedcorr(iterations=1)", "--rounds", "6", "--fraction", "1", "--epochs", "2", "--batch-size", "10",
            "--model", "mlp(hidden=32)"]  # fmt: skip
BIN = Path(sys.executable).parent
TLS = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key"]
EXTENSIONS = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"


class Failed(RuntimeError):
    """A process or command did not end as expected."""


def make_data(folder):
    """Write an npz with label noise for each site, and an npz with the test samples for the server."""
    digits, rng = datasets.load("digits"), np.random.default_rng(0)
    order = rng.permutation(len(digits.y_train))[:600]
    for k, part in enumerate(np.array_split(order, SITES)):
        given = digits.y_train[part].copy()
        wrong = rng.random(len(given)) < (0.0, 0.3, 0.6)[k]
        given[wrong] = (given[wrong] + 1) % 10 if k == 1 else rng.integers(0, 10, wrong.sum())
        np.savez(folder / f"site-{k}.npz", x_train=digits.x_train[part], y_train=given)
    few = order[:20]
    server = {"x_train": digits.x_train[few], "y_train": digits.y_train[few]}
    np.savez(folder / "server.npz", **server, x_test=digits.x_test, y_test=digits.y_test)


def make_keys(folder):
    """Write the files of each partner; docs/deployment.md has the same commands.

    The coordinator creates a certificate authority and the SuperLink's certificate (ca.crt, server.crt, server.key).  Each site
    creates a certificate for the site's processes (own-K.crt, own-K.key) and a key pair (site-K.key, site-K.key.pub), and
    sends only the .pub file.
    """
    quiet = {"cwd": folder, "check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    (folder / "san.cnf").write_text(EXTENSIONS + "\n")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    authority = ["-subj", "/CN=fnlkit example authority", "-keyout", "ca.key", "-out", "ca.crt", "-days", "30"]
    subprocess.run(["openssl", "req", "-x509", *curve, *authority], **quiet)
    subprocess.run(["openssl", "req", *curve, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"], **quiet)
    sign = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "server.crt", "-days", "30"]
    subprocess.run(["openssl", "x509", "-req", "-in", "server.csr", *sign, "-extfile", "san.cnf"], **quiet)
    for k in range(SITES):
        own = [
            "-subj",
            "/CN=localhost",
            "-addext",
            EXTENSIONS,
            "-keyout",
            f"own-{k}.key",
            "-out",
            f"own-{k}.crt",
            "-days",
            "30",
        ]
        subprocess.run(["openssl", "req", "-x509", *curve, *own], **quiet)
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"site-{k}.key"], **quiet)


def make_starter(folder):
    """Write the program that sites run in place of `flower-superexec`: it imports everything once for all messages."""
    path = folder / "bin/flower-superexec"
    path.parent.mkdir()
    path.write_text('#!/bin/sh\nexec fnlkit site superexec "$@"\n')
    path.chmod(0o755)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Federation:
    """The processes of a deployment on this machine in one folder; a context manager that stops them at the end.

    Attributes
    ----------
    processes : dict of str to subprocess.Popen
        ``superlink`` and ``site-0``, ...
    """

    def __init__(self, folder):
        self.folder, self.processes = Path(folder).absolute(), {}
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
        }
        self.port = free_port()

    def connection(self):
        """Return the configuration of the command `flwr` with the address of the SuperLink."""
        return f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.folder}/ca.crt"\n'

    def link_options(self):
        return [*TLS, "--enable-supernode-auth"]

    def node_options(self, k):
        at = ["--superlink", f"127.0.0.1:{self.port}", "--root-certificates", "ca.crt"]
        own = ["--ssl-ca-certfile", f"own-{k}.crt", "--ssl-certfile", f"own-{k}.crt", "--ssl-keyfile", f"own-{k}.key"]
        return [*at, *own, "--auth-supernode-private-key", f"site-{k}.key"]

    def node_config(self, k):
        """Return further entries of a site's configuration."""
        return {}

    def admit(self):
        """Register the public keys of the sites with the SuperLink, if they are not registered yet."""
        if self.flwr("supernode", "list", "here", "--format", "json").stdout.count('"node-id"') < SITES:
            for k in range(SITES):
                self.flwr("supernode", "register", f"site-{k}.key.pub", "here")

    def __enter__(self):
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{self.connection()}')
        try:
            own = ["--port", str(self.port), "--database", "link.db", "--disable-runtime-dependency-installation"]
            self._start("superlink", "flower-superlink", *self.link_options(), *own)
            self._wait_for_port(self.port)
            self.admit()
            for k in range(SITES):
                self.start_site(k)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_site(self, k):
        paths = {"data": f"site-{k}.npz", "memory": f"memory-{k}", "agreed": f"agreed-{k}.json"}
        config = {"client": k} | {name: str(self.folder / path) for name, path in paths.items()} | self.node_config(k)
        told = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        own = ["--port", str(free_port()), "--node-config", told]
        path = f"{self.folder}/bin{os.pathsep}{self.environment['PATH']}"
        self._start(f"site-{k}", "flower-supernode", *self.node_options(k), *own, PATH=path)

    def revive(self):
        """Restart SuperNodes that have ended, as a supervisor does.

        A SuperNode ends with 305 until the SuperLink detects that the previous process is gone, which takes up to a minute.
        """
        for k in range(SITES):
            if self.processes[f"site-{k}"].poll() is not None:
                with contextlib.suppress(ProcessLookupError):  # child processes that still run
                    os.killpg(self.processes[f"site-{k}"].pid, signal.SIGKILL)
                self.start_site(k)

    def _start(self, name, program, *arguments, **environment):
        with open(self.folder / f"{name}.log", "ab") as log:
            how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            how |= {"cwd": self.folder, "env": self.environment | environment}
            self.processes[name] = subprocess.Popen([BIN / program, *arguments], **how)

    def _wait_for_port(self, port, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            if self.processes["superlink"].poll() is not None:
                break
            time.sleep(0.2)
        raise Failed(f"the SuperLink did not start; the reason is in {self.folder}/superlink.log")

    def flwr(self, *arguments, check=True):
        """Return the finished process of a `flwr` command."""
        done = subprocess.run([BIN / "flwr", *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=120)  # fmt: skip
        if check and done.returncode:
            raise Failed(f"flwr {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done

    def submit(self):
        """Start a run of the project and return its id."""
        own = f'output="{self.folder}/run.pt" server_data="{self.folder}/server.npz"'
        said = self.flwr("run", "project", "here", "--run-config", own, "--format", "json").stdout
        return str(json.loads(said[said.index("{") :])["run-id"])

    def status(self, run):
        """Return Flower's status of a run; ``finished:completed`` is success."""
        said = self.flwr("list", "here", "--run-id", run, "--format", "json").stdout
        (found,) = json.loads(said[said.index("{") :])["runs"]
        return found["status"]

    def wait(self, run, seconds=1800, each=lambda: None):
        """Wait until a run has ended and return its last status."""
        deadline = time.monotonic() + seconds
        while not (now := self.status(run)).startswith("finished"):
            each()
            if time.monotonic() > deadline:
                raise Failed(f"run {run} is {now} after {seconds} s")
            time.sleep(2)
        return now

    def __exit__(self, *error):
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes.values():
                with contextlib.suppress(ProcessLookupError):  # each process has a session, so its children end with it
                    os.killpg(process.pid, sign)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and any(p.poll() is None for p in self.processes.values()):
                time.sleep(0.1)


def prepare(folder, settings=SETTINGS):
    """Create data, keys and the project, unless they exist."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "ca.crt").exists():
        make_data(folder)
        make_keys(folder)
        make_starter(folder)
    if not (folder / "project").exists():
        keys = [part for k in range(SITES) for part in ("--key", f"site-{k}.key.pub")]
        line = [BIN / "fnlkit", "flower-app", "project", "--dataset", "server.npz", "--sites", str(SITES), *keys, *settings]
        subprocess.run(line, cwd=folder, check=True)
        for k in range(SITES):  # each site reads the project's settings, agrees, and keeps a copy
            shutil.copy(folder / "project/project.json", folder / f"agreed-{k}.json")


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="fnlkit-sites-")).absolute()
    prepare(folder)
    with Federation(folder) as federation:
        status = federation.wait(federation.submit())
    if status != "finished:completed":
        raise Failed(f"the run ended as {status}; see {folder}/superlink.log, and start this program again to resume the run")
    subprocess.run([BIN / "fnlkit", "evaluate", folder / "run.pt"], check=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit through `with`, which stops the processes
    try:
        main()
    except Failed as error:
        sys.exit(f"run.py: {error}")

"""Search for 1,000 canaries in everything that leaves the sites of a deployment on loopback, and attack sites as a server.

    python -m benchmarks.flower_canaries
    python -m benchmarks.flower_canaries --attacks    # only the attacks, in this process

The attacks (benchmarks.hostile_server) print the share of each site's samples, values and labels that a server recovers.  The
search starts a SuperLink and three SuperNodes without TLS, with a proxy that records every byte from the sites.  The canaries
are class names that the project does not have, file names, paths, ids, metadata, and texts of exceptions.  After a failing
run, an audit, a training and an evaluation, the bytes are searched, also after decompression, and so are the state and the
log of the SuperLink and all results of the coordinator.  In the control, the sites run a client that adds a canary to a
reply.
"""

import argparse
import contextlib
import itertools
import json
import re
import runpy
import shutil
import socket
import sys
import tempfile
import threading
import zlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchmarks import hostile_server

SITES, ROWS, OMITTED, FAILING = 3, 90, 30, 100
SETTINGS = ["--rounds", "1", "--fraction", "1", "--epochs", "1", "--model", "mlp(hidden=8)", "--wait", "60"]
CONTROL = """
from fnlkit.sites.site import door

_reply = door.Door._reply
door.Door._reply = lambda self, site, asked: _reply(self, site, asked) | ({"control": "CANARY"} if "hello" in asked else {})
"""


class Recorded:
    """A proxy on loopback that keeps the bytes from sites to the SuperLink."""

    def __init__(self, port):
        self.port, self.heard, self.server = port, [], socket.create_server(("127.0.0.1", 0))
        self.own_port, self.threads = self.server.getsockname()[1], []
        self.server.settimeout(0.2)
        self.open = True
        self._run(self._accept)

    def _run(self, function, *arguments):
        self.threads.append(threading.Thread(target=function, args=arguments, daemon=True))
        self.threads[-1].start()
        return self.threads[-1]

    def _accept(self):
        while self.open:
            with contextlib.suppress(OSError):
                near, _ = self.server.accept()
                self.heard.append(bytearray())
                self._run(self._pass_on, near, self.heard[-1])

    def _pass_on(self, near, kept):
        near.settimeout(None)
        with near, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)) as far:
            back = self._run(_copy, far, near, None)
            _copy(near, far, kept)
            back.join()

    def close(self):
        self.open = False
        for thread in self.threads:
            thread.join(10)
        self.server.close()


def _copy(source, target, kept):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if kept is not None:
                kept += data
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def opened(example):
    """Return the class of a federation without TLS and keys, whose sites connect through a proxy.

    Parameters
    ----------
    example : object
        The module examples/flower_app/run.py.
    """

    class Open(example.Federation):
        wire = None

        def connection(self):
            return f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'

        def link_options(self):
            return ["--insecure"]

        def node_options(self, k):
            self.wire = self.wire or Recorded(self.port)
            return ["--superlink", f"127.0.0.1:{self.wire.own_port}", "--insecure"]

        def admit(self):
            """Without TLS there are no keys."""

    return Open


def without_keys(folder):
    """Remove the keys of sites from the project and from all copies."""
    for path in (folder / "project/project.json", *folder.glob("agreed-*.json")):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"keys": []}))


def hide(folder, draw):
    """Replace the data of each site by files named in a table that is full of canaries; return {site: canaries, data, ...}."""
    out = {}
    for k in range(SITES):
        found, home, hidden, rows = np.load(folder / f"site-{k}.npz"), folder / f"data-{k}", [], []
        home.mkdir()
        for i in range(ROWS):
            name, path, patient, other = (draw() for _ in range(4))
            label = str(found["y_train"][i]) if i < ROWS - OMITTED else other
            np.save(home / f"{path}.npy", found["x_train"][i])
            rows.append([name, f"{path}.npy", patient, label])
            hidden += [name, path, patient, *([other] if label == other else [])]
        head = ["id", "path", "patient", "label"]
        (home / "table.csv").write_text("\n".join(map(",".join, [head, *rows])) + "\n")
        omitted = ",".join(row[3] for row in rows[ROWS - OMITTED :])
        out[k] = {"canaries": hidden, "data": str(home / "table.csv"), "leave_out": omitted}
    return out


@contextlib.contextmanager
def failing(path, canaries):
    """Context in which a table has a row with a class that the project does not have, another one four times a second.

    Each exception of a site that opens the table contains the name of a class.
    """
    table, stop = Path(path), threading.Event()
    text = table.read_text()
    shutil.copy(table.parent / text.splitlines()[1].split(",")[1], table.parent / "more.npy")

    def write(content):
        new = table.with_suffix(".new")
        new.write_text(content)
        new.replace(table)

    def change():
        for label in itertools.cycle(canaries):
            write(f"{text}one,more.npy,two,{label}\n")
            if stop.wait(0.25):
                return

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        write(text)


def inflated(data):
    """Yield the content of each gzip, zlib and zip stream within bytes."""
    view = memoryview(data)
    for match in re.finditer(rb"\x1f\x8b\x08|\x78[\x01\x5e\x9c\xda]|PK\x03\x04", data):
        begin, form = match.start(), {b"\x1f": 31, b"P": -15}.get(match[0][:1], 15)
        if form == -15:
            name, extra = (int.from_bytes(view[begin + at : begin + at + 2], "little") for at in (26, 28))
            begin += 30 + name + extra
        with contextlib.suppress(zlib.error):
            yield zlib.decompressobj(form).decompress(view[begin:])


def found_in(data, canaries):
    """Return the canaries within bytes, as UTF-8 or UTF-16, also in compressed parts."""
    found = set()
    for part in (data, *inflated(data)):
        wide = part.replace(b"\0", b"") if b"C\0a\0n\0" in part else b""
        found |= {match.decode() for each in (part, wide) for match in re.findall(rb"Canary[0-9a-f]{16}", each)}
    return sorted(found & set(canaries))


def searched(folder):
    """Run the deployment in a new folder and return the findings as a dict."""
    example = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "examples/flower_app/run.py")))
    example.prepare(folder, SETTINGS)
    without_keys(folder)
    rng = np.random.default_rng(0)
    drawn = (f"Canary{rng.bytes(8).hex()}" for _ in itertools.count())
    sites, raised = hide(folder, partial(next, drawn)), list(itertools.islice(drawn, FAILING))
    canaries = raised + [one for site in sites.values() for one in site["canaries"]]

    class Hidden(opened(example)):
        def node_config(self, k):
            return {"data": sites[k]["data"], "leave_out": sites[k]["leave_out"]}

    statuses = {}
    with Hidden(folder) as federation:

        def task(name, project="project", wait=None, **config):
            config = {"task": name, "output": str(folder / f"{name}.out")} | config
            text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
            text += "" if wait is None else f" wait={wait:.1f}"
            told = federation.flwr("run", project, "here", "--run-config", text, "--format", "json").stdout
            return federation.wait(str(json.loads(told[told.index("{") :])["run-id"]))

        with failing(sites[SITES - 1]["data"], raised):
            statuses["failing"] = task("audit", wait=45, output=str(folder / "failing.out"), min_replies=1.0)
        statuses["audit"] = task("audit")
        statuses["train"] = task("train", output=str(folder / "run.pt"))
        statuses["evaluate"] = task("evaluate", run=str(folder / "run.pt"))
        heard = b"".join(map(bytes, federation.wire.heard))
        results = [folder / name for name in ("audit.out", "run.pt", "run.pt.steps/id", "run.metrics.jsonl", "evaluate.out")]
        results += [folder / "superlink.log", *folder.glob("link.db*")]
        kept = b"".join(path.read_bytes() for path in results)
        # The control is the same deployment with a client that leaks.
        shutil.copytree(folder / "project", folder / "control")
        with open(folder / "control/fnlkit_sites/client.py", "a") as file:
            file.write(CONTROL.replace("CANARY", canaries[0]))
        statuses["control"] = task("evaluate", "control", run=str(folder / "run.pt"), output=str(folder / "control.out"))
        leaked = b"".join(map(bytes, federation.wire.heard))
    federation.wire.close()
    logs = b"".join((folder / f"site-{k}.log").read_bytes() for k in range(SITES))
    return {
        "canaries": len(set(canaries)),
        "statuses": statuses,
        "bytes_from_sites": len(heard),
        "in_bytes_from_sites": len(found_in(heard, canaries)),
        "files_of_the_coordinator": len(results),
        "in_files_of_the_coordinator": len(found_in(kept, canaries)),
        "raised_in_exceptions": len(found_in(logs, raised)),
        "control": len(found_in(leaked, canaries)),
        "readable": sum(part in heard for part in (b'"samples"', b'"replies"', b"fnlkit.message", b"setup")),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--attacks", action="store_true", help="no deployment on loopback")
    if parser.parse_args().attacks:
        for line in hostile_server.report():
            print(line, flush=True)
        return
    folder = Path(tempfile.mkdtemp(prefix="fnlkit-search-"))
    found = searched(folder)
    print(json.dumps(found, indent=1))
    good = not found["in_bytes_from_sites"] and not found["in_files_of_the_coordinator"] and found["control"] == 1
    shutil.rmtree(folder)
    for line in hostile_server.report():
        print(line, flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

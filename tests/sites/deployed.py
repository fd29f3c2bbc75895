"""A project, its sites and its server in one process, with Flower's own messages."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.audits import report
from fnlkit.audits.audit import audit
from fnlkit.experiment import Experiment, Settings
from fnlkit.sites import agreement, project, terms

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")

from fnlkit.sites import apps, opening, sites, tasks, training  # noqa: E402
from tests.engines.here import Grid  # noqa: E402

SITES = 4  # of audits
CANARY = "CanaryQ7x"
NUMBER = 0.7236067977499789  # a pixel that no other sample has


class DeployedProject:
    """A written project, its sites and its server.

    Parameters
    ----------
    folder : path
        For the project, the memories of the sites and the results.
    data : fnlkit.datasets.Dataset
        Of the coordinator.
    settings : Settings
    paths : list of path
        The data of each site.
    **about
        Arguments of `write_project`.
    """

    def __init__(self, folder, data, settings, paths, **about):
        self.folder, self.settings = Path(folder), settings
        project.write_project(self.folder / "project", data, settings, **({"sites": len(paths), "wait": 0} | about))
        self.agreed = self.folder / "project/pyproject.toml"
        self.config = agreement.config_of(str(self.agreed)) | {"output": str(self.folder / "result"), "timeout": 5.0}
        self.nodes = {
            100 + k: {"client": k, "data": str(path), "memory": str(self.folder / f"memory-{k}"), "agreed": str(self.agreed)}
            for k, path in enumerate(paths)
        }
        self.grid = Grid(None, self.config, self.nodes)
        self.restart_sites()

    def restart_sites(self):
        """Answer later messages by a new client app, as a site does that starts a process for each message."""
        self.grid.app = apps.client_app(opening.open_site)

    def agree(self, **entries):
        """Change entries of the agreed project and of the configuration of a run."""
        lines = self.agreed.read_text().splitlines()
        named = [(line.partition(" = ")[0], line) for line in lines]
        lines = [f"{name} = {json.dumps(entries[name])}" if name in entries else line for name, line in named]
        self.agreed.write_text("\n".join(lines) + "\n")
        self.config = self.grid.config = self.config | entries

    def admit_keys(self):
        """Give each site a key of its own that the project admits."""
        pems = [pem for _, pem in write_keys(self.folder, len(self.nodes))]
        self.agree(keys=json.dumps([sites.fingerprint(pem) for pem in pems]))
        self.grid.keys = dict(zip(self.nodes, pems, strict=True))

    def run(self, task="", **changes):
        """Run a task; return the run of a training, else the written facts. With `task`, the output is named after it."""
        named = {"task": task, "output": str(self.folder / f"{task}.out")}
        self.grid.config = self.config | (named if task else {}) | changes
        tasks.conduct(self.grid, self.grid.config)
        output = self.grid.config["output"]
        return Run.read(output) if self.grid.config["task"] == "train" else json.loads(Path(output).read_text())

    def train(self):
        """Train without the state of a task; return the run."""
        training.conduct(self.grid, self.config)
        return Run.read(self.config["output"])

    def stop_before_replies(self, *numbers):
        """Interrupt the server after the messages of some calls were answered; return the list of calls so far."""
        push, calls = self.grid.push_messages, []

        def pushed(messages):
            calls.append(1)
            if len(calls) in numbers:
                list(push(messages))  # the sites do their part, and the server does not receive it
                raise KeyboardInterrupt
            return push(messages)

        self.grid.push_messages = pushed
        return calls

    def lose(self, node, after=0, kind=None):
        """Make a node disappear after a number of messages (of a kind); return the push function of before."""
        push, seen = self.grid.push_messages, []

        def pushed(messages):
            for message in messages:
                about = message.metadata
                if about.dst_node_id == node and kind in (None, about.message_type):
                    seen.append(about)
                if about.dst_node_id == node and len(seen) > after:
                    self.nodes.pop(node, None)
                    yield None
                else:
                    yield from push([message])

        self.grid.push_messages = pushed
        return push


class Deployed(DeployedProject):
    """A training over the three sites of `place`."""

    def __init__(self, place, folder, method, **settings):
        common = {"rounds": 4, "fraction": 1.0, "epochs": 1, "batch_size": 16, "model": "mlp(hidden=8)", "precision": "fp64"}
        self.place, paths = place, [place / f"{CANARY}-{k}.npz" for k in range(3)]
        data = datasets.load(str(place / "server.npz"))
        super().__init__(folder, data, Settings(method=method, **(common | settings)), paths, max_samples=60)
        self.config |= {"server_data": str(place / "server.npz"), "output": str(self.folder / "run.pt")}

    def simulated(self, held_out=False):
        """Return the run that sequential makes of the same samples, labels and scale; held-out samples follow all others."""
        task = terms.read_config(self.config)[1]
        sites = [np.load(self.place / f"{CANARY}-{k}.npz") for k in range(3)]
        parts = [(site["x_train"], site["y_train"]) for site in sites]
        held = [(site["x_test"], site["y_test"]) for site in sites] if held_out else []
        with np.load(self.place / "server.npz") as server:
            federation, data = pool(task, [*parts, *held], (server["x_test"], server["y_test"]))
        if held_out:
            owner = np.repeat([-1, -1, -1, 0, 1, 2], np.diff(federation.client_offsets))
            offsets = federation.client_offsets[:4]
            about = {"client_indices": np.arange(offsets[-1]), "extra": {"holdout_client": owner}}
            federation = replace(federation, client_offsets=offsets, **about)
        return Experiment(federation, data, terms.deployable(self.settings, task), engine="sequential").run()


class Judged(DeployedProject):
    """Audits, estimates and evaluations over the four sites of `audited`."""

    def __init__(self, place, folder, task="audit", *, data=None, **judging):
        settings = Settings(method="fedavg", rounds=2, fraction=1.0, epochs=1, model="mlp(hidden=8)", min_replies=0.5)
        self.place, paths = place, [place / f"{CANARY}-{k}.npz" for k in range(SITES)]
        about = {"name": task, "judging": terms.Judging(**({"folds": 2, "audit_rounds": 2} | judging)), "max_samples": 100}
        super().__init__(folder, data or datasets.load(str(place / "server.npz")), settings, paths, **about)

    def simulated(self, sites=range(SITES)):
        """Return (federation, data set, settings of the models) of a simulation with the samples of some sites."""
        settings, task = terms.read_config(self.config)
        parts = [np.load(self.place / f"{CANARY}-{k}.npz") for k in sites]
        federation, data = pool(task, [(part["x"], part["y"]) for part in parts])
        federation.meta["client_names"] = [task.names[k] for k in sites]
        return federation, data, tasks.warm_up(task, settings)

    def audited(self, sites=range(SITES)):
        """Return (facts, Audit) of an audit of the simulation."""
        federation, data, _ = self.simulated(sites)
        found = audit(federation, data, detectors=())
        return report.facts(found, federation, data) | {"transition": found.transition.tolist()}, found


def write_digits(folder, parts, names=("x", "y", "ids", "class_names")):
    """Write digits with canaries, and the samples of a server; a part is (positions, given labels) of a site."""
    digits = datasets.load("digits")
    for k, (part, given) in enumerate(parts):
        x = digits.x_train[part].astype(np.float32) / 255
        x[0, 0, 0, 0] = NUMBER
        ids = np.array([f"{CANARY}-id-{k}-{i}" for i in range(len(part))])
        arrays = zip(names, (x, given, ids, np.array(list("0123456789"))), strict=False)
        np.savez(folder / f"{CANARY}-{k}.npz", **dict(arrays))
    x, test = (values.astype(np.float32) / 255 for values in (digits.x_train[:30], digits.x_test[:60]))
    np.savez(folder / "server.npz", x_train=x, y_train=digits.y_train[:30], x_test=test, y_test=digits.y_test[:60])
    return folder


def pool(task, parts, test=None):
    """Return (Federation, Dataset) of a simulation with the samples (x, y) of each site and test samples."""
    x, given = (np.concatenate(values) for values in zip(*parts, strict=True))
    given, test = given.astype(np.int64), test or (x[:0], given[:0].astype(np.int64))
    data = datasets.dataset.Dataset(
        "all", task.kind, given, test[1], list(task.classes), lambda: (x, test[0]), statistics=(task.mean, task.std),
        observed=True, test_true=True,
    )  # fmt: skip
    offsets = np.cumsum([0, *(len(y) for _, y in parts)])
    return Federation("all", len(task.classes), offsets, np.arange(len(x)), given), data


def write_keys(folder, count):
    """Write public keys as ssh-keygen does; return [(path, PEM)]."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    out, form = [], serialization
    for k in range(count):
        public = ec.generate_private_key(ec.SECP384R1()).public_key()
        path = Path(folder) / f"site-{k}.key.pub"
        path.write_bytes(public.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH) + b" a@b\n")
        out.append((path, public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)))
    return out

"""A project, its sites and its server in one process, with Flower's own messages."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artifacts import message
from fnlkit.artifacts.federation import Federation
from fnlkit.experiment import Experiment, Settings
from fnlkit.federated.engines import travel
from fnlkit.federated.engines.flower import messages, visits
from fnlkit.sites import flower_app, identity, project
from fnlkit.sites.network import network_of
from fnlkit.sites.site import ledger
from fnlkit.sites.site import opening as site

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")

from flwr.app import Error, Message, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402

from fnlkit.sites import flower  # noqa: E402
from fnlkit.sites.secret import CONFIGS  # noqa: E402
from fnlkit.sites.server import tasks  # noqa: E402
from fnlkit.sites.server.flower import FlowerTransport  # noqa: E402
from fnlkit.sites.server.secret import gather_sum  # noqa: E402
from fnlkit.sites.site import secret  # noqa: E402
from tests.federated.engines.here import Grid  # noqa: E402
from tests.sites.by_folder import result_of  # noqa: E402

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
    task : str
        Task of `run`.
    **about
        Fields of the project.
    """

    def __init__(self, folder, data, settings, paths, task="train", **about):
        self.folder = Path(folder)
        common = {"names": [f"site-{k}" for k in range(len(paths))], "keys": [], "wait": 0.0, "timeout": 5.0}
        self.project = flower_app.describe(data, settings, **(common | {"tasks": list(project.TASKS)} | about))
        flower_app.write_project(self.folder / "project", self.project)
        self.agreed = self.folder / "project/project.json"
        self.options = {"task": task, "output": str(self.folder / "result")}
        self.nodes = {
            100 + k: {"client": k, "data": str(path), "memory": str(self.folder / f"memory-{k}"), "agreed": str(self.agreed)}
            for k, path in enumerate(paths)
        }
        self.grid = Grid(None, {}, self.nodes)
        self.restart_sites()

    def restart_sites(self):
        """Answer later messages by a new client app, as a site does that starts a process for each message."""
        self.grid.app = flower.client_app()

    @property
    def task(self):
        """The task of `run`, as the server prepares it."""
        return project.task_of(self.project, self.options["task"], self.options.get("scale", ""))

    def site(self, k=0, task="train", scale="", **changes):
        """Return the Site of a task at a node; `changes` are entries of its configuration."""
        node = site.Place.of(self.nodes[100 + k] | changes)
        return site.open_site(node, project.read(node.agreed), task, scale)

    def agree(self, **entries):
        """Change entries of the project of the server and of all sites."""
        self.project = replace(self.project, **entries)
        self.agreed.write_bytes(project.text_of(self.project))
        self.restart_sites()

    def admit_keys(self):
        """Give each site a key of its own that the project admits."""
        pems = [pem for _, pem in write_keys(self.folder, len(self.nodes))]
        self.agree(keys=[identity.fingerprint(pem) for pem in pems])
        self.grid.keys = dict(zip(self.nodes, pems, strict=True))

    def run(self, task="", **changes):
        """Run a task; return the run of a training, else the written facts. With `task`, the output is named after it."""
        named = {"task": task, "output": str(self.folder / f"{task}.out")}
        chosen = self.options | (named if task else {}) | changes
        if chosen["task"] != "train":
            chosen.pop("server_data", None)
        options = tasks.options_of(chosen)
        tasks.conduct(FlowerTransport(self.grid), self.project, options)
        return result_of(options)

    def train(self):
        """Train; return the run."""
        return self.run()

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
            for one in messages:
                facts = one.metadata
                if facts.dst_node_id == node and kind in (None, facts.message_type):
                    seen.append(facts)
                if facts.dst_node_id == node and len(seen) > after:
                    self.nodes.pop(node, None)
                    yield None
                else:
                    yield from push([one])

        self.grid.push_messages = pushed
        return push


class Deployed(DeployedProject):
    """A training over the three sites of `place`."""

    def __init__(self, place, folder, method, **settings):
        common = {"rounds": 4, "fraction": 1.0, "epochs": 1, "batch_size": 16, "model": "mlp(hidden=8)", "precision": "fp64"}
        self.place, paths = place, [place / f"{CANARY}-{k}.npz" for k in range(3)]
        data = datasets.load(str(place / "server.npz"))
        fields = {name: settings.pop(name) for name in [*settings] if name in ("open_tasks", "scaling", "max_samples")}
        super().__init__(folder, data, Settings(method=method, **(common | settings)), paths, **({"max_samples": 60} | fields))
        self.options |= {"server_data": str(place / "server.npz"), "output": str(self.folder / "run.pt")}

    def simulated(self, held_out=False):
        """Return the open run of engine sequential on the same samples, labels and scale; held-out samples come last."""
        task = self.task
        found = [np.load(self.place / f"{CANARY}-{k}.npz") for k in range(3)]
        parts = [(one["x_train"], one["y_train"]) for one in found]
        held = [(one["x_test"], one["y_test"]) for one in found] if held_out else []
        with np.load(self.place / "server.npz") as server:
            federation, data = pool(task.project, [*parts, *held], (server["x_test"], server["y_test"]))
        if held_out:
            owner = np.repeat([-1, -1, -1, 0, 1, 2], np.diff(federation.client_offsets))
            offsets = federation.client_offsets[:4]
            about = {"client_indices": np.arange(offsets[-1]), "extra": {"holdout_client": owner}}
            federation = replace(federation, client_offsets=offsets, **about)
        return Experiment(federation, data, replace(task.settings, protect="none"), engine="sequential").run()


class Judged(DeployedProject):
    """Audits and evaluations over the four sites of `audited`."""

    def __init__(self, place, folder, task="audit", *, data=None, **about):
        settings = Settings(method="fedavg", rounds=2, fraction=1.0, epochs=1, model="mlp(hidden=8)", min_replies=0.5)
        self.place, paths = place, [place / f"{CANARY}-{k}.npz" for k in range(SITES)]
        about = {"max_samples": 100} | about
        super().__init__(folder, data or datasets.load(str(place / "server.npz")), settings, paths, task, **about)

    def simulated(self, sites=range(SITES)):
        """Return (federation, data set) of a simulation with the samples of some sites."""
        parts = [np.load(self.place / f"{CANARY}-{k}.npz") for k in sites]
        federation, data = pool(self.project, [(part["x"], part["y"]) for part in parts])
        federation.meta["client_names"] = [self.project.names[k] for k in sites]
        return federation, data


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


def pool(about, parts, test=None):
    """Return (Federation, Dataset) of a simulation with the samples (x, y) of each site and test samples."""
    x, given = (np.concatenate(values) for values in zip(*parts, strict=True))
    given, test = given.astype(np.int64), test or (x[:0], given[:0].astype(np.int64))
    data = datasets.dataset.Dataset(
        "all", about.kind, given, test[1], list(about.classes), lambda: (x, test[0]),
        statistics=(tuple(about.mean), tuple(about.std)), observed=True, test_true=True,
    )  # fmt: skip
    offsets = np.cumsum([0, *(len(y) for _, y in parts)])
    return Federation("all", len(about.classes), offsets, np.arange(len(x)), given), data


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


def gather(updates, weights, requests, fails=(), folder=None, history=""):
    """Return `gather_sum` of nodes 10, 11, ... with these updates (K, n) and weights; in `fails` are k, or (k, stage).

    With a folder for the histories of the nodes, the updates are entries of sums.
    """
    app = ClientApp()

    @app.train()
    def part(received, context):
        k, stage = context.node_config["k"], received.content.config_records[CONFIGS]["stage"]
        if (k, stage) in fails:
            return Message(Error(code=0, reason="failed OSError"), reply_to=received)

        def update():
            if k in fails:
                raise RuntimeError("samples")
            return updates[k]

        terms = secret.Terms(1.0, weights[k], float(max(weights)), 1.0 if folder else None, len(updates))
        record = secret.History(str(folder / f"{k}.json")) if folder else None
        try:
            return secret.answer(received, context, update, terms, record)
        except (RuntimeError, secret.Refused) as error:
            return Message(Error(code=0, reason=f"failed {type(error).__name__}"), reply_to=received)

    grid = Grid(app, {}, {10 + k: {"k": k} for k in range(len(updates))})
    about = {"about": {}, "most": max(weights), "weighted": True, "clip": 1.0, "limit": None, "round": 0}
    return gather_sum(grid, dict(zip(grid.nodes, requests, strict=False)), history=history if folder else None, **about)


# ---- single messages
RUN = "0123456789abcdef"


def about(deployed, task="", **changes):
    """Return the facts that the server states with each message."""
    return {"agreement": deployed.project.digest, "task": task or deployed.options["task"], "scale": ""} | changes


def sent(deployed, value, *, node=101, kind="train", task="", facts=None):
    """Return what a site replies to a server's message, as a value; `value` can be a RecordDict or bytes."""
    if not isinstance(value, RecordDict):
        data = value if isinstance(value, bytes) else message.encode(value, about(deployed, task) if facts is None else facts)
        value = messages.record(data)
    (reply,) = deployed.grid.send_and_receive([Message(value, node, kind)])
    return reply.error.reason if reply.has_error() else message.decode(messages.bytes_of(reply))


def request(deployed, *steps, run=RUN, round=0, client=1, task="", **changes):
    """Return a request to site 1."""
    name = task or deployed.options["task"]
    found = project.task_of(deployed.project, name)
    weights = torch.zeros(0) if name in ("audit", "scale") else network_of(found, deployed.project.input_shape).flat.clone()
    packed = [travel.pack(step) for step in steps]
    visit = (client, -1, -1, {})
    return visits.request(run=run, round=round, seed=0, weights=weights, steps=packed, broadcast={}, visits=[visit]) | changes


def lines(deployed, k=1):
    """Return the ledger of a site."""
    return ledger.read_ledger(str(deployed.folder / f"memory-{k}/left.jsonl"))


def told(reply):
    """Return the code of a failure, else the names of the arrays in a reply."""
    ((_, said),) = reply["replies"]
    return said[1] if isinstance(said, tuple) else sorted(said)

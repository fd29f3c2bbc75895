"""Engines run the clients. Methods do not depend on the engine."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from fnlkit.core.errors import InputError, nearest
from fnlkit.core.options import about, option
from fnlkit.core.parameters import Natural, NotNegative
from fnlkit.core.retired import refuse_retired
from fnlkit.core.spec import bind, find, parse
from fnlkit.kernels.threads import core_count

if TYPE_CHECKING:
    from fnlkit.federated.client.client import Client
    from fnlkit.federated.client.inputs import Inputs
    from fnlkit.federated.client.network import Network
    from fnlkit.federated.server.clients import Clients


ENGINES = {
    "sequential": "fnlkit.federated.engines.sequential:Sequential",
    "stacked": "fnlkit.federated.engines.stacked:Stacked",
    "workers": "fnlkit.federated.engines.workers:Workers",
    "fused": "fnlkit.federated.engines.fused:Fused",
    "flower": "fnlkit.federated.engines.flower.engine:Flower",
}
_run = partial(option, section="Run", recipe=True)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that choose the engine and its speed; results agree up to rounding."""

    engine: str = _run("auto", f"Engine that runs clients: auto, {', '.join(ENGINES)}.", metavar="NAME")
    device: str = _run("auto", "Device; auto uses a GPU if there is one.", metavar="auto|cpu|cuda")
    workers: Natural = _run(0, "Number of processes or threads; 0 uses all cores.", rare=True, engines=("workers", "fused"))
    at_once: Natural = _run(0, "Clients that train at once; 0: as many as fit into memory.", rare=True, engines=("stacked",))
    client_timeout: NotNegative | None = _run(
        None,
        "Engine workers: seconds until a client is given to another process. Default: an hour; 0 waits forever.",
        rare=True,
        metavar="SECONDS",
        engines=("workers", "flower"),
    )


# The engines that accept an option.
OPTIONS = {one.name: about(one).engines for one in fields(EngineOptions) if about(one).engines}


def make(name: str, clients: "Sequence[Client]", network: "Network", inputs: "Inputs", **settings: Any) -> "Clients":
    """Open a session with clients that run on an engine.

    Parameters
    ----------
    name : str
        A name of ENGINES, or ``auto``.
    clients : list of fnlkit.federated.client.client.Client
    network : fnlkit.federated.client.network.Network
    inputs : fnlkit.federated.client.inputs.Inputs
    **settings
        seed, min_replies, max_update_ratio, and the OPTIONS that the engine accepts. An engine ignores the others, with a note
        if it was named.

    Raises
    ------
    InputError
        If there is no such engine.
    """
    from fnlkit.federated.server.clients import Clients

    reason = ""
    if name == "auto":
        name, reason = choose(network, clients, settings.get("workers", 0))
    spec = parse(name, "`engine`")
    name = spec.name
    if name not in ENGINES:
        refuse_retired("engine", name)
        known = ", ".join(["auto", *ENGINES])
        raise InputError(f": unknown engine {name!r}{nearest(name, ENGINES)}; known: {known}", parameter="engine")
    unused = [word for word, takers in OPTIONS.items() if name not in takers and settings.pop(word, None) and not reason]
    build = bind(spec, find(name, ENGINES, "engine"), "engine", given=(*OPTIONS, "runtime"))
    limits = {key: settings.pop(key) for key in ("min_replies", "max_update_ratio") if key in settings}
    engine = build(clients, network, inputs, **settings)
    engine.name = name
    if reason:
        engine.note(f"engine {name}: {reason}")
    for word in unused:
        engine.note(f"`{word}` is for the engine {' or '.join(OPTIONS[word])}; {name} ignores it")
    return Clients(engine, **limits)


def choose(network: "Network", clients: "Sequence[Client]", workers: int = 0) -> tuple[str, str]:
    """Choose the fastest engine for a network, device and number of workers, and state the reason.

    The choice follows measurements. 0 workers means a worker per core.

    ======================  ====================  ===========================================================
    device                  network               engine
    ======================  ====================  ===========================================================
    GPU                     any                   stacked
    CPU                     lenet5, mlp, pairs    fused
    CPU, bf16               mlp, pairs of mlp     stacked, since fused has no bf16
    CPU, several cores      200,000 weights on    workers; without fork (Windows), sequential
    CPU                     any other             sequential: starting workers costs seconds each
    ======================  ====================  ===========================================================

    The measurements behind this table are `python -m benchmarks.training` and `python -m benchmarks.gpu`.
    """
    if network.device.type != "cpu":
        return "stacked", f"the cohort trains at once on {network.device}"
    from fnlkit.models.parts import fused_form

    form = fused_form(network.module, clients[0].samples.shape, clients[0].inputs.image) if clients else None
    if form and network.precision != "bf16":
        name = form[0] if form[0] != "pair" else f"a pair of {form[1][0]}"
        return "fused", f"{name} on the CPU has compiled training"
    if form and "mlp" in (form[0], form[1][0] if form[0] == "pair" else ""):
        return "stacked", "an MLP on the CPU trains a cohort at once, and fused has no bf16"
    cores = core_count()
    if workers == 1:
        return "sequential", "one worker is this process"
    if (workers or cores) > 1 and hasattr(os, "fork") and network.parameters_count >= 200_000:
        return "workers", f"{workers} processes" if workers else f"one process on each of {cores} cores"
    return "sequential", f"{network.parameters_count:,} weights on {cores} core{'s' * (cores > 1)}"

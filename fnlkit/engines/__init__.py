"""Engines: where and how clients run.  Methods know nothing of them."""

from fnlkit.errors import InputError
from fnlkit.spec import nearest

ENGINES = {
    "sequential": "fnlkit.engines.sequential:Sequential",
    "stacked": "fnlkit.engines.stacked:Stacked",
    "workers": "fnlkit.engines.workers:Workers",
}


def make(name, clients, network, inputs, **settings):
    """Return the Federation of an engine.

    Parameters
    ----------
    name : str
        A name of ENGINES, or ``auto``.
    clients : list of fnlkit.client.Client
    network : fnlkit.network.Network
    inputs : fnlkit.inputs.Inputs
    **settings
        seed, keep and what the engine takes.

    Raises
    ------
    InputError
        When there is no such engine.
    """
    from fnlkit.spec import find

    if name == "auto":
        name = choose(network, clients)
    if name not in ENGINES:
        known = ", ".join(["auto", *ENGINES])
        raise InputError(f"--engine: unknown engine {name!r}{nearest(name, ENGINES)}; known: {known}")
    federation = find(name, ENGINES, "engine")(clients, network, inputs, **settings)
    federation.name = name
    return federation


def choose(network, clients):
    """Return the name of the engine that is fastest for a network and device."""
    return "sequential"

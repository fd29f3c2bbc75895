"""Secure aggregation at a site (fnlkit.sites.secret): a masked update, and what the site refuses."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.message import about_of, decode
from fnlkit.core.errors import InputError
from fnlkit.federated.engines.flower import messages
from fnlkit.federated.engines.flower.notebook import NEVER
from fnlkit.sites.secret import CONFIGS, FEWEST, MODULUS, MOST, STEPS, byte_strings, common, strengthen, to_entries


class Refused(Exception):
    """Error: a site refuses a request. The reason contains no value of the samples."""


# Standard deviation of the noise on sums: four levels, so that the sum tells nothing about their rounding.
NOISE = 8 / STEPS


class AboveClip(Refused):
    """Error: an update has an entry above `clip` or a NaN entry."""


class Failed(Exception):
    """Error: a visit has no reply. The arguments are the failure code and a class name."""


class Terms(NamedTuple):
    """Terms of secure aggregation that a site agreed to.

    The site refuses other values from the server.

    Attributes
    ----------
    clip : float > 0
        Largest entry of an update, or of the sums in units of `unit`.
    weight : int
        Weight of the site in the mean: the number of samples, or 1.
    largest : float
        Largest weight that any site can have.
    unit : float or None
        Largest sum, if the site sends nothing but sums; None if it sends updates.
    sites : int
        Number of sites whose sums are masked together: all of the project.
    """

    clip: float
    weight: int
    largest: float
    unit: float | None = None
    sites: int = 0


class History:
    """Digest of the last request that a site answered with masked sums, in a file.

    Parameters
    ----------
    path : str
    """

    def __init__(self, path: str):
        self.path = path

    def before(self, run: object, base: object) -> str:
        """Digest of the round with whose memory a visit begins; "" without a memory.

        Raises
        ------
        Refused
            If it is not the last round of the run that the site answered.
        """
        if base == NEVER:
            return ""
        try:
            known = json.loads(files.read_text(self.path))
        except (InputError, ValueError):
            known = {}
        if not isinstance(known, dict) or [run, base] != [known.get("run"), known.get("round")]:
            raise Refused("the visit would begin with another memory than that of the last round")
        return str(known["digest"])

    def add(self, run: str, round: int, digest: str) -> None:
        saving.write_bytes([json.dumps({"run": run, "round": round, "digest": digest}).encode()], self.path)


def masked_values(arrays: Mapping[str, torch.Tensor], asked: Mapping[str, Any], terms: Terms) -> np.ndarray:
    """Collect what a site masks of a visit: the update (P + Q,) float64, or the entries of its sums with noise.

    The noise hides on which side of a level the sum of the site is.
    """
    if terms.unit is not None:
        if "weights" in arrays:
            raise Refused("it asks for more than masked sums")
        entries = to_entries(arrays, terms.unit)
        return np.clip(entries + np.random.default_rng().normal(0, NOISE, entries.shape), -1, 1)
    if set(arrays) != {"weights"}:
        raise Refused("it asks for more than masked weights")
    return (arrays["weights"].double() - asked["weights"].double()).numpy()


def answer(
    message: Any, context: Any, visit: Callable[[], np.ndarray], terms: Terms | None, history: History | None = None
) -> Any:
    """Answer a step of the protocol.

    Parameters
    ----------
    message, context : Flower's
        The context contains the site's memory between the steps and stays on the site.
    visit : callable () -> float64 array (n,)
        Visits the client; the values to mask. Called only in the third step.
    terms : Terms
    history : History, optional
        Of masked sums.

    Raises
    ------
    Refused
        If a step would reveal more than the protocol permits.
    """
    from fnlkit.federated.engines.flower import api

    if terms is None:
        raise Refused("this project masks no updates")
    config = dict(message.content.config_records[CONFIGS])
    _check(config, terms)
    asked, digest = {}, ""
    if config.get("stage") == "collect_masked_vectors":
        data = messages.bytes_of(message)
        asked = decode(data)
        before = None if history is None else history.before(asked["run"], asked["visits"][0][1])
        digest = common(asked, about_of(data), before)
    mod = strengthen(api.secagg_mod(), digest).secaggplus_mod

    def mask(message: Any, context: Any) -> Any:
        values = visit()
        must_be_within(values, terms)
        if history:
            history.add(asked["run"], asked["round"], digest)
        result = api.FitRes(api.Status(api.Code.OK, ""), api.ndarrays_to_parameters([values]), terms.weight, {})
        return api.Message(api.fitres_to_recorddict(result, False), reply_to=message)

    return mod(message, context, mask)


def must_be_within(values: np.ndarray, terms: Terms) -> None:
    """Raise AboveClip if an entry of an update is above the agreed `clip`, or NaN."""
    if not np.abs(values).max(initial=0) <= terms.clip:
        raise AboveClip("the update has an entry above the agreed clip")


def _check(config, terms):
    """Refuse requests that Flower's mod would answer but that would reveal single updates."""
    stage = config.get("stage")
    if stage == "setup":
        shares, threshold = config["share_num"], config["threshold"]
        if not (FEWEST <= shares <= MOST and config["sample_num"] >= FEWEST and 2 * threshold > shares):
            raise Refused("too few clients would hide each other")
        if (config["target_range"], config["mod_range"]) != (STEPS, MODULUS):
            raise Refused("the masks would not cover the numbers of an update")
        limits = config.get("clipping_range"), config.get("max_weight")
        if limits != (terms.clip, terms.largest):
            raise Refused(f"clip and largest weight are {limits}; this site agreed to {(terms.clip, terms.largest)}")
        _must_be_all_sites(terms, shares, config["sample_num"])
    if stage == "share_keys":
        _must_be_all_sites(terms, len(config) - 1)
        if len(config) - 1 < FEWEST:
            raise Refused("too few clients would hide each other")
    if stage == "unmask":
        _must_be_all_sites(terms, len(config["active_nids"]), terms.sites - len(config["dead_nids"]))
        active, dead = set(config["active_nids"]), set(config["dead_nids"])
        if len(active) < FEWEST or active & dead:
            raise Refused("the server requests a sum of too few clients, or both masks of one client")


def _must_be_all_sites(terms, *counts):
    """Refuse masked sums over a part of the sites: the difference of two such sums would be the sum of a site."""
    if terms.unit is not None and set(counts) != {terms.sites}:
        raise Refused("masked sums are those of all sites")


def summarize_records(records: Mapping[str, Any]) -> dict[str, Any]:
    """Make the ledger entry of a protocol step: its name, number of bytes and SHA-256."""
    parts = [value for record in records.values() for value in byte_strings(record)]
    kinds = sorted(name for name in records[CONFIGS])
    return {"masked": kinds, "bytes": sum(map(len, parts)), "sha256": hashlib.sha256(b"".join(parts)).hexdigest()}

"""Secure aggregation at a site (fnlkit.sites.secret): a masked update, and what the site refuses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from fnlkit.artifacts.message import about_of, decode
from fnlkit.federated.engines.flower import messages
from fnlkit.sites.secret import CONFIGS, FEWEST, MODULUS, MOST, STEPS, byte_strings, common, strengthen, to_entries


class Refused(Exception):
    """Error: a site refuses a request. The reason contains no value of the samples."""


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
        Largest entry of an update, or of the numbers of sums.
    weight : int
        Weight of the site in the mean: the number of samples, or 1.
    largest : float
        Largest weight that any site can have.
    unit : float or None
        Largest sum that is not cut, if the site sends nothing but sums; None if it sends updates.
    """

    clip: float
    weight: int
    largest: float
    unit: float | None = None


def masked_values(arrays: Mapping[str, torch.Tensor], asked: Mapping[str, Any], terms: Terms) -> np.ndarray:
    """Collect what a site masks of a visit: the update (P + Q,) float64, or the entries of its sums."""
    if terms.unit is not None:
        if "weights" in arrays:
            raise Refused("it asks for more than masked sums")
        return to_entries(arrays, terms.unit)
    if set(arrays) != {"weights"}:
        raise Refused("it asks for more than masked weights")
    return (arrays["weights"].double() - asked["weights"].double()).numpy()


def answer(message: Any, context: Any, visit: Callable[[], np.ndarray], terms: Terms | None) -> Any:
    """Answer a step of the protocol.

    Parameters
    ----------
    message, context : Flower's
        The context contains the site's memory between the steps and stays on the site.
    visit : callable () -> float64 array (n,)
        Visits the client; the values to mask. Called only in the third step.
    terms : Terms

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
    request = b""
    if config.get("stage") == "collect_masked_vectors":
        data = messages.bytes_of(message)
        request = common(decode(data), about_of(data), sums=terms.unit is not None)
    mod = strengthen(api.secagg_mod(), request).secaggplus_mod

    def mask(message: Any, context: Any) -> Any:
        values = visit()
        must_be_within(values, terms)
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
    if stage == "share_keys" and len(config) - 1 < FEWEST:
        raise Refused("too few clients would hide each other")
    if stage == "unmask":
        active, dead = set(config["active_nids"]), set(config["dead_nids"])
        if len(active) < FEWEST or active & dead:
            raise Refused("the server requests a sum of too few clients, or both masks of one client")


def summarize_records(records: Mapping[str, Any]) -> dict[str, Any]:
    """Make the ledger entry of a protocol step: its name, number of bytes and SHA-256."""
    parts = [value for record in records.values() for value in byte_strings(record)]
    kinds = sorted(name for name in records[CONFIGS])
    return {"masked": kinds, "bytes": sum(map(len, parts)), "sha256": hashlib.sha256(b"".join(parts)).hexdigest()}

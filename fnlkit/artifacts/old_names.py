"""Spelling of names in files of versions up to 0.2."""

from __future__ import annotations

from typing import Any

_META = {"client_unlabelled": "client_unlabeled"}
_SETTINGS = {"standardise": "standardize"}
_SPECS = {"level=neighbours": "level=neighbors", "unlabelled=": "unlabeled=", "regulariser=": "regularizer="}
_MEMORY = {"normalisers": "normalizers", "neighbour_disagreement": "neighbor_disagreement"}


def rename_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a federation with today's names."""
    return {_META.get(name, name): value for name, value in meta.items()}


def rename_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with today's names, also within the spec of its method."""
    if not isinstance(settings, dict):
        return settings
    out = {_SETTINGS.get(name, name): value for name, value in settings.items()}
    if isinstance(out.get("method"), str):
        for before, now in _SPECS.items():
            out["method"] = out["method"].replace(before, now)
    return out


def rename_memory(memory: dict[str, Any]) -> dict[str, Any]:
    """Return the memory of a run's clients and optimizer with today's names, which are paths such as ``state/drift``."""
    return {"/".join(_MEMORY.get(part, part) for part in name.split("/")): value for name, value in memory.items()}

"""Specs, parameters, declarations, the registry, user files and presets."""

from fnlkit.components.declarations import Sent, declare, method

__all__ = ["Sent", "declare", "method"]

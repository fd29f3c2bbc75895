"""Specs, parameters, the registry, user files and presets."""

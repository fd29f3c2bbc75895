"""Label noise: models that corrupt given labels, a family a file, and say what they asked for and what they got."""

from fnlkit.noise.ground import Corruption, Ground
from fnlkit.noise.injection import MODELS, inject, requested, summary

__all__ = ["MODELS", "Corruption", "Ground", "inject", "requested", "summary"]

"""Label noise: models that corrupt given labels and report the requested and the achieved noise."""

from fnlkit.simulate.noise.ground import Corruption, Ground
from fnlkit.simulate.noise.injection import MODELS, inject, mean_requested_transition, summary

__all__ = ["MODELS", "Corruption", "Ground", "inject", "mean_requested_transition", "summary"]

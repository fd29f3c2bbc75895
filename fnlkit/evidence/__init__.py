"""Classifiers and label models that are computed from sums over samples; NumPy only."""

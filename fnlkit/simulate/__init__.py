"""Simulated federations: partition schemes, hold-out, and label noise."""

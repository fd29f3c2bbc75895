"""Results: what a run is worth, plots, published tables."""

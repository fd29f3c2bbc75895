"""Privacy cost of released labels."""

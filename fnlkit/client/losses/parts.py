"""What losses share."""


def at(values, labels):
    """Return the entry of the last axis that each label names: values (..., C), labels (...) -> (...)."""
    return values.gather(-1, labels[..., None])[..., 0]

"""What losses share."""

from inspect import unwrap


def at(values, labels):
    """Return the entry of the last axis that each label names: values (..., C), labels (...) -> (...)."""
    return values.gather(-1, labels[..., None])[..., 0]


def reads(*, teacher=False, features=False, uniform=False, unmixed=False, before=None, check=None):
    """Return a decorator for a loss that reads more of its Batch than labels and received values.

    Parameters
    ----------
    teacher, features, uniform, unmixed : bool
        What Fit has to provide in the Batch.
    before : callable or None
        (**the loss's own keywords) -> client steps that run before local training, for example to make room for rows.
    check : callable or None
        (classes, **the loss's own keywords): raises InputError, before training, where these do not go together.
    """

    def mark(loss):
        loss.check = check
        loss.reads = {"teacher": teacher, "features": features, "uniform": uniform, "unmixed": unmixed}, before
        return loss

    return mark


def needs(loss):
    """Return what a loss, its keywords bound, was declared to read: (fields of Fit that must be True, client steps)."""
    plain = unwrap(getattr(loss, "func", loss))
    fields, before = getattr(plain, "reads", ({}, None))
    steps = () if before is None else tuple(before(**getattr(loss, "keywords", {})))
    return [name for name, needed in fields.items() if needed], steps


def suits(loss, classes):
    """Raise InputError where a loss, its keywords bound, is not for so many classes."""
    check = getattr(unwrap(getattr(loss, "func", loss)), "check", None)
    if check is not None:
        check(classes, **getattr(loss, "keywords", {}))

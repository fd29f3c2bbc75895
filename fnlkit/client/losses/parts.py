"""Shared parts of losses."""

from fnlkit.components.declarations import declaration, declare


def at(values, labels):
    """Return the entry of the last axis at each label: values (..., C), labels (...) -> (...)."""
    return values.gather(-1, labels[..., None])[..., 0]


def reads(*, teacher=False, features=False, uniform=False, unmixed=False, before=None, check=None):
    """Return a decorator for a loss that reads more of its Batch than labels and received values.

    Parameters
    ----------
    teacher, features, uniform, unmixed : bool
        Values that Fit must provide in the Batch.
    before : callable or None
        (**keywords of the loss) -> client steps that run before local training, for example to allocate rows.
    check : callable or None
        Called before training as ``check(classes, **keywords of the loss)``; raises InputError if a keyword does not fit.
    """

    fields = {"teacher": teacher, "features": features, "uniform": uniform, "unmixed": unmixed}
    return declare(reads=tuple(name for name, needed in fields.items() if needed), before=before, check=check)


def needs(loss):
    """Return the declared needs of a loss with bound keywords: (fields of Fit that must be True, client steps)."""
    known = declaration(loss)
    return known.reads, tuple(known.before(**getattr(loss, "keywords", {}))) if known.before else ()


def suits(loss, classes):
    """Raise InputError if a loss with bound keywords does not support this number of classes."""
    if check := declaration(loss).check:
        check(classes, **getattr(loss, "keywords", {}))

"""Any loss without the samples that a client holds back."""

from dataclasses import replace

from fnlkit.components.declarations import declaration, declare


def _held_back_terms(visit, *, loss):
    terms = declaration(loss).terms(visit, **getattr(loss, "keywords", {}))
    return replace(terms, keep=visit.client.rows["keep"].to(visit.model.weights.dtype).numpy())


@declare(terms=_held_back_terms)
def held_back(logits, batch, *, loss):
    """Return the values of a loss weighted by ``rows["keep"]``, (..., B): 0 for held-back samples, and the rows of the loss.

    Parameters
    ----------
    loss : callable
        A loss with bound keywords that does not weight samples itself.
    """
    found = loss(logits, batch)
    values, *rows = found if isinstance(found, tuple) else (found,)
    values = batch.rows["keep"].to(values) * values
    return (values, *rows) if rows else values

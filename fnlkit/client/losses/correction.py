"""Loss correction by a transition matrix."""

from fnlkit.client.losses.parts import at


def forward_corrected(logits, batch, *, floor=1e-12):
    """Return the forward-corrected cross entropy -log( (p T)_y ), (..., B) (Patrini 2017; FedEFC eq. 16).

    ``state["transition"]`` (..., C, C) is T[true, given] with rows summing to 1; FedEFC's Q is its transpose, so that
    its Q[observed, :] . p is our (p T)[observed].

    Parameters
    ----------
    floor : float >= 0
        Added inside the logarithm, as the authors' code does.
    """
    through = logits.softmax(-1) @ batch.state["transition"].to(logits)
    return -(at(through, batch.y) + floor).log()

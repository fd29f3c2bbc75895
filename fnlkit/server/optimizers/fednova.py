"""FedNova: local progress is measured in equal steps, so that clients with more of them do not bend the objective.

Wang, Liu, Liang, Joshi, Poor. Tackling the objective inconsistency problem in heterogeneous federated optimization.
NeurIPS 2020.
"""

from fnlkit.server.optimizers.optimizer import FedOpt, gradient_weight


def normalise(updates):
    """Return w + (tau_eff / ||a_k||_1) (w_k - w), (K, P), with tau_eff the weighted mean of ||a_k||_1 (eqs. 7 and 9)."""
    length = gradient_weight(updates.sizes[updates.ids], updates.fit)
    effective = (updates.weights * length).sum() / updates.weights.sum()
    scale = (effective / length).to(updates.trained)[:, None]
    return updates.start + scale * (updates.trained - updates.start)


def fednova(fit, **settings):
    """Let no client count more because it took more steps, where clients differ in size.

    Return FedNova (Wang 2020): updates are divided by their accumulated steps and go as far as the mean client would.

    The server knows each client's number of samples, and so its steps; nothing more is sent.  With local Adam a step
    counts as one.
    """
    return FedOpt(fit, rescale=normalise, **settings)

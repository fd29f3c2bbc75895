"""Checks for settings that cannot be combined, before training starts."""

from fnlkit import privacy
from fnlkit.client.losses import suits
from fnlkit.client.training import Fit
from fnlkit.components import registry
from fnlkit.components.spec import Spec, parse
from fnlkit.errors import InputError
from fnlkit.experiment import cards
from fnlkit.server.aggregation import too_few
from fnlkit.server.protection import Secret
from fnlkit.server.selection import cohort_size


def protection_of(settings, clients, select, *, sent_features):
    """Check that the protection covers a whole run; return (Protection of its updates, Sums before the first round).

    Both are None if updates are sent without protection. For secure aggregation, the result is a Secret and None.

    Parameters
    ----------
    settings : Settings
    clients : fnlkit.server.clients.Clients
    select : selector
    sent_features : bool
        Whether clients sent statistics of their features before training.

    Raises
    ------
    InputError
    """
    if registry.protection(settings.protect) is None:
        return None, None
    protectable(settings, cohort_size(clients, settings.fraction))
    cohort = select.expected(clients)
    protection = registry.protection(settings.protect, cohort)
    if isinstance(protection, Secret):
        return protection, None
    if clients.network.size > clients.network.parameters_count:
        raise InputError(
            f"--protect {settings.protect}: the network has statistics of samples in addition to its weights (batch norm), "
            "which noise would make useless; choose a --model without batch norm"
        )
    if sent_features:
        raise InputError(
            f"--protect {settings.protect}: clients would send sums of their features, which the noise on updates does not "
            "cover; write --standardize none"
        )
    privacy.must_account()
    return protection, privacy.Sums(select.sampling, len(clients), cohort, protection.clip, protection.noise, 0)


def protectable(settings, cohort):
    """Check that clients send only weights and that the server needs only their sum.

    Parameters
    ----------
    settings : Settings
    cohort : int
        Clients of a round.

    Raises
    ------
    InputError
        If updates should be protected and the check fails.
    """
    protection = registry.protection(settings.protect)
    if protection is None:
        return
    chosen = [getattr(settings, name) for name in ("method", "optimizer", "aggregator", "selector")]
    if reason := cards.unprotected(*chosen):
        raise InputError(f"--protect {settings.protect}: {reason}; omit --protect")
    if isinstance(protection, Secret) and cohort < 3:
        raise InputError(
            f"--protect {settings.protect}: a round has {cohort} clients, and each of two clients can compute the other's "
            "update from the sum; raise --fraction so that a round has at least three"
        )


def parts(settings, clients):
    """Return (loss, aggregator) of a run after checking that its components fit together.

    `fnlkit.components.registry` reads the specs. It rejects unknown names and parameters, and a loss if the method defines one.
    Requirements on the network are checked when the network is built.

    Parameters
    ----------
    settings : Settings
    clients : fnlkit.server.clients.Clients

    Raises
    ------
    InputError
    """
    loss = registry.loss(settings.loss, settings.method)
    suits(loss, clients.classes)
    aggregate = registry.aggregator(settings.aggregator)
    if "own" in registry.needs(settings.method):
        for name in ("optimizer", "aggregator"):
            chosen, idle = parse(getattr(settings, name)), {"optimizer": "fedavg", "aggregator": "mean"}[name]
            if chosen != Spec(idle):
                raise InputError(f"--{name} {chosen}: {settings.method} averages no models; omit --{name}")
    must_suit = getattr(registry.optimizer(settings.optimizer, Fit()), "suits", None)
    if must_suit:  # a user's optimizer does not have to define it
        must_suit(clients.network)
    if refusal := too_few(aggregate, cohort_size(clients, settings.fraction)):
        raise InputError(refusal)
    return loss, aggregate

"""What of a run's settings cannot be combined, in one place: each said in a sentence before anything is trained."""

from fnlkit import cards, catalogue, privacy
from fnlkit.client.losses import suits
from fnlkit.client.training import Fit
from fnlkit.errors import InputError
from fnlkit.server.aggregation import too_few
from fnlkit.server.protection import Secret
from fnlkit.server.selection import cohort_size
from fnlkit.spec import Spec, parse


def protection(settings, clients, select, *, told):
    """Return (Protection of a run's updates, Sums of no round yet) after checking that nothing of the run goes round it.

    Both are None where updates are sent as they are; for sums in secret, a Secret and None.

    Parameters
    ----------
    settings : Settings
    clients : fnlkit.server.clients.Clients
    select : selector
    told : bool
        Whether clients tell of their features before training.

    Raises
    ------
    InputError
    """
    if catalogue.protection(settings.protect) is None:
        return None, None
    protectable(settings, cohort_size(clients, settings.fraction))
    if isinstance(found := catalogue.protection(settings.protect, cohort := select.expected(clients)), Secret):
        return found, None
    if clients.network.size > clients.network.parameters_count:
        raise InputError(
            f"--protect {settings.protect}: the network keeps statistics of samples beside its weights (batch norm), which "
            "noise would make useless; take a --model without them"
        )
    if told:
        raise InputError(
            f"--protect {settings.protect}: clients would send sums of their features, which the noise on updates does not "
            "cover; write --standardise none"
        )
    privacy.must_account()
    return found, privacy.Sums(select.sampling, len(clients), cohort, found.clip, found.noise, 0)


def protectable(settings, cohort):
    """Check that nothing but weights leaves clients under these settings, and that the server needs their sum alone.

    Parameters
    ----------
    settings : Settings
    cohort : int
        Clients of a round.

    Raises
    ------
    InputError
        Where updates are to be protected and this is not so.
    """
    if (found := catalogue.protection(settings.protect)) is None:
        return
    chosen = [getattr(settings, name) for name in ("method", "optimizer", "aggregator", "selector")]
    if reason := cards.unprotected(*chosen):
        raise InputError(f"--protect {settings.protect}: {reason}; leave --protect out")
    if isinstance(found, Secret) and cohort < 3:
        raise InputError(
            f"--protect {settings.protect}: a round takes {cohort} clients, and the sum of two tells each the other's update; "
            "raise --fraction so that there are three"
        )


def parts(settings, clients):
    """Return (loss, aggregator) of a run after checking that its parts go together.

    Specs are read in `fnlkit.catalogue`, which refuses unknown names and parameters, and a loss where the method brings
    its own; what a network lacks for a method is said where it is built.

    Parameters
    ----------
    settings : Settings
    clients : fnlkit.server.clients.Clients

    Raises
    ------
    InputError
    """
    loss = catalogue.loss(settings.loss, settings.method)
    suits(loss, clients.classes)
    aggregate = catalogue.aggregator(settings.aggregator)
    if "own" in catalogue.needs(settings.method):
        for name in ("optimizer", "aggregator"):
            chosen, idle = parse(getattr(settings, name)), {"optimizer": "fedavg", "aggregator": "mean"}[name]
            if chosen != Spec(idle):
                raise InputError(f"--{name} {chosen}: {settings.method} averages nothing; leave --{name} out")
    must_suit = getattr(catalogue.optimizer(settings.optimizer, Fit()), "suits", None)
    if must_suit:  # an optimizer of somebody's own may have none
        must_suit(clients.network)
    if refusal := too_few(aggregate, cohort_size(clients, settings.fraction)):
        raise InputError(refusal)
    return loss, aggregate

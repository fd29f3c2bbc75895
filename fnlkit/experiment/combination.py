"""What of a run's settings cannot be combined, in one place: each said in a sentence before anything is trained."""

from fnlkit import catalogue
from fnlkit.client.losses import suits
from fnlkit.client.training import Fit
from fnlkit.errors import InputError
from fnlkit.server.aggregation import too_few
from fnlkit.server.selection import cohort_size
from fnlkit.spec import Spec, parse


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

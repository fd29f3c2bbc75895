"""All kinds of components, with their registries."""

import importlib
from dataclasses import dataclass

from fnlkit.core.registry import AGGREGATED


@dataclass(frozen=True)
class Kind:
    """A kind of component.

    Attributes
    ----------
    table : str
        The registry, as ``module:name``.
    what : str
        Purpose of this kind.
    given : tuple of str
        Parameters that the caller supplies and a spec cannot set.
    use : str
        Command line that uses a component of this kind.
    """

    table: str
    what: str
    given: tuple[str, ...] = ()
    use: str = "fnlkit train --{kind} {spec}"

    def parts(self) -> dict[str, str]:
        """The registry, names to ``module:function``."""
        module, _, name = self.table.partition(":")
        return getattr(importlib.import_module(module), name)


KINDS = {
    "method": Kind("fnlkit.core.registry:METHODS", "handling of wrong labels",
                   ("among", "stage", "schedule", "rounds")),
    "loss": Kind("fnlkit.core.registry:LOSSES", "loss of local training"),
    "optimizer": Kind("fnlkit.core.registry:OPTIMIZERS", "local drift term and server step", ("aggregate", "schedule")),
    "aggregator": Kind("fnlkit.core.registry:AGGREGATORS", "combination of local models", AGGREGATED),
    "selector": Kind("fnlkit.core.registry:SELECTORS", "choice of clients per round", ("fraction",)),
    "schedule": Kind("fnlkit.core.registry:SCHEDULES", "learning rate over the rounds"),
    "regularizer": Kind("fnlkit.core.registry:REGULARIZERS", "local loss inside FedCorr",
                        use="fnlkit train --method 'fedcorr(regularizer={spec})'"),
    "model": Kind("fnlkit.models:NETWORKS", "network", ("input_shape", "classes")),
    "noise": Kind("fnlkit.simulate.noise.injection:MODELS", "model of label noise", use="fnlkit inject-noise --noise {spec}"),
    "scheme": Kind("fnlkit.simulate.partitioning:SCHEMES", "assignment of samples to clients", ("fields",),
                   use="fnlkit partition --scheme {spec}"),
    "estimator": Kind("fnlkit.estimators:ESTIMATORS", "detection of wrong labels",
                      use="fnlkit estimate-noise --estimator {spec}"),
    "backbone": Kind("fnlkit.encoders.embed:BACKBONES", "embedding of samples",
                     use="fnlkit train --backbone {spec}"),
}  # fmt: skip

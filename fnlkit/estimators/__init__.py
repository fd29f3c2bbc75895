"""Noise estimators: each estimator judges the labels of a federation and returns the same set of arrays.

=========  ==================================================  ===========================================
name       evidence                                            source
=========  ==================================================  ===========================================
knn        labels of the neighbors in an embedding             FedLN (Tsouvalas 2024), NNC
confident  out-of-sample probabilities                         confident learning (Northcutt 2021)
lid        dimension of local predictions, then losses         FedCorr (Xu 2022), stage 1
loss       two groups of losses in each client                 DivideMix (Li 2020), FedCorr
energy     energy of local against global predictions          FedLN (Tsouvalas 2024), NA-FedAvg
anchor     the most typical sample of each class               Patrini 2017
em         out-of-sample probabilities, one T per client       Bekker and Goldberger 2016
aum        margins during a local training on embeddings       Pleiss 2020
fedsums    a Gaussian classifier and matrices from sums         this project
=========  ==================================================  ===========================================
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.core.declarations import declaration
from fnlkit.core.errors import InputError
from fnlkit.core.options import show_keywords
from fnlkit.core.spec import Spec, bind, find, parse
from fnlkit.datasets.dataset import Dataset
from fnlkit.estimators.defaults import WARM_UP as WARM_UP
from fnlkit.estimators.defaults import EstimateOptions as EstimateOptions
from fnlkit.estimators.defaults import warm_up_of as warm_up_of

ESTIMATORS = {
    "knn": "fnlkit.estimators.knn:knn",
    "confident": "fnlkit.estimators.confident:confident",
    "lid": "fnlkit.estimators.lid:lid",
    "loss": "fnlkit.estimators.loss:loss",
    "energy": "fnlkit.estimators.energy:energy",
    "anchor": "fnlkit.estimators.anchor:anchor",
    "em": "fnlkit.estimators.em:em",
    "aum": "fnlkit.estimators.aum:aum",
    "fedsums": "fnlkit.estimators.fedsums:fedsums",
}
# Estimators that flag samples in an audit next to `em`.
DETECTORS = ("confident", "knn", "aum")


def estimate(federation: Federation, dataset: Dataset, spec: str | Spec = "knn", **options: Any) -> dict[str, np.ndarray]:
    """Estimate wrong labels, as the arrays of a federation file.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
        The given labels are judged, including the labels of samples that clients hold out. True labels are never used.
    dataset : fnlkit.datasets.Dataset, or callable returning one
        Called only if the estimator needs samples.
    spec : str or Spec
        A name in `ESTIMATORS` with parameters, or ``FILE.py:NAME`` of a user's estimator: a function of an
        `fnlkit.estimators.inputs.EstimatorInputs` with keyword-only parameters that returns a Judgment.
    **options
        Fields of `EstimateOptions`: embeddings, probabilities, run, form, seed, warm_up, engine, device, say, progress.

    Returns
    -------
    dict of str to ndarray
        N clients, n training samples, C classes; samples that belong to no client get issue score 0.

        ==============================  ===========  ==========================================================
        estimate_client_level           (N,)         share of wrong labels, in [0, 1]
        estimate_client_level_low/high  (N,)         interval for the sampling error, without the bias
        estimate_client_score           (N,)         ranks clients, higher for noisier clients; no unit
        estimate_transition             (C, C)       T[true, given] over all clients, rows sum to 1
        estimate_client_transition      (N, C, C)    T of each client, if the estimator computes it
        estimate_issue_score            (n,)         in [0, 1], higher is more likely wrong
        estimate_confidence             (n,)         probability that the suggested label is right (em)
        estimate_flagged                (n,) bool    judged wrong
        estimate_suggested_label        (n,) int64   the estimator's guess if flagged, else the given label
        ==============================  ===========  ==========================================================

    Raises
    ------
    InputError
        If the estimator or a parameter is unknown, the federation has no clients, or the evidence does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from fnlkit import datasets
    >>> from fnlkit.estimators import estimate
    >>> from fnlkit.artifacts.federation import Federation
    >>> digits = datasets.load("digits")
    >>> size = len(digits.y_train)
    >>> federation = Federation("digits", 10, np.array([0, size // 2, size]), np.arange(size), digits.y_train)
    >>> bool(estimate(federation, digits, "knn(k=10)")["estimate_client_level"].max() < 0.1)
    True
    """
    return run_estimator(federation, dataset, spec, **options)[0]


show_keywords(estimate, EstimateOptions)


def run_estimator(
    federation: Federation,
    dataset: Callable[..., Any] | Dataset,
    spec: str | Spec = "knn",
    *,
    groups: Any = None,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """Run an estimator: (arrays, facts), the result of `estimate` and metadata about the estimate.

    Parameters
    ----------
    federation, dataset, spec, **options
        As in `estimate`.
    groups : int64 (n,), optional
        As in `EstimatorInputs`.

    Returns
    -------
    arrays : dict of str to ndarray
    facts : dict
        estimator, form; ``training``, the settings of the models, if any were trained. The federated form adds ``sent``,
        {name: {"bytes", "what"}} for data sent by clients, and ``bytes_down`` for data received by clients.
    """
    from fnlkit.estimators.inputs import EstimatorInputs

    spec = parse(spec, "`estimator`")
    part = find(spec, ESTIMATORS, "estimator")
    whole, sends = federation.whole(), declaration(part).sends
    apart = ~np.isin(whole.client_indices, federation.client_indices)
    evidence = EstimatorInputs(whole, dataset, apart=apart, groups=groups, **options)
    if evidence.federated and sends is None:
        raise InputError(
            f"`form='federated'`: {spec.name!r} declares no replies of clients, so it has no such form; write `form='pooled'`, "
            "or add @declare(sends=...) (fnlkit.core) to an estimator of yours"
        )
    evidence.sends, evidence.name = sends, spec.name
    judgment = bind(spec, part, "estimator")(evidence)
    if not hasattr(judgment, "arrays"):
        raise InputError(f"estimator {spec.name!r} returned {type(judgment).__name__}; expected a Judgment")
    facts: dict[str, Any] = {"estimator": str(spec), "form": "federated" if evidence.federated else "pooled"}
    if evidence.training:
        facts["training"] = evidence.training
    if evidence.federated:
        from fnlkit.estimators.federated import describe_traffic

        facts |= {"sent": describe_traffic(evidence.traffic, sends or {}), "bytes_down": int(evidence.traffic.bytes_down)}
    return judgment.arrays(whole), facts

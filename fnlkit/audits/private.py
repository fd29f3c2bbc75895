"""Audit from sums with Gaussian noise: both files of a site together are (epsilon, delta)-differentially private.

Neighboring data sets differ in one record, which is present or absent.  The features of a record are clipped to a norm, and
every record adds one vector to each released table.  The noise of a table has the standard deviation sigma * sensitivity /
sqrt(share), where sigma is that of a single release (analytic Gaussian mechanism: Balle and Wang 2018) and the shares of all
tables sum to 1.  Together, the tables cost as much as this single release.  Simulations (fnlkit.audits.audit) and the files of
real sites (fnlkit.sites.site.audit) differ only in the source of the draws.
"""

import math
from collections.abc import Iterable
from typing import Any

from fnlkit.core.declarations import Sent
from fnlkit.core.errors import InputError

DELTA = 1e-5
# Shares of the budget of the tables; the last two are the second file.
SHARES = {"counts": 0.12, "sums": 0.60, "moments": 0.02, "agreement": 0.20, "predicted": 0.06}
# At most this many features are sent, clipped to norm BOUND * sqrt(number of features).
FEATURES, BOUND = 16, 1.0
NEIGHBORS = "one record added or removed"
RANGE = (
    "Range: 95 % interval of the share of wrong labels. It allows for the noise, for chance, and for classifiers that fit some "
    "clean sites worse than others. If mistakes of the classifiers cannot be told from wrong labels, no estimate is shown."
)
_NOISY: dict[str, Any] = {"low": -1e30, "high": 1e30}
SENDS = {
    "counts": Sent("numbers of samples by class, with noise", "first file", ("C",), **_NOISY),
    "sums": Sent("sums of clipped features by class, with noise", "first file", ("C", "m"), **_NOISY),
    "moments": Sent("second moments of clipped features over all classes, with noise", "first file", ("m", "m"), **_NOISY),
    "agreement": Sent(
        "numbers of labels that the classifier predicts, and of others, with noise", "second file", (2,), **_NOISY
    ),
    "predicted": Sent("numbers of samples by predicted and given class, with noise", "second file", ("C", "C"), **_NOISY),
}


def _accountant():
    """Import the module dp_accounting."""
    try:
        import dp_accounting
    except ImportError:
        raise InputError("`epsilon` needs an accountant for the privacy cost; run: pip install 'fnlkit[privacy]'") from None
    return dp_accounting


def sigma_of(epsilon: float, delta: float) -> float:
    """Standard deviation of the noise of one release with sensitivity 1.

    Raises
    ------
    InputError
        If a value is out of range, or if the extra ``privacy`` is not installed.
    """
    if not 0.01 <= epsilon <= 100:
        raise InputError(f"`epsilon` {epsilon:g}: expected 0.01 to 100")
    if not 0 < delta <= 0.01:
        raise InputError(f"`delta` {delta:g}: expected a number above 0 and at most 0.01")
    return float(_accountant().get_sigma_gaussian(epsilon, delta))


def total_epsilon(releases: Iterable[tuple[float, float]], delta: float) -> float:
    """Epsilon at `delta` of several releases together, each a pair (epsilon, delta) of `sigma_of`.

    Gaussian releases add up exactly: their precisions 1 / sigma^2 are added (Dong, Roth and Su 2022, Corollary 2).
    """
    dp_accounting = _accountant()
    precision = sum(1 / sigma_of(*release) ** 2 for release in releases)
    return float(dp_accounting.get_epsilon_gaussian(1 / math.sqrt(precision), delta)) if precision else 0.0


def sensitivity_of(size: int) -> dict[str, float]:
    """List {table: largest L2 norm of the change if a record is added or removed}, for `size` features."""
    bound = BOUND * math.sqrt(size)
    return {name: {"sums": bound, "moments": bound**2}.get(name, 1.0) for name in SHARES}


def noise_of(epsilon: float, delta: float, size: int) -> dict[str, float]:
    """List {table: standard deviation of the noise}, for `size` features."""
    sigma, sensitivity = sigma_of(epsilon, delta), sensitivity_of(size)
    return {name: sigma * sensitivity[name] / math.sqrt(share) for name, share in SHARES.items()}


def describe_mode(epsilon: float, delta: float, size: int) -> str:
    """Describe guarantee and noise of the counts for the page of an audit, for `size` features."""
    noise = noise_of(epsilon, delta, size)
    return (
        f"Audit from sums with noise: both files of a site together are ({epsilon:g}, {delta:g})-differentially private for "
        f"{NEIGHBORS}. Numbers of samples by class have noise of standard deviation {noise['counts']:.3g}, counts by predicted "
        f"and given class {noise['predicted']:.3g}. Sites whose inputs differ are not judged; class shares are not compared. "
        "Columns, classes and scale of the project are taken as public."
    )

"""Privacy cost of protected updates: clipped sums with Gaussian noise.

The accountants are part of dp-accounting (extra ``privacy``).  Two ways to sample clients are distinguished, because they
have different costs and different notions of protection:

- ``fixed``: K of N clients without replacement.  Neighbors differ in all data of one client, which is replaced by any
  other data.  The sum then changes by up to twice the bound, so that noise of z bounds counts as z / 2 (Wang 2019, Theorem
  27; or the exact composition without amplification by sampling, if it is smaller).
- ``poisson``: each client independently with probability K / N.  Neighbors differ in the presence of one client, and the
  sum changes by up to the bound.

A total over runs of both kinds is for a replaced client.
"""

import importlib.util
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fnlkit.errors import InputError

if TYPE_CHECKING:
    from fnlkit.artifacts.ledger import Release
    from fnlkit.artifacts.run import Run


DELTA = 1e-5
_SEARCHED = 30.0  # above this, a second digit is irrelevant, and privacy loss distributions become large


class Sums(NamedTuple):
    """Rounds of protected sums.

    Attributes
    ----------
    sampling : "fixed" or "poisson"
    clients : int
        Number of clients N.
    cohort : float
        Number of clients per round K, or the mean number.
    clip : float
        Maximum L2 norm of an update.
    noise : float
        z, standard deviation of the noise on the sum, in units of `clip`.
    rounds : int
    """

    sampling: str
    clients: int
    cohort: float
    clip: float
    noise: float
    rounds: int

    @property
    def delta(self) -> float:
        """Delta of the stated epsilon: 1e-5, or below 1 / N for many clients."""
        return min(DELTA, 0.1 / self.clients)


def must_account(option: str = "`protect`") -> None:
    """Raise InputError, which names the option, if the accountant is not installed."""
    if importlib.util.find_spec("dp_accounting") is None:
        raise InputError(f"{option} needs an accountant to compute the privacy cost; run: pip install 'fnlkit[privacy]'")


@lru_cache(maxsize=64)
def updates_epsilon(sums: Sums, delta: float | None = None, *, replaced: bool = False) -> float:
    """Return an upper bound on the epsilon of protected sums at a delta.

    Parameters
    ----------
    sums : Sums
    delta : float in (0, 1), optional
        Default: the delta of `sums`.
    replaced : bool
        Bound the stronger notion, a client replaced by any other, for both samplings. Default: the notion of the sampling.

    Raises
    ------
    InputError
        If the extra ``privacy`` is not installed, or if delta or sampling is invalid.

    Examples
    --------
    >>> from fnlkit.privacy import Sums, updates_epsilon
    >>> round(updates_epsilon(Sums("poisson", 1000, 100, 1.0, 1.1, 100)), 1)
    5.9
    """
    must_account()
    delta = sums.delta if delta is None else delta
    if not 0 < delta < 1:
        raise InputError(f"`delta` is {delta}; write a number between 0 and 1")
    if sums.sampling not in ("fixed", "poisson"):
        raise InputError(f"`sampling` is {sums.sampling!r}; write fixed or poisson")
    if not sums.rounds:
        return 0.0
    if sums.sampling == "fixed":
        return _epsilon_of_fixed_cohort(sums, delta)
    return _poisson_replaced(sums, delta) if replaced else _poisson(sums, delta)


def _accounting():
    """Return the modules of dp_accounting, which take a second to import."""
    import dp_accounting
    from dp_accounting import pld, rdp

    return dp_accounting, pld, rdp


def _epsilon_of_fixed_cohort(sums, delta):
    dp_accounting, _, rdp = _accounting()
    gaussian = dp_accounting.GaussianDpEvent(sums.noise / 2)
    event = dp_accounting.SampledWithoutReplacementDpEvent(sums.clients, round(sums.cohort), gaussian)
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event, sums.rounds)
    return float(min(accountant.get_epsilon(delta), _epsilon_without_sampling(sums, delta)))


def _epsilon_without_sampling(sums, delta):
    """Return epsilon for a replaced client without amplification by sampling: one Gaussian with less noise."""
    dp_accounting, _, _ = _accounting()
    return float(dp_accounting.get_epsilon_gaussian(sums.noise / 2 / sums.rounds**0.5, delta))


def _poisson_event(sums):
    dp_accounting, _, _ = _accounting()
    gaussian = dp_accounting.GaussianDpEvent(sums.noise)
    return dp_accounting.PoissonSampledDpEvent(min(1.0, sums.cohort / sums.clients), gaussian)


def _poisson_replaced(sums, delta):
    """Return epsilon if a client is replaced: the sum of a round with this client changes by up to twice the bound."""
    dp_accounting, pld, _ = _accounting()
    bound = _epsilon_without_sampling(sums, delta)
    if 2 * _poisson(sums, delta) > _SEARCHED:
        return bound
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(_poisson_event(sums), sums.rounds)
    return float(min(bound, accountant.get_epsilon(delta)))


def _poisson(sums, delta):
    dp_accounting, pld, rdp = _accounting()
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    event = _poisson_event(sums)
    accountant = rdp.RdpAccountant(range(2, 128), neighboring_relation=relation)  # other orders can cause warnings on stderr
    accountant.compose(event, sums.rounds)
    bound = float(accountant.get_epsilon(delta))
    if bound > _SEARCHED:
        return bound
    tighter = pld.PLDAccountant(relation)
    tighter.compose(event, sums.rounds)
    return float(min(bound, tighter.get_epsilon(delta)))


def together(all_sums: Sequence[Sums]) -> tuple[float, float]:
    """Return an upper bound (epsilon, delta) for several runs over the same clients.

    Runs that differ only in the seed are composed as one run with more rounds.  Others are added, each with a share of delta.
    An epsilon for a client that is present or absent and one for a replaced client cannot be added: if the runs have both
    samplings, the bound is for a replaced client (`neighbors`).

    Parameters
    ----------
    all_sums : sequence of Sums
    """
    replaced = any(sums.sampling == "fixed" for sums in all_sums)
    kinds: dict[Sums, int] = {}
    for sums in all_sums:
        key = sums._replace(rounds=0, clip=1.0)
        kinds[key] = kinds.get(key, 0) + sums.rounds
    delta = min(key.delta for key in kinds)
    parts = [
        updates_epsilon(key._replace(rounds=rounds), delta / len(kinds), replaced=replaced) for key, rounds in kinds.items()
    ]
    return sum(parts), delta


def neighbors(all_sums: Sequence[Sums]) -> str:
    """Return the change of a client's data that the bound of `together` covers, in words."""
    return "replaced by any other" if any(sums.sampling == "fixed" for sums in all_sums) else "present or absent"


def find_sums(releases: "Iterable[Release]", data: str) -> dict[str, Any]:
    """Return {clients: list of Sums} of a data set's protected updates in a ledger.

    Each release occurs once.  Only runs over the same clients add up: a client of one partition can have the samples of many
    clients of another partition.  An entry of an old ledger does not name the clients and therefore has a separate list.

    Parameters
    ----------
    releases : iterable of fnlkit.artifacts.ledger.Release
    data : str
        Checksum of the data set.

    Raises
    ------
    InputError
        If an entry was not written by fnlkit.
    """
    out: dict[str, list[Sums]] = {}
    for release in {release.id: release for release in releases if release.updates and release.data == data}.values():
        try:
            sums = Sums(**(release.updates or {}))
        except TypeError as error:
            raise InputError(
                f"the ledger contains protected updates of another form ({error}); name another with `ledger`"
            ) from error
        out.setdefault(release.clients or release.id, []).append(sums)
    return out


def other_partitions(groups: Sequence[Sequence[Sums]]) -> str:
    """Return sentences about runs over other clients, or "" if there are none.

    They contain the cost of each partition and the reason why the costs are not added.

    Parameters
    ----------
    groups : sequence of lists of Sums
        One list for each other partition, as in `find_sums`.
    """
    if not groups:
        return ""
    prices = "; ".join(
        "{} rounds ({:.4g}, {:g})-DP ({})".format(*(sum(s.rounds for s in group), *together(group), neighbors(group)))
        for group in groups
    )
    return (
        f"Over other clients of these samples, listed separately: {prices}. They are not added, because a bound for a client "
        "does not apply to the clients of another partition, which can have the same samples."
    )


def describe_total_cost(releases: "list[Release]", made: "Release", path: str) -> str:
    """Return sentences about the total cost in a ledger, including a new run.

    Parameters
    ----------
    releases : list of fnlkit.artifacts.ledger.Release
    made : fnlkit.artifacts.ledger.Release
    path : str
        Name of the ledger in the sentences.
    """
    groups = find_sums(releases, made.data)
    ours = groups.pop(made.clients)
    epsilon, delta = together(ours)
    rounds = sum(sums.rounds for sums in ours)
    text = f"{rounds} rounds of protected updates in the ledger {path}: ({epsilon:.4g}, {delta:g})-DP per client in total"
    text += f" ({neighbors(ours)})"
    return " ".join(filter(None, [f"{text}.", other_partitions(list(groups.values()))]))


def cost_of_run(run: "Run") -> dict[str, Any]:
    """Return the cost of a run's protected updates; {} for unprotected updates.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run

    Returns
    -------
    dict
        update_clip, update_noise, update_rounds, update_epsilon, update_delta, update_statement (sentences).
    """
    protection = run.meta.get("protection")
    if not protection:
        return {}
    sums, epsilon, delta = Sums(**protection["sums"]), protection["epsilon"], protection["delta"]
    return {
        "update_clip": sums.clip,
        "update_noise": sums.noise,
        "update_rounds": sums.rounds,
        "update_epsilon": epsilon,
        "update_delta": delta,
        "update_statement": describe_protection(sums, epsilon, delta, hidden=bool(run.meta.get("privacy_key"))),
    }


def describe_protection(sums: Sums, epsilon: float, delta: float, *, hidden: bool = True) -> str:
    """Return sentences about the protected data, the privacy cost, the attacker model and the limits.

    Parameters
    ----------
    sums : Sums
    epsilon, delta : float
    hidden : bool
        Whether the noise depends on a privacy key; False for simulations, whose noise depends on the seed.
    """
    source = (
        "The noise depends on a secret key that is not part of the run: a reader of the key file can remove the noise."
        if hidden
        else "The noise depends on the run's seed and can be removed with it: this run only simulates protection."
    )
    drawn = {
        "fixed": f"{sums.cohort:g} of {sums.clients} clients, drawn without replacement",
        "poisson": f"each of {sums.clients} clients with probability {sums.cohort / sums.clients:.3g}",
    }[sums.sampling]
    return (
        f"{sums.rounds} rounds of {drawn}: updates clipped to norm {sums.clip:g}, with noise of {sums.noise:g} times that on "
        f"the sum. ({epsilon:.4g}, {delta:g})-DP for all data of one client ({neighbors([sums])}) if only the models "
        "are published. Not covered: the participants of a round, which are in metrics and run; scores on samples of "
        "clients; and the mean and spread of images that clients sent before the first round. The server is trusted with "
        f"single updates. {source}"
    )

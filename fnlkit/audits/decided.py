"""Decisions of a review of one client, read from a table."""

from dataclasses import dataclass

import numpy as np

from fnlkit.audits.designs import Design


@dataclass(frozen=True, slots=True)
class Decisions:
    """A review of one client's samples.

    Attributes
    ----------
    client : int
    positions : int64 (d,)
        Decided samples.
    label : (d, ...)
        Their new labels, of the type of the given labels; -1, or NaN of a number, for a sample to drop.
    suspect : bool (d,)
        Whether a decided sample belongs to the most suspicious samples and not to the random sample.
    who : list of str
        Reviewers.
    digest : str
        SHA-256 of the table.
    unsure : int64 (u,)
        Samples that a reviewer viewed without a decision; they keep their labels and stay open.
    rows : int64 (l,)
        Positions of all samples in the table.
    rows_suspect : bool (l,)
        As `suspect`.
    strata : pair of int64 arrays
        Samples that the suspects of the table represent, and all other samples of the client without an earlier decision.
    design : fnlkit.audits.designs.Design or None
        Plan of a review with a guarantee: the suspects were drawn at random from the candidates.
    """

    client: int
    positions: np.ndarray
    label: np.ndarray
    suspect: np.ndarray
    who: list[str]
    digest: str
    unsure: np.ndarray
    rows: np.ndarray
    rows_suspect: np.ndarray
    strata: tuple[np.ndarray, np.ndarray]
    design: Design | None = None

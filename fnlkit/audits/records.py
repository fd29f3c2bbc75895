"""Records of an audit: results of each site, as `fnlkit audit --json` prints them.

All shares and levels are fractions from 0 to 1, and all ranges are 95 % intervals.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.artifacts.records import OMIT_NONE
from fnlkit.estimators.intervals import wilson


@dataclass(frozen=True, slots=True)
class Skill:
    """Skill of predictions at a site.

    Attributes
    ----------
    agreement, chance : float
        Share of the labels that equal the prediction, and the share expected by chance.
    kappa, low, high : float
        Agreement beyond chance as a share of the largest possible (Cohen's kappa), with its range.
    """

    agreement: float
    chance: float
    kappa: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ClassSkill:
    """Share of the labels of a class that the models of the other sites predict.

    Attributes
    ----------
    name : str
        Class.
    samples : int
    share, low, high : float
        The share with its range.
    """

    name: str = field(metadata={"key": "class"})
    samples: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """A column of a table that differs at a site.

    Attributes
    ----------
    column : int
        Number of the column.
    kind : str
        "units", "offset" or "missing" (constant).
    factor : float or None
        Spread of the values divided by the spread at the other sites; None for a constant column.
    name : str or None
        Name of the column.
    """

    column: int
    kind: str
    factor: float | None
    name: str | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True, slots=True)
class InputDifference:
    """Difference of a site's inputs from those of the other sites.

    Attributes
    ----------
    differ : bool
    common : bool
        Most sites differ, so that no site is the reference.
    auc, auc_after : float
        AUC of a linear classifier that recognizes the site, before and after the chosen change of the inputs.
    columns : list of ColumnDifference
    undone : bool
        The labels were judged after the difference was undone.
    equal_features : bool
        The features by which the models judge labels do not differ.
    words : list of str
        Names of the difference.
    """

    differ: bool
    common: bool
    auc: float
    auc_after: float
    columns: list[ColumnDifference]
    undone: bool
    equal_features: bool
    words: list[str]


@dataclass(frozen=True, slots=True)
class Confusion:
    """Samples of a true class that have another label.

    Attributes
    ----------
    true, given : str
        Classes.
    samples : float
        Expected number of samples.
    share, low, high : float
        Share of the true class, with its range.
    supported : bool or None
        Mistakes of the models cannot explain the confusion. None in files of earlier versions.
    """

    true: str
    given: str
    samples: float
    share: float
    low: float
    high: float
    supported: bool | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True, slots=True)
class ClassErrors:
    """Wrong labels of a true class with more confusions than at the other sites.

    Attributes
    ----------
    true : str
        Class.
    given : list of str
        Classes of the wrong labels that are more frequent than at the other sites.
    samples : float
        Expected number of wrong labels.
    share, low, high : float
        Share of the true class, with its range.
    """

    true: str
    given: list[str]
    samples: float
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteAudit:
    """Results of an audit for a site.

    Attributes
    ----------
    client : int
    site : str
        Name.
    samples : int
    level : float or None
        Share of wrong labels. None if mistakes of the model cannot be separated.
    low, high : float
        Range of the level.
    p : float or None
        p-value, with Holm's correction, of the test that the site is noisier than the others, or has more of a confusion if
        only this is reported. None without a model.
    judge : str or None
        Models that judged the labels: "others", "own" (of the site itself) or None.
    contradicted : bool
        The model of the site itself supports labels that the models of the other sites contradict.
    separable : bool
        Mistakes of the models can be told from wrong labels.
    unseen : float
        Share of the labels that no model judges.
    noisier : bool
        Wrong labels are reported.
    skill : dict of str to Skill
        By model: "others" and "own".
    skill_by_class : list of ClassSkill
    inputs : InputDifference
    shares_differ : bool
        The class shares differ from those of the other sites.
    only_here : list of str
        Classes that no other site has.
    confused : list of Confusion
    classes : list of ClassErrors
    matrix : list of list of float, or None
        Expected numbers of samples by true and given class (C, C). None if the models of the others did not judge.
    detectors : dict of str to int
        Number of samples that each detector flags.
    agreed : list of int
        Numbers of samples by the number of detectors that flag them.
    missing : list of str
        Classes without samples.
    balance : float
        Share of the largest class.
    largest : str
        Largest class.
    copies, near_copies, far, unlabeled : int or None
        Numbers of samples: copies and near copies within the site, far from all others, without a label. None: not counted.
    finding : str
        See fnlkit.audits.server.verdict.find_verdict.
    words, next : list of str
        Findings, and the next steps, as texts.
    withheld : list of str or None
        Classes of too few samples, which an audit from sums leaves out. None in other audits.
    """

    client: int
    site: str
    samples: int
    level: float | None
    low: float
    high: float
    p: float | None
    judge: str | None
    contradicted: bool
    separable: bool
    unseen: float
    noisier: bool
    skill: dict[str, Skill]
    skill_by_class: list[ClassSkill]
    inputs: InputDifference
    shares_differ: bool
    only_here: list[str]
    confused: list[Confusion]
    classes: list[ClassErrors]
    matrix: list[list[float]] | None
    detectors: dict[str, int] = field(default_factory=dict)
    agreed: list[int] = field(default_factory=list)
    missing: list[str]
    balance: float
    largest: str
    copies: int | None = None
    near_copies: int | None = None
    far: int | None = None
    unlabeled: int | None = None
    finding: str = ""
    words: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    withheld: list[str] | None = field(default=None, metadata=OMIT_NONE)


# A model has skill if its agreement with the labels exceeds chance by this share of the possible excess (Cohen's kappa).
SKILL = 0.3


def skill_of(table: ArrayLike) -> Skill:
    """Measure whether predictions are better than chance, from counts by predicted class and given label (C, C)."""
    table = np.asarray(table, np.float64)
    total = max(1.0, table.sum())
    share, chance = table.trace() / total, float(table.sum(1) @ table.sum(0)) / total**2
    chance = min(chance, 1.0)
    low, high = wilson(table.trace(), total)
    kappa, low, high = ((value - chance) / max(1e-9, 1 - chance) for value in (share, low, high))
    return Skill(agreement=float(share), chance=float(chance), kappa=float(kappa), low=float(low), high=float(high))

"""Records of an audit of labels that are no classes, as `fnlkit audit --json` prints them.

All shares and levels are fractions from 0 to 1, and all ranges are 95 % intervals.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LabelSkill:
    """Skill of the models for a label, as in fnlkit.audits.tasks.model.skills.

    Attributes
    ----------
    others, own : float
        Of the models of the other sites, and of the model of the site itself.
    """

    others: float
    own: float


@dataclass(frozen=True, slots=True)
class LabelAudit:
    """Results of an audit for a label of a site.

    Attributes
    ----------
    label : str
    judge : str or None
        Model that judged the label: "others", "own" or None.
    level : float or None
        Share of wrong labels. None if no model judges.
    low, high, p : float
    noisier : bool
    skill : LabelSkill
    differs : bool
        The models of the other sites do not apply.
    """

    label: str
    judge: str | None
    level: float | None
    low: float
    high: float
    p: float
    noisier: bool
    skill: LabelSkill
    differs: bool


@dataclass(frozen=True, slots=True)
class PresentLabelAudit(LabelAudit):
    """Results of an audit for a label that a sample has or lacks.

    Attributes
    ----------
    missing : float or None
        Share of the confident positives that lack the label. None without such samples.
    """

    missing: float | None


@dataclass(frozen=True, slots=True)
class TaskSite:
    """Results of an audit for a site.

    Attributes
    ----------
    client : int
    site : str
        Name.
    samples : int
    labels : list of LabelAudit
    low, high : float
        Means over the labels.
    level : float or None
        Mean over the labels. None if a label has none.
    p : float
        Smallest one of the labels.
    noisier : bool
    judge : str or None
        Model of the first judged label.
    unlabeled : int
        Number of samples without a label.
    line : list of float or None
        Scale and offset of the targets, for the task regression.
    finding : str
    words, next : list of str
        Findings, and the next steps, as texts.
    """

    client: int
    site: str
    samples: int
    labels: list[PresentLabelAudit | LabelAudit]
    low: float
    high: float
    level: float | None
    p: float
    noisier: bool
    judge: str | None
    unlabeled: int
    line: list[float] | None
    finding: str = ""
    words: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)

"""The audit from sums over real sites at the server."""

import math
from collections import Counter
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.names import REAL_SITES
from fnlkit.audits import messages, private, report
from fnlkit.audits.audit import digest, traffic_of
from fnlkit.audits.changes import possible
from fnlkit.audits.server import conclusion, plausibility
from fnlkit.audits.server import private as noisy_sums
from fnlkit.audits.server.heads import make_heads
from fnlkit.audits.server.results import Names
from fnlkit.datasets import columns as features
from fnlkit.federated.server.admission import least_of
from fnlkit.sites.audit import FIRST, NOISY_FIRST, NOISY_SECOND, SCATTERED, SECOND, scale_of, sends
from fnlkit.sites.project import FEWEST, Task
from fnlkit.sites.site.audit import judge, judge_with_noise, summarize, summarize_with_noise


def run(remote: Any, task: Task) -> dict[str, Any]:
    """Run an audit: its results as plain values for JSON.

    A site without sums, or whose sums no data have, is lost before the classifiers are computed.  A site without counts is lost
    after it: its sums are in the classifiers of the others.

    Parameters
    ----------
    remote : fnlkit.sites.server.remote.Remote
    task : fnlkit.sites.project.Task

    Raises
    ------
    WorkStopped
        If too few sites remain.
    """
    about, scale = task.project, scale_of(task.project)
    noise: dict[str, Any] = {} if about.sums_epsilon is None else {"epsilon": about.sums_epsilon, "delta": about.sums_delta}
    classes, changes = len(about.classes), possible(about.kind, tuple(about.shape))
    of_inputs = about.kind == "image", math.prod(about.shape)
    declared, least = sends(task), max(FEWEST, least_of(task.settings.min_replies, about.sites))

    def impossible(k: int, arrays: dict[str, np.ndarray]) -> str:
        if noise:
            return noisy_sums.impossible(arrays, classes, about.max_samples, **noise)
        arrays["withheld"] = arrays["withheld"].astype(bool)
        return plausibility.impossible(arrays, classes, about.max_samples, messages.described_columns(*of_inputs))

    first, second = ({name: declared[name] for name in names}
                     for names in ((NOISY_FIRST, NOISY_SECOND) if noise else (FIRST, SECOND)))  # fmt: skip
    functions = (summarize_with_noise, judge_with_noise) if noise else (summarize, judge)
    firsts = remote.ask_all(0, functions[0], remote.present, first, impossible)
    if noise and firsts:  # sums of different numbers of features cannot be added
        size = Counter(arrays["sums"].shape[1] for arrays in firsts.values()).most_common(1)[0][0]
        for k in [k for k, arrays in firsts.items() if arrays["sums"].shape[1] != size]:
            remote.lose(k, f"its sums have {firsts.pop(k)['sums'].shape[1]} features, and those of the other sites {size}")
    remote.must_remain(len(firsts), least)
    parts = list(firsts.values())
    if noise:
        heads = noisy_sums.make_head(parts, **noise, scale=scale)
    else:
        heads = make_heads(parts, scale)
    sent = {name: torch.from_numpy(np.asarray(values)) for name, values in heads.items() if name not in ("mean", "std")}
    scatter = {name: values for name, values in sent.items() if name in SCATTERED and not noise}
    broadcast = {name: values for name, values in sent.items() if name not in scatter}
    size = heads["coefficients"].shape[-1]

    def implausible(k: int, arrays: dict[str, np.ndarray]) -> str:
        if noise:
            return noisy_sums.implausible(arrays, classes, about.max_samples, size, **noise)
        side = min(int(heads["compared"]), messages.described_features(*of_inputs))
        return plausibility.implausible(arrays, firsts[k], len(changes), side)

    seconds = remote.ask_all(1, functions[1], list(firsts), second, implausible, broadcast, scatter)
    remote.must_remain(len(seconds), least)
    replied = np.array([k in seconds for k in firsts])
    parts = [part for part, both in zip(parts, replied, strict=True) if both]
    replies = [seconds[k] for k in firsts if k in seconds]
    covers = [about.names[k] for k in firsts if k in seconds]
    columns = features.features(about.columns) if about.columns else None
    named = Names(covers, list(about.classes), columns)
    if noise:
        rows, T, _ = noisy_sums.conclude(parts, replies, **noise, named=named)
    else:
        heads = {name: values[replied] if name in SCATTERED else values for name, values in heads.items()}
        rows, T = conclusion.conclude(parts, heads, replies, changes=changes, named=named)
    facts = report.facts_of(rows, REAL_SITES, list(about.classes), traffic_of(parts, replies), declared)
    if noise:
        facts |= {"range": private.RANGE, "privacy": noise, "mode": private.describe_mode(**noise, size=size)}
    end = {"order": [row.site for row in rows], "transition": T.tolist(), "features": None, "probabilities": None}
    return facts | {"covers": covers, "digest": digest(rows)} | end

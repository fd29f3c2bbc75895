"""Add an estimate to a federation and optionally relabel the flagged samples."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.estimators.judgment import PREFIX

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation


def add_judgment(
    federation: "Federation",
    arrays: dict[str, Any],
    *,
    relabel: bool = False,
    provenance: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
) -> "Federation":
    """Add an estimate's arrays to a federation; they replace any earlier estimate.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    arrays : dict of str to ndarray
        From `fnlkit.estimators.estimate`.
    relabel : bool
        Give every flagged training sample of a client its suggested label.  Held-out labels do not change, so that no model
        is measured on suggestions.  The judged labels are saved as ``estimate_judged_label``. The first relabeling also
        saves them as ``received``, which later steps pass on: these are the original labels, however often samples are
        relabeled.  The achieved noise in the file is measured again.
    provenance : dict, optional
        The record of the command.
    facts : dict, optional
        Metadata of the estimate (`fnlkit.estimators.run_estimator`), saved as ``estimate`` in the file's metadata.
    """
    extra = {name: values for name, values in federation.extra.items() if not name.startswith(PREFIX)} | arrays
    meta = {name: value for name, value in federation.meta.items() if name != "estimate"}
    if facts is not None:
        meta["estimate"] = facts
    if provenance is not None:
        meta["provenance"] = [*meta.get("provenance", []), provenance]
    judged = replace(federation, extra=extra, meta=meta)
    if relabel:
        before = np.array(federation.given, np.int64)
        extra[f"{PREFIX}judged_label"] = before
        extra.setdefault("received", before)
        wanted = np.array(arrays[f"{PREFIX}flagged"], bool)
        wanted[np.concatenate([np.zeros(0, np.int64), *federation.held_out])] = False
        judged.given = np.where(wanted, arrays[f"{PREFIX}suggested_label"], before)
        if judged.noise_client_level is not None and judged.true is not None:
            judged.noise_client_level = judged.wrong_share()
        if "noise_achieved_transition" in extra and judged.true is not None:
            extra["noise_achieved_transition"] = judged.achieved_transition()
    judged.check()
    return judged

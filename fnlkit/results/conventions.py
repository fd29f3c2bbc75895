"""The conventions of a run in a line for a paper."""

from collections.abc import Sequence
from typing import Any


def conventions_line(
    steps: Sequence[dict[str, Any]],
    *,
    wrong_share: float | None = None,
    tested: bool = True,
    verified: bool = True,
    default: str = "",
) -> str:
    """Write the split, noise, training and score of a run in one line, in the order of the commands.

    Parameters
    ----------
    steps : sequence of dict
        The run's ``meta["provenance"]``.
    wrong_share : float in [0, 1] or None
        Achieved share of wrong labels, if true labels are known.
    tested : bool
        True if the score is on the data set's test samples; False if on held-out samples with their given labels.
    verified : bool
        False if the true labels of the test samples are unknown.
    default : str
        Returned if `steps` has no training.

    Examples
    --------
    >>> steps = [{"command": "inject-noise", "parameters": {"noise": "symmetric(eta=0.4)"}}]
    >>> steps += [{"command": "train", "seed": 1, "parameters": {"method": "flr"}}]
    >>> conventions_line(steps, wrong_share=0.39)
    'symmetric(eta=0.4) (0.390 of the labels wrong); flr; accuracy on the test split, true labels, last round; seed 1'
    """
    parts, noisy = [], False
    for step in steps:
        how, command = step.get("parameters") or {}, step.get("command")
        if command == "partition":
            over = f" over {how['clients']} clients" if how.get("clients") else ""
            parts += [f"{how.get('dataset')}{over} by {how.get('scheme')}"]
            parts[-1] += " of the noisy labels" if noisy else f", labels {how.get('labels', 'auto')}"
            parts[-1] += f", holdout {how['holdout']}" if how.get("holdout") else ""
        elif command == "inject-noise":
            noisy = True
            parts += [str(how.get("noise"))]
        elif command in ("correct", "consensus", "review import") or how.get("apply") == "relabel":
            parts += [f"labels changed by {command}"]
    if noisy and wrong_share is not None:
        parts[-1] += f" ({wrong_share:.3f} of the labels wrong)"
    train = next((step for step in reversed(steps) if step.get("command") == "train"), None)
    if train is None:
        return default
    how = train.get("parameters") or {}
    names = "loss optimizer aggregator model mixup rounds fraction epochs batch_size lr momentum".split()
    parts += [", ".join([str(how.get("method")), *(f"{name}={how[name]}" for name in names if name in how)])]
    if how.get("aggregator") == "mean":
        parts[-1] = parts[-1].replace("aggregator=mean", "mean weighted by samples")
    score = "accuracy on the test split, true labels"
    if not (tested and verified):
        score = f"agreement with the given labels of {'the test split' if tested else 'held-out samples'}"
    choice = how.get("select", "last")
    parts += [f"{score}, {'last round' if choice == 'last' else f'round chosen by {choice}'}"]
    return "; ".join([*parts, f"seed {train.get('seed')}"])

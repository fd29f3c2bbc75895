"""What a method yields after each communication round."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fnlkit.federated.client.network import Model


class Round(NamedTuple):
    """Result of a communication round, yielded by a method.

    Attributes
    ----------
    model : Model
        The global model after the round.
    stage : str
    replies : Replies
        Replies of the cohort (`replies.ids`).
    report : dict
        Numbers and arrays to record: scalars go to metrics.jsonl, arrays into the run.
    """

    model: "Model"
    stage: str
    replies: object
    report: dict[str, Any] = {}

"""Changes of a site's inputs that an audit tries, to make them like those of the other sites."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TURNS = {"": "", "mirrored": "h", "upside down": "v", "rotated by 180 degrees": "hv", "rotated by 90 degrees": "r",
         "rotated by 270 degrees": "rhv"}  # fmt: skip
TONES = {"": 0, "intensities look inverted": -1, "contrast or brightness differs": 1}


@dataclass
class Change:
    """A change of a site's inputs, to make them like those of the other sites.

    Attributes
    ----------
    turn : str
        A key of TURNS; vectors have none.
    tone : str
        A key of TONES; of vectors, "columns" replaces the differing columns.
    """

    turn: str = ""
    tone: str = ""

    def __bool__(self):
        return bool(self.turn or self.tone)

    @property
    def words(self) -> list[Any]:
        """The difference of the inputs that the change undoes, as a list of texts."""
        turn = f"images look {self.turn}" if self.turn else ""
        return [text for text in (self.tone if self.tone != "columns" else "", turn) if text]


def possible(kind: str, shape: Sequence[int]) -> list[Change]:
    """List the changes to compare for samples of a kind and a shape (H, W, channels), simplest first."""
    if kind != "image":
        return [Change(), Change(tone="columns")] if kind == "vector" else [Change()]
    turns = [turn for turn, moves in TURNS.items() if "r" not in moves or shape[0] == shape[1]]
    changes = [Change(turn, tone) for tone in TONES for turn in turns]
    return sorted(changes, key=lambda change: bool(change.turn) + bool(change.tone))

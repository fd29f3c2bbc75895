"""What leaves a client, declared: each method's module has a dict SENDS of reply name -> Sent."""

from typing import NamedTuple

_ITEM = {"float64": 8, "float32": 4, "int64": 8}


class Sent(NamedTuple):
    """One declared reply.

    Attributes
    ----------
    what : str
        In words.
    when : str
        How often.
    shape : tuple of int or str
        Sides; ``"C"`` classes, ``"n"`` samples of the client, ``"d"`` features of the network,
        ``"public"`` samples of the public set.
    dtype : str
    summed : bool
        The server looks at the sum over a round's clients alone, so that single replies may stay hidden (secure
        aggregation).
    """

    what: str
    when: str
    shape: tuple = ()
    dtype: str = "float64"
    summed: bool = False

    def sides(self, *, classes, samples, width=0, public=0):
        """Return the shape in numbers."""
        return tuple({"C": classes, "n": samples, "d": width, "public": public}.get(side, side) for side in self.shape)

    def __str__(self):
        return f"{self.what}; {self.when}; {self.size}"

    @property
    def size(self):
        """The bytes a time, in words: ``8 bytes`` or ``8 x C x C bytes``."""
        return " x ".join(map(str, (_ITEM[self.dtype], *self.shape))) + " bytes"


# Of any training, whatever the method.
TRAINING = {
    "weights": Sent("the local models", "every round", ("P",), "float32"),
    "moments": Sent("number, sums and squares of its samples' values by feature or channel, for one scale", "once", (3, "d")),
    "held_out": Sent("its number of agreements and sum of losses on what it holds out", "at each measurement", (2,)),
}

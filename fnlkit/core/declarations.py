"""Declarations: the replies, needs and capabilities of a component, attached to the function or class.

    @method(sends={"fit": Sent("mean loss", "every round", (), low=0)}, loss="own", cite="Xu 2022")
    def mine(clients, model, opt, select, *, rounds):
        ...

Callers read the declaration and never compare names.  A component without a declaration has the defaults of `Declaration`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.core.parameters import select_accepted
from fnlkit.core.retired import refuse_retired

Component = TypeVar("Component")


_ITEM = {"float64": 8, "float32": 4, "int64": 8}
# Largest entry without a declared range: the sum of thousands of squares still fits float32.
LARGEST = 1e15
# Inputs of a run that a method can need.
NEEDS = {
    "embedding": 'an embedding of the samples at the clients, rows["input/embedding"] (n, D)',
    "head": "a linear head on the network, from its features to the embedding",
    "pair": "two networks instead of one (fnlkit.models.pair)",
    "public": "samples that belong to no client",
    "samples": 'samples that belong to several clients; their numbers at the clients, rows["input/sample"] (n,)',
    "folds": 'trainings of several methods without a fold of each client\'s samples, rows["input/fold"] (n,)',
    "secret": "secret draws for label privacy",
    "pooled": "all samples on a single client (a reference)",
    "own": 'an evaluation of each client\'s state["own"] (a reference)',
    "probe": "a head that is trained before fine-tuning (warmup_head)",
    "linear": "a linear network, whose weights the method computes",
    "fourier": "random Fourier features beside the inputs of a small data set, unless a network is given",
    "truth": 'the true labels at the clients, rows["input/true"] (n,) (a reference)',
}
LOSSES = ("own", "usual", "open")


class Sent(NamedTuple):
    """Declaration of one reply.

    Attributes
    ----------
    what : str
        Description.
    when : str
        Frequency.
    shape : tuple of int or str, or None
        Sides; ``"C"`` classes, ``"n"`` samples of the client, ``"d"`` features of the network, ``"d(d+1)/2"``, ``"P"`` weights,
        ``"public"`` samples of the public set; any other text allows any number, unless the round states it (`sides`).  None
        declares only the name: replies of one round must then agree in shape and type.
    dtype : str
        A reply of another type is converted if no entry can change (an integer to a float), otherwise rejected.
    summed : bool
        True if the server uses only the sum over the clients of a round, so that single replies can stay hidden (secure
        aggregation).
    sum_only : bool
        True if a single reply reveals samples: a round returns and stores only the sum over the clients, as one entry (1, ...).
        Real sites mask the sums, and refuse a method that also sends others (`only_sums`).  Requires `summed`.
    low, high : float, str or nested tuple of float
        Smallest and largest allowed entry: a number, a text as in `shape`, or numbers that broadcast to the shape.
    total : int or str, optional
        Sum of all entries: a number, or a text as in `shape`.  Default: any sum.
    fewest : int
        A client with fewer samples replies zeros.
    """

    what: str
    when: str = ""
    shape: tuple[int | str, ...] | None = None
    dtype: str = "float64"
    summed: bool = False
    sum_only: bool = False
    low: float | str | tuple[Any, ...] = -LARGEST
    high: float | str | tuple[Any, ...] = LARGEST
    total: int | str | None = None
    fewest: int = 0

    @classmethod
    def share(cls, what: str, when: str, shape: tuple[int | str, ...] = (), **more: Any) -> "Sent":
        """Declare numbers from 0 to 1."""
        return cls(what, when, shape, low=0, high=1, **more)

    @classmethod
    def counts(cls, what: str, when: str, shape: tuple[int | str, ...] = (), **more: Any) -> "Sent":
        """Declare numbers of samples: integers from 0 to the client's samples."""
        return cls(what, when, shape, "int64", low=0, high="n", **more)

    def sides(self, **known: Any) -> tuple[int | str, ...]:
        """Resolve the shape in numbers.

        Parameters
        ----------
        **known : int
            classes, samples, width, public, size, and open sides by their text; a side without a number stays a text.
        """
        return tuple(number(side, known) for side in self.shape or ())

    def __str__(self):
        return "; ".join(text for text in (self.revealing, self.when, self.size) if text)

    @property
    def revealing(self) -> str:
        """Describe a reply, with a warning if a single reply reveals samples."""
        return f"{self.what}: a single reply reveals samples" if self.sum_only else self.what

    @property
    def size(self) -> str:
        """Format the size of a reply: ``8 bytes`` or ``8 x C x C bytes``; empty if only the name is declared."""
        if self.shape is None:
            return ""
        return " x ".join(map(str, (_ITEM[self.dtype], *self.shape))) + " bytes"


_LETTERS = {"C": "classes", "n": "samples", "d": "width", "d(d+1)/2": "triangle", "public": "public", "P": "size"}


def number(side: object, known: Mapping[str, Any]) -> Any:
    """Look up a side or a limit of a `Sent`: a number, or a text in `known`."""
    return known.get(_LETTERS.get(side, side), side) if isinstance(side, str) else side


def only_sums(sends: Mapping[str, Sent] | None) -> bool:
    """Whether all replies are sums (`Sent.sum_only`), which secure aggregation can mask together."""
    return bool(sends) and all(sent.sum_only for sent in (sends or {}).values())


def parse_replies(sends: Mapping[str, Sent | str] | Iterable[str]) -> dict[str, Sent]:
    """Read declared replies as {name: Sent}; names without a Sent are declared by name alone.

    Parameters
    ----------
    sends : dict of str to Sent or str, or iterable of str
    """
    pairs = sends.items() if isinstance(sends, Mapping) else dict.fromkeys(sends, "").items()
    return {name: reply if isinstance(reply, Sent) else Sent(str(reply) or name) for name, reply in pairs}


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Properties of a component that callers rely on.

    A function in a field is called with the component's parameters that the function names (`resolve`).

    Attributes
    ----------
    cite : str
        First author and year of the publication, ``Xu 2022``.
    sends : mapping of str to Sent, or None
        Replies of clients in addition to ``weights``.  None: nothing is declared.
    loss : "own", "usual" or "open"
        Of a method.  ``own``: the method defines the loss of all local training.  ``usual``: the method that it runs as `usual`
        decides.  ``open``: local training uses the loss of the run (--loss).
    needs : tuple of str, or function
        Inputs that a run must provide, names in `NEEDS`.
    schedule : function or None
        (rounds, parameters of the method) -> the part of the schedule that depends on `rounds`.  A run can be resumed with
        another budget only if this part is unchanged.
    releases : mapping of str to (str or None)
        Replies that reveal label statistics, each with the reply that contains its epsilon; None if labels are not randomized.
    label_epsilon : function or None
        (classes, parameters of the method) -> epsilon of the released labels, None if they are not randomized.
    sums : bool
        Of an aggregator: the weighted sum of the models is sufficient.
    cohort : (int, int), or function
        Of an aggregator: the smallest cohort that it accepts, and the smallest that can outvote a bad client.
    reads : tuple of str
        Of a loss: fields of Fit that must be True.
    before : function or None
        Of a loss: (keywords of the loss) -> client steps before local training.
    check : function or None
        Of a loss: (classes, keywords of the loss) raises InputError if these do not fit each other.
    compiled : callable or None
        Of a client step: the same step with compiled functions, equal up to rounding, which the engine fused runs instead.
    scheduled : tuple of str
        Of a client step or a loss: parameters that change by round, from 0 to the method's argument of the same name.  Real
        sites permit these values.
    choices : mapping of str to tuple
        Of a client step: parameters that the method sets, with the values that real sites permit.
    fused_kernel : str
        Of a loss or a gradient term: name of the compiled form in the engine fused.
    """

    cite: str = ""
    sends: Mapping[str, Any] | None = None
    loss: str = "open"
    needs: tuple[str, ...] | Callable[..., tuple[str, ...]] = ()
    schedule: Callable[..., Any] | None = None
    releases: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    label_epsilon: Callable[..., Any] | None = None
    sums: bool = False
    cohort: tuple[int, int] | Callable[..., tuple[int, int]] = (1, 1)
    reads: tuple[str, ...] = ()
    before: Callable[..., Any] | None = None
    check: Callable[..., Any] | None = None
    compiled: Callable[..., Any] | None = None
    scheduled: tuple[str, ...] = ()
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: MappingProxyType({}))
    fused_kernel: str = ""

    def __post_init__(self):
        if self.loss not in LOSSES:
            raise InputError(f"loss={self.loss!r} is unknown; write {', '.join(LOSSES[:-1])} or {LOSSES[-1]}")
        if not callable(self.needs):
            _must_be_known(self.needs)
        if self.sends is not None:
            object.__setattr__(self, "sends", MappingProxyType(parse_replies(self.sends)))
        object.__setattr__(self, "releases", MappingProxyType(dict(self.releases)))

    @property
    def year(self) -> int | None:
        """Year of the publication, or None."""
        return int(self.cite[-4:]) if self.cite[-4:].isdigit() else None

    def find_needs(self, parameters: Mapping[str, Any]) -> set[str]:
        """Collect the inputs that a run must provide for these parameters."""
        needs = resolve(self.needs, parameters)
        _must_be_known(needs)
        return set(needs)


def _must_be_known(needs):
    for name in (needs,) if isinstance(needs, str) else needs:
        if name not in NEEDS or isinstance(needs, str):
            known = ", ".join(NEEDS)
            raise InputError(f"`needs` contains {name!r}{nearest(name, NEEDS)}; write a tuple of: {known}")


def resolve(value: Any, parameters: Mapping[str, Any]) -> Any:
    """Resolve a declared value; a function is called with the parameters that it names."""
    return value(**select_accepted(value, parameters)) if callable(value) else value


def declaration(component: object) -> Declaration:
    """Read the Declaration of a component: a function, with bound parameters or without, a class or an object."""
    attached = getattr(getattr(component, "func", component), "declaration", None)
    return attached if isinstance(attached, Declaration) else Declaration()


def declare(**properties: Any) -> Callable[[Component], Component]:
    """Attach properties to a component (a decorator).

    Parameters
    ----------
    **properties
        Fields of `Declaration`.  Fields that the component already declares and that are not named here are kept.

    Raises
    ------
    InputError
        For an unknown property or value.

    Examples
    --------
    >>> @declare(cite="Yin 2018", cohort=(1, 3))
    ... def median(stacked, weights): return stacked.median(0).values
    >>> declaration(median).cite
    'Yin 2018'
    """
    known = [entry.name for entry in fields(Declaration)]
    for name in properties:
        refuse_retired("declaration", name)
        if name not in known:
            raise InputError(f"a declaration has no {name!r}{nearest(name, known)}; it has: {list_names(known)}")

    def attach(component: Component) -> Component:
        setattr(component, "declaration", replace(declaration(component), **properties))  # noqa: B010
        return component

    return attach


def method(*, sends: Mapping[str, Sent | str] | Iterable[str] = (), **properties: Any) -> Callable[[Component], Component]:
    """Declare a method (a decorator); without arguments, clients send only ``weights``.

    Parameters
    ----------
    sends : dict of str to Sent or str, or iterable of str
        Replies of clients in addition to ``weights``; all other replies are rejected.
    **properties
        ``loss``, ``needs``, ``schedule``, ``releases``, ``label_epsilon`` and ``cite`` of `Declaration`.

    Examples
    --------
    >>> @method(sends={"fit": Sent("mean loss", "every round", (), low=0)}, cite="Xu 2022")
    ... def mine(clients, model, opt, select, *, rounds): yield
    >>> mine.declaration.sends["fit"].size, mine.declaration.year
    ('8 bytes', 2022)
    """
    return declare(sends=sends, **properties)

"""What decides a run's result, as the command line says it."""

from dataclasses import dataclass
from typing import Annotated

from fnlkit.client.inputs import PRECISIONS, Augment
from fnlkit.errors import InputError
from fnlkit.parameters import Range
from fnlkit.spec import bind, parse


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run's result, as the command line says it.

    Attributes
    ----------
    method, optimizer, aggregator, selector, model, augment : str
        Specs; see `fnlkit methods`.  augment is ``none``, ``auto`` or ``augment(pad=4, flip=true, cutout=16)``.
    rounds : int
        Budget in rounds of FedAvg: rounds x fraction x N client-rounds.
    fraction : float in (0, 1]
    epochs, batch_size : int
    lr, momentum, weight_decay, decay, clip : float
        decay multiplies the learning rate after each round; clip bounds the gradient's norm, 0 does not.
    local : "sgd" or "adam"
    eval_every : int
        In rounds of FedAvg.
    seed : int
    precision : "fp32", "fp64", "tf32" or "bf16"
        The last two compute layers coarsely on float32 weights; only there does speed cost accuracy.
    keep : float in (0, 1]
        The least share of a cohort whose replies must be usable.
    memorization : bool
        Record, at each evaluation, what the global and the cohort's local models memorize (needs the true labels).
    """

    method: str = "fedavg"
    optimizer: str = "fedavg"
    aggregator: str = "mean"
    selector: str = "uniform"
    model: str = "auto"
    augment: str = "auto"
    rounds: int = 50
    fraction: float = 0.1
    epochs: int = 5
    batch_size: int = 10
    lr: float = 0.03
    momentum: float = 0.5
    weight_decay: float = 0.0
    decay: float = 1.0
    clip: float = 0.0
    local: str = "sgd"
    eval_every: int = 1
    seed: int = 0
    precision: str = "fp32"
    keep: float = 0.5
    memorization: bool = False

    def __post_init__(self):
        for name, low, high in (
            ("rounds", 1, None),
            ("fraction", 0, 1),
            ("epochs", 1, None),
            ("batch_size", 1, None),
            ("lr", 0, None),
            ("momentum", 0, 1),
            ("weight_decay", 0, None),
            ("decay", 0, None),
            ("clip", 0, None),
            ("eval_every", 1, None),
            ("seed", 0, None),
            ("keep", 0, 1),
        ):
            value = getattr(self, name)
            if not (value >= low and (high is None or value <= high)) or (name in ("fraction", "lr") and value <= 0):
                limits = f"at least {low}" if high is None else f"from {low} to {high}"
                raise InputError(f"--{name.replace('_', '-')} is {value}; write a number {limits}")
        for name, words in (("local", ("sgd", "adam")), ("precision", tuple(PRECISIONS))):
            if getattr(self, name) not in words:
                raise InputError(f"--{name} is {getattr(self, name)!r}; write {' or '.join(words)}")


def augmentation(spec, dataset):
    """Return the Augment that a spec names; ``auto`` is crop(4) and flip on colour images from 32 pixels on, else none."""
    spec = parse(spec, "--augment")
    if spec.name == "none":
        return Augment()
    if spec.name == "auto":
        colour = dataset.kind == "image" and dataset.x_train.shape[-1] == 3 and dataset.x_train.shape[1] >= 32
        return Augment(pad=4, flip=True) if colour else Augment()
    if spec.name != "augment":
        raise InputError(f"--augment: unknown {spec.name!r}; write none, auto or augment(pad=4, flip=true, cutout=16)")
    if dataset.kind != "image":
        raise InputError(f"--augment {spec}: {dataset.name} has no images; write --augment none")

    def build(*, pad: Annotated[int, Range()] = 4, flip=True, cutout: Annotated[int, Range()] = 0):
        return Augment(pad, flip, cutout)

    return bind(spec, build, "augmentation")()

"""The value of `--augment` for a data set's images."""

from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Natural
from fnlkit.core.spec import Spec, bind, parse
from fnlkit.federated.client.inputs import Augment


def augmentation(spec: str, kind: str, shape: tuple[int, ...]) -> Augment:
    """Read the augmentation of a spec for samples of a kind and shape.

    ``auto`` is crop(4) and flip on color images of 32 pixels or more, and no augmentation otherwise.

    Parameters
    ----------
    spec : str
    kind : str
        Kind of the samples, as in fnlkit.datasets.Dataset.
    shape : tuple of int
        Shape of a sample.

    Raises
    ------
    InputError
        If the name or a parameter is unknown, or the samples are no images.
    """
    spec = parse(spec, "`augment`")
    if spec == Spec("none"):
        return Augment()
    if spec == Spec("auto"):
        color = kind == "image" and shape[-1] == 3 and shape[0] >= 32
        return Augment(pad=4, flip=True) if color else Augment()
    if spec.name != "augment":
        raise InputError(
            f": unknown {str(spec)!r}; write none, auto or augment(pad=4, flip=true, cutout=16)", parameter="augment"
        )
    if kind != "image":
        raise InputError(f"{spec}: the data set has no images; write `augment='none'`", parameter="augment")

    def build(*, pad: Natural = 4, flip: bool = True, cutout: Natural = 0) -> Augment:
        return Augment(pad, flip, cutout)

    return bind(spec, build, "augmentation")()

"""Import torchvision, even if it was compiled for another version of torch."""

import functools
import importlib
import importlib.util
import os
import pathlib
import sys
from typing import Any

from fnlkit.core.errors import InputError, how_to_install

_declared: list[object] = []  # torch removes declarations of a Library when the Library is freed


def _folder(package):
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(str(how_to_install(package)))
    return pathlib.Path(next(iter(spec.submodule_search_locations)))


def _loads(files):
    """Whether this torch can load a compiled library."""
    import torch

    for file in files:
        try:
            torch.ops.load_library(str(file))
            return True
        except OSError:
            pass
    return False


@functools.cache
def torchvision() -> Any:
    """Import the module torchvision, with working Python parts for any installed torch.

    torchvision refuses to import if its compiled operators cannot be loaded, for example a CUDA build with a CPU-only torch.
    In that case the two operators that the import requires are declared without an implementation: data sets, transforms and
    networks work, box operators and image decoding do not.  With a matching torch no change is made.

    Raises
    ------
    InputError
        If torchvision is not installed.
    """
    if "torchvision" not in sys.modules:
        folder = _folder("torchvision")
        import torch

        if not _loads([*folder.glob("_C*.so"), *folder.glob("_C*.pyd"), *folder.glob("_C*.dll")]):
            if not hasattr(torch.ops.torchvision, "nms"):
                library = torch.library.Library("torchvision", "DEF")
                library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                _declared.append(library)
    return importlib.import_module("torchvision")


def weights_file(place: str) -> dict[str, Any]:
    """Read the state dictionary of a local file without any download.

    Parameters
    ----------
    place : str
        A path (.pt, .pth with tensors only, or .safetensors), or a library's download address, which selects the file of
        that name in torch's cache folder.

    Returns
    -------
    dict of str to torch.Tensor
        On the CPU.

    Raises
    ------
    InputError
        If the file is missing, with the place that was searched, or if it contains anything but tensors.
    """
    import torch

    path = pathlib.Path(place).expanduser()
    if "://" in str(place):
        path = pathlib.Path(torch.hub.get_dir()) / "checkpoints" / os.path.basename(str(place))
        if not path.is_file():
            raise InputError(f"no weights at {path}; fetch {place} and put it there, or write weights=PATH")
    if not path.is_file():
        raise InputError(f"no weights at {path}; write weights=PATH of an existing file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(f"cannot read weights from {path}: damaged, or more than tensors in it") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise InputError(f"{path} is no state dictionary: expected names with tensors")
    return state


def load_weights(module: Any, state: dict[str, Any], place: str) -> None:
    """Load a state dictionary that was read from `place`.

    Raises
    ------
    InputError
        If names or shapes are not those of the module.
    """
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"weights {place} do not fit the network: {str(error).splitlines()[-1].strip()}") from error

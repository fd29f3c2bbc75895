"""Backbones: checksums of their weights, features of new samples, and features that are computed once and kept in a cache."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts import large
from fnlkit.artifacts.saving import private_folder
from fnlkit.artifacts.stored import Rows, Stored
from fnlkit.core.errors import InputError
from fnlkit.core.spec import Spec, bind, digests, find, parse
from fnlkit.datasets.places import cache_folder
from fnlkit.encoders.embed import BACKBONES, View, embed_parts

if TYPE_CHECKING:
    import torch

    from fnlkit.models.encoder import Encoder

_FEW_TEXTS = 256  # fewer texts are encoded again instead of being kept


# ---- weights
def weights_of(spec: str | Spec, kind: str = "image") -> str:
    """Identify a backbone by the SHA-256 of its weights' names and values, and of the code of a user's backbone."""
    total = hashlib.sha256()

    def forward(module: Any, *what: Any, **options: Any) -> np.ndarray:
        state = what[0] if kind == "text" else module.state_dict()
        for name, values in sorted(state.items()):
            values = np.ascontiguousarray(values.numpy() if hasattr(values, "numpy") else values)
            total.update(f"\0{name} {values.dtype} {values.shape}\0".encode())
            total.update(values.tobytes())
        return np.zeros((0, 1), np.float32)

    _call(spec, kind, forward)
    for digest in digests([str(spec)]).values():  # after the call, which refuses code that a file names
        total.update(digest.encode())
    return total.hexdigest()


def open_encoder(spec: str | Spec) -> "Encoder":
    """Open a backbone for images as a module that maps images (B, C, H, W) in [0, 1] to features (B, d)."""
    from fnlkit.models.encoder import Encoder

    encoders: list[Encoder] = []

    def forward(module: "torch.nn.Module", *what: Any, **options: Any) -> np.ndarray:
        encoders.append(Encoder(module, *what, **options))
        return np.zeros((0, 1), np.float32)

    _call(spec, "image", forward)
    if not encoders:
        raise InputError(f"backbone {spec}: calls no network, so that it cannot be exported or trained")
    return encoders[0].eval()


def _call(spec, kind, forward):
    spec = parse(spec, "`backbone`")
    x = np.array([""], object) if kind == "text" else np.zeros((1, *((32, 32, 3) if kind == "image" else (16000,))), np.uint8)
    bind(spec, find(spec, BACKBONES, "backbone"), "backbone")(View(x, x, kind, 16000), forward)


def check_weights(spec: str, kind: str, expected: str, what: str) -> None:
    """Raise InputError if the weights on this machine differ from those of a run.

    Parameters
    ----------
    spec, kind : str
    expected : str
        As returned by `weights_of`.
    what : str
        Owner of the expected weights in the message, such as ``the run``.
    """
    if (actual := weights_of(spec, kind)) != expected:
        raise InputError(
            f"backbone {spec}: the weights here (SHA-256 {actual[:12]}) are not those of {what} ({expected[:12]}); install the "
            "weights it was made with"
        )


def encode_texts(texts: Sequence[str], spec: str, weights: str = "") -> np.ndarray:
    """Encode texts as features (n, d); many texts are encoded once and stored in the cache folder.

    Parameters
    ----------
    texts : sequence of n str
    spec : str
        Of the backbone.
    weights : str
        Checksum that the weights must have.  Default: any weights.
    """
    if weights:
        check_weights(spec, "text", weights, "the run")
    x = np.array([*texts, ""], object)[: len(texts)]
    if len(texts) < _FEW_TEXTS:
        return np.asarray(embed_parts(View(x, x, "text"), {"new": x}, spec, device="cpu")["new"])
    digest = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
    return np.asarray(cached_parts({"text": x}, Encoding(spec, weights, "text"), checksum=digest, device="cpu")["text"])


@dataclass(frozen=True)
class Encoding:
    """A backbone with the form of the samples that it reads.

    Attributes
    ----------
    spec, weights : str
        Of the backbone; checksum of the weights.
    kind : "image", "text" or "wave"
    shape : tuple of int
        Of a sample.
    sample_rate : int
    """

    spec: str
    weights: str
    kind: str
    shape: tuple[int, ...] = ()
    sample_rate: int = 0

    @classmethod
    def of(cls, features: Mapping[str, Any]) -> "Encoding":
        """Read the Encoding of a run's metadata ``features``.

        Raises
        ------
        InputError
            If an earlier version of fnlkit wrote them.
        """
        if "weights" not in features:
            raise InputError("the run was trained on features of a file by an earlier fnlkit; train it again with `backbone`")
        names = ("backbone", "weights", "kind", "shape", "sample_rate")
        spec, weights, kind, shape, rate = (features[name] for name in names)
        return cls(spec, weights, kind, tuple(shape), rate)

    def encode(self, x: np.ndarray | Rows, *, device: str = "auto") -> np.ndarray:
        """Encode new samples (n, ...) as features (n, d), after a check of the weights."""
        check_weights(self.spec, self.kind, self.weights, "the run")
        data = View(x, x, self.kind, self.sample_rate)
        return np.asarray(embed_parts(data, {"new": x}, self.spec, device=device)["new"])


def cached_parts(
    parts: Mapping[str, np.ndarray | Rows],
    encoding: Encoding,
    *,
    checksum: str,
    device: str = "auto",
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, np.ndarray | Stored]:
    """Encode several arrays once; the features are stored in the cache folder, in ``features``.

    An interrupted computation continues with the next batch.  A finished one is renamed to the final name.

    Parameters
    ----------
    parts : dict of str to array (n, ...)
    encoding : Encoding
    checksum : str
        Identifies the content of `parts`.
    device : str
    progress : callable (done, total), optional
    """
    from filelock import FileLock  # takes 17 ms, which commands without a backbone save

    data = View(next(iter(parts.values())), next(iter(parts.values())), encoding.kind, encoding.sample_rate)
    key = [checksum, encoding.spec, encoding.weights, _device_type(device), *parts]
    folder = cache_folder() / "features" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        private_folder(folder.parent)
        lock = FileLock(f"{folder}.lock")
        lock.acquire()
    except OSError:  # the cache folder is not writable
        return embed_parts(data, parts, encoding.spec, device=device, progress=progress)
    try:
        if not folder.is_dir():
            part = folder.with_suffix(".part")
            embedded = embed_parts(data, parts, encoding.spec, device=device, progress=progress, place=part)
            shapes = {}
            for name, rows in embedded.items():
                shapes[name] = list(rows.shape)
                if not isinstance(rows, Stored):
                    (part / name).mkdir(parents=True, exist_ok=True)
                    (part / name / "rows").write_bytes(np.ascontiguousarray(rows, np.float32).tobytes())
            (part / "shapes.json").write_text(json.dumps(shapes))
            os.replace(part, folder)
        shapes = json.loads((folder / "shapes.json").read_text())
        return {name: _open_rows(folder / name / "rows", tuple(shape)) for name, shape in shapes.items()}
    finally:
        lock.release()


def _device_type(device):
    import torch

    from fnlkit.models.devices import device_of

    return torch.device(device_of(device)).type


def _open_rows(path, shape):
    """Open the rows of a file; above 64 MiB they are read on access."""
    if int(np.prod(shape)) * 4 <= large.SMALL:
        return np.fromfile(path, np.float32).reshape(shape)
    return Stored(os.open(path, os.O_RDONLY), 0, np.float32, shape)

"""Read .pt files without executing code, and without torch.

The instructions of the pickle are counted and compared with those of plain data first.  Python's unpickler then runs them with
inert names: nothing is imported.  `torch.load(weights_only=True)` would also accept expanded and sparse tensors.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fnlkit.artifacts.safe import npz as files_npz
from fnlkit.artifacts.safe import zip as files_zip
from fnlkit.core.errors import InputError

if TYPE_CHECKING:
    import torch

MAX_MEMBERS = 8_192
MAX_PICKLE = 64 * 2**20
MAX_INSTRUCTIONS = 250_000
MAX_NODES, MAX_DEPTH = 10_000, 4
_RECORD = re.compile(
    r"[A-Za-z0-9_.-]+/(data\.pkl|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id|data/\d{1,6})"
)
# torch.NAMEStorage -> (torch dtype, NumPy dtype with the same bytes).
STORAGES = {
    "Double": ("float64", "<f8"), "Float": ("float32", "<f4"), "Half": ("float16", "<f2"), "BFloat16": ("bfloat16", "<u2"),
    "Long": ("int64", "<i8"), "Int": ("int32", "<i4"), "Short": ("int16", "<i2"), "Char": ("int8", "|i1"),
    "Byte": ("uint8", "|u1"), "Bool": ("bool", "|b1"),
}  # fmt: skip
DTYPES = dict(STORAGES.values())
_INSTRUCTIONS = frozenset(
    "PROTO STOP MARK NONE NEWTRUE NEWFALSE BINFLOAT BININT BININT1 BININT2 LONG1 BINUNICODE BINBYTES SHORT_BINBYTES EMPTY_DICT "
    "EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 BINPUT LONG_BINPUT BINGET LONG_BINGET SETITEM SETITEMS APPEND APPENDS "
    "GLOBAL BINPERSID REDUCE BUILD".split()
)


class Tensor(NamedTuple):
    """A dense tensor in C order: name of its dtype, shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @classmethod
    def of(cls, values: Any) -> Tensor:
        """Wrap an array or a torch tensor, without a copy if it is contiguous; ValueError for other types."""
        if isinstance(values, cls):
            return values
        if hasattr(values, "untyped_storage"):
            import torch

            dtype = str(values.dtype).removeprefix("torch.")
            if values.layout is not torch.strided or dtype not in DTYPES:
                raise ValueError(f"{values.dtype}, {values.layout}; a .pt can contain dense numbers and booleans")
            flat = values.detach().cpu().contiguous().reshape(-1)
            return cls(dtype, tuple(values.shape), memoryview(flat.view(torch.uint8).numpy() if flat.numel() else b""))
        values = np.asarray(values)
        if values.dtype.name not in DTYPES:
            raise ValueError(f"{values.dtype}; a .pt can contain {', '.join(sorted(DTYPES))}")
        plain = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        return cls(values.dtype.name, values.shape, plain.reshape(-1).view(np.uint8).data if plain.size else memoryview(b""))

    def array(self) -> np.ndarray:
        """Convert the numbers to a new NumPy array; bfloat16 becomes float32."""
        flat = np.frombuffer(self.data, DTYPES[self.dtype])
        files_npz.check_booleans(flat)
        if self.dtype == "bfloat16":
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
        return flat.reshape(self.shape).copy()

    def to_torch(self) -> torch.Tensor:
        """Convert to a new torch tensor on the CPU."""
        import torch

        return torch.from_numpy(self.array()).to(getattr(torch, self.dtype))


class _Dict(dict[Any, Any]):
    __slots__ = ()

    def __setstate__(self, state):  # version metadata of a state_dict
        pass


class _Numpy:
    """An array or a dtype of NumPy, which a pickle creates first and fills later."""

    __slots__ = ("code", "value")

    def __init__(self, code=None):
        self.code, self.value = code, None

    def __setstate__(self, state):
        if self.code:
            self.value = np.dtype(state[1] + self.code)
            return
        _, shape, kind, fortran, data = state
        if not files_npz.is_plain(kind.value) or not isinstance(data, bytes) or not _is_shape(shape):
            raise InputError("an array that contains objects; save plain numbers")
        value = np.frombuffer(data, kind.value).reshape(shape, order="F" if fortran is True else "C")
        files_npz.check_booleans(value)
        self.value = value.astype(value.dtype.newbyteorder("="))


class _Name(NamedTuple):
    """Name of a class or function, which is never imported.  A call gives plain data or is refused."""

    name: str

    def __call__(self, *arguments):
        if self.name == "torch._utils _rebuild_tensor_v2":
            return _tensor(*arguments)
        if self.name == "torch._utils _rebuild_parameter" and isinstance(arguments[0], Tensor):
            return arguments[0]
        if self.name == "collections OrderedDict" and not arguments:
            return _Dict()
        if self.name == "_codecs encode" and arguments[1] == "latin1":
            return arguments[0].encode("latin1")
        if self.name in ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"):
            return _Numpy()
        if self.name == "numpy dtype" and re.fullmatch(r"b1|i[1248]|u[1248]|f[248]", arguments[0]):
            return _Numpy(arguments[0])
        raise InputError(f"the structure calls {ascii(self.name[:60])}, which plain tensors do not need; no code was executed")


def _is_shape(sides):
    return isinstance(sides, tuple) and len(sides) <= 16 and all(type(side) is int and side >= 0 for side in sides)


def _tensor(storage, offset, shape, stride, gradient, hooks):
    """Make the Tensor of a storage; it must own exactly the bytes of its shape, in C order."""
    if not isinstance(storage, Tensor) or not _is_shape(shape) or not _is_shape(stride) or hooks != {}:
        raise InputError("a tensor that is not plain; save plain clones")
    dense = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    # The stride of a dimension of length 0 or 1 is irrelevant.
    in_order = all(got == want or side < 2 for got, want, side in zip(stride, dense, shape, strict=True))
    (count,) = storage.shape
    if offset != 0 or count != math.prod(shape) or not (in_order or count == 0):
        raise InputError(f"a tensor of shape {shape} over {count:,} numbers: a view; save contiguous clones")
    return storage._replace(shape=shape)


class _Unpickler(pickle.Unpickler):
    """Python's unpickler over the records {name: bytes} of a .pt; each storage can be used once."""

    def __init__(self, records):
        super().__init__(io.BytesIO(records["data.pkl"]))
        self.records = records

    def find_class(self, module, name):
        return _Name(f"{module} {name}")

    def persistent_load(self, description):
        mark, kind, key, _, count = description
        name = kind.name.removeprefix("torch ").removesuffix("Storage")
        if mark != "storage" or name not in STORAGES:
            raise InputError(f"a storage of kind {ascii(name[:60])}; expected numbers or booleans")
        data = self.records.pop(f"data/{key}", None)
        if data is None:
            raise InputError(f"storage {ascii(str(key)[:20])} is missing, or two tensors share it: save clones")
        dtype, numpy = STORAGES[name]
        if type(count) is not int or len(data) != count * np.dtype(numpy).itemsize:
            raise InputError(f"storage {key} has {len(data):,} bytes, not the {count} numbers it declares")
        return Tensor(dtype, (count,), data)


def load(raw: memoryview, members: list[files_zip.Member]) -> Any:
    """Load the value in a .pt: dicts, lists, plain values, and `Tensor` for tensors."""
    matches = [_RECORD.fullmatch(member.name) for member in members]
    if not all(matches) or len({member.name.partition("/")[0] for member in members}) != 1:
        raise InputError("members that do not belong in a .pt of plain tensors (TorchScript is refused)")
    records = {match[1]: files_zip.content(raw, member) for match, member in zip(matches, members, strict=True) if match}
    if bytes(records.get("byteorder", b"little")) != b"little":
        raise InputError("stored on a big-endian machine; save it again on a little-endian one")
    return run(records)


def run(records: dict[str, memoryview]) -> Any:
    """Build the value of the instructions in the record ``data.pkl``."""
    program, last = bytes(records["data.pkl"]), -1
    if len(program) > MAX_PICKLE:
        raise InputError(f"{len(program):,} bytes of structure; expected at most {MAX_PICKLE:,}")
    for count, (opcode, argument, at) in enumerate(pickletools.genops(program)):
        if opcode.name not in _INSTRUCTIONS:
            raise InputError(f"the structure uses instruction {opcode.name}, which plain tensors do not need")
        if count > MAX_INSTRUCTIONS or (opcode.name == "LONG_BINPUT" and int(argument or 0) > MAX_INSTRUCTIONS):
            raise InputError(f"more than {MAX_INSTRUCTIONS:,} instructions of structure; store arrays")
        last = at or 0
    if last + 1 != len(program):
        raise InputError("damaged: the structure continues after its end")
    return _Unpickler(records).load()


def leaves(tree: Any, limit: int) -> dict[str, np.ndarray]:
    """Collect arrays, tensors and lists of whole numbers in a value by path, joined by ``/``; at most `limit` bytes."""
    arrays, todo, nodes = {}, [("", tree, 0)], 0
    while todo:
        path, node, depth = todo.pop()
        nodes += 1
        if nodes > MAX_NODES or depth > MAX_DEPTH:
            raise InputError(f"more than {MAX_NODES:,} values or deeper than {MAX_DEPTH} levels; store arrays, not lists")
        if isinstance(node, list) and node and all(type(value) is int for value in node):
            if not all(-(2**63) <= value < 2**63 for value in node):
                raise InputError("a list with an integer of more than 63 bits and a sign")
            arrays[path or "array"] = np.array(node, np.int64)
        elif isinstance(node, Tensor):
            arrays[path or "array"] = node.array()
        elif isinstance(node, _Numpy) and isinstance(node.value, np.ndarray):
            arrays[path or "array"] = node.value
        elif isinstance(node, dict) and all(type(key) in (str, int) for key in node):
            todo += [(f"{path}/{key}" if path else str(key), value, depth + 1) for key, value in node.items()]
        elif type(node) in (list, tuple):
            todo += [(f"{path}/{i}" if path else str(i), value, depth + 1) for i, value in enumerate(node)]
        elif type(node) not in (bool, int, float, str, bytes, type(None)):
            raise InputError(f"{path or 'the value'} is not a plain value or tensor")
        if path in arrays or not path and arrays:
            limit -= arrays[path or "array"].nbytes
        if limit < 0:
            raise InputError("more numbers than the file can contain: save clones")
    if not arrays:
        raise InputError("contains no tensor and no array")
    return arrays

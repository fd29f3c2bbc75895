"""Read and write .pt files without executing code.

Python's unpickler reads the structure with the instructions of plain data; names become inert objects.

torch.load with weights_only=True still accepts expanded tensors, sparse tensors with indices out of range, compressed members
and deeply nested values.  Here, each tensor must have exactly the bytes that its shape needs, before torch reads the file.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts.safe import zip as files_zip
from fnlkit.errors import InputError

if TYPE_CHECKING:
    import torch

    from fnlkit.artifacts.safe.zip import Member


MAX_MEMBERS = 8_192
MAX_PICKLE = 64 * 2**20
MAX_INSTRUCTIONS = 250_000
MAX_STACK = 20_000  # torch.save writes up to a thousand entries at a time
MAX_NODES, MAX_DEPTH = 10_000, 4
_RECORD = re.compile(
    r"[A-Za-z0-9_.-]+/(data\.pkl|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id|data/\d{1,6})"
)
# torch storage class -> (torch dtype, NumPy dtype with the same bytes).
_STORAGES = {
    "DoubleStorage": ("float64", "<f8"),
    "FloatStorage": ("float32", "<f4"),
    "HalfStorage": ("float16", "<f2"),
    "BFloat16Storage": ("bfloat16", "<u2"),
    "LongStorage": ("int64", "<i8"),
    "IntStorage": ("int32", "<i4"),
    "ShortStorage": ("int16", "<i2"),
    "CharStorage": ("int8", "|i1"),
    "ByteStorage": ("uint8", "|u1"),
    "BoolStorage": ("bool", "|b1"),
}
_WRITABLE = {dtype for dtype, _ in _STORAGES.values()}
_NUMPY_TYPE = re.compile(r"b1|i[1248]|u[1248]|f[248]")


@dataclass
class _Global:
    """Name of a class or function, which is never imported."""

    name: str


@dataclass
class _Storage:
    dtype: str
    numpy: str
    data: memoryview


@dataclass
class _Tensor:
    storage: _Storage
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return self.storage.dtype

    def array(self) -> np.ndarray:
        """Return the numbers as a NumPy array; bfloat16 becomes float32."""
        flat = np.frombuffer(self.storage.data, self.storage.numpy)
        if self.storage.dtype == "bool" and flat.size and flat.view(np.uint8).max() > 1:
            raise InputError("a boolean is neither 0 nor 1")
        if self.storage.dtype == "bfloat16":
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
        return flat.reshape(self.shape).copy()


@dataclass
class _Type:
    code: str
    order: str = "<"


@dataclass
class _Array:
    value: np.ndarray | None = None


@dataclass
class _Members:
    root: str
    records: dict[str, Member]
    used: set[str] = field(default_factory=set)


def symbols(members: Sequence[Member]) -> tuple[Any, dict[str, Any]]:
    """Return the tree of values, tensors and arrays in a .pt, and the leaves by path.

    Parameters
    ----------
    members : list of fnlkit.artifacts.safe.zip.Member

    Returns
    -------
    tree : dict, list, ...
    leaves : dict of str to object
        Path, joined by ``/``, to tensor, array, number, text or None.

    Raises
    ------
    InputError
        For any instruction, class or shape that plain data does not need.
    """
    records = {}
    for member in members:
        match = _RECORD.fullmatch(member.name)
        if not match:
            raise InputError(f"member {member.name!r} does not belong in a .pt of plain tensors (TorchScript is refused)")
        records[match.group(1)] = member
    roots = {member.name.partition("/")[0] for member in members}
    if len(roots) != 1 or "data.pkl" not in records or len(records) != len(members):
        raise InputError("a zip that torch.save did not write")
    if "byteorder" in records and bytes(records["byteorder"].data) != b"little":
        raise InputError("stored on a big-endian machine; save it again on a little-endian one")
    program = records["data.pkl"].data
    if len(program) > MAX_PICKLE:
        raise InputError(f"{len(program):,} bytes of structure; expected at most {MAX_PICKLE:,}")
    tree = _Reader(bytes(program), _Members(roots.pop(), records)).read_tree()
    return tree, _leaves(tree)


def _leaves(tree):
    out, todo, nodes = {}, [("", tree, 0)], 0
    while todo:
        path, node, depth = todo.pop()
        nodes += 1
        if nodes > MAX_NODES or depth > MAX_DEPTH:
            raise InputError(f"more than {MAX_NODES:,} values or deeper than {MAX_DEPTH} levels; store arrays, not lists")
        if isinstance(node, dict):
            for key, value in node.items():
                if not isinstance(key, (str, int)) or isinstance(key, bool):
                    raise InputError("a dict with keys that are not texts")
                todo.append((f"{path}/{key}" if path else str(key), value, depth + 1))
        elif isinstance(node, list) and node and all(type(value) is int for value in node):
            out[path] = _Array(_whole(node))
        elif isinstance(node, (list, tuple)):
            todo += [(f"{path}/{i}" if path else str(i), value, depth + 1) for i, value in enumerate(node)]
        elif node is None or isinstance(node, (bool, int, float, str, bytes, _Tensor, _Array)):
            out[path] = node
        else:
            raise InputError(f"{path or 'the value'} is not a plain value or tensor")
    return out


def _whole(numbers):
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        raise InputError("a list with an integer of more than 63 bits and a sign") from None


_INSTRUCTIONS = (
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE"),
    *("TUPLE1", "TUPLE2", "TUPLE3", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "SETITEM", "SETITEMS"),
    *("APPEND", "APPENDS", "GLOBAL", "BINPERSID"),
)


def _count(instruction):
    """Return an instruction of the unpickler that stops at the limits."""

    def execute(reader):
        reader.executed += 1
        if reader.executed > MAX_INSTRUCTIONS or len(reader.stack) > MAX_STACK:
            raise InputError(f"more than {MAX_INSTRUCTIONS:,} instructions of structure, or too deep; store arrays")
        instruction(reader)

    return execute


def _code(name):
    return getattr(pickle, name)[0]


class _Reader(pickle._Unpickler):
    """Python's unpickler in Python, with the instructions of plain data.

    A name becomes a `_Global`, and a call or a state is given to `_call` and `_build`: no name is imported.  The unpickler
    in C has instructions that allocate the memory that a file claims.
    """

    def reduce(self):
        arguments = self.stack.pop()
        self.stack.append(_call(self.stack.pop(), arguments))

    def build(self):
        state = self.stack.pop()
        _build(self.stack[-1], state)

    dispatch = {code: _count(pickle._Unpickler.dispatch[code]) for code in map(_code, _INSTRUCTIONS)} | {
        pickle.REDUCE[0]: _count(reduce),
        pickle.BUILD[0]: _count(build),
    }

    def __init__(self, program, members):
        self.file, self.length, self.members, self.executed = io.BytesIO(program), len(program), members, 0
        super().__init__(self.file)

    def find_class(self, module, name):
        return _Global(f"{module} {name}")

    def persistent_load(self, description):
        return _storage(description, self.members)

    def read_tree(self):
        """Return the value that the instructions build."""
        try:
            tree = self.load()
        except KeyError as error:
            if error.args and isinstance(error.args[0], int):
                raise InputError(f"the structure uses instruction {error.args[0]}, which plain tensors do not need") from None
            raise
        if self.file.tell() != self.length or self.stack or self.metastack:
            raise InputError("damaged: the structure continues after its end")
        return tree


def _storage(description, members):
    mark, kind, key, _, count = description
    name = kind.name.removeprefix("torch ") if isinstance(kind, _Global) else ""
    if mark != "storage" or name not in _STORAGES:
        raise InputError(f"a storage of kind {ascii(name[:60])}; expected numbers or booleans")
    dtype, numpy = _STORAGES[name]
    record = members.records.get(f"data/{key}")
    if record is None:
        raise InputError(f"storage {ascii(str(key)[:20])} is missing")
    if not isinstance(count, int) or len(record.data) != count * np.dtype(numpy).itemsize:
        raise InputError(f"storage {key} has {len(record.data):,} bytes, not the {count} numbers it declares")
    if key in members.used:
        raise InputError(f"two tensors share storage {key}; save clones")
    members.used.add(key)
    return _Storage(dtype, numpy, record.data)


def _call(function, arguments):
    name = function.name if isinstance(function, _Global) else ""
    if name == "torch._utils _rebuild_tensor_v2":
        if len(arguments) != 6 or type(arguments[4]) is not bool or arguments[5] != {}:
            raise InputError("a tensor with hooks or metadata; save plain clones")
        storage, offset, shape, stride = arguments[:4]
        return _tensor(storage, offset, shape, stride)
    if name == "torch._utils _rebuild_parameter":
        if not isinstance(arguments[0], _Tensor):
            raise InputError("a parameter that is not a tensor")
        return arguments[0]
    if name == "collections OrderedDict":
        if arguments != ():
            raise InputError("an OrderedDict with arguments")
        return {}
    if name == "_codecs encode":
        data, coding = arguments
        if coding != "latin1":
            raise InputError("bytes in an unknown coding")
        return data.encode("latin1")
    if name in ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"):
        return _Array()
    if name == "numpy dtype":
        code = arguments[0]
        if not isinstance(code, str) or not _NUMPY_TYPE.fullmatch(code):
            raise InputError(f"an array of type {ascii(str(code)[:20])}; expected numbers or booleans")
        return _Type(code)
    raise InputError(f"the structure calls {ascii(name[:60])}, which plain tensors do not need; no code was executed")


def _tensor(storage, offset, shape, stride):
    if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(stride, tuple):
        raise InputError("a tensor that is not plain")
    if not all(type(number) is int and number >= 0 for number in (*shape, *stride)) or len(shape) > 16:
        raise InputError("a tensor with an invalid shape")
    expected = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    # The stride of a dimension of length 0 or 1 is irrelevant.
    contiguous = len(stride) == len(shape) and all(
        got == want or side < 2 for got, want, side in zip(stride, expected, shape, strict=True)
    )
    count = len(storage.data) // np.dtype(storage.numpy).itemsize
    if offset != 0 or count != math.prod(shape) or not (contiguous or count == 0):
        raise InputError(f"a tensor of shape {shape} over {count:,} numbers: a view; save contiguous clones")
    return _Tensor(storage, shape)


def _build(target, state):
    if isinstance(target, _Array) and target.value is None:
        _, shape, kind, fortran, data = state
        if not isinstance(kind, _Type) or not isinstance(data, bytes) or not isinstance(shape, tuple):
            raise InputError("an array that contains objects; save plain numbers")
        if not all(type(side) is int and side >= 0 for side in shape) or len(shape) > 16:
            raise InputError("an array with an invalid shape")
        dtype = np.dtype(kind.order + kind.code)
        if math.prod(shape) * dtype.itemsize != len(data):
            raise InputError(f"an array of shape {shape} with {len(data):,} bytes")
        flat = np.frombuffer(data, dtype)
        if dtype.kind == "b" and flat.size and flat.view(np.uint8).max() > 1:
            raise InputError("a boolean is neither 0 nor 1")
        value = flat.reshape(shape, order="F" if fortran is True else "C")
        target.value = value.astype(dtype.newbyteorder("="))
    elif isinstance(target, _Type):
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise InputError("an array of unknown byte order")
        target.order = state[1]
    elif not isinstance(target, dict):  # ignore version metadata of a state_dict
        raise InputError("the structure sets attributes")


def header(tree: object) -> list[str]:
    """Return kind, meta text and SHA-256 of a tree in the format of fnlkit.

    InputError is raised for any other format.
    """
    if not isinstance(tree, dict) or set(tree) != {"kind", "meta", "sha256", "tensors"}:
        raise InputError("a .pt that fnlkit did not write (expected kind, meta, sha256 and tensors)")
    texts = [tree[key] for key in ("kind", "meta", "sha256")]
    if not all(isinstance(text, str) for text in texts):
        raise InputError("a .pt that fnlkit did not write (kind, meta and sha256 must be texts)")
    tensors = tree["tensors"]
    if not isinstance(tensors, dict) or not all(isinstance(value, _Tensor) for value in tensors.values()):
        raise InputError("a .pt that fnlkit did not write (tensors must be a dict of tensors)")
    return texts


def _torch():
    """Return torch, which only files with tensors need."""
    import torch

    return torch


def load_tensors(raw: memoryview, tree: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Load the tensors of a checked file on the CPU with torch.

    Parameters
    ----------
    raw : memoryview
    tree : dict
        The first return value of `symbols` after a successful call of `header`.
    """
    torch = _torch()
    for value in tree["tensors"].values():
        if value.storage.dtype == "bool":
            value.array()
    read = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)["tensors"]
    for name, value in tree["tensors"].items():
        got = read[name]
        if str(got.dtype) != f"torch.{value.storage.dtype}" or tuple(got.shape) != value.shape or not got.is_contiguous():
            raise InputError(f"tensor {name!r} does not match its description")
    if len(read) != len(tree["tensors"]):
        raise InputError("the tensors do not match their description")
    return dict(read)


def foreign(leaves: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return the arrays among the leaves of a user's .pt by path, as NumPy arrays.

    Parameters
    ----------
    leaves : dict of str to object
        The second return value of `symbols`.
    """
    out = {}
    for path, value in leaves.items():
        if isinstance(value, _Tensor):
            out[path or "array"] = value.array()
        elif isinstance(value, _Array) and value.value is not None:
            out[path or "array"] = value.value
    if not out:
        raise InputError("contains no tensor and no array")
    return out


def tensors(arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Convert arrays or tensors to contiguous CPU tensors with separate storages.

    ValueError is raised for other types.  Contiguous vectors are not copied, because the labels and positions of a run have an
    entry for each sample.
    """
    torch = _torch()
    out, storages = {}, set()
    for name, value in arrays.items():
        if not isinstance(value, torch.Tensor):
            value = np.asarray(value)
            if value.dtype.name not in _WRITABLE:
                raise ValueError(f"array {name!r} is {value.dtype}; a .pt can contain {', '.join(sorted(_WRITABLE))}")
            value = torch.from_numpy(np.require(value, value.dtype.newbyteorder("="), ["C", "W"]))
        if value.layout != torch.strided or str(value.dtype).removeprefix("torch.") not in _WRITABLE:
            raise ValueError(
                f"tensor {name!r} is {value.dtype}, {value.layout}; a .pt can contain dense {', '.join(sorted(_WRITABLE))}"
            )
        # Equal bytes require equal object identities in the pickle: therefore, create a new name and a separate storage.
        value = value.detach().cpu()
        storage = value.untyped_storage()
        alone = value.ndim == 1 and value.stride() == (1,) and storage.nbytes() == value.nbytes
        if not alone or storage.data_ptr() in storages:
            value = value.clone(memory_format=torch.contiguous_format)
        storages.add(value.untyped_storage().data_ptr())
        out[str(name.encode(), "ascii")] = value
    return out


def raw_bytes(tensor: torch.Tensor | _Tensor) -> tuple[str, bytes | memoryview]:
    """Return the type name of a dense tensor, or of a tensor of `symbols`, and the bytes in C order."""
    if isinstance(tensor, _Tensor):
        return tensor.dtype, tensor.storage.data
    torch = _torch()
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return str(tensor.dtype).removeprefix("torch."), (flat.view(torch.uint8).numpy().data if flat.numel() else b"")


def encode(kind: str, text: str, digest: str, tensors: dict[str, torch.Tensor]) -> list[tuple[str, list[memoryview]]]:
    """Return the members of a .pt.

    These are the members that torch.save writes, except records that depend on the version of torch.
    """
    torch = _torch()
    fresh = [str(value.encode(), "utf-8") for value in (kind, text, digest)]
    buffer = io.BytesIO()
    torch.save(dict(zip(("kind", "meta", "sha256"), fresh, strict=True)) | {"tensors": tensors}, buffer)
    members = files_zip.members(buffer.getbuffer(), max_members=MAX_MEMBERS, max_bytes=files_zip.LIMIT)
    keep = re.compile(r"archive/(data\.pkl|byteorder|version|data/\d+)")
    return [(member.name, [member.data]) for member in members if keep.fullmatch(member.name)]

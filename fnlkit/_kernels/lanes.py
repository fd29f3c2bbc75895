"""Explicit vector operations, which do not depend on the compiler's automatic vectorization.

Rationale
---------
A row of class probabilities is too short for automatic vectorization, and loops that count, rank or compress the results
of comparisons are not vectorized at all.  Each of these operations is one instruction on a machine with 512-bit vectors;
LLVM splits it on machines with narrower vectors.  Masks are plain integers with bit i for lane i, so that counting and
searching are integer operations.

A vector is 64 bytes: 16 float32 or 8 float64.  Arrays are one-dimensional and contiguous.  Positions count elements.
Bounds are not checked: the caller must ensure that all positions are valid.
"""

import operator
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload, register_model

BYTES = 64


class Lanes(types.Type):
    """Type of a vector of `width` numbers."""

    def __init__(self, number):
        self.number = number
        self.width = BYTES * 8 // number.bitwidth
        super().__init__(name=f"Lanes({number})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes):
        number = manager.lookup(lanes.number).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(number, lanes.width))


_INT = ir.IntType(64)


def _bits(builder, mask):
    """Return the integer with the bits of a vector of booleans."""
    return builder.zext(builder.bitcast(mask, ir.IntType(mask.type.count)), _INT)


def _mask(builder, bits, width):
    """Return the vector of booleans with the bits of an integer."""
    return builder.bitcast(builder.trunc(bits, ir.IntType(width)), ir.VectorType(ir.IntType(1), width))


def _pointer(context, builder, kind, array, at, vector):
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), vector.as_pointer())


def _splat(builder, value, width):
    vector = ir.VectorType(value.type, width)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), zeros)


def _suffix(lanes):
    return f"v{lanes.width}f{lanes.number.bitwidth}"


@intrinsic
def load(typingctx: Any, array: Any, at: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the vector array[at : at + width]."""
    lanes = Lanes(array.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = context.get_value_type(lanes)
        pointer = _pointer(context, builder, array, args[0], args[1], vector)
        return builder.load(pointer, align=lanes.number.bitwidth // 8)

    return lanes(array, types.intp), codegen


@intrinsic
def load_some(typingctx: Any, array: Any, at: Any, bits: Any, other: Any) -> tuple[Any, Callable[..., Any]]:
    """Return array[at + i] in the lanes of `bits` and `other` in the remaining lanes.

    Memory of the remaining lanes is not read.
    """
    lanes = Lanes(array.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = context.get_value_type(lanes)
        pointer = _pointer(context, builder, array, args[0], args[1], vector)
        mask = _mask(builder, args[2], lanes.width)
        kind = ir.FunctionType(vector, [vector.as_pointer(), ir.IntType(32), mask.type, vector])
        name = f"llvm.masked.load.{_suffix(lanes)}.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        align = ir.Constant(ir.IntType(32), lanes.number.bitwidth // 8)
        return builder.call(function, [pointer, align, mask, _splat(builder, args[3], lanes.width)])

    return lanes(array, types.intp, types.int64, array.dtype), codegen


@intrinsic
def store(typingctx: Any, array: Any, at: Any, vector: Any) -> tuple[Any, Callable[..., Any]]:
    """Write all lanes to array[at : at + width]."""
    if vector != Lanes(array.dtype):
        raise TypingError(f"store: expected a vector of {array.dtype}, found {vector}")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, array, args[0], args[1], args[2].type)
        builder.store(args[2], pointer, align=vector.number.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@intrinsic
def splat(typingctx: Any, number: Any) -> tuple[Any, Callable[..., Any]]:
    """Return a vector with one number in all lanes."""
    lanes = Lanes(number)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _splat(builder, args[0], lanes.width)

    return lanes(number), codegen


def _binary(python_operator, emit):
    @intrinsic
    def operation(typingctx: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(builder, *args)

        return a(a, a), codegen

    @overload(python_operator, inline="always")
    def build(a, b):  # numba compares this signature with that of the lambda, so it has no annotations
        if isinstance(a, Lanes) and a == b:
            return lambda a, b: operation(a, b)


_CONTRACT = ("contract",)
_binary(operator.add, lambda builder, a, b: builder.fadd(a, b, flags=_CONTRACT))
_binary(operator.sub, lambda builder, a, b: builder.fsub(a, b, flags=_CONTRACT))
_binary(operator.mul, lambda builder, a, b: builder.fmul(a, b, flags=_CONTRACT))
_binary(operator.truediv, lambda builder, a, b: builder.fdiv(a, b))


def _comparison(name, how, ordered):
    @intrinsic
    def compare(typingctx: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit = builder.fcmp_ordered if ordered else builder.fcmp_unordered
            return _bits(builder, emit(how, *args))

        return types.int64(a, a), codegen

    compare.__name__ = name
    return compare


at_least = _comparison("at_least", ">=", True)
at_most = _comparison("at_most", "<=", True)
below = _comparison("below", "<", True)
equal = _comparison("equal", "==", True)
# True if a or b is NaN.
not_numbers = _comparison("not_numbers", "uno", False)


@intrinsic
def choose(typingctx: Any, bits: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
    """Return `a` in the lanes of `bits` and `b` in the remaining lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(_mask(builder, args[0], a.width), args[1], args[2])

    return a(types.int64, a, a), codegen


def _integers(builder, vector):
    """Return the bit patterns of a vector of numbers."""
    bits = 32 if isinstance(vector.type.element, ir.FloatType) else 64
    return builder.bitcast(vector, ir.VectorType(ir.IntType(bits), vector.type.count))


@intrinsic
def xor(typingctx: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the bits in which two vectors differ."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.xor(*(_integers(builder, arg) for arg in args)), args[0].type)

    return a(a, a), codegen


@intrinsic
def blend(typingctx: Any, pattern: Any, difference: Any, base: Any) -> tuple[Any, Callable[..., Any]]:
    """Return `base` with the bits of `difference` flipped in the selected lanes of `pattern`.

    Each lane of `pattern` has all bits set (selected) or no bit set.  With ``difference = xor(a, b)`` and ``base = b``
    the result is `a` in the selected lanes and `b` in the remaining lanes.  This is `choose` without a mask, for patterns
    that are loaded from memory.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pattern, difference, base = (_integers(builder, arg) for arg in args)
        return builder.bitcast(builder.xor(base, builder.and_(pattern, difference)), args[0].type)

    return base(base, base, base), codegen


@intrinsic
def or_xor(typingctx: Any, found: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
    """Return `found` with the bits set in which `a` and `b` differ."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found, a, b = (_integers(builder, arg) for arg in args)
        return builder.bitcast(builder.or_(found, builder.xor(a, b)), args[0].type)

    return found(found, found, found), codegen


@intrinsic
def with_bits(typingctx: Any, a: Any) -> tuple[Any, Callable[..., Any]]:
    """Return a mask of the lanes in which any bit is set."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pattern = _integers(builder, args[0])
        return _bits(builder, builder.icmp_unsigned("!=", pattern, ir.Constant(pattern.type, [0] * a.width)))

    return types.int64(a), codegen


@intrinsic
def larger(typingctx: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the larger of two vectors lane by lane; `b` in lanes with NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, a), codegen


@intrinsic
def smaller(typingctx: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the smaller of two vectors lane by lane; `b` in lanes with NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", *args), *args)

    return a(a, a), codegen


def _call(builder, name, result, args, fastmath=()):
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, args, fastmath=fastmath)


@intrinsic
def largest(typingctx: Any, a: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the largest lane; unspecified for a vector with NaN, which `not_numbers` finds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = context.get_value_type(a.number)
        # The flag is safe because callers discard the result if there is NaN. Without the flag each step costs four
        # instructions.
        return _call(builder, f"llvm.vector.reduce.fmax.{_suffix(a)}", number, [args[0]], ("nnan",))

    return a.number(a), codegen


@intrinsic
def smallest(typingctx: Any, a: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the smallest lane; unspecified for a vector with NaN, which `not_numbers` finds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = context.get_value_type(a.number)
        return _call(builder, f"llvm.vector.reduce.fmin.{_suffix(a)}", number, [args[0]], ("nnan",))

    return a.number(a), codegen


@intrinsic
def total(typingctx: Any, a: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the sum of all lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = context.get_value_type(a.number)
        zero = ir.Constant(number, -0.0)
        return _call(builder, f"llvm.vector.reduce.fadd.{_suffix(a)}", number, [zero, args[0]], ("reassoc",))

    return a.number(a), codegen


@intrinsic
def compress(typingctx: Any, a: Any, bits: Any) -> tuple[Any, Callable[..., Any]]:
    """Move the lanes of `bits` to the front; the lanes after them are unspecified."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mask = _mask(builder, args[1], a.width)
        undefined = ir.Constant(args[0].type, ir.Undefined)
        name = f"llvm.experimental.vector.compress.{_suffix(a)}"
        return _call(builder, name, args[0].type, [args[0], mask, undefined])

    return a(a, types.int64), codegen


@intrinsic
def count_bits(typingctx: Any, bits: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the number of lanes in a mask."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.int64), codegen


@intrinsic
def as_integer(typingctx: Any, number: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the bit pattern of a number; for numbers >= 0 the patterns have the same order as the numbers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.bitcast(args[0], ir.IntType(number.bitwidth)), _INT)

    return types.int64(number), codegen


@intrinsic
def as_number(typingctx: Any, pattern: Any, like: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the number with a bit pattern, in the type of `like`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.trunc(args[0], ir.IntType(like.bitwidth)), context.get_value_type(like))

    return like(types.int64, like), codegen


@intrinsic
def product(typingctx: Any, a: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the product of all lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = context.get_value_type(a.number)
        one = ir.Constant(number, 1.0)
        return _call(builder, f"llvm.vector.reduce.fmul.{_suffix(a)}", number, [one, args[0]], ("reassoc",))

    return a.number(a), codegen


def _layout(number):
    """Return integer type, mantissa bits and exponent bias of a floating-point type."""
    return (ir.IntType(32), 23, 127) if number.bitwidth == 32 else (ir.IntType(64), 52, 1023)


@intrinsic
def mantissas(typingctx: Any, a: Any) -> tuple[Any, Callable[..., Any]]:
    """Return each lane divided by a power of two, so that the result is in [1, 2); for positive normal numbers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer, bits, bias = _layout(a.number)
        vector = ir.VectorType(integer, a.width)
        pattern = builder.bitcast(args[0], vector)
        keep = ir.Constant(vector, [(1 << bits) - 1] * a.width)
        exponent = ir.Constant(vector, [bias << bits] * a.width)
        return builder.bitcast(builder.or_(builder.and_(pattern, keep), exponent), args[0].type)

    return a(a), codegen


@intrinsic
def exponents(typingctx: Any, a: Any) -> tuple[Any, Callable[..., Any]]:
    """Return, as numbers, the exponents of the powers of two that `mantissas` divides by."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer, bits, bias = _layout(a.number)
        vector = ir.VectorType(integer, a.width)
        shifted = builder.lshr(builder.bitcast(args[0], vector), ir.Constant(vector, [bits] * a.width))
        return builder.sitofp(builder.sub(shifted, ir.Constant(vector, [bias] * a.width)), args[0].type)

    return a(a), codegen


def _transpose(builder, rows):
    """Return the columns of square tiles as vectors: swap blocks of half the width, then a quarter, and so on.

    The vectors have a row of one tile, or the rows of several tiles one after the other.
    """
    width = rows[0].type.count
    rows, distance = list(rows), len(rows) // 2
    kind = ir.VectorType(ir.IntType(32), width)
    while distance:
        # LLVM numbers the lanes of the second vector from `width` on.
        upper = ir.Constant(kind, [lane + width - distance if lane & distance else lane for lane in range(width)])
        lower = ir.Constant(kind, [lane + width if lane & distance else lane + distance for lane in range(width)])
        for i in range(len(rows)):
            if not i & distance:
                pair = rows[i], rows[i + distance]
                rows[i], rows[i + distance] = (builder.shuffle_vector(*pair, order) for order in (upper, lower))
        distance //= 2
    return rows


def _starts(context, builder, kind, starts, offset, width):
    data = context.make_array(kind)(context, builder, starts).data
    each = [builder.load(builder.gep(data, [ir.Constant(_INT, i)])) for i in range(width)]
    return [builder.add(start, offset) for start in each]


def gather_columns(share: int) -> Any:
    """Return a function that copies width / `share` columns of an array, at least one.

    It writes array[starts[i] + offset + j] to tile[at + j * width + i], for i in 0..width-1 and j in 0..width/share-1.
    """

    @intrinsic
    def gather(typingctx: Any, array: Any, starts: Any, offset: Any, tile: Any, at: Any) -> tuple[Any, Callable[..., Any]]:
        lanes = Lanes(array.dtype)
        columns = max(1, lanes.width // share)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector, number = context.get_value_type(lanes), context.get_value_type(lanes.number)
            align = lanes.number.bitwidth // 8
            piece = ir.VectorType(number, columns) if columns > 1 else number
            places = _starts(context, builder, starts, args[1], args[2], lanes.width)
            parts = [builder.load(_pointer(context, builder, array, args[0], p, piece), align=align) for p in places]
            # Row r, r + columns, r + 2 columns, ... as one vector.
            rows = [_join(builder, parts[r::columns]) for r in range(columns)]
            for j, column in enumerate(_transpose(builder, rows)):
                place = builder.add(args[4], ir.Constant(_INT, j * lanes.width))
                builder.store(column, _pointer(context, builder, tile, args[3], place, vector), align=align)
            return context.get_dummy_value()

        return types.void(array, starts, types.intp, tile, types.intp), codegen

    return gather


def _join(builder, parts):
    """Return numbers, or the lanes of vectors, one after the other in one vector; their number is a power of two."""
    if not isinstance(parts[0].type, ir.VectorType):
        single = ir.VectorType(parts[0].type, 1)
        parts = [builder.insert_element(ir.Constant(single, ir.Undefined), part, ir.IntType(32)(0)) for part in parts]
    while len(parts) > 1:
        order = ir.Constant(ir.VectorType(ir.IntType(32), 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
        parts = [builder.shuffle_vector(a, b, order) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


gather_tile = gather_columns(1)


@intrinsic
def scatter_tile(typingctx: Any, tile: Any, at: Any, array: Any, starts: Any, offset: Any) -> tuple[Any, Callable[..., Any]]:
    """Write tile[at + j * width + i] to array[starts[i] + offset + j]; the inverse of `gather_tile`."""
    lanes = Lanes(array.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = context.get_value_type(lanes)
        align = lanes.number.bitwidth // 8
        rows = []
        for j in range(lanes.width):
            place = builder.add(args[1], ir.Constant(_INT, j * lanes.width))
            rows.append(builder.load(_pointer(context, builder, tile, args[0], place, vector), align=align))
        places = _starts(context, builder, starts, args[3], args[4], lanes.width)
        for column, place in zip(_transpose(builder, rows), places, strict=True):
            builder.store(column, _pointer(context, builder, array, args[2], place, vector), align=align)
        return context.get_dummy_value()

    return types.void(tile, types.intp, array, starts, types.intp), codegen

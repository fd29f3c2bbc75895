"""Register-blocked inner loops: the three sums of products that the fused path is built from.

Rationale
---------
LLVM keeps the accumulators of a plain loop nest in registers only if the whole nest is unrolled, which for a convolution
means hundreds of statements and spilled registers.  Here the block of accumulators is written explicitly as vectors, so
that each multiplication is one vector instruction in every case.  Everything else in the fused path is an ordinary loop,
compiled without fastmath: each sum has one order and each product one rounding.  A result therefore does not depend on
inlining, on the width of the machine's vectors, or on whether the code was compiled now or loaded from the cache.

A vector has `LANES` numbers of the array's type; on machines with narrower vectors LLVM splits it, with the same result.
All arrays are one-dimensional and contiguous.  Positions count elements.  Bounds are not checked: the caller must ensure
that all positions are valid.
"""

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.ir as ir
from llvmlite import binding
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
# Accumulators of a loop.  A vector is one of 32 registers with AVX-512, two of sixteen with AVX2, and four of 32 on ARM.
_ACCUMULATORS = 24 if binding.get_host_cpu_features().get("avx512f") else 6


def parts(rows: int, columns: int) -> list[list[tuple[int, int]]]:
    """Divide a block (rows, columns) of accumulators into lists of (row, column) that fit the registers of this machine.

    Each list is computed by its own loop.  The sums are the same as in one loop, which would store its accumulators in memory
    between the terms.
    """
    if rows * columns <= _ACCUMULATORS:
        return [[(m, v) for m in range(rows) for v in range(columns)]]
    size = -(-rows // -(-rows // _ACCUMULATORS))
    return [[(m, v) for m in range(a, min(a + size, rows))] for v in range(columns) for a in range(0, rows, size)]


class _Emitter:
    """Vector loads, stores and sums on the data pointers of one-dimensional arrays of one number type."""

    def __init__(self, context, builder, number):
        self.context, self.builder = context, builder
        self.scalar = context.get_value_type(number)
        self.vector = ir.VectorType(self.scalar, LANES)
        self.align = self.scalar.get_abi_size(context.target_data)

    def data(self, kind: Any, value: Any) -> Any:
        return self.context.make_array(kind)(self.context, self.builder, value).data

    def load(self, data: Any, at: Any) -> Any:
        pointer = self.builder.bitcast(self.builder.gep(data, [at]), self.vector.as_pointer())
        return self.builder.load(pointer, align=self.align)

    def store(self, value: Any, data: Any, at: Any) -> None:
        pointer = self.builder.bitcast(self.builder.gep(data, [at]), self.vector.as_pointer())
        self.builder.store(value, pointer, align=self.align)

    def spread(self, data: Any, at: Any) -> Any:
        """Return a vector with the number at position `at` in all lanes."""
        number = self.builder.load(self.builder.gep(data, [at]))
        single = self.builder.insert_element(ir.Constant(self.vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(single, ir.Constant(self.vector, ir.Undefined), zeros)

    def add_product(self, a: Any, b: Any, total: Any) -> Any:
        """Return a * b + total with a single rounding.

        llvmlite's `fma` accepts only scalars, so the LLVM intrinsic is called by name.
        """
        width = "f32" if self.scalar == ir.FloatType() else "f64"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        fma = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.fma.v{LANES}{width}")
        return self.builder.call(fma, (a, b, total))

    def zero(self) -> Any:
        return ir.Constant(self.vector, [0.0] * LANES)

    def sum_lanes(self, value: Any) -> Any:
        """Return the sum of the lanes, added by halves, always in the same order."""
        width = LANES
        while width > 1:
            width //= 2
            low, high = (
                self.builder.shuffle_vector(
                    value, value, ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(start, start + width)))
                )
                for start in (0, width)
            )
            value = self.builder.fadd(low, high)
        return self.builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    def loop(self, count: Any, carried: Sequence[Any]) -> tuple[tuple[Any, ...], Any, list[Any]]:
        """Open a counted loop with `carried` vectors in registers; return the loop, its index and the vectors inside."""
        builder = self.builder
        before = builder.block
        head = builder.append_basic_block("head")
        body = builder.append_basic_block("body")
        done = builder.append_basic_block("done")
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(count.type)
        index.add_incoming(count.type(0), before)
        inside = []
        for value in carried:
            phi = builder.phi(self.vector)
            phi.add_incoming(value, before)
            inside.append(phi)
        builder.cbranch(builder.icmp_signed("<", index, count), body, done)
        builder.position_at_end(body)
        return (head, done, index, inside), index, list(inside)

    def close(self, opened: tuple[Any, ...], results: Sequence[Any]) -> list[Any]:
        head, done, index, inside = opened
        builder = self.builder
        after = builder.block
        index.add_incoming(builder.add(index, index.type(1)), after)
        for phi, value in zip(inside, results, strict=True):
            phi.add_incoming(value, after)
        builder.branch(head)
        builder.position_at_end(done)
        return inside


def tile_product(scalars: Sequence[Sequence[int]], vectors: Sequence[Sequence[int]]) -> Callable[..., Any]:
    """Return a compiled function for one block of a matrix product with all accumulators in registers.

    Parameters
    ----------
    scalars : sequence of sequence of int
        ``scalars[u][m]``: offset in `a` of row m's number in the u-th unrolled term, relative to the running position.
    vectors : sequence of sequence of int
        ``vectors[u][v]``: offset in `b` of vector v in the u-th unrolled term.

    Returns
    -------
    intrinsic
        ``f(c, c_at, c_row, a, a_at, b, b_at, outer, inner, a_outer, a_inner, b_outer, b_inner)`` writes, for each row
        m and vector v, ``c[c_at + m c_row + v LANES + lane] = sum over o < outer, i < inner, u of a[a_at + o a_outer +
        i a_inner + scalars[u][m]] * b[b_at + o b_outer + i b_inner + vectors[u][v] + lane]``.
    """

    @intrinsic
    def product(
        typingctx: Any,
        c: Any,
        c_at: Any,
        c_row: Any,
        a: Any,
        a_at: Any,
        b: Any,
        b_at: Any,
        outer: Any,
        inner: Any,
        a_outer: Any,
        a_inner: Any,
        b_outer: Any,
        b_inner: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(c, size, size, a, size, b, *[size] * 7)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit = _Emitter(context, builder, signature.args[0].dtype)
            c_data, a_data, b_data = (emit.data(signature.args[i], args[i]) for i in (0, 3, 5))
            c_at, c_row, a_at, b_at = (args[i] for i in (1, 2, 4, 6))
            outer, inner, a_outer, a_inner, b_outer, b_inner = args[7:]
            for part in parts(len(scalars[0]), len(vectors[0])):
                opened, o, totals = emit.loop(outer, [emit.zero()] * len(part))
                a_row = builder.add(a_at, builder.mul(o, a_outer))
                b_row = builder.add(b_at, builder.mul(o, b_outer))
                opened_inner, i, totals = emit.loop(inner, totals)
                a_here = builder.add(a_row, builder.mul(i, a_inner))
                b_here = builder.add(b_row, builder.mul(i, b_inner))
                for scalar_offsets, vector_offsets in zip(scalars, vectors, strict=True):
                    numbers = {m: emit.spread(a_data, builder.add(a_here, a_here.type(scalar_offsets[m]))) for m, _ in part}
                    loaded = {v: emit.load(b_data, builder.add(b_here, b_here.type(vector_offsets[v]))) for _, v in part}
                    totals = [
                        emit.add_product(numbers[m], loaded[v], total) for (m, v), total in zip(part, totals, strict=True)
                    ]
                totals = emit.close(opened, emit.close(opened_inner, totals))
                for (m, v), total in zip(part, totals, strict=True):
                    start = builder.add(c_at, builder.mul(c_row, c_row.type(m)))
                    emit.store(total, c_data, builder.add(start, start.type(v * LANES)))
            return context.get_dummy_value()

        return signature, codegen

    return product


def dot_products(rows: int, columns: int) -> Callable[..., Any]:
    """Return a compiled function for a block of dot products of rows that are contiguous in memory.

    Returns
    -------
    intrinsic
        ``f(c, c_at, c_row, a, a_at, a_row, b, b_at, b_row, vectors)`` writes, for each m < rows and n < columns,
        ``c[c_at + m c_row + n] = sum over k < vectors LANES of a[a_at + m a_row + k] * b[b_at + n b_row + k]``.
    """

    @intrinsic
    def dots(
        typingctx: Any,
        c: Any,
        c_at: Any,
        c_row: Any,
        a: Any,
        a_at: Any,
        a_row: Any,
        b: Any,
        b_at: Any,
        b_row: Any,
        vectors: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(c, size, size, a, size, size, b, size, size, size)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit = _Emitter(context, builder, signature.args[0].dtype)
            c_data, a_data, b_data = (emit.data(signature.args[i], args[i]) for i in (0, 3, 6))
            c_at, c_row, a_at, a_row, b_at, b_row = (args[i] for i in (1, 2, 4, 5, 7, 8))
            for part in parts(rows, columns):
                opened, k, totals = emit.loop(args[9], [emit.zero()] * len(part))
                along = builder.mul(k, k.type(LANES))
                a_here, b_here = builder.add(a_at, along), builder.add(b_at, along)
                left = {m: emit.load(a_data, builder.add(a_here, builder.mul(a_row, a_row.type(m)))) for m, _ in part}
                right = {n: emit.load(b_data, builder.add(b_here, builder.mul(b_row, b_row.type(n)))) for _, n in part}
                totals = [emit.add_product(left[m], right[n], total) for (m, n), total in zip(part, totals, strict=True)]
                for (m, n), total in zip(part, emit.close(opened, totals), strict=True):
                    start = builder.add(c_at, builder.mul(c_row, c_row.type(m)))
                    builder.store(emit.sum_lanes(total), builder.gep(c_data, [builder.add(start, start.type(n))]))
            return context.get_dummy_value()

        return signature, codegen

    return dots


def patch_sum(rows: int, columns: int) -> Callable[..., Any]:
    """Return a compiled function that adds weighted patches of `rows` runs of `columns` vectors each.

    Returns
    -------
    intrinsic
        ``f(target, at, target_stride, weights, places, first, count, source, source_stride)`` adds, for each row r and
        j < columns LANES, ``sum over first <= i < first + count of weights[i] * source[places[i] + r source_stride +
        j]`` to ``target[at + r target_stride + j]``.
    """

    @intrinsic
    def accumulate(
        typingctx: Any,
        target: Any,
        at: Any,
        target_stride: Any,
        weights: Any,
        places: Any,
        first: Any,
        count: Any,
        source: Any,
        source_stride: Any,
    ) -> Any:
        size = types.intp
        signature = types.void(target, size, size, weights, places, size, size, source, size)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit = _Emitter(context, builder, signature.args[0].dtype)
            target_data, weight_data, place_data, source_data = (emit.data(signature.args[i], args[i]) for i in (0, 3, 4, 7))
            at, target_stride, first, count, source_stride = (args[i] for i in (1, 2, 5, 6, 8))
            for part in parts(rows, columns):
                opened, i, totals = emit.loop(count, [emit.zero()] * len(part))
                here = builder.add(first, i)
                weight = emit.spread(weight_data, here)
                place = builder.sext(builder.load(builder.gep(place_data, [here])), here.type)
                for index, (r, v) in enumerate(part):
                    start = builder.add(place, builder.mul(source_stride, source_stride.type(r)))
                    patch = emit.load(source_data, builder.add(start, start.type(v * LANES)))
                    totals[index] = emit.add_product(weight, patch, totals[index])
                for (r, v), total in zip(part, emit.close(opened, totals), strict=True):
                    start = builder.add(at, builder.mul(target_stride, target_stride.type(r)))
                    position = builder.add(start, start.type(v * LANES))
                    emit.store(builder.fadd(emit.load(target_data, position), total), target_data, position)
            return context.get_dummy_value()

        return signature, codegen

    return accumulate

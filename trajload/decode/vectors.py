"""Steps of the pixel kernels written as vectors of 8 to 32 numbers, which LLVM turns into whatever the processor has.

LLVM's own vectoriser gives up on loops that touch many arrays, and takes half the width on some processors; here nothing is
left to it. Every step is exact integer arithmetic, so all machines give the same bytes. Memory is reached by address:
callers make sure that what a step reads and writes is theirs.

Compiled code is kept by the time stamp of the file that uses it: touch `kernels.py`, `libav_loop.py` and
`libav_windows.py` after an edit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types

if TYPE_CHECKING:

    def intrinsic(function: Any = None, **options: Any) -> Any: ...

else:
    from numba.extending import intrinsic

__all__ = ["PIXELS_AT_ONCE", "SAMPLES_AT_ONCE", "SUMS_AT_ONCE", "TAPS_AT_ONCE", "address_of"]
__all__ += ["convert_two_rows", "mix_columns", "mix_rows"]

PIXELS_AT_ONCE = 32
"""Columns that `convert_two_rows` writes."""
SAMPLES_AT_ONCE = 16
"""Columns that `mix_rows` writes."""
SUMS_AT_ONCE = 8
"""Columns that `mix_columns` writes."""
TAPS_AT_ONCE = 4
"""Columns read for each of them in one go."""

# Where `mix_columns` finds the first halves of its sums in two vectors, so that no element leaves its half of a register.
_ADDED = [0, 2, 8, 10, 4, 6, 12, 14]
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


# ---- what all steps are made of ----


def _load(builder: Any, address: Any, kind: Any, count: int) -> Any:
    """Emit the load of `count` numbers from an address, aligned or not."""
    vector = ir.VectorType(kind, count)
    return builder.load(builder.inttoptr(address, vector.as_pointer()), align=1)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _ahead(builder: Any, address: Any, distance: int) -> Any:
    return builder.add(address, ir.Constant(_I64, distance))


def _splat(builder: Any, number: Any, count: int) -> Any:
    vector = ir.VectorType(number.type, count)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), _indices([0] * count))


def _constant(kind: Any, number: int, count: int) -> Any:
    return ir.Constant(ir.VectorType(kind, count), [number] * count)


def _indices(numbers: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_I32, len(numbers)), numbers)


def _pick(builder: Any, vector: Any, numbers: list[int], other: Any = None) -> Any:
    """Emit the vector of the elements so numbered, those of `other` counted on from the last of `vector`."""
    return builder.shuffle_vector(
        vector, ir.Constant(vector.type, ir.Undefined) if other is None else other, _indices(numbers)
    )


def _upper_half(builder: Any, left: Any, right: Any) -> Any:
    """Emit the upper 16 bits of the products of 16-bit numbers: one instruction on most processors."""
    wide = ir.VectorType(_I32, left.type.count)
    product = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
    return builder.trunc(builder.ashr(product, _constant(_I32, 16, left.type.count)), left.type)


def _pair_sums(builder: Any, left: Any, right: Any) -> Any:
    """Emit the sums of neighbouring products of 16-bit numbers, in 32 bits: one instruction on x86."""
    count = left.type.count
    wide = ir.VectorType(_I32, count)
    product = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
    return builder.add(
        _pick(builder, product, list(range(0, count, 2))), _pick(builder, product, list(range(1, count, 2)))
    )


def _clip(builder: Any, value: Any) -> Any:
    """Emit 16-bit numbers as bytes, cut off at 0 and 255."""
    count = value.type.count
    for bound, operator in ((0, "<"), (255, ">")):
        limit = _constant(_I16, bound, count)
        value = builder.select(builder.icmp_signed(operator, value, limit), limit, value)
    return builder.trunc(value, ir.VectorType(_I8, count))


@intrinsic
def address_of(typing_context: Any, array: Any) -> Any:
    """Where an array's first element stands in memory."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _I64)

    return types.int64(array), generate


# ---- colour ----


@intrinsic
def convert_two_rows(
    typing_context: Any,
    luma: Any,
    luma_stride: Any,
    u: Any,
    v: Any,
    out: Any,
    out_stride: Any,
    out_plane: Any,
    gains: Any,
) -> Any:
    """Convert 32 columns of two rows that share 16 chroma samples to planar RGB.

    Args:
        luma: Address of the first of 32 bytes of the upper row; the lower one stands `luma_stride` bytes behind.
        u: Address of 16 bytes.
        v: Address of 16 bytes.
        out: Where the upper row's red goes; the lower row's stands `out_stride` bytes behind, green `out_plane`.
        gains: Tuple of six int16, see `pixels.swscale_coefficients`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        luma, luma_stride, u, v, out, out_stride, out_plane, gains = args
        half = PIXELS_AT_ONCE // 2
        gain, offset, red_v, green_u, green_v, blue_u = cgutils.unpack_tuple(builder, gains, 6)

        def centred(address: Any) -> Any:
            sample = builder.zext(_load(builder, address, _I8, half), ir.VectorType(_I16, half))
            return builder.shl(builder.sub(sample, _constant(_I16, 128, half)), _constant(_I16, 3, half))

        def scaled(value: Any, by: Any) -> Any:
            return _upper_half(builder, value, _splat(builder, by, value.type.count))

        u_16, v_16 = centred(u), centred(v)
        by_colour = (
            scaled(v_16, red_v),
            builder.add(scaled(u_16, green_u), scaled(v_16, green_v)),
            scaled(u_16, blue_u),
        )
        doubled = [_pick(builder, c, [x // 2 for x in range(PIXELS_AT_ONCE)]) for c in by_colour]
        for row in range(2):
            if row:
                luma, out = builder.add(luma, luma_stride), builder.add(out, out_stride)
            y = builder.zext(_load(builder, luma, _I8, PIXELS_AT_ONCE), ir.VectorType(_I16, PIXELS_AT_ONCE))
            y = builder.sub(builder.shl(y, _constant(_I16, 3, PIXELS_AT_ONCE)), _splat(builder, offset, PIXELS_AT_ONCE))
            y = scaled(y, gain)
            address = out
            for colour in doubled:
                _store(builder, _clip(builder, builder.add(y, colour)), address)
                address = builder.add(address, out_plane)
        return context.get_dummy_value()

    gain_tuple = types.UniTuple(types.int16, 6)
    return types.void(*[types.int64] * 7, gain_tuple), generate


# ---- resizing ----


def _repeat(builder: Any, count: Any, kind: Any, step: Any) -> None:
    """Emit `step(k)` for k below `count`, written out where the number is known as the code is compiled."""
    if isinstance(kind, types.IntegerLiteral):
        for k in range(kind.literal_value):
            step(ir.Constant(_I64, k))
    else:
        with cgutils.for_range(builder, count) as loop:
            step(loop.index)


@intrinsic(prefer_literal=True)
def mix_rows(typing_context: Any, source: Any, stride: Any, weights: Any, pairs: Any, out: Any) -> Any:
    """Write the weighted sums of 16 columns of `2 * pairs` rows, with 6 bits of fraction.

    Args:
        source: Address of 16 bytes of the first row; rows stand `stride` bytes apart.
        weights: Address of `2 * pairs` int16 that sum to 2**14.
        out: Address of 16 int16.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, stride, weights, count, out = args
        half = SAMPLES_AT_ONCE // 2
        low, high = (cgutils.alloca_once_value(builder, _constant(_I32, 1 << 7, half)) for _ in range(2))

        def step(k: Any) -> None:
            upper = builder.add(source, builder.mul(stride, builder.shl(k, ir.Constant(_I64, 1))))
            rows = [_load(builder, a, _I8, SAMPLES_AT_ONCE) for a in (upper, builder.add(upper, stride))]
            weight = builder.add(weights, builder.shl(k, ir.Constant(_I64, 2)))
            weight = builder.load(builder.inttoptr(weight, _I32.as_pointer()), align=1)
            both = builder.bitcast(_splat(builder, weight, half), ir.VectorType(_I16, SAMPLES_AT_ONCE))
            for start, part in ((0, low), (half, high)):
                order = [x for c in range(start, start + half) for x in (c, c + SAMPLES_AT_ONCE)]
                mixed = builder.zext(_pick(builder, rows[0], order, rows[1]), both.type)
                builder.store(builder.add(builder.load(part), _pair_sums(builder, mixed, both)), part)

        _repeat(builder, count, pairs, step)
        together = _pick(builder, builder.load(low), list(range(SAMPLES_AT_ONCE)), builder.load(high))
        together = builder.lshr(together, _constant(_I32, 8, SAMPLES_AT_ONCE))
        _store(builder, builder.trunc(together, ir.VectorType(_I16, SAMPLES_AT_ONCE)), out)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3, pairs, types.int64), generate


@intrinsic(prefer_literal=True)
def mix_columns(typing_context: Any, row: Any, first: Any, weights: Any, next_taps: Any, groups: Any, out: Any) -> Any:
    """Write 8 bytes, each the weighted sum of `4 * groups` neighbouring columns of a row from `mix_rows`.

    Args:
        row: Address of the row's first int16.
        first: Address of 8 int32: where the columns of each sum begin.
        weights: Address of 8 times 4 int16, the first four weights of each sum; the next stand `next_taps` bytes behind.
        out: Address of 8 bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, first, weights, next_taps, count, out = args
        total = cgutils.alloca_once_value(builder, _constant(_I32, 1 << 19, SUMS_AT_ONCE))
        starts = []
        for k in range(SUMS_AT_ONCE):
            address = builder.inttoptr(_ahead(builder, first, 4 * k), _I32.as_pointer())
            column = builder.zext(builder.load(address, align=1), _I64)
            starts.append(builder.add(row, builder.shl(column, ir.Constant(_I64, 1))))
        half, samples = SUMS_AT_ONCE // 2, SUMS_AT_ONCE // 2 * TAPS_AT_ONCE

        def step(g: Any) -> None:
            behind = builder.mul(g, ir.Constant(_I64, 2 * TAPS_AT_ONCE))
            weight = builder.add(weights, builder.mul(g, next_taps))
            parts = []
            for start in (0, half):
                taps = [
                    _load(builder, builder.add(a, behind), _I16, TAPS_AT_ONCE) for a in starts[start : start + half]
                ]
                pairs = [
                    _pick(builder, a, list(range(2 * TAPS_AT_ONCE)), b)
                    for a, b in zip(taps[::2], taps[1::2], strict=True)
                ]
                factors = _load(builder, _ahead(builder, weight, 2 * TAPS_AT_ONCE * start), _I16, samples)
                parts.append(_pair_sums(builder, _pick(builder, pairs[0], list(range(samples)), pairs[1]), factors))
            # Each sum is in two halves now. They are added in the order in which they stand, and sorted at the end.
            halves = [_pick(builder, parts[0], [k + x for x in _ADDED], parts[1]) for k in range(2)]
            builder.store(builder.add(builder.load(total), builder.add(*halves)), total)

        _repeat(builder, count, groups, step)
        shifted = builder.lshr(builder.load(total), _constant(_I32, 20, SUMS_AT_ONCE))
        sorted_sums = _pick(builder, shifted, [_ADDED.index(2 * k) for k in range(SUMS_AT_ONCE)])
        _store(builder, builder.trunc(sorted_sums, ir.VectorType(_I8, SUMS_AT_ONCE)), out)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, groups, types.int64), generate

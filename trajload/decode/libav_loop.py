"""The compiled decode loop: packets of a window in, pictures in the batch's memory out, without the GIL.

Functions of libav are called by address, which comes as a number at run time, so that the compiled code can be kept on
disk. Nothing is read from a frame that was not compared with what the caller expects and with the size of its buffers.
Any surprise ends the loop with a status; the caller then repeats the window through PyAV, which words the error.

Compiled code is kept by the time stamp of this file: touch it after an edit of `kernels.py` or `vectors.py`,
which are inlined.
"""

# Shapes: R ranges of bytes, P packets, S segments, W wanted frames, T rows, C channels, H height, W width

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types

from trajload.decode.kernels import resize, yuv420_to_rgb, yuv444_to_rgb
from trajload.decode.libav_symbols import (
    BUFFER_DATA,
    BUFFER_SIZE,
    END_OF_STREAM,
    FRAME_DATA,
    FRAME_FORMAT,
    FRAME_HEIGHT,
    FRAME_LINESIZE,
    FRAME_PTS,
    FRAME_WIDTH,
    NO_PTS,
    PACKET_BUF,
    PACKET_DATA,
    PACKET_DTS,
    PACKET_PTS,
    PACKET_SIZE,
)
from trajload.jit import compiled
from trajload.types import NDArray

__all__ = ["BYTES", "KIND_AT", "OK", "YUV420", "YUV444", "decode_window", "pointer_to"]

if TYPE_CHECKING:

    def intrinsic(function: Any) -> Any: ...
    def carray(pointer: Any, size: int, dtype: Any) -> NDArray: ...

else:
    from numba import carray
    from numba.extending import intrinsic


# Entries of `state`.
_SEND, _RECEIVE, _FLUSH, _UNREF, _PLANE_BUFFER = 0, 1, 2, 3, 4
_CONTEXT, _PACKET, _FRAME, _SKIP, _REORDER, _FLAGS, _ERRORS, _EAGAIN = 5, 6, 7, 8, 9, 10, 11, 12
# Entries of `expected`.
_WIDTH, _HEIGHT, _FORMAT, KIND_AT, _IS_DIRECT, _MAY_SKIP, _SAMPLE_BYTES = 0, 1, 2, 3, 4, 5, 6

# What is made of a frame: its first plane's bytes, or RGB by one of the kernels.
BYTES, YUV420, YUV444 = 0, 1, 2
# Statuses.
OK, SEND_FAILED, RECEIVE_FAILED, IS_CORRUPT, IS_OTHER, BAD_PLANE, IS_MISSING, IS_UNFIT = 0, 1, 2, 3, 4, 5, 6, 7

_CORRUPT_FLAG = 1
_SKIP_NONREF, _SKIP_DEFAULT = 8, 0
_I32, _I64 = ir.IntType(32), ir.IntType(64)


# ---- memory and calls by address ----


@intrinsic
def _load64(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _I64.as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def _load32(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sext(builder.load(builder.inttoptr(args[0], _I32.as_pointer())), _I64)

    return types.int64(types.int64), generate


@intrinsic
def _store64(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], _I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _store32(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(builder.trunc(args[1], _I32), builder.inttoptr(args[0], _I32.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _call_pp(typing_context: Any, function: Any, a: Any, b: Any) -> Any:
    """int f(void *, void *)"""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I64, _I64])
        found = builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1], args[2]])
        return builder.sext(found, _I64)

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def _call_p(typing_context: Any, function: Any, a: Any) -> Any:
    """void f(void *)"""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _call_pi(typing_context: Any, function: Any, a: Any, b: Any) -> Any:
    """void *f(void *, int)"""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I64, [_I64, _I32])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1], builder.trunc(args[2], _I32)])

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def pointer_to(typing_context: Any, address: Any) -> Any:
    """The pointer of an address, for `carray`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


# ---- the loop ----


@compiled
def _find(wanted_W3: NDArray, pts: int) -> int:
    """Return which of the frames, by rising pts, has this one, or -1."""
    low, high = 0, len(wanted_W3)
    while low < high:
        mid = (low + high) >> 1
        if wanted_W3[mid, 0] < pts:
            low = mid + 1
        else:
            high = mid
    return low if low < len(wanted_W3) and wanted_W3[low, 0] == pts else -1


@compiled
def _address(bases_R: NDArray, ranges_R2: NDArray, offset: int, size: int) -> int:
    """Return where in memory bytes of the file stand, or 0 unless all of them are there."""
    for r in range(len(bases_R)):
        if ranges_R2[r, 0] <= offset < ranges_R2[r, 1] and size <= ranges_R2[r, 1] - offset:
            return bases_R[r] + (offset - ranges_R2[r, 0])
    return 0


@compiled
def _plane_size(state: NDArray, plane: int, row_bytes: int, rows: int) -> int:
    """Return how many bytes of a plane hold its picture, or -1 unless all of them lie inside a buffer of the frame."""
    frame = state[_FRAME]
    stride = _load32(frame + FRAME_LINESIZE + 4 * plane)
    reference = _call_pi(state[_PLANE_BUFFER], frame, plane)
    if stride < row_bytes or rows < 1 or reference == 0:
        return -1
    size = stride * (rows - 1) + row_bytes
    data = _load64(frame + FRAME_DATA + 8 * plane)
    start = _load64(reference + BUFFER_DATA)
    if data < start or data + size > start + _load64(reference + BUFFER_SIZE):
        return -1
    return size


@compiled
def _copy_bytes(state: NDArray, height: int, row_bytes: int, row_H: NDArray, byte_W: NDArray, out: NDArray) -> int:
    """Write samples of the first plane; `row_H` and `byte_W` say which, or are empty for all of them."""
    size = _plane_size(state, 0, row_bytes, height)
    if size < 0:
        return BAD_PLANE
    frame = state[_FRAME]
    stride = _load32(frame + FRAME_LINESIZE)
    plane = carray(pointer_to(_load64(frame + FRAME_DATA)), size, np.uint8)
    for y in range(out.shape[0]):
        if len(row_H) == 0:
            line = plane[y * stride : y * stride + row_bytes]
            for x in range(out.shape[1]):
                out[y, x] = line[x]
        else:
            start = row_H[y] * stride
            for x in range(out.shape[1]):
                out[y, x] = plane[start + byte_W[x]]
    return OK


@compiled
def _convert(state: NDArray, expected: NDArray, coefficients: NDArray, out: NDArray) -> int:
    """Write the frame as planar RGB (3, H, W) of its own size."""
    width, height = expected[_WIDTH], expected[_HEIGHT]
    is_420 = expected[KIND_AT] == YUV420
    c_width, c_height = ((width + 1) >> 1, (height + 1) >> 1) if is_420 else (width, height)
    y_size = _plane_size(state, 0, width, height)
    u_size = _plane_size(state, 1, c_width, c_height)
    v_size = _plane_size(state, 2, c_width, c_height)
    frame = state[_FRAME]
    y_stride, c_stride = _load32(frame + FRAME_LINESIZE), _load32(frame + FRAME_LINESIZE + 4)
    if y_size < 0 or u_size < 0 or v_size < 0 or _load32(frame + FRAME_LINESIZE + 8) != c_stride:
        return BAD_PLANE
    y = carray(pointer_to(_load64(frame + FRAME_DATA)), y_size, np.uint8)
    u = carray(pointer_to(_load64(frame + FRAME_DATA + 8)), u_size, np.uint8)
    v = carray(pointer_to(_load64(frame + FRAME_DATA + 16)), v_size, np.uint8)
    if is_420:
        yuv420_to_rgb(y, u, v, y_stride, c_stride, coefficients, out)
    else:
        yuv444_to_rgb(y, u, v, y_stride, c_stride, coefficients, out)
    return OK


@compiled
def decode_window(
    state: NDArray,
    expected: NDArray,
    bases_R: NDArray,
    ranges_R2: NDArray,
    packets_P4: NDArray,
    segments_S3: NDArray,
    wanted_W3: NDArray,
    coefficients: NDArray,
    rgb: NDArray,
    first_y: NDArray,
    weight_y: NDArray,
    first_x: NDArray,
    weight_x: NDArray,
    row_buffer: NDArray,
    out: NDArray,
) -> int:
    """Decode the packets and write each wanted frame to its row of `out`; return OK or why not.

    Args:
        state: Addresses of functions and structs; see `libav_decoder.loop_state`.
        expected: What frames must look like, and what to do with them.
        bases_R: Where in memory each range of bytes stands.
        ranges_R2: First byte and last + 1 of each range in the file.
        packets_P4: int64 offset in the file, size, pts and dts of each packet.
        segments_S3: First and last + 1 packet of each run that starts on a keyframe, and its reorder depth.
        wanted_W3: pts, rising, number and row of `out` of each frame asked for.
        coefficients: Of the colour kernel.
        rgb: (3, H, W) of the stored size, used where `out` has another.
        first_y: Resize weights, and so on; for `BYTES`, the wanted rows and bytes instead of the first two.
        out: (T, C, H, W) uint8.
    """
    context, packet, frame = state[_CONTEXT], state[_PACKET], state[_FRAME]
    width, height, kind = expected[_WIDTH], expected[_HEIGHT], expected[KIND_AT]
    is_direct, may_skip = expected[_IS_DIRECT] != 0, expected[_MAY_SKIP] != 0
    for i in range(len(packets_P4)):
        # libav takes an empty packet for the end of the stream
        size = packets_P4[i, 1]
        if not 0 < size < 1 << 31 or _address(bases_R, ranges_R2, packets_P4[i, 0], size) == 0:
            return IS_UNFIT
    is_done_W = np.zeros(len(wanted_W3), np.uint8)
    num_done = 0
    for s in range(segments_S3.shape[0]):
        start, stop = segments_S3[s, 0], segments_S3[s, 1]
        pending = 0
        for i in range(start, stop):
            k = _find(wanted_W3, packets_P4[i, 2])
            if k >= 0 and is_done_W[k] == 0:
                pending += 1
        # Pictures before the keyframe in time are referred to by none after it: without what they refer to they may be flagged.
        first_pts = packets_P4[start, 2]
        if may_skip and segments_S3[s, 2] > _load32(state[_REORDER]):
            _store32(state[_REORDER], segments_S3[s, 2])
        for i in range(start, stop + 1):
            # Once all wanted frames are there the rest of what was fed comes out, undisplayed: they may refer to it.
            is_fed = i == stop or pending == 0
            if not is_fed:
                if may_skip:
                    k = _find(wanted_W3, packets_P4[i, 2])
                    _store32(state[_SKIP], _SKIP_DEFAULT if k >= 0 and is_done_W[k] == 0 else _SKIP_NONREF)
                # A packet without a buffer of its own is copied, and padded, by the call.
                _store64(packet + PACKET_BUF, 0)
                size = packets_P4[i, 1]
                _store64(packet + PACKET_DATA, _address(bases_R, ranges_R2, packets_P4[i, 0], size))
                _store32(packet + PACKET_SIZE, size)
                _store64(packet + PACKET_PTS, packets_P4[i, 2])
                _store64(packet + PACKET_DTS, packets_P4[i, 3])
                result = _call_pp(state[_SEND], context, packet)
                _store64(packet + PACKET_DATA, 0)
                _store32(packet + PACKET_SIZE, 0)
            else:
                result = _call_pp(state[_SEND], context, 0)
            if result < 0:
                return SEND_FAILED
            while True:
                result = _call_pp(state[_RECEIVE], context, frame)
                if result == state[_EAGAIN] or result == END_OF_STREAM:
                    break
                if result < 0:
                    return RECEIVE_FAILED
                pts = _load64(frame + FRAME_PTS)
                k = _find(wanted_W3, pts)
                is_wanted = pts != NO_PTS and k >= 0 and is_done_W[k] == 0
                is_flagged = _load32(frame + state[_FLAGS]) & _CORRUPT_FLAG or _load32(frame + state[_ERRORS]) != 0
                if is_flagged and (is_wanted or pts >= first_pts):
                    return IS_CORRUPT
                if not is_wanted:
                    continue
                if (
                    _load32(frame + FRAME_WIDTH) != width
                    or _load32(frame + FRAME_HEIGHT) != height
                    or _load32(frame + FRAME_FORMAT) != expected[_FORMAT]
                ):
                    return IS_OTHER
                row = wanted_W3[k, 2]
                if kind == BYTES:
                    bytes_per_row = width * expected[_SAMPLE_BYTES]
                    status = _copy_bytes(state, height, bytes_per_row, first_y, first_x, out[row, 0])
                elif is_direct:
                    status = _convert(state, expected, coefficients, out[row])
                else:
                    status = _convert(state, expected, coefficients, rgb)
                    if status == OK:
                        resize(rgb, first_y, weight_y, first_x, weight_x, row_buffer, out[row])
                if status != OK:
                    return status
                is_done_W[k] = 1
                num_done += 1
                pending -= 1
            if is_fed:
                break
        _call_p(state[_UNREF], frame)
        if may_skip:
            _store32(state[_SKIP], _SKIP_DEFAULT)
        _call_p(state[_FLUSH], context)
        if pending != 0:
            return IS_MISSING
    return OK if num_done == len(wanted_W3) else IS_MISSING

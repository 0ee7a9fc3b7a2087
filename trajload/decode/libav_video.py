"""Windows of video through the compiled loop: what it can do, what it needs, and when PyAV must take over."""

# Shapes: P packets, S segments, W wanted frames, T rows, H height, W width

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.decode.plan import Blobs, VideoReads
from trajload.decode.resize import nearest_indices
from trajload.refs import VideoIndex, VideoTrack
from trajload.spec import StreamSpec
from trajload.types import Int64Array, Modality, NDArray

if TYPE_CHECKING:
    from trajload.decode.context import DecodeContext
    from trajload.decode.libav_decoder import LibavDecoder
    from trajload.decode.libav_symbols import Libav

__all__ = ["LoopSetup", "decode_with_loop", "make_setup"]

_BYTES_PER_SAMPLE = {"gray": 1, "gray16le": 2}


@dataclass(frozen=True, slots=True)
class LoopSetup:
    """One open decoder and the arguments of the loop that stay the same from window to window."""

    decoder: LibavDecoder
    size: tuple[int, ...]
    """(H, W) of the pictures it makes."""
    state: NDArray
    expected: NDArray
    arrays: tuple[NDArray, ...]
    """From the colour coefficients to the last scratch buffer."""

    def decode(self, reads: VideoReads, bases_R: Int64Array, out: NDArray) -> int:
        """Write the wanted frames to their rows of `out` (T, C, H, W) uint8 and return a status of `libav_loop`.

        `bases_R` says where in memory the bytes of each range stand.
        """
        from trajload.decode import libav_loop

        self._check_open()
        return libav_loop.decode_window(  # type: ignore[call-arg]
            self.state,
            self.expected,
            bases_R,
            reads.ranges_R2,
            reads.packets_P4,
            reads.segments_S3,
            reads.wanted_W3,
            *self.arrays,
            out,
        )

    def decode_all(
        self, plans: Sequence[VideoReads], bases_N: Int64Array, out_N: Sequence[int], shape: Sequence[int]
    ) -> tuple[int, int]:
        """Write windows one after the other, as `decode` does; return the last one's status and how many went well.

        Args:
            plans: Of one range each.
            bases_N: Where in memory the bytes of each range stand.
            out_N: Where in memory each window is written: C-contiguous uint8 of `shape`.
            shape: (T, C, H, W).
        """
        from trajload.decode.libav_windows import decode_windows

        self._check_open()
        parts = (
            np.concatenate([plan.ranges_R2 for plan in plans]),
            np.concatenate([plan.packets_P4 for plan in plans]),
            np.concatenate([plan.segments_S3 for plan in plans]),
            np.concatenate([plan.wanted_W3 for plan in plans]),
        )
        lengths = [(len(plan.packets_P4), len(plan.segments_S3), len(plan.wanted_W3)) for plan in plans]
        status, num_done = decode_windows(
            self.state,
            self.expected,
            bases_N,
            *parts,
            np.cumsum(np.array(lengths, np.int64), axis=0),
            np.array(shape, np.int64),
            np.array(out_N, np.int64),
            *self.arrays,
        )
        return int(status), int(num_done)

    def _check_open(self) -> None:
        """Never let the loop at memory that was freed."""
        if not self.decoder.is_open:
            raise AssertionError("a decoder was closed that is still used")

    def drop_after(
        self, status: int, context: DecodeContext, index: VideoIndex, spec: StreamSpec, size: tuple[int, ...]
    ) -> None:
        """Let `context`, which keeps this, forget it where after that status it may not go on."""
        from trajload.decode import libav_loop

        if status not in (libav_loop.OK, libav_loop.IS_UNFIT):
            context.drop_loop(index, spec, size, for_good=status == libav_loop.BAD_PLANE)

    def run(
        self,
        context: DecodeContext,
        index: VideoIndex,
        spec: StreamSpec,
        size: tuple[int, ...],
        reads: VideoReads,
        bases_R: Int64Array,
        out: NDArray,
    ) -> bool:
        """Do what `decode` does and return whether it went well; `context` drops this where it may not go on."""
        from trajload.decode import libav_loop

        status = self.decode(reads, bases_R, out if out.dtype == np.uint8 else out.view(np.uint8))
        self.drop_after(status, context, index, spec, size)
        return status == libav_loop.OK

    def close(self) -> None:
        self.decoder.close()


def decode_with_loop(
    track: VideoTrack, reads: VideoReads, source: Blobs, out: NDArray, *, spec: StreamSpec, context: DecodeContext
) -> bool:
    """Write the frames of `reads` to their rows of `out` and return True, or return False for PyAV to do it.

    `out` may be half written then. A stream at which the loop fails where PyAV does not is still decoded right, at
    twice the cost; one whose frames have another shape than the loop can read is left to PyAV for good.
    """
    size = out.shape[2:]
    setup = context.loop_setup(track.index, spec, size)
    return setup is not None and setup.run(context, track.index, spec, size, reads, source.addresses(), out)


def _kind(index: VideoIndex, spec: StreamSpec) -> str | None:
    """Return how the loop makes pictures of the stream: 'bytes', '420' or '444'; None if it cannot."""
    from trajload.decode.pixels import kernel_of

    if index.rotation != 0:
        return None
    if spec.modality is Modality.RGB:
        return kernel_of(index.pix_fmt, index.color_space, index.height)
    return "bytes" if index.pix_fmt in _BYTES_PER_SAMPLE else None


def make_setup(
    libav: Libav, index: VideoIndex, spec: StreamSpec, size: tuple[int, ...], context: DecodeContext
) -> LoopSetup | None:
    """Open a decoder for `index` and prepare the loop for pictures of `size` (H, W); None if it cannot make them.

    Raises:
        DecodeError: The video does not show what the spec declares.
    """
    from trajload.decode import libav_loop
    from trajload.decode.libav_decoder import LibavDecoder, loop_state
    from trajload.decode.libav_symbols import LibavUnavailableError
    from trajload.decode.pixels import check_picture

    check_picture(index, spec)
    kind = _kind(index, spec)
    if kind is None:
        return None
    try:
        decoder = LibavDecoder(libav, index)
    except LibavUnavailableError:
        return None
    height, width = index.height, index.width
    is_direct = size == (height, width)
    sample_bytes = _BYTES_PER_SAMPLE.get(index.pix_fmt, 1)
    kinds = {"bytes": libav_loop.BYTES, "420": libav_loop.YUV420, "444": libav_loop.YUV444}
    expected = [width, height, decoder.pix_fmt, kinds[kind], is_direct, index.codec == "h264", sample_bytes]
    i16: Any = np.int16
    i32: Any = np.int32
    coefficients, rgb = np.zeros(6, i32), np.zeros((3, 1, 1), np.uint8)
    first_y = first_x = np.zeros(0, i32)
    resizing = (first_y, np.zeros((0, 0), i16), first_x, np.zeros((0, 0, 0), i16), np.zeros(0, i16))
    if kind == "bytes":
        if not is_direct:
            first_y = nearest_indices(height, size[0]).astype(i32)
            columns = nearest_indices(width, size[1]).astype(i32) * sample_bytes
            first_x = (columns[:, None] + np.arange(sample_bytes, dtype=i32)).reshape(-1)
            resizing = (first_y, resizing[1], first_x, *resizing[3:])
    else:
        coefficients = context.coefficients(kind, index.pix_fmt, index.color_space, index.color_range)
        if not is_direct:
            rgb = context.scratch("rgb", (3, height, width), np.uint8)
            resizing = context.filter((height, width), size).arrays
    arrays = (coefficients, rgb, *resizing)
    return LoopSetup(decoder, size, loop_state(libav, decoder), np.array(expected, dtype=np.int64), arrays)

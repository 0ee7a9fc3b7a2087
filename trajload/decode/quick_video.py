"""The usual window of video by the shortest way: a track prepared once, its windows planned, verified and decoded.

It does what `plan_reads` and `decode_rows` do, and leaves to them whatever is unusual, errors and their words included.
"""

# Shapes: T rows, P packets, F frames, G groups of pictures

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from trajload.decode.context import DecodeContext
from trajload.decode.plan import MAX_GAP_BYTES, VideoReads, plan_reads
from trajload.decode.video import decode_with_pyav, fill_repeats, verified_source
from trajload.refs import ByteRange, VideoIndex, VideoTrack
from trajload.spec import StreamSpec
from trajload.types import Int64Array, NDArray

if TYPE_CHECKING:
    from trajload.decode.libav_video import LoopSetup

__all__ = ["QuickVideo", "same_pictures"]

_COLUMNS = ("offset_P", "size_P", "pts_P", "dts_P", "is_keyframe_P", "packet_of_frame_F", "seek_of_frame_F")


class QuickVideo:
    """A track of video with its packet table in memory of its own: it holds no mapping and no file. Thread-safe.

    Args:
        track: Where the rows stand.
        setup_key: The same object for all tracks that `same_pictures` finds the same, wanted as the same pictures:
            contexts find their open decoder by it.
    """

    __slots__ = ("_checksums", "_numbers", "_setup_key", "_table", "num_bytes", "track")

    def __init__(self, track: VideoTrack, setup_key: object) -> None:
        columns: dict[str, Any] = {name: np.array(getattr(track.index, name)) for name in _COLUMNS}
        columns["is_discard_P"] = np.array(track.index.is_discard_P)
        columns["gop_checksum_G"] = np.array(track.index.gop_checksum_G)
        index = replace(track.index, **columns)
        self.track = replace(track, index=index)
        self.num_bytes = sum(column.nbytes for column in columns.values())
        """Memory it holds, about."""
        self._table = tuple(columns[name] for name in _COLUMNS)
        self._numbers = (track.first_frame, track.num_rows, MAX_GAP_BYTES, index.codec == "h264")
        self._checksums: list[int] = index.gop_checksum_G.tolist()
        self._setup_key = setup_key

    def plan(self, rows_T: Int64Array) -> list[ByteRange]:
        """Return what `plan_reads` gives."""
        from trajload.decode.plan_kernel import OK, plan_window

        if len(rows_T) and rows_T.flags.c_contiguous:
            status, *arrays = plan_window(rows_T, *self._table, *self._numbers)
            if status == OK:
                return VideoReads(self.track.file, rows_T, tuple(arrays))
        return plan_reads(self.track, rows_T)

    def decode(
        self,
        rows_T: Int64Array,
        reads: list[ByteRange],
        blobs: list[bytes],
        out: NDArray,
        spec: StreamSpec,
        context: DecodeContext,
    ) -> bool:
        """Do what `decode_rows` does and return True, or return False where that has to be called.

        Args:
            rows_T: What `reads` was planned for.
            out: As for `decode_rows`, which checks it; here it is taken as it is.
        """
        if context.devices is not None or not isinstance(reads, VideoReads) or len(blobs) != 1:
            return False
        if reads.rows is not rows_T or not self.is_whole(reads, blobs[0]):
            return False
        index, size = self.track.index, out.shape[2:]
        setup = self.setup(context, spec, size)
        if setup is None:
            return False
        address = np.frombuffer(blobs[0], dtype=np.uint8).__array_interface__["data"][0]
        if setup.run(context, index, spec, size, reads, np.array([address]), out):
            context.windows_by_engine["libav"] += 1
        else:
            source = verified_source(self.track, reads, blobs)
            decode_with_pyav(self.track, reads, source, out, spec=spec, context=context)
        fill_repeats(self.track, reads, rows_T, out)
        return True

    def setup(self, context: DecodeContext, spec: StreamSpec, size: tuple[int, ...]) -> LoopSetup | None:
        """Return what decodes it to pictures of `size` (H, W), which its `setup_key` stands for; None where PyAV has to.

        Raises:
            DecodeError: The video does not show what the spec declares.
        """
        found = context.quick_setups.get(self._setup_key)
        if found is None:
            found = context.loop_setup(self.track.index, spec, size)
            if found is not None:
                context.quick_setups[self._setup_key] = found
        return found

    def is_whole(self, reads: VideoReads, blob: bytes) -> bool:
        """Return whether the bytes are all there and fit their checksums, in groups that stand in one piece."""
        (begin, end), *_ = reads.ranges_R2.tolist()
        if len(blob) != end - begin:
            return False
        view, checksums = memoryview(blob), self._checksums
        for _, _, group, start, stop in reads.groups_G5.tolist():
            if start < 0 or group >= len(checksums):
                return False
            if xxhash.xxh3_64_intdigest(view[start - begin : stop - begin]) != checksums[group]:
                return False
        return True


def same_pictures(index: VideoIndex) -> tuple[Any, ...]:
    """Return what two videos have in common that one open decoder can decode to the same pictures."""
    shown = (index.color_space, index.color_range, index.rotation)
    return (index.codec, index.extradata, index.width, index.height, index.pix_fmt, *shown)

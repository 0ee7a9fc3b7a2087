"""From a stream's bytes to its row of the batch: decoded, mixed or cut into intervals, masked."""

# Shapes: T places of one stream in a window, K rows

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajload.align.clocked import mix_rows
from trajload.align.rows import rows_to_zero
from trajload.collate.stream_slots import StreamSlots
from trajload.decode import DecodeContext, decode_rows, read_text, row_shape
from trajload.decode.quick_video import QuickVideo
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.rowplan import StreamRows
from trajload.refs import ByteRange, Track
from trajload.spec import Pad
from trajload.storage import ByteStore
from trajload.types import NDArray

__all__ = ["StreamWork", "write_stream"]


@dataclass(frozen=True, slots=True)
class StreamWork:
    """One stream of one row: which rows of its track, and their bytes."""

    choice: StreamChoice
    track: Track | None
    """None: the episode lacks the stream."""
    planned: StreamRows | None
    ranges: list[ByteRange]
    blobs: list[bytes]
    """Of each of `ranges`."""
    quick: QuickVideo | None = None
    """The track once more, of video that can go the short way."""

    @property
    def num_rows(self) -> int:
        """Rows of the track that the window takes; repeated ones count."""
        return 0 if self.planned is None else len(self.planned.rows)


def write_stream(
    slots: StreamSlots, b: int, work: StreamWork, pad: Pad, store: ByteStore, context: DecodeContext
) -> int:
    """Write one stream of row `b`, with its masks, and return how many pictures were asked for."""
    name, spec, request = work.choice.key, work.choice.spec, work.choice.request
    track, planned = work.track, work.planned
    if track is None or planned is None:
        slots.set_missing(name, b)
        return 0
    # A window that failed before may have left its masks set in this row.
    slots.begin_row(name, b)
    rows, clocked = planned.rows, planned.clocked
    if spec.is_text:
        if planned.is_pad_T[0]:  # its anchor lies inside the episode: no row of the clock is near enough
            slots.set_missing(name, b)
            return 0
        slots.set_text(name, b, read_text(track, int(rows[0]), work.blobs, spec=spec, context=context))
        return 0

    def decode(out: NDArray) -> NDArray:
        quick = work.quick
        if (
            quick is not None
            and not context.is_blank
            and quick.decode(rows, work.ranges, work.blobs, out, spec, context)
        ):
            return out
        decode_rows(
            track, rows, work.blobs, out, spec=spec, request=request, store=store, context=context, plan=work.ranges
        )
        return out

    slots.is_pad[name][b] = planned.is_pad_T
    if request.age:
        slots.age_ns[name][b] = 0 if clocked is None else clocked.age_ns_T
    if clocked is not None and clocked.count_T is not None:
        slots.set_ragged(name, b, decode(_scratch(work.choice, len(rows))), clocked.count_T)
        return 0
    out_T = slots.values[name][b]
    if clocked is not None and clocked.weight_T is not None:
        mix_rows(decode(_scratch(work.choice, len(rows))), clocked.weight_T, out_T)
    else:
        decode(out_T)
    if planned.is_pad_T.any():
        slots.zero(name, b, rows_to_zero(planned.is_outside_T, planned.is_pad_T, pad))
    return len(rows) if spec.is_picture else 0


def _scratch(choice: StreamChoice, num_rows: int) -> NDArray:
    shape, dtype = row_shape(choice.spec, choice.request)
    return np.empty((num_rows, *shape), dtype)

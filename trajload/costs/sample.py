"""Windows chosen for measuring, and the decoding of one of them under the clock."""

# Shapes: W windows, T steps

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajload.align.rows import window_offsets
from trajload.costs.leads import row_of_step, window_leads, window_rows
from trajload.decode import DecodeContext, decode_rows, plan_reads, row_shape
from trajload.decode.quick_video import QuickVideo, same_pictures
from trajload.refs import Track, VideoTrack
from trajload.sources.base import Dataset
from trajload.spec import StreamRequest, StreamSpec, Window
from trajload.storage import ByteStore
from trajload.types import Int64Array, NDArray

__all__ = ["SampledWindow", "StreamDecoder", "anchors_of", "decode_once", "sample_windows", "spread_windows"]


@dataclass(frozen=True, slots=True, eq=False)
class SampledWindow:
    """One window of one stream of one episode, to be decoded several times."""

    rows: Int64Array
    """Of the track, rising, each once."""
    num_places: int
    """Rows that a batch gets: as many as `rows`, or more where a slow clock repeats them."""
    num_lead: int
    """Frames decoded for it and not delivered."""


def anchors_of(num_steps: int, window: Window) -> Int64Array:
    """Return the anchors of an episode's windows; of an episode too short for one, its first step."""
    if window.pad != "none":
        return np.arange(0, num_steps, window.stride, dtype=np.int64)
    first = -window.first_offset
    anchor_W = np.arange(first, num_steps - window.span + first + 1, window.stride, dtype=np.int64)
    return anchor_W if len(anchor_W) else np.zeros(1, dtype=np.int64)


def sample_windows(dataset: Dataset, episode: int, stream: str, window: Window, count: int) -> list[SampledWindow]:
    """Return up to `count` windows spread over the episode, with few and with many frames before them; none where it lacks the stream."""
    track = dataset.track(episode, stream)
    num_steps = int(dataset.num_steps_E[episode])
    if track is None or not track.num_rows or not num_steps:
        return []
    row_S = row_of_step(dataset, episode, stream)
    anchor_W, offsets_T = anchors_of(num_steps, window), window_offsets(window)
    lead_W = window_leads(track, anchor_W, num_steps, window, offsets_T, row_S)
    chosen = spread_windows(lead_W, count)
    rows_WT = window_rows(anchor_W[chosen], num_steps, window, offsets_T, row_S, track.num_rows)
    num_places = min(window.num_steps, num_steps)
    return [
        SampledWindow(np.unique(rows_T), num_places, int(lead))
        for rows_T, lead in zip(rows_WT, lead_W[chosen], strict=True)
    ]


def spread_windows(lead_W: Int64Array, count: int) -> list[int]:
    """Return the places of `count` windows, one from each stretch of them, whose leads cover what there is."""
    count = min(count, len(lead_W))
    if count == 1:
        return [int(np.abs(lead_W - lead_W.mean()).argmin())]
    edges = np.linspace(0, len(lead_W), count + 1).astype(np.int64)
    # From both ends in turn, so that leads do not grow with time, as what is filmed may.
    shares = [(i // 2 if i % 2 == 0 else count - 1 - i // 2) / (count - 1) for i in range(count)]
    wanted = np.quantile(lead_W, shares)
    return [
        int(a + np.abs(lead_W[a:b] - lead).argmin()) for a, b, lead in zip(edges[:-1], edges[1:], wanted, strict=True)
    ]


def decode_once(
    track: Track,
    rows_T: Int64Array,
    out: NDArray,
    spec: StreamSpec,
    request: StreamRequest,
    store: ByteStore,
    context: DecodeContext,
    setup_key: object,
) -> int:
    """Decode rows into `out` the way a loader does, and return the CPU time that took; reading is not counted.

    Args:
        track: Where the rows stand.
        rows_T: Rising, each once.
        out: As for `decode_rows`.
        spec: What the stream is declared to be.
        request: How it is wanted.
        store: Where the bytes are.
        context: What decodes.
        setup_key: The same object for all tracks of one kind of pictures, as for `QuickVideo`.
    """
    quick = QuickVideo(track, setup_key) if isinstance(track, VideoTrack) else None
    reads = plan_reads(track, rows_T) if quick is None else quick.plan(rows_T)
    blobs = [store.read(where) for where in reads]
    arguments: dict[str, Any] = {"spec": spec, "request": request, "store": store, "context": context}
    begin = time.thread_time_ns()
    if quick is None or not quick.decode(rows_T, reads, blobs, out, spec, context):
        decode_rows(track, rows_T, blobs, out, plan=reads, **arguments)
    return time.thread_time_ns() - begin


class StreamDecoder:
    """Decodes windows as a loader's thread does, and says how much CPU time each took. Not thread-safe.

    Args:
        dataset: Where streams stand.
        requests: How each stream is wanted.
        context: What decodes; closed by `close`. A new one by default.
    """

    def __init__(
        self, dataset: Dataset, requests: Mapping[str, StreamRequest], context: DecodeContext | None = None
    ) -> None:
        self.dataset = dataset
        self.requests = dict(requests)
        self._context = context or DecodeContext()
        self._setup_keys: dict[Hashable, object] = {}
        self._met: set[Hashable] = set()

    @property
    def backend(self) -> str:
        """What decoded video: 'libav' (the compiled loop), 'pyav', both, or 'none' where there was none."""
        return "+".join(name for name, count in self._context.windows_by_engine.items() if count) or "none"

    def decode_ns(self, episode: int, stream: str, sampled: SampledWindow) -> int:
        """Return the CPU time of decoding a window, at least 1 ns."""
        track = self.dataset.track(episode, stream)
        assert track is not None
        shape, dtype = row_shape(self.dataset.spec(stream), self.requests[stream])
        out = np.empty((len(sampled.rows), *shape), dtype=dtype)
        kind: Hashable = (stream, same_pictures(track.index) if isinstance(track, VideoTrack) else None)
        if kind not in self._met:
            # The first window of a kind opens a decoder and loads kernels.
            self._met.add(kind)
            self._run(track, stream, sampled.rows, out, kind)
        return max(1, self._run(track, stream, sampled.rows, out, kind))

    def _run(self, track: Track, stream: str, rows_T: Int64Array, out: NDArray, kind: Hashable) -> int:
        spec, request, store = self.dataset.spec(stream), self.requests[stream], self.dataset.store
        key = self._setup_keys.setdefault(kind, object())
        return decode_once(track, rows_T, out, spec, request, store, self._context, key)

    def close(self) -> None:
        """Free the decoders."""
        self._context.close()

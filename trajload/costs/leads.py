"""Frames that a window makes a decoder decode and throw away: those back to a keyframe, and those between its rows."""

# Shapes: W windows, T rows of one window, S steps of an episode, N rows of a clocked stream

from __future__ import annotations

import numpy as np

from trajload.align.rows import stepwise_rows
from trajload.refs import Track, VideoIndex, VideoTrack
from trajload.sources.base import Dataset
from trajload.spec import Window
from trajload.types import Int64Array

__all__ = ["gop_length", "lead_frames", "row_of_step", "window_leads", "window_rows"]

_WINDOWS_AT_ONCE = 1 << 15


def lead_frames(index: VideoIndex, frames_WT: Int64Array) -> Int64Array:
    """Return how many frames are decoded for each window and not delivered, int64 (W,).

    Args:
        index: Packet table of the video.
        frames_WT: Frames of the video that each window takes; may repeat.
    """
    begin_WT, end_WT = index.seek_of_frame_F[frames_WT], index.packet_of_frame_F[frames_WT] + 1
    order_WT = np.argsort(begin_WT, axis=1, kind="stable")
    begin_WT, end_WT = (np.take_along_axis(a, order_WT, axis=1) for a in (begin_WT, end_WT))
    # The union of the runs [keyframe, frame], each begun where the one before it has come to.
    reached_WT = np.maximum.accumulate(end_WT, axis=1)
    fresh_WT = begin_WT.copy()
    np.maximum(begin_WT[:, 1:], reached_WT[:, :-1], out=fresh_WT[:, 1:])
    decoded_W = np.maximum(reached_WT - fresh_WT, 0).sum(axis=1)
    frames_WT = np.sort(frames_WT, axis=1)
    distinct_W = 1 + (np.diff(frames_WT, axis=1) > 0).sum(axis=1)
    return np.asarray(np.maximum(decoded_W - distinct_W, 0), dtype=np.int64)


def row_of_step(dataset: Dataset, episode: int, stream: str) -> Int64Array | None:
    """Return the row of a clocked stream that is nearest to each step of an episode, (S,); None for a stepwise one.

    Of an episode that has the stream. Whatever alignment a loader asks for, costs are those of the nearest rows.
    """
    if dataset.spec(stream).clock == "stepwise":
        return None
    times_N = dataset.stream_times_ns(episode, stream)
    times_S = dataset.step_times_ns(episode, np.arange(int(dataset.num_steps_E[episode]), dtype=np.int64))
    after_S = np.clip(np.searchsorted(times_N, times_S), 1, max(len(times_N) - 1, 1))
    before_S = after_S - 1
    after_S = np.minimum(after_S, len(times_N) - 1)
    is_before_S = times_S - times_N[before_S] <= times_N[after_S] - times_S
    return np.where(is_before_S, before_S, after_S).astype(np.int64)


def window_rows(
    anchor_W: Int64Array, num_steps: int, window: Window, offsets_T: Int64Array, row_S: Int64Array | None, num_rows: int
) -> Int64Array:
    """Return the rows of a track that windows take, (W, T): clamped into it, whatever the window's padding.

    Args:
        anchor_W: Anchors inside the episode.
        num_steps: Of the episode.
        window: Whose dilation and history count.
        offsets_T: Steps from the anchor that the stream takes.
        row_S: From `row_of_step`.
        num_rows: Of the track.
    """
    padded = Window(num_steps=window.num_steps, dilation=window.dilation, history=window.history, pad="edge")
    steps_WT, _ = stepwise_rows(anchor_W, num_steps, padded, offsets_T)
    rows_WT = steps_WT if row_S is None else row_S[steps_WT]
    return np.minimum(rows_WT, num_rows - 1)


def window_leads(
    track: Track,
    anchor_W: Int64Array,
    num_steps: int,
    window: Window,
    offsets_T: Int64Array,
    row_S: Int64Array | None = None,
) -> Int64Array:
    """Return `lead_frames` of windows, arguments as for `window_rows`; zeros for tracks that are no video."""
    out_W = np.zeros(len(anchor_W), dtype=np.int64)
    if not isinstance(track, VideoTrack) or not track.num_rows:
        return out_W
    for first in range(0, len(anchor_W), _WINDOWS_AT_ONCE):
        part = slice(first, first + _WINDOWS_AT_ONCE)
        rows_WT = window_rows(anchor_W[part], num_steps, window, offsets_T, row_S, track.num_rows)
        out_W[part] = lead_frames(track.index, np.minimum(track.first_frame + rows_WT, track.index.num_frames - 1))
    return out_W


def gop_length(index: VideoIndex) -> int:
    """Return the usual number of packets from one keyframe to the next: the median, the shorter last group left out."""
    edges = np.append(index.gop_start_G, len(index.size_P))
    lengths = np.diff(edges)
    return int(np.median(lengths[:-1] if len(lengths) > 1 else lengths)) if len(lengths) else 0

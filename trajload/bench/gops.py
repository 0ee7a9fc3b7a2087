"""How many bytes the groups of pictures hold that windows touch, against what is read for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajload.loader import Loader
from trajload.pipeline.source_rows import SourceRows
from trajload.refs import VideoTrack

__all__ = ["TouchedBytes", "touched_bytes"]

_MAX_WINDOWS = 64
_MIXED_STEPS = 16


@dataclass(frozen=True, slots=True)
class TouchedBytes:
    """Means over a sample of windows; video only."""

    gop_bytes: float
    """Of the whole groups of pictures that a window needs a frame of."""
    gops: float
    """How many."""
    frames_in_gops: float
    """Frames of those groups, for each frame delivered."""
    gop_frames: float
    """Length of a group."""


def touched_bytes(loader: Loader, train_step: int = 0) -> TouchedBytes | None:
    """Return what the first windows of some train_steps touch; None without video.

    Reads packet tables only, no pictures.

    Args:
        loader: Whatever it reads.
        train_step: Of the first batch that is looked at.
    """
    sources, sampler = loader._engine.builder.sources, loader._engine.sampler
    # A batch of a mixture may lack a source, and has the rows of each together.
    num_steps = 1 if len(sources) == 1 else _MIXED_STEPS
    windows: list[tuple[int, int, int]] = []
    for step in range(train_step, train_step + num_steps):
        refs = sampler.refs(step)
        windows += zip(refs.source_B.tolist(), refs.episode_B.tolist(), refs.start_B.tolist(), strict=True)
    if num_steps > 1:
        windows = windows[:: -(-len(windows) // _MAX_WINDOWS)]
    windows = windows[:_MAX_WINDOWS]
    found = []
    for source, episode, start in windows:
        found += _of_window(sources[source], episode, start)
    if not found:
        return None
    num_windows = len(windows)
    size, gops, frames, delivered = np.array(found, dtype=np.float64).sum(axis=0).tolist()
    return TouchedBytes(size / num_windows, gops / num_windows, frames / delivered, frames / gops)


def _of_window(source: SourceRows, episode: int, start: int) -> list[tuple[int, int, int, int]]:
    """Return (bytes, groups, frames in them, frames delivered) of each video stream of a window."""
    from trajload.align.rows import stepwise_rows

    own = stepwise_rows(start, int(source.dataset.num_steps_E[episode]), source.window)
    out = []
    for choice in source.choices:
        track = source.dataset.track(episode, choice.name)
        if not isinstance(track, VideoTrack) or not choice.spec.is_picture:
            continue
        planned = source.planner.plan(choice, track, episode, start, own)
        if not len(planned.rows):
            continue
        index = track.index
        frame_T = track.first_frame + planned.rows
        packet_T = np.concatenate([index.packet_of_frame_F[frame_T], index.seek_of_frame_F[frame_T]])
        gop_P = np.cumsum(np.asarray(index.is_keyframe_P, dtype=np.int64))
        touched = np.unique(gop_P[packet_T])
        is_touched_P = np.isin(gop_P, touched)
        size = int(np.asarray(index.size_P)[is_touched_P].sum())
        out.append((size, len(touched), int(is_touched_P.sum()), len(planned.rows)))
    return out

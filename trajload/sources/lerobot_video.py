"""Which frames of which video file are an episode's: one file per episode (v2), or a stretch of a shared one (v3)."""

# Shapes: E episodes, K episodes of one file, F frames

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

from trajload.errors import SourceError, at
from trajload.refs import VideoIndex, VideoTrack
from trajload.sources.index_cache import IndexCache
from trajload.sources.lerobot_episodes import EpisodesV3, EpisodeTable
from trajload.sources.notes import Note
from trajload.storage.local import check_inside
from trajload.storage.locks import ForkLock
from trajload.types import Int64Array

__all__ = ["EpisodeVideos", "first_frames", "frame_times_s"]


def frame_times_s(index: VideoIndex) -> np.ndarray:
    """Return the time of each frame (F,), float64 seconds after the first frame, in display order."""
    pts_F = np.sort(index.pts_P[index.packet_of_frame_F])
    base = index.time_base
    return (pts_F - (pts_F[0] if len(pts_F) else 0)) * (base.numerator / base.denominator)


def first_frames(
    time_F: np.ndarray, from_K: np.ndarray, to_K: np.ndarray | None, length_K: Int64Array, fps: Fraction
) -> tuple[Int64Array, dict[int, str]]:
    """Return the first frame of each of K episodes in a shared video, and what is wrong with some of them.

    An episode starts at the frame nearest to its `from_timestamp`, which must be within half a frame; the frames up
    to `to_timestamp` must be as many as the episode has steps; no episode may reach into the next one's frames.
    Times count from the file's first frame, as LeRobot sums them from durations.

    Args:
        time_F: Frame times, seconds.
        from_K, to_K: Metadata of the episodes, seconds.
        length_K: Steps of each.
        fps: Rate of the dataset.

    Returns:
        first_K: First frames, int64; meaningless where an error is given.
        errors: Position in K to message.
    """
    num_frames = len(time_F)
    period = float(1 / fps)
    first_K = np.zeros(len(from_K), dtype=np.int64)
    errors: dict[int, str] = {}
    # One boundary more than frames: where a frame after the last would stand.
    edge = np.append(time_F, (time_F[-1] if num_frames else 0.0) + period)
    for k, (start, length) in enumerate(zip(from_K.tolist(), length_K.tolist(), strict=True)):
        if length == 0:
            continue
        first = _nearest(edge, start)
        first_K[k] = first
        if not abs(edge[first] - start) <= period / 2:
            errors[k] = (
                f"from_timestamp {start:.6f} s has no frame within half a frame ({period / 2:.6f} s): the nearest of "
                f"{num_frames} frames is {first} at {edge[first]:.6f} s"
            )
        elif first + length > num_frames:
            errors[k] = (
                f"the video ends too early: it has {num_frames} frames, and the episode needs {length} from frame {first}"
            )
        elif to_K is not None and _nearest(edge, float(to_K[k])) - first != length:
            num = _nearest(edge, float(to_K[k])) - first
            errors[k] = (
                f"timestamps {start:.6f} to {float(to_K[k]):.6f} s span {num} frames (from frame {first}), but the episode "
                f"has {length} steps"
            )
    order = np.argsort(first_K, kind="stable")
    for one, two in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        if length_K[one] and length_K[two] and first_K[one] + length_K[one] > first_K[two]:
            errors.setdefault(
                two,
                f"its frames start at {int(first_K[two])}, inside those of another episode, "
                f"[{int(first_K[one])}, {int(first_K[one] + length_K[one])})",
            )
    return first_K, errors


def _nearest(edge: np.ndarray, value: float) -> int:
    right = int(np.clip(np.searchsorted(edge, value), 1, max(len(edge) - 1, 1)))
    if len(edge) == 1:
        return 0
    return right if edge[right] - value < value - edge[right - 1] else right - 1


class EpisodeVideos:
    """Video tracks of a LeRobot dataset. Thread-safe, picklable.

    Args:
        root: Dataset folder.
        episodes: Table of episodes.
        fps: Rate of the dataset.
        indexes: Packet tables.
        on_note: Called with a Note where something is odd but usable.
    """

    def __init__(
        self, root: Path, episodes: EpisodeTable, fps: Fraction, indexes: IndexCache, on_note: Callable[[Note], None]
    ) -> None:
        self.root = root
        self.episodes = episodes
        self.fps = fps
        self.indexes = indexes
        self._on_note = on_note
        self._first: dict[str, Int64Array] = {}
        self._lock = ForkLock()

    def index(self, file: str) -> VideoIndex:
        """Return the packet table of a file of the dataset."""
        with at(shard=file):
            return self.indexes.get(self.root / check_inside(file))

    def track(self, episode: int, camera: str) -> VideoTrack:
        """Return where the frames of `camera` stand for an episode.

        Raises:
            SourceError: The file holds fewer frames than the episode has steps, at another rate, or its metadata
                contradict it; the message has the numbers.
        """
        file = self.episodes.video_file(episode, camera)
        index = self.index(file)
        with at(shard=file):
            if isinstance(self.episodes, EpisodesV3):
                first = self._first_shared(self.episodes, episode, camera, index)
            else:
                self._check_own(episode, camera, file, index)
                first = 0
        return VideoTrack(file, index, first, int(self.episodes.length_E[episode]))

    def _check_own(self, episode: int, camera: str, file: str, index: VideoIndex) -> None:
        length = int(self.episodes.length_E[episode])
        if index.num_frames < length:
            raise SourceError(
                f"the video has {index.num_frames} frames, but the episode has {length} steps. Restore the video, or "
                "remove the episode."
            )
        if index.num_frames == length or length < 2:
            return
        last = float(frame_times_s(index)[length - 1])
        due = float((length - 1) / self.fps)
        if abs(last - due) > float(1 / self.fps) / 2:
            raise SourceError(
                f"the video has {index.num_frames} frames for {length} steps, and frame {length - 1} stands at {last:.4f} s "
                f"where step {length - 1} is at {due:.4f} s: its rate is not the dataset's. Re-encode it at {float(self.fps)} Hz."
            )
        self._on_note(
            Note(
                "length",
                f"video {file!r} has {index.num_frames} frames for {length} steps; the first {length} are used.",
                camera,
                file,
            )
        )

    def _first_shared(self, episodes: EpisodesV3, episode: int, camera: str, index: VideoIndex) -> int:
        with self._lock:
            first_E = self._first.get(camera)
            if first_E is None:
                first_E = self._first[camera] = np.full(len(episodes), -1, dtype=np.int64)
        if first_E[episode] >= 0:
            return int(first_E[episode])
        key_E = episodes.video_key_E(camera)
        mates = np.flatnonzero(key_E == key_E[episode])
        from_E = episodes.video_times_E(camera, "from")
        to_E = episodes.video_times_E(camera, "to")
        if from_E is None:
            raise SourceError(
                f"meta/episodes has no column 'videos/{camera}/from_timestamp': the frames cannot be told apart."
            )
        first_K, errors = first_frames(
            frame_times_s(index),
            from_E[mates],
            to_E[mates] if to_E is not None else None,
            episodes.length_E[mates],
            self.fps,
        )
        for k, mate in enumerate(mates.tolist()):
            if k not in errors:
                first_E[mate] = first_K[k]
        wrong = errors.get(int(np.flatnonzero(mates == episode)[0]))
        if wrong is not None:
            raise SourceError(f"{wrong}. Metadata and video disagree: restore both from the same version.")
        return int(first_E[episode])

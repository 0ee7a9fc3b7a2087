"""Pictures: frames promised and there, frames that decode, groups of pictures that cost too much."""

# Shapes: F frames of a video, P packets, N rows

from __future__ import annotations

import numpy as np

from trajload.decode import DecodeContext
from trajload.doctor.report import Collector
from trajload.errors import TrajloadError
from trajload.pipeline.rows import read_rows
from trajload.refs import Track, VideoIndex, VideoTrack
from trajload.sources.base import Dataset
from trajload.spec import StreamSpec

__all__ = ["PictureCheck", "decoded_per_window"]

TYPICAL_NUM_STEPS = 16
"""Length of the window that costs are quoted for."""
_SHORT_GOP = 10
"""Keyframe distance that a costly video is compared with: that of videos written here."""
_COSTLY_RATIO = 2.5
"""Frames decoded per frame wanted from which on a video is called costly."""


def decoded_per_window(index: VideoIndex, num_steps: int = TYPICAL_NUM_STEPS) -> float:
    """Return the frames decoded on average for a random window of `num_steps` neighbouring frames."""
    num_frames = index.num_frames
    length = min(num_steps, num_frames)
    if length == 0:
        return 0.0
    last_F = np.lib.stride_tricks.sliding_window_view(index.packet_of_frame_F, length).max(axis=1)
    first_F = np.lib.stride_tricks.sliding_window_view(index.seek_of_frame_F, length).min(axis=1)
    return float((last_F - first_F + 1).mean())


class PictureCheck:
    """Looks at the picture streams of episodes. Not thread-safe.

    Args:
        dataset: The opened dataset.
        found: Where findings go.
        decode: Decode the first and last picture of each episode.
        deep: Decode the first picture of every group of pictures as well.
        num_steps: Length of the window that costs are quoted for.
    """

    def __init__(
        self, dataset: Dataset, found: Collector, *, decode: bool, deep: bool, num_steps: int = TYPICAL_NUM_STEPS
    ) -> None:
        self.dataset = dataset
        self.found = found
        self.decode = decode
        self.deep = deep
        self.num_steps = num_steps
        self.num_frames_decoded = 0
        self._context = DecodeContext()
        self._seen_videos: set[tuple[str, str, int]] = set()

    def close(self) -> None:
        """Free the decoders."""
        self._context.close()

    def look(self, episode: int, spec: StreamSpec, track: Track) -> None:
        """Check one picture stream of one episode."""
        if isinstance(track, VideoTrack):
            if not self._has_promised_frames(episode, spec, track):
                return
            self._look_at_index(spec, track)
        if self.decode and track.num_rows > 0:
            self._decode(episode, spec, track)

    def _has_promised_frames(self, episode: int, spec: StreamSpec, track: VideoTrack) -> bool:
        there = track.index.num_frames - track.first_frame
        if there >= track.num_rows and track.first_frame >= 0:
            return True
        self.found.add(
            "error",
            "frames-missing",
            f"stream {spec.name!r} promises {track.num_rows} frames from frame {track.first_frame} on, but the video has "
            f"{max(there, 0)} there ({track.index.num_frames} in all).",
            "Windows beyond the last frame fail; restore the video, or cut the episode on conversion.",
            stream=spec.name,
            episode=self.dataset.episode_key(episode),
            shard=track.file,
        )
        return False

    def _look_at_index(self, spec: StreamSpec, track: VideoTrack) -> None:
        index = track.index
        # Several videos may stand in one shard: the first packet's place tells them apart.
        video = (track.file, spec.name, int(index.offset_P[0]) if len(index.offset_P) else -1)
        if video in self._seen_videos:
            return
        self._seen_videos.add(video)
        height, width = (index.height, index.width) if index.rotation % 180 == 0 else (index.width, index.height)
        if (height, width) != spec.shape[:2]:
            self.found.add(
                "error",
                "picture-size",
                f"stream {spec.name!r} declares {spec.shape[0]}x{spec.shape[1]} pictures, but the video holds {height}x{width}.",
                "A batch needs one size: correct the declared shape, or ask for tl.Image(size=...) if sizes differ on purpose.",
                stream=spec.name,
                shard=track.file,
            )
        decoded = decoded_per_window(index, self.num_steps)
        wanted = min(self.num_steps, index.num_frames)
        if wanted and decoded > _COSTLY_RATIO * wanted:
            gops = np.diff(np.append(index.gop_start_G, len(index.pts_P)))
            short = wanted + (min(_SHORT_GOP, index.num_frames) - 1) / 2
            self.found.add(
                "warning",
                "long-gop",
                f"stream {spec.name!r} has keyframes up to {int(gops.max())} frames apart: a random window of {wanted} frames decodes "
                f"{decoded:.0f} on average, {decoded / wanted:.1f} times what it delivers, and {decoded / short:.1f} times what it "
                f"would with a keyframe every {_SHORT_GOP} frames.",
                "'trajload tune-encoding' measures which encoding helps, 'trajload convert --reencode' applies it; or share the "
                "frames between windows with order='interleaved'.",
                stream=spec.name,
                shard=track.file,
            )

    def _rows(self, track: Track) -> list[int]:
        rows = {0, track.num_rows - 1}
        if self.deep and isinstance(track, VideoTrack):
            frames = np.arange(track.first_frame, track.first_frame + track.num_rows)
            _, first = np.unique(track.index.seek_of_frame_F[frames], return_index=True)
            rows.update(int(i) for i in first)
        elif self.deep:
            rows.update(range(track.num_rows))
        return sorted(rows)

    def _decode(self, episode: int, spec: StreamSpec, track: Track) -> None:
        key = self.dataset.episode_key(episode)
        for row in self._rows(track):
            try:
                frames = read_rows(self.dataset, episode, spec.name, [row], context=self._context)
            except TrajloadError as err:
                self.found.add(
                    "error",
                    "undecodable",
                    f"picture {row} of stream {spec.name!r} does not decode: {err.message}",
                    "Restore the file from its source ('trajload verify' shows whether its bytes changed), or drop the episode.",
                    stream=spec.name,
                    episode=key,
                    steps=(row, row + 1) if spec.clock == "stepwise" else None,
                    shard=track.file,
                )
                return  # what follows in this file is likely to fail the same way
            self.num_frames_decoded += 1
            if frames is not None and frames.size and frames.min() == frames.max():
                self.found.add(
                    "warning",
                    "blank-picture",
                    f"picture {row} of stream {spec.name!r} has the value {frames.flat[0]} everywhere.",
                    "Covered lens, lost connection, or a decoder that found nothing: look at it with 'trajload view'.",
                    stream=spec.name,
                    episode=key,
                    steps=(row, row + 1) if spec.clock == "stepwise" else None,
                )

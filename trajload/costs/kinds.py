"""What makes windows of two episodes cost alike: stream, codec, size and keyframe distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trajload.costs.leads import gop_length
from trajload.refs import Track, VideoTrack
from trajload.sources.base import Dataset
from trajload.spec import StreamSpec

__all__ = ["Kind", "kind_of", "stream_kind"]


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """One kind of stored stream."""

    stream: str
    codec: str
    """Of a video: 'h264', 'av1', ...; else how rows are stored: 'npy', 'jpg', ..."""
    shape: tuple[int, ...]
    """(height, width) of pictures as they are coded, the shape of a row of others."""
    pix_fmt: str = ""
    gop: int = 0
    """Usual frames from one keyframe to the next; 0 for what is no video."""

    @property
    def has_leads(self) -> bool:
        """Whether frames may be decoded before the first row of a window."""
        return bool(self.pix_fmt) and self.gop != 1

    def to_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "codec": self.codec,
            "shape": list(self.shape),
            "pix_fmt": self.pix_fmt,
            "gop": self.gop,
        }


def kind_of(spec: StreamSpec, track: Track) -> Kind:
    """Return the kind of a stream that stands where `track` says."""
    if isinstance(track, VideoTrack):
        index = track.index
        return Kind(spec.name, index.codec, (index.height, index.width), index.pix_fmt, gop_length(index))
    return Kind(spec.name, spec.encoding, spec.shape[:2] if spec.is_picture else spec.shape)


def stream_kind(dataset: Dataset, episode: int, stream: str) -> Kind | None:
    """Return the kind of `stream` in `episode`, or None where the episode lacks it.

    Raises:
        TrajloadError: Its file is absent or unusable.
    """
    track = dataset.track(episode, stream)
    if track is None or not track.num_rows:
        return None
    return kind_of(dataset.spec(stream), track)

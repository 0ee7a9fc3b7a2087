"""Tracks of video kept from window to window: finding one and reading its packet table costs more than its plan."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from trajload.decode.quick_video import QuickVideo, same_pictures
from trajload.refs import Track, VideoTrack
from trajload.storage.locks import ForkLock

__all__ = ["QuickTracks"]

_MAX_BYTES = 64 << 20


class QuickTracks:
    """The last tracks of video that were met, up to 64 MiB of packet tables. Thread-safe; empty in another process."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = ForkLock()
        self.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return (QuickTracks, (self._max_bytes,))

    def clear(self) -> None:
        """Forget all tracks."""
        with self._lock:
            self._found: dict[tuple[int, str], QuickVideo] = {}
            self._setup_keys: dict[Hashable, object] = {}
            self.num_bytes = 0

    def get(self, episode: int, key: str) -> QuickVideo | None:
        """Return the track of a stream in an episode, None where it is not kept."""
        return self._found.get((episode, key))

    def put(self, episode: int, key: str, track: Track) -> QuickVideo | None:
        """Keep a track of video and return what is kept of it; None for other tracks, and for those of too many packets."""
        if not isinstance(track, VideoTrack) or len(track.index.is_keyframe_P) * 128 > self._max_bytes:
            return None
        kind = (key, same_pictures(track.index))
        with self._lock:
            made = QuickVideo(track, self._setup_keys.setdefault(kind, object()))
            old = self._found.pop((episode, key), None)
            self._found[episode, key] = made
            self.num_bytes += made.num_bytes - (0 if old is None else old.num_bytes)
            while self.num_bytes > self._max_bytes:
                first = next(iter(self._found))
                self.num_bytes -= self._found.pop(first).num_bytes
        return made

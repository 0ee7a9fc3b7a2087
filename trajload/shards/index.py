"""The index of one shard, read by mapping: nothing is made per episode until someone asks for the episode."""

# Shapes: E episodes, K tracks, M members, P packets, F frames, G groups of pictures, N rows

from __future__ import annotations

import base64
import itertools
import json
from collections import OrderedDict
from fractions import Fraction
from functools import cached_property
from typing import Any

from trajload.errors import ManifestError, ShardCorruptError
from trajload.manifest import ShardEntry
from trajload.refs import VideoIndex
from trajload.shards.columns import ColumnFile
from trajload.shards.index_schema import INDEX_FORMAT, INDEX_VERSION, contradiction
from trajload.shards.records import StepClock
from trajload.storage.locks import ForkLock
from trajload.types import Int64Array, NDArray, PathLikeStr

__all__ = ["ShardIndex", "TrackRow"]

_MAX_VIDEOS = 256


class TrackRow:
    """One row of the track table."""

    __slots__ = ("detail", "encoding", "member", "num_rows", "row")

    def __init__(self, row: int, encoding: int, num_rows: int, member: int, detail: int) -> None:
        self.row = row
        self.encoding = encoding
        self.num_rows = num_rows
        self.member = member
        self.detail = detail


class ShardIndex:
    """Typed access to the columns of an index. Thread-safe; arrays are read-only views of the mapped file."""

    def __init__(self, path: PathLikeStr, entry: ShardEntry | None = None) -> None:
        """Map the index at `path`; with `entry` its size, header and shard must be those of the manifest."""
        self._file = ColumnFile(
            path,
            num_bytes=None if entry is None else entry.index.num_bytes,
            header_checksum=None if entry is None else entry.index.header_xxh3_64,
        )
        metadata = self._file.metadata
        if metadata.get("format") != INDEX_FORMAT:
            raise self._bad(f"got format {metadata.get('format')!r}, expected {INDEX_FORMAT!r}")
        if metadata.get("format_version") != INDEX_VERSION:
            raise ManifestError(
                f"index {self._file.path!r} has format version {metadata.get('format_version')!r}, but this trajload "
                f"reads version {INDEX_VERSION!r}; upgrade: pip install -U trajload."
            )
        if (wrong := contradiction(self._file.shapes)) is not None:
            raise self._bad(wrong)
        try:
            self.shard_num_bytes = int(metadata["shard_num_bytes"])
            self.streams: dict[str, int] = {name: i for i, name in enumerate(json.loads(metadata["streams"]))}
        except (KeyError, ValueError, TypeError) as err:
            raise self._bad(f"its metadata are unusable ({err!r})") from err
        if entry is not None and self.shard_num_bytes != entry.num_bytes:
            raise self._bad(f"it indexes a shard of {self.shard_num_bytes} bytes, the manifest's has {entry.num_bytes}")
        self._videos: OrderedDict[int, VideoIndex] = OrderedDict()
        self._lock = ForkLock()

    def _bad(self, what: str) -> ShardCorruptError:
        return ShardCorruptError(f"index {self._file.path!r} is damaged: {what}. Run 'trajload verify'.")

    @property
    def column_names(self) -> tuple[str, ...]:
        return self._file.names

    @property
    def header_checksum(self) -> str:
        return self._file.header_checksum

    def column(self, name: str) -> NDArray:
        """Return a column, checked when first used."""
        return self._file.column(name)

    def span(self, prefix: str, i: int, column: str) -> tuple[int, int]:
        """Return the half-open part of `column` that belongs to entry `i` of `prefix`."""
        ends = self.column(prefix)
        start, stop = int(ends[i]), int(ends[i + 1])
        if not 0 <= start <= stop <= len(self.column(column)):
            raise self._bad(f"entry {i} of {prefix!r} is [{start}, {stop}), beyond {len(self.column(column))} rows")
        return start, stop

    def run(self, prefix: str, i: int, column: str) -> NDArray:
        """Return the rows of `column` that belong to entry `i` of `prefix`."""
        start, stop = self.span(prefix, i, column)
        return self.column(column)[start:stop]

    # ---- episodes ----

    @property
    def num_steps_E(self) -> Int64Array:
        return self.column("episode.num_steps")

    @property
    def terminated_E(self) -> NDArray:
        return self.column("episode.terminated")

    @cached_property
    def num_episodes(self) -> int:
        return len(self.num_steps_E)

    def episode_key(self, episode: int) -> str:
        return self.run("episode.key_offset", episode, "episode.key_text").tobytes().decode("utf-8", "replace")

    def episode_keys(self) -> list[str]:
        """Return the keys of all episodes; costs one string each."""
        text = self.column("episode.key_text").tobytes()
        ends = self.column("episode.key_offset").tolist()
        return [text[a:b].decode("utf-8", "replace") for a, b in itertools.pairwise(ends)]

    def metadata(self, episode: int) -> dict[str, Any]:
        text = self.run("episode.metadata_offset", episode, "episode.metadata_text").tobytes()
        try:
            obj = json.loads(text) if text else {}
        except ValueError as err:
            raise self._bad(f"metadata of episode {episode} are not JSON ({err})") from err
        return obj if isinstance(obj, dict) else {}

    def clock(self, episode: int) -> StepClock:
        """Return (rate, start) of an episode with a uniform clock, else the time of each step."""
        num, den = int(self.column("episode.rate_num")[episode]), int(self.column("episode.rate_den")[episode])
        if num > 0 and den > 0:
            return Fraction(num, den), int(self.column("episode.start_ns")[episode])
        times_ns = self.run("episode.time_offset", episode, "step_time.ns")
        if len(times_ns) != self.num_steps_E[episode]:
            raise self._bad(f"episode {episode} has {len(times_ns)} step times for {self.num_steps_E[episode]} steps")
        return times_ns

    # ---- tracks ----

    def find_track(self, episode: int, stream: str) -> TrackRow | None:
        """Return the track of `stream` in an episode, or None where the episode lacks it."""
        code = self.streams.get(stream)
        if code is None:
            return None
        start, stop = self.span("episode.track_offset", episode, "track.stream")
        codes = self.column("track.stream")[start:stop].tolist()  # a handful: a list is faster than NumPy
        return self.track_row(start + codes.index(code)) if code in codes else None

    def track_row(self, row: int) -> TrackRow:
        return TrackRow(
            row,
            int(self.column("track.encoding")[row]),
            int(self.column("track.num_rows")[row]),
            int(self.column("track.member")[row]),
            int(self.column("track.detail")[row]),
        )

    def times_ns(self, track: TrackRow) -> Int64Array:
        """Return the timestamps of a clocked track (N,)."""
        return self.run("track.time_offset", track.row, "stream_time.ns")

    def check_rows(self, column: str, first: int, count: int = 1) -> None:
        """Raise ShardCorruptError unless `column` has rows [first, first + count)."""
        if not (first >= 0 and count >= 0 and first + count <= len(self.column(column))):
            raise self._bad(f"rows [{first}, {first + count}) of {column!r} lie beyond its {len(self.column(column))}")

    def check_range(self, offset: int, size: int) -> None:
        """Raise ShardCorruptError unless [offset, offset + size) lies inside the shard."""
        if not (offset >= 0 and size >= 0 and offset + size <= self.shard_num_bytes):
            raise self._bad(f"bytes [{offset}, {offset + size}) leave the shard of {self.shard_num_bytes} bytes")

    def check_inside(self, offset_X: NDArray, size_X: NDArray) -> None:
        """Raise ShardCorruptError unless all byte ranges lie inside the shard."""
        if len(offset_X) and not (
            (offset_X >= 0).all() and (size_X >= 0).all() and (offset_X <= self.shard_num_bytes - size_X).all()
        ):
            raise self._bad(f"a byte range leaves the shard of {self.shard_num_bytes} bytes")

    def video(self, detail: int) -> VideoIndex:
        """Return the packet table of a video, with offsets in the shard; the last 256 are kept."""
        with self._lock:
            index = self._videos.get(detail)
            if index is None:
                index = self._videos[detail] = self._build_video(detail)
                while len(self._videos) > _MAX_VIDEOS:
                    self._videos.popitem(last=False)
            self._videos.move_to_end(detail)
            return index

    def _build_video(self, detail: int) -> VideoIndex:
        self.check_rows("video.profile", detail)
        profile_row = int(self.column("video.profile")[detail])
        self.check_rows("profile.offset", profile_row, 2)
        try:
            profile = json.loads(self.run("profile.offset", profile_row, "profile.text").tobytes())
            fields: dict[str, Any] = {
                "codec": str(profile["codec"]),
                "extradata": base64.b64decode(profile["extradata"], validate=True),
                "time_base": Fraction(*profile["time_base"]),
                "width": int(profile["width"]),
                "height": int(profile["height"]),
                "pix_fmt": str(profile["pix_fmt"]),
                "color_space": str(profile["color_space"]),
                "color_range": str(profile["color_range"]),
                "rotation": int(profile["rotation"]),
            }
        except (ValueError, KeyError, TypeError, ZeroDivisionError) as err:
            raise self._bad(f"video profile {profile_row} is unusable ({err!r})") from err
        packets = {
            name: self.run("video.packet_offset", detail, f"packet.{name}")
            for name in ("offset", "size", "pts", "dts", "is_keyframe", "is_discard")
        }
        frame_F = self.run("video.frame_offset", detail, "frame.packet")
        seek_F = self.run("video.frame_offset", detail, "frame.seek_packet")
        gop_G = self.run("video.gop_offset", detail, "gop.checksum")
        self.check_inside(packets["offset"], packets["size"])
        num_packets = len(packets["offset"])
        for name, rows in (("frame.packet", frame_F), ("frame.seek_packet", seek_F)):
            if len(rows) and not (rows.min() >= 0 and rows.max() < num_packets):
                raise self._bad(f"video {detail} has {name!r} beyond its {num_packets} packets")
        if len(gop_G) != int(packets["is_keyframe"].sum()):
            raise self._bad(f"video {detail} has {len(gop_G)} checksums for {int(packets['is_keyframe'].sum())} GOPs")
        return VideoIndex(
            **fields,
            offset_P=packets["offset"],
            size_P=packets["size"],
            pts_P=packets["pts"],
            dts_P=packets["dts"],
            is_keyframe_P=packets["is_keyframe"],
            is_discard_P=packets["is_discard"],
            gop_checksum_G=gop_G,
            packet_of_frame_F=frame_F,
            seek_of_frame_F=seek_F,
        )

"""Episodes of an existing shard as records that another shard can be written from: the same bytes, checked on the way.

The index says where members stand and what they hold; nothing is parsed or decoded again. `scan` reads the same records
out of the tar alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from trajload.errors import ShardCorruptError
from trajload.refs import ByteRange, VideoIndex
from trajload.shards import layout
from trajload.shards.index import ShardIndex, TrackRow
from trajload.shards.records import EpisodeRecord, Member, NpyDetail, TrackRecord, checksum_of
from trajload.shards.tar import BLOCK_BYTES
from trajload.shards.zst import ChunkDetail
from trajload.spec import IMAGE_ENCODINGS, StreamSpec
from trajload.types import Int64Array

__all__ = ["episode_bytes", "stored_record"]

Read = Callable[[ByteRange], bytes]


def episode_bytes(index: ShardIndex) -> Int64Array:
    """Return how many bytes each episode of a shard takes there, (E,); long names and huge members take a little more."""
    size_M = index.column("member.size").astype(np.int64)
    total_M1 = np.zeros(len(size_M) + 1, dtype=np.int64)
    np.cumsum(size_M + -size_M % BLOCK_BYTES + BLOCK_BYTES, out=total_M1[1:])
    edge_E1 = index.column("episode.member_offset")
    return np.asarray(np.diff(total_M1[edge_E1]), dtype=np.int64)


def stored_record(
    index: ShardIndex, shard: str, streams: Sequence[StreamSpec], episode: int, read: Read
) -> EpisodeRecord:
    """Return an episode with the bytes of its members.

    Args:
        index: Of the shard.
        shard: Its name, relative to the dataset folder.
        streams: As the manifest declares them.
        episode: Place in the shard.
        read: Fetches bytes of the dataset.

    Raises:
        ShardCorruptError: A member does not have its checksum, or the index contradicts itself.
    """
    return _Stored(index, shard, streams, episode, read).record()


class _Stored:
    def __init__(self, index: ShardIndex, shard: str, streams: Sequence[StreamSpec], episode: int, read: Read) -> None:
        self._index, self._shard, self._streams, self._episode, self._read = index, shard, streams, episode, read
        self._key = index.episode_key(episode)
        self._next, self._stop = index.span("episode.member_offset", episode, "member.offset")

    def record(self) -> EpisodeRecord:
        index, key = self._index, self._key
        clock = index.clock(self._episode)
        info = self._take(f"{key}.{layout.INFO_EXTENSION}", layout.ROLE_INFO, -1)
        step_times = None
        if not isinstance(clock, tuple):
            step_times = self._take(f"{key}.{layout.STEP_TIMES_EXTENSION}", layout.ROLE_STEP_TIMES, -1)
        first, stop = index.span("episode.track_offset", self._episode, "track.stream")
        tracks = tuple(
            self._track(int(index.column("track.stream")[row]), index.track_row(row)) for row in range(first, stop)
        )
        if self._next != self._stop:
            raise self._contradicts(f"{self._stop - self._next} members belong to no stream")
        terminated = int(index.terminated_E[self._episode])
        return EpisodeRecord(
            key=key,
            num_steps=int(index.num_steps_E[self._episode]),
            terminated=None if terminated < 0 else bool(terminated),
            clock=clock,
            metadata_json=index.run("episode.metadata_offset", self._episode, "episode.metadata_text").tobytes(),
            info=info,
            step_times=step_times,
            tracks=tracks,
        )

    def _contradicts(self, what: str) -> ShardCorruptError:
        return ShardCorruptError(f"the index of {self._shard!r} contradicts itself: {what}. Run 'trajload verify'.")

    def _take(self, name: str, role: int, stream: int) -> Member:
        """Return the next member with its bytes, which must be what the index says."""
        index, row = self._index, self._next
        if row >= self._stop or (int(index.column("member.role")[row]), int(index.column("member.stream")[row])) != (
            role,
            stream,
        ):
            raise self._contradicts(f"member {name!r} is not where it is expected")
        self._next += 1
        offset, size = int(index.column("member.offset")[row]), int(index.column("member.size")[row])
        index.check_range(offset, size)
        data = self._read(ByteRange(self._shard, offset, size))
        expected = int(index.column("member.checksum")[row])
        if checksum_of(data) != expected:
            raise ShardCorruptError(
                f"member {name!r} is damaged: bytes [{offset}, {offset + size}) of {self._shard!r} have checksum "
                f"{checksum_of(data):016x}, expected {expected:016x}. Restore the file from its source; 'trajload verify' "
                "lists all damage."
            )
        return Member(name, role, stream, size, expected, (data,))

    def _track(self, code: int, row: TrackRow) -> TrackRecord:
        if not 0 <= code < len(self._streams) or row.encoding >= len(layout.ENCODINGS):
            raise self._contradicts(f"a track has stream {code} and encoding code {row.encoding}")
        spec, encoding = self._streams[code], layout.ENCODINGS[row.encoding]
        timestamps, times_ns = None, None
        if spec.clock == "clocked":
            times_ns = self._index.times_ns(row)
            name = layout.timestamps_member_name(self._key, spec.name)
            timestamps = self._take(name, layout.ROLE_TIMESTAMPS, code)
        if row.member != self._next:
            raise self._contradicts(f"rows of stream {spec.name!r} begin at member {row.member}, not {self._next}")
        count = row.num_rows if encoding in IMAGE_ENCODINGS else 1
        members = tuple(
            self._take(layout.data_member_name(self._key, spec.name, encoding, i), layout.ROLE_DATA, code)
            for i in range(count)
        )
        return TrackRecord(code, encoding, row.num_rows, members, self._detail(encoding, row), timestamps, times_ns)

    def _detail(self, encoding: str, row: TrackRow) -> NpyDetail | ChunkDetail | VideoIndex | None:
        """Return what the index says beyond place and checksum of a member, from the start of the member."""
        index = self._index
        if encoding not in ("npy", "npy.zst", "mp4", "mkv"):
            return None
        offset = int(index.column("member.offset")[row.member])
        if encoding == "npy":
            index.check_rows("npy.data_offset", row.detail)
            return NpyDetail(
                int(index.column("npy.data_offset")[row.detail]) - offset, int(index.column("npy.checksum")[row.detail])
            )
        if encoding == "npy.zst":
            index.check_rows("zst.rows_per_chunk", row.detail)
            parts = {
                name: index.run("zst.chunk_offset", row.detail, f"chunk.{name}")
                for name in ("offset", "size", "checksum")
            }
            return ChunkDetail(
                rows_per_chunk=int(index.column("zst.rows_per_chunk")[row.detail]),
                offset_K=parts["offset"] - offset,
                size_K=parts["size"],
                checksum_K=parts["checksum"],
            )
        video = index.video(row.detail)
        return replace(video, offset_P=video.offset_P - offset)

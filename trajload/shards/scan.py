"""A shard read as a plain tar: its members, and the index records they imply.

This is the way back from a tar to its index, and what `verify` compares an index with. Nothing here uses the index.
"""

# Shapes: N rows

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from trajload.errors import ManifestError, ShardCorruptError, TrajloadError, at
from trajload.manifest import canonical_json
from trajload.refs import VideoIndex
from trajload.shards import layout
from trajload.shards.npy import parse_npy_header
from trajload.shards.records import EpisodeRecord, Member, NpyDetail, StepClock, TrackRecord, checksum_of
from trajload.shards.tar import padding
from trajload.shards.zst import ChunkDetail, frame_sizes
from trajload.spec import IMAGE_ENCODINGS, VIDEO_ENCODINGS, StreamSpec
from trajload.types import Int64Array, PathLikeStr

__all__ = ["TarMember", "iter_members", "scan_episodes"]


@dataclass(frozen=True, slots=True)
class TarMember:
    """Name and place of one member."""

    name: str
    offset: int
    """Of its content."""
    size: int


def iter_members(path: PathLikeStr) -> Iterator[TarMember]:
    """Yield the members of a tar in order.

    Raises:
        ShardCorruptError: A header is damaged, a member is cut off, or the end marker is missing.
    """
    size = Path(path).stat().st_size
    end = 0
    try:
        with tarfile.open(path, "r:") as tar:
            for info in tar:
                end = info.offset_data + info.size + padding(info.size)
                if end > size:
                    raise ShardCorruptError(
                        f"member {info.name!r} is cut off: the file has {size} bytes, expected at least {end}."
                    )
                yield TarMember(info.name, info.offset_data, info.size)
    except (tarfile.TarError, OSError, ValueError, EOFError) as err:
        raise ShardCorruptError(f"tar is damaged behind byte {end}: {err}.") from err
    with open(path, "rb") as handle:
        handle.seek(end)
        tail = handle.read(1025)
    if tail != bytes(1024):
        raise ShardCorruptError(
            f"tar is damaged behind byte {end}: got {size - end} bytes, expected 1024 zero bytes as end marker."
        )


def scan_episodes(path: PathLikeStr, streams: Sequence[StreamSpec]) -> Iterator[tuple[EpisodeRecord, list[int]]]:
    """Yield each episode of a shard as the writer recorded it, with the offsets of its members' contents.

    Raises:
        ShardCorruptError: The members are not those of episodes of `streams`; the message names the first wrong one.
    """
    group: list[TarMember] = []
    with open(path, "rb") as handle:
        for member in iter_members(path):
            if member.name.endswith("." + layout.INFO_EXTENSION) and member.name.count(".") == 2:
                if group:
                    yield _Scan(handle, group, streams).record()
                group = []
            group.append(member)
        if group:
            yield _Scan(handle, group, streams).record()


class _Scan:
    """The members of one episode, taken one after the other."""

    def __init__(self, handle: Any, members: list[TarMember], streams: Sequence[StreamSpec]) -> None:
        self._handle = handle
        self._members = members
        self._streams = streams
        self._next = 0

    def _take(self, name: str) -> tuple[TarMember, bytes]:
        if self._next >= len(self._members) or self._members[self._next].name != name:
            got = repr(self._members[self._next].name) if self._next < len(self._members) else "the next episode"
            raise ShardCorruptError(f"tar has {got} where member {name!r} is expected.")
        member = self._members[self._next]
        self._next += 1
        self._handle.seek(member.offset)
        return member, self._handle.read(member.size)

    def record(self) -> tuple[EpisodeRecord, list[int]]:
        """Return the episode."""
        first = self._members[0].name
        key = first.split(".", 1)[0]
        with at(episode=key):
            info, text = self._take(f"{key}.{layout.INFO_EXTENSION}")
            try:
                said = json.loads(text)
                record = self._record(key, text, said)
            except (ValueError, KeyError, TypeError, AttributeError) as err:
                if isinstance(err, TrajloadError):
                    raise
                raise ShardCorruptError(f"member {info.name!r} is unusable: {err!r}.") from err
            if self._next != len(self._members):
                raise ShardCorruptError(f"tar has member {self._members[self._next].name!r}, which no stream claims.")
        return record, [member.offset for member in self._members]

    def _record(self, key: str, text: bytes, said: dict[str, Any]) -> EpisodeRecord:
        if said["format_version"] != 1:
            raise ManifestError(
                f"episode was written in format version {said['format_version']}, but this trajload reads version 1; "
                "upgrade: pip install -U trajload."
            )
        step_times: Member | None = None
        clock: StepClock
        if said["step_clock"] is None:
            step_times, clock = self._times(f"{key}.{layout.STEP_TIMES_EXTENSION}", layout.ROLE_STEP_TIMES, -1)
        else:
            clock = (Fraction(*said["step_clock"]["rate_hz"]), int(said["step_clock"]["start_ns"]))
        tracks = [
            self._track(key, code, spec, said["streams"][spec.name])
            for code, spec in enumerate(self._streams)
            if spec.name in said["streams"]
        ]
        return EpisodeRecord(
            key=key,
            num_steps=int(said["num_steps"]),
            terminated=said["terminated"],
            clock=clock,
            metadata_json=canonical_json(said["metadata"]) if said["metadata"] else b"",
            info=Member.of(f"{key}.{layout.INFO_EXTENSION}", layout.ROLE_INFO, -1, text),
            step_times=step_times,
            tracks=tuple(tracks),
        )

    def _times(self, name: str, role: int, code: int) -> tuple[Member, Int64Array]:
        _, data = self._take(name)
        offset, dtype, shape = parse_npy_header(data)
        if dtype != np.dtype("<i8") or len(shape) != 1 or len(data) != offset + 8 * shape[0]:
            raise ShardCorruptError(f"member {name!r} has dtype {dtype} and shape {shape}: expected int64 (N,).")
        return Member.of(name, role, code, data), np.frombuffer(data, "<i8", offset=offset)

    def _track(self, key: str, code: int, spec: StreamSpec, said: dict[str, Any]) -> TrackRecord:
        with at(stream=spec.name):
            encoding, num_rows = str(said["encoding"]), int(said["num_rows"])
            timestamps, times = None, None
            if spec.clock == "clocked":
                name = layout.timestamps_member_name(key, spec.name)
                timestamps, times = self._times(name, layout.ROLE_TIMESTAMPS, code)
            members = []
            data = b""
            for row in range(num_rows if encoding in IMAGE_ENCODINGS else 1):
                name = layout.data_member_name(key, spec.name, encoding, row)
                _, data = self._take(name)
                members.append(Member(name, layout.ROLE_DATA, code, len(data), checksum_of(data)))
            detail = _detail(spec, encoding, num_rows, data, said)
            return TrackRecord(code, encoding, num_rows, tuple(members), detail, timestamps, times)


def _detail(
    spec: StreamSpec, encoding: str, num_rows: int, data: bytes, said: dict[str, Any]
) -> NpyDetail | ChunkDetail | VideoIndex | None:
    """Return what the index says beyond place and checksum of a member."""
    if encoding == "npy":
        offset, dtype, shape = parse_npy_header(data)
        if (
            dtype != np.dtype(spec.dtype)
            or shape != (num_rows, *spec.shape)
            or len(data) != offset + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        ):
            raise ShardCorruptError(
                f"npy member has dtype {dtype}, shape {shape} and {len(data)} bytes: expected {spec.dtype} and "
                f"{(num_rows, *spec.shape)}."
            )
        return NpyDetail(offset, checksum_of(memoryview(data)[offset:]))
    if encoding == "npy.zst":
        sizes = frame_sizes(data)
        per_chunk = int(said["rows_per_chunk"])
        if per_chunk < 1 or len(sizes) != 1 + -(-num_rows // per_chunk):
            raise ShardCorruptError(
                f"npy.zst member has {len(sizes)} zstd frames: expected 1 and one for each {per_chunk} of {num_rows} rows."
            )
        ends = np.cumsum(sizes)
        return ChunkDetail(
            rows_per_chunk=per_chunk,
            offset_K=ends[:-1],
            size_K=sizes[1:],
            checksum_K=np.array([xxhash.xxh3_64_intdigest(data[a:b]) for a, b in pairwise(ends)], dtype=np.uint64),
        )
    if encoding in VIDEO_ENCODINGS:
        from trajload.shards.video_index import build_video_index

        return build_video_index(data)
    return None

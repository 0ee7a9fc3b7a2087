"""What the writer puts into a shard and the index says of it: members, tracks, episodes.

The writer makes these from values, the rebuilder from the members of a tar; both give them to the same
`IndexBuilder`, so a rebuilt index has the bytes of the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import xxhash

from trajload.manifest import canonical_json
from trajload.refs import VideoIndex
from trajload.shards.zst import ChunkDetail
from trajload.types import Int64Array

__all__ = ["Buffer", "EpisodeRecord", "Member", "NpyDetail", "StepClock", "TrackRecord", "checksum_of", "info_json"]

Buffer: TypeAlias = "bytes | memoryview"
StepClock: TypeAlias = "tuple[Fraction, int] | Int64Array"
"""(rate in Hz, time of step 0 in ns), or the time of every step in ns."""


def checksum_of(*parts: Buffer) -> int:
    """Return the xxh3_64 of `parts` joined."""
    if len(parts) == 1:
        return int(xxhash.xxh3_64_intdigest(parts[0]))
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return int(state.intdigest())


@dataclass(frozen=True, slots=True)
class Member:
    """One file of the tar. `parts` is empty in a record made from an existing shard."""

    name: str
    role: int
    stream: int
    """Position in the manifest's streams, or -1."""
    size: int
    checksum: int
    parts: tuple[Buffer, ...] = ()

    @classmethod
    def of(cls, name: str, role: int, stream: int, *parts: Buffer) -> Member:
        """Return the member that holds `parts`, joined; each is bytes or a flat view of bytes."""
        return cls(name, role, stream, sum(len(part) for part in parts), checksum_of(*parts), parts)


@dataclass(frozen=True, slots=True)
class NpyDetail:
    """Where the rows of an npy member begin, from the start of the member, and their xxh3_64."""

    data_offset: int
    checksum: int


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """One stream of one episode."""

    stream: int
    encoding: str
    num_rows: int
    members: tuple[Member, ...]
    """One, or one for each row of pictures."""
    detail: NpyDetail | ChunkDetail | VideoIndex | None
    timestamps: Member | None
    timestamps_ns: Int64Array | None
    """Of a clocked stream."""


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One episode, in the order of its members."""

    key: str
    num_steps: int
    terminated: bool | None
    clock: StepClock
    metadata_json: bytes
    """Canonical; empty where there is none."""
    info: Member
    step_times: Member | None
    tracks: tuple[TrackRecord, ...]

    def members(self) -> list[Member]:
        """Return all members as they follow each other in the tar."""
        out = [self.info]
        if self.step_times is not None:
            out.append(self.step_times)
        for track in self.tracks:
            if track.timestamps is not None:
                out.append(track.timestamps)
            out.extend(track.members)
        return out


def info_json(
    *,
    key: str,
    num_steps: int,
    terminated: bool | None,
    clock: StepClock,
    streams: Mapping[str, Mapping[str, Any]],
    metadata: Mapping[str, Any],
) -> bytes:
    """Return the `trajload.json` member of an episode: what its other members do not say themselves."""
    uniform = clock if isinstance(clock, tuple) else None
    return canonical_json(
        {
            "format_version": 1,
            "key": key,
            "num_steps": num_steps,
            "terminated": terminated,
            "step_clock": None
            if uniform is None
            else {"rate_hz": [uniform[0].numerator, uniform[0].denominator], "start_ns": uniform[1]},
            "streams": streams,
            "metadata": metadata,
        }
    )

"""Whether an index agrees with itself: prefixes, codes, clocks, and the order of members it implies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trajload.manifest import Manifest
from trajload.shards import layout
from trajload.shards.index import ShardIndex
from trajload.shards.index_schema import PREFIXES
from trajload.spec import IMAGE_ENCODINGS, VIDEO_ENCODINGS
from trajload.types import NDArray

__all__ = ["ExpectedMember", "expected_members", "index_problems"]


@dataclass(frozen=True, slots=True)
class ExpectedMember:
    """What a row of the member table must say, by the episodes and tracks before it."""

    name: str
    role: int
    stream: int


def index_problems(index: ShardIndex, manifest: Manifest) -> list[str]:
    """Return what in `index` contradicts itself or the manifest's streams; empty where nothing does.

    Reads every column but no byte of the shard. The first problems found are told; later ones may follow from them.
    """
    out = [
        f"{prefix!r} does not rise from 0 to the {len(index.column(names[0]))} rows of {names[0]!r}"
        for prefix, names in PREFIXES.items()
        if not _is_prefix(index.column(prefix), len(index.column(names[0])))
    ]
    if list(index.streams) != [spec.name for spec in manifest.streams]:
        out.append(f"streams are {list(index.streams)}, in the manifest {[spec.name for spec in manifest.streams]}")
    if out:
        return out
    return [*_episode_problems(index), *_track_problems(index, manifest)] or _member_problems(index, manifest)


def _is_prefix(ends: NDArray, length: int) -> bool:
    return bool(ends[0] == 0 and ends[-1] == length and (ends[1:] >= ends[:-1]).all())


def _first(wrong: NDArray) -> int:
    return int(np.flatnonzero(wrong)[0])


def _episode_problems(index: ShardIndex) -> list[str]:
    num_steps, terminated = index.num_steps_E, index.terminated_E
    num, den, start = (index.column(f"episode.{name}") for name in ("rate_num", "rate_den", "start_ns"))
    num_times = np.diff(index.column("episode.time_offset"))
    is_explicit = num == 0
    checks = {
        "has no steps": num_steps < 1,
        "has a terminal flag other than -1, 0, 1": (terminated < -1) | (terminated > 1),
        "has a rate that is none": (num < 0) | (den < 1) | (is_explicit & ((den != 1) | (start != 0))),
        "has other times than steps": num_times != np.where(is_explicit, num_steps, 0),
    }
    return [f"episode {_first(wrong)} {what}" for what, wrong in checks.items() if wrong.any()]


def _track_problems(index: ShardIndex, manifest: Manifest) -> list[str]:
    code, encoding, num_rows = (index.column(f"track.{name}") for name in ("stream", "encoding", "num_rows"))
    detail = index.column("track.detail")
    if len(code) and not (code.min() >= 0 and code.max() < len(manifest.streams)):
        return [
            f"track {_first((code < 0) | (code >= len(manifest.streams)))} is of a stream the manifest does not have"
        ]
    is_clocked = np.array([spec.clock == "clocked" for spec in manifest.streams])[code]
    out = []
    first_E = index.column("episode.track_offset")
    follows = np.ones(len(code), dtype=bool)
    follows[1:] = code[1:] > code[:-1]
    follows[first_E[first_E < len(code)]] = True
    checks = {
        "has no rows": num_rows < 1,
        "has an unknown encoding": encoding >= len(layout.ENCODINGS),
        "does not follow the order of streams": ~follows,
        "has other timestamps than rows": np.diff(index.column("track.time_offset"))
        != np.where(is_clocked, num_rows, 0),
    }
    out += [f"track {_first(wrong)} {what}" for what, wrong in checks.items() if wrong.any()]
    tables = {"npy.checksum": ("npy",), "zst.rows_per_chunk": ("npy.zst",), "video.profile": VIDEO_ENCODINGS}
    is_detailed = np.zeros(len(code), dtype=bool)
    for column, encodings in tables.items():
        here = np.isin(encoding, [layout.ENCODINGS.index(name) for name in encodings])
        is_detailed |= here
        if not np.array_equal(detail[here], np.arange(len(index.column(column)))):
            out.append(f"tracks do not name the rows of {column!r} one after the other")
    if (detail[~is_detailed] != -1).any():
        out.append(f"track {_first(~is_detailed & (detail != -1))} names a detail it cannot have")
    return out


def expected_members(index: ShardIndex, manifest: Manifest) -> Iterator[ExpectedMember]:
    """Yield the members that episodes and tracks imply, in tar order. The index must be free of other problems."""
    code, encoding, num_rows = (index.column(f"track.{n}").tolist() for n in ("stream", "encoding", "num_rows"))
    tracks = index.column("episode.track_offset").tolist()
    is_explicit = (index.column("episode.rate_num") == 0).tolist()
    for episode, key in enumerate(index.episode_keys()):
        yield ExpectedMember(f"{key}.{layout.INFO_EXTENSION}", layout.ROLE_INFO, -1)
        if is_explicit[episode]:
            yield ExpectedMember(f"{key}.{layout.STEP_TIMES_EXTENSION}", layout.ROLE_STEP_TIMES, -1)
        for track in range(tracks[episode], tracks[episode + 1]):
            spec, kind = manifest.streams[code[track]], layout.ENCODINGS[encoding[track]]
            if spec.clock == "clocked":
                name = layout.timestamps_member_name(key, spec.name)
                yield ExpectedMember(name, layout.ROLE_TIMESTAMPS, code[track])
            for row in range(num_rows[track] if kind in IMAGE_ENCODINGS else 1):
                yield ExpectedMember(layout.data_member_name(key, spec.name, kind, row), layout.ROLE_DATA, code[track])


def _member_problems(index: ShardIndex, manifest: Manifest) -> list[str]:
    role, stream = index.column("member.role").tolist(), index.column("member.stream").tolist()
    count = 0
    first_data = []
    for count, member in enumerate(expected_members(index, manifest), start=1):
        if count > len(role):
            return [f"there are {len(role)} members, expected more"]
        if (role[count - 1], stream[count - 1]) != (member.role, member.stream):
            return [f"member {count - 1} has role {role[count - 1]} and stream {stream[count - 1]}: expected {member}"]
        if member.role == layout.ROLE_DATA and not (member.name.endswith((".jpg", ".png")) and _row_of(member.name)):
            first_data.append(count - 1)
    if count != len(role):
        return [f"there are {len(role)} members, expected {count}"]
    if first_data != index.column("track.member").tolist():
        return ["tracks name other members than their own"]
    return []


def _row_of(name: str) -> int:
    """Return the row in the name of a picture's member."""
    return int(name.rsplit(".", 2)[1])

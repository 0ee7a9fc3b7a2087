"""Gathers the columns of a shard's index, episode by episode. docs/format.md describes every column."""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Sequence

import numpy as np

from trajload.manifest import canonical_json
from trajload.refs import VideoIndex
from trajload.shards.columns import columns_to_parts
from trajload.shards.index_schema import BLOBS, INDEX_FORMAT, INDEX_VERSION, PREFIXES, RUNS, SCALARS
from trajload.shards.layout import ENCODINGS
from trajload.shards.records import EpisodeRecord, Member, NpyDetail, TrackRecord
from trajload.shards.zst import ChunkDetail
from trajload.types import NDArray

__all__ = ["IndexBuilder"]

_CODES = {np.int64: "q", np.int8: "b", np.uint64: "Q", np.uint8: "B", np.int32: "i"}


def profile_json(index: VideoIndex) -> bytes:
    """Return what a decoder needs beside the packets, as canonical JSON; videos of one camera share it."""
    return canonical_json(
        {
            "codec": index.codec,
            "extradata": base64.b64encode(index.extradata).decode("ascii"),
            "time_base": [index.time_base.numerator, index.time_base.denominator],
            "width": index.width,
            "height": index.height,
            "pix_fmt": index.pix_fmt,
            "color_space": index.color_space,
            "color_range": index.color_range,
            "rotation": index.rotation,
        }
    )


class IndexBuilder:
    """Collects episodes in shard order; `parts` gives the bytes of the index. Not thread-safe."""

    def __init__(self) -> None:
        self._scalar = {name: array(_CODES[kind]) for name, kind in SCALARS.items()}
        self._prefix = {name: array("q", [0]) for name in PREFIXES}
        self._blob = {name: bytearray() for name in BLOBS}
        self._run: dict[str, list[NDArray]] = {name: [] for name in RUNS}
        self._profiles: dict[bytes, int] = {}
        self.num_episodes = 0
        self.num_steps = 0

    def _extend(self, prefix: str, **runs: NDArray) -> None:
        """Append equally long runs to their columns and their new end to `prefix`."""
        count = 0
        for name, values in runs.items():
            count = len(values)
            self._run[name.replace("__", ".")].append(np.array(values, dtype=RUNS[name.replace("__", ".")]))
        self._prefix[prefix].append(self._prefix[prefix][-1] + count)

    def _text(self, prefix: str, blob: str, text: bytes) -> None:
        self._blob[blob] += text
        self._prefix[prefix].append(len(self._blob[blob]))

    def _member(self, member: Member, offset: int) -> None:
        scalar = self._scalar
        scalar["member.offset"].append(offset)
        scalar["member.size"].append(member.size)
        scalar["member.checksum"].append(member.checksum)
        scalar["member.role"].append(member.role)
        scalar["member.stream"].append(member.stream)

    def add(self, record: EpisodeRecord, offsets: Sequence[int]) -> None:
        """Add an episode whose members' contents begin at `offsets` of the shard."""
        scalar = self._scalar
        self.num_episodes += 1
        self.num_steps += record.num_steps
        self._text("episode.key_offset", "episode.key_text", record.key.encode("utf-8"))
        self._text("episode.metadata_offset", "episode.metadata_text", record.metadata_json)
        scalar["episode.num_steps"].append(record.num_steps)
        scalar["episode.terminated"].append(-1 if record.terminated is None else int(record.terminated))
        is_uniform = isinstance(record.clock, tuple)
        rate, start_ns = record.clock if isinstance(record.clock, tuple) else (None, 0)
        scalar["episode.start_ns"].append(start_ns)
        scalar["episode.rate_num"].append(rate.numerator if rate is not None else 0)
        scalar["episode.rate_den"].append(rate.denominator if rate is not None else 1)
        if is_uniform:
            self._prefix["episode.time_offset"].append(self._prefix["episode.time_offset"][-1])
        else:
            self._extend("episode.time_offset", step_time__ns=np.asarray(record.clock))
        place = iter(offsets)
        self._member(record.info, next(place))
        if record.step_times is not None:
            self._member(record.step_times, next(place))
        for track in record.tracks:
            if track.timestamps is not None:
                self._member(track.timestamps, next(place))
            first_row, first_offset = len(scalar["member.offset"]), -1
            for member in track.members:
                offset = next(place)
                first_offset = offset if first_offset < 0 else first_offset
                self._member(member, offset)
            self._track(track, first_row, first_offset)
        self._prefix["episode.member_offset"].append(len(scalar["member.offset"]))
        self._prefix["episode.track_offset"].append(len(scalar["track.stream"]))

    def _track(self, track: TrackRecord, member: int, offset: int) -> None:
        scalar = self._scalar
        scalar["track.stream"].append(track.stream)
        scalar["track.encoding"].append(ENCODINGS.index(track.encoding))
        scalar["track.num_rows"].append(track.num_rows)
        scalar["track.member"].append(member)
        if track.timestamps_ns is None:
            self._prefix["track.time_offset"].append(self._prefix["track.time_offset"][-1])
        else:
            self._extend("track.time_offset", stream_time__ns=track.timestamps_ns)
        detail = track.detail
        if isinstance(detail, NpyDetail):
            row = len(scalar["npy.checksum"])
            scalar["npy.data_offset"].append(offset + detail.data_offset)
            scalar["npy.checksum"].append(detail.checksum)
        elif isinstance(detail, ChunkDetail):
            row = len(scalar["zst.rows_per_chunk"])
            scalar["zst.rows_per_chunk"].append(detail.rows_per_chunk)
            self._extend(
                "zst.chunk_offset",
                chunk__offset=detail.offset_K + offset,
                chunk__size=detail.size_K,
                chunk__checksum=detail.checksum_K,
            )
        elif isinstance(detail, VideoIndex):
            row = self._video(detail, offset)
        else:
            row = -1
        scalar["track.detail"].append(row)

    def _video(self, index: VideoIndex, offset: int) -> int:
        text = profile_json(index)
        profile = self._profiles.setdefault(text, len(self._profiles))
        if profile == len(self._prefix["profile.offset"]) - 1:
            self._text("profile.offset", "profile.text", text)
        self._scalar["video.profile"].append(profile)
        self._extend(
            "video.packet_offset",
            packet__offset=index.offset_P + offset,
            packet__size=index.size_P,
            packet__pts=index.pts_P,
            packet__dts=index.dts_P,
            packet__is_keyframe=index.is_keyframe_P,
            packet__is_discard=index.is_discard_P,
        )
        self._extend("video.gop_offset", gop__checksum=index.gop_checksum_G)
        self._extend(
            "video.frame_offset", frame__packet=index.packet_of_frame_F, frame__seek_packet=index.seek_of_frame_F
        )
        return len(self._scalar["video.profile"]) - 1

    def parts(self, *, shard: str, shard_num_bytes: int, streams: Sequence[str]) -> list[bytes | memoryview]:
        """Return the pieces of the index file."""
        columns: dict[str, NDArray] = {}
        for name, kind in SCALARS.items():
            columns[name] = np.array(self._scalar[name], dtype=kind)
        for name in PREFIXES:
            columns[name] = np.array(self._prefix[name], dtype=np.int64)
        for name in BLOBS:
            columns[name] = np.frombuffer(bytes(self._blob[name]), dtype=np.uint8)
        for name, dtype in RUNS.items():
            columns[name] = np.concatenate(self._run[name]) if self._run[name] else np.empty(0, dtype)
        metadata = {
            "format": INDEX_FORMAT,
            "format_version": INDEX_VERSION,
            "shard": shard.rsplit("/", 1)[-1],
            "shard_num_bytes": str(shard_num_bytes),
            "streams": json.dumps(list(streams), separators=(",", ":"), ensure_ascii=False),
        }
        return columns_to_parts(columns, metadata)

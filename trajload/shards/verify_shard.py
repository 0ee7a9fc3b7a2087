"""One shard against its index: every member, every row checksum, every group of pictures."""

# Shapes: N rows, K chunks, P packets, G groups of pictures

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from trajload.errors import ShardCorruptError, TrajloadError
from trajload.manifest import Manifest, ShardEntry
from trajload.refs import ArrayTrack, ByteRange, ChunkTrack, TextTrack, VideoTrack
from trajload.shards import layout
from trajload.shards.index import ShardIndex, TrackRow
from trajload.shards.index_check import expected_members
from trajload.shards.npy import parse_npy_header
from trajload.shards.records import checksum_of
from trajload.shards.report import Problem, VerifyReport
from trajload.shards.scan import TarMember, iter_members
from trajload.shards.tracks import build_track
from trajload.spec import StreamSpec
from trajload.storage import LocalStore

__all__ = ["ShardVerifier"]

_ENOUGH = 100
"""Problems after which a shard is given up: its index belongs to another shard, or nothing of it is left."""


class ShardVerifier:
    """Compares one shard with its index and adds what differs to a report."""

    def __init__(
        self,
        store: LocalStore,
        manifest: Manifest,
        entry: ShardEntry,
        index: ShardIndex,
        report: VerifyReport,
        progress: Callable[[int], None],
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._specs = {spec.name: spec for spec in manifest.streams}
        self._names = {code: name for name, code in index.streams.items()}
        self._entry = entry
        self._index = index
        self._report = report
        self._progress = progress
        self._num_problems = 0
        self._key = ""

    def _add(self, kind: str, message: str, stream: str | None = None) -> None:
        self._num_problems += 1
        self._report.problems.append(
            Problem(kind=kind, message=message, file=self._entry.name, episode=self._key or None, stream=stream)
        )

    def run(self) -> None:
        """Check the whole shard."""
        for episode in range(self._index.num_episodes):
            if self._num_problems >= _ENOUGH:
                self._key = ""
                self._add("content", f"more than {_ENOUGH} problems: the rest of the shard was not looked at.")
                return
            try:
                self._key = self._index.episode_key(episode)
                self._episode(episode)
            except TrajloadError as err:
                self._add("index", str(err))
        self._key = ""
        self._headers()

    def _headers(self) -> None:
        """Compare the tar's own headers with the index: names, offsets, sizes, order."""
        names = (member.name for member in expected_members(self._index, self._manifest))
        offset_M, size_M = self._index.column("member.offset"), self._index.column("member.size")
        expected = (TarMember(*row) for row in zip(names, offset_M.tolist(), size_M.tolist(), strict=True))
        try:
            for got, want in zip_longest(iter_members(Path(self._store.root, self._entry.name)), expected):
                if got != want:
                    self._add("tar", f"tar header differs from the index: got {got}, expected {want}.")
                    return
        except (TrajloadError, ValueError) as err:
            self._add("tar", str(err))

    def _episode(self, episode: int) -> None:
        index = self._index
        contents: dict[int, bytes] = {}
        members = range(*index.span("episode.member_offset", episode, "member.offset"))
        for member in members:
            stream = self._names.get(int(index.column("member.stream")[member]))
            data = self._member(member, stream)
            if data is None:
                continue
            role = int(index.column("member.role")[member])
            if role == layout.ROLE_DATA:
                contents[member] = data
            else:
                self._side_member(episode, role, stream, data)
        for track_row in range(*index.span("episode.track_offset", episode, "track.stream")):
            row = index.track_row(track_row)
            spec = self._specs.get(self._names.get(int(index.column("track.stream")[track_row]), ""))
            if spec is None:
                self._add("index", f"track {track_row} of the index is of a stream the manifest does not have.")
            elif row.member not in members:
                self._add("index", f"members of the track lie beyond those of its episode: {row.member}.", spec.name)
            elif row.member in contents:
                try:
                    self._track(episode, spec, row, contents[row.member])
                except TrajloadError as err:
                    self._add("content", err.message, spec.name)

    def _member(self, row: int, stream: str | None) -> bytes | None:
        """Return the content of a member if it has its checksum, else add a problem."""
        index = self._index
        offset, size = int(index.column("member.offset")[row]), int(index.column("member.size")[row])
        if offset < 0 or size < 0 or offset + size > self._entry.num_bytes:
            self._add("index", f"member {row} of the index leaves the shard: [{offset}, {offset + size}).", stream)
            return None
        try:
            data = self._store.read(ByteRange(self._entry.name, offset, size))
        except TrajloadError as err:
            self._add("size", err.message, stream)
            return None
        self._progress(size)
        got, expected = checksum_of(data), int(index.column("member.checksum")[row])
        if got != expected:
            self._add(
                "checksum",
                f"member at byte {offset} is changed: got checksum {got:016x}, expected {expected:016x}. Restore the shard.",
                stream,
            )
            return None
        self._report.num_members += 1
        return data

    def _side_member(self, episode: int, role: int, stream: str | None, data: bytes) -> None:
        """Compare what stands both in the tar and in the index: episode information, times."""
        index = self._index
        if role == layout.ROLE_INFO:
            self._info(episode, data)
            return
        row = None
        if role == layout.ROLE_STEP_TIMES:
            held: Any = index.clock(episode)
        else:
            row = index.find_track(episode, stream or "")
            held = index.times_ns(row) if row is not None else np.empty(0, np.int64)
        offset, dtype, _ = parse_npy_header(data)
        same = (
            dtype == np.dtype("<i8")
            and isinstance(held, np.ndarray)
            and data[offset:] == held.tobytes()
            and (held[1:] > held[:-1]).all()
        )
        if not same:
            self._add("content", "times in the index differ from the tar's, or do not rise strictly.", stream)

    def _info(self, episode: int, data: bytes) -> None:
        index = self._index
        clock = index.clock(episode)
        terminated = int(index.terminated_E[episode])
        held = {
            "key": self._key,
            "num_steps": int(index.num_steps_E[episode]),
            "terminated": None if terminated < 0 else bool(terminated),
            "step_clock": {"rate_hz": [clock[0].numerator, clock[0].denominator], "start_ns": clock[1]}
            if isinstance(clock, tuple)
            else None,
            "streams": self._described(episode),
            "metadata": index.metadata(episode),
        }
        try:
            said = json.loads(data)
            differing = [name for name, value in held.items() if said.get(name) != value]
        except (ValueError, AttributeError) as err:
            self._add("content", f"episode information is no JSON object: {err}.")
            return
        for name in differing:
            self._add("content", f"{name} differs: got {held[name]!r} in the index, {said.get(name)!r} in the tar.")

    def _described(self, episode: int) -> dict[str, dict[str, Any]]:
        """Return what the index says of an episode's streams, as `trajload.json` has it."""
        out: dict[str, dict[str, Any]] = {}
        for track in range(*self._index.span("episode.track_offset", episode, "track.stream")):
            row = self._index.track_row(track)
            name = self._names[int(self._index.column("track.stream")[track])]
            out[name] = {"encoding": layout.ENCODINGS[row.encoding], "num_rows": row.num_rows}
            if out[name]["encoding"] == "npy.zst":
                out[name]["rows_per_chunk"] = int(self._index.column("zst.rows_per_chunk")[row.detail])
        return out

    def _track(self, episode: int, spec: StreamSpec, row: TrackRow, data: bytes) -> None:
        """Check what a reader of the track would check, and that the member fits the stream."""
        num_steps = int(self._index.num_steps_E[episode])
        track = build_track(self._index, spec, self._entry.name, num_steps, row)
        start = int(self._index.column("member.offset")[row.member])
        if isinstance(track, ArrayTrack):
            offset, dtype, shape = parse_npy_header(data)
            if dtype != track.dtype or shape != (track.num_rows, *track.row_shape) or track.offset != start + offset:
                raise ShardCorruptError(
                    f"npy member has {dtype} rows of shape {shape} from byte {start + offset}: expected {track.dtype}, "
                    f"{(track.num_rows, *track.row_shape)} from byte {track.offset}."
                )
            if checksum_of(memoryview(data)[offset:]) != track.checksum:
                raise ShardCorruptError("rows of the npy member do not have the checksum the index gives them.")
        elif isinstance(track, ChunkTrack):
            self._chunks(track, start, data)
        elif isinstance(track, VideoTrack):
            self._packets(track, start, data)
        elif isinstance(track, TextTrack):
            try:
                value = json.loads(data) if track.encoding == "json" else data.decode("utf-8")
            except ValueError as err:
                raise ShardCorruptError(f"{track.encoding} member is unusable: {err}.") from err
            if track.num_rows != (len(value) if isinstance(value, list) else 1):
                raise ShardCorruptError(f"json member does not have the {track.num_rows} rows of the index.")

    def _chunks(self, track: ChunkTrack, start: int, data: bytes) -> None:
        row_bytes = track.dtype.itemsize * int(np.prod(track.row_shape, dtype=np.int64))
        for k, (offset, size) in enumerate(zip(track.offset_K.tolist(), track.size_K.tolist(), strict=True)):
            chunk = data[offset - start : offset - start + size]
            if len(chunk) != size or checksum_of(chunk) != int(track.checksum_K[k]):
                raise ShardCorruptError(f"chunk {k} of the npy.zst member does not have the checksum of the index.")
            wanted = row_bytes * (min(track.num_rows, (k + 1) * track.rows_per_chunk) - k * track.rows_per_chunk)
            try:
                got = len(zstandard.ZstdDecompressor().decompress(chunk, max_output_size=wanted))
            except zstandard.ZstdError as err:
                raise ShardCorruptError(f"chunk {k} of the npy.zst member does not decompress: {err}.") from err
            if got != wanted:
                raise ShardCorruptError(f"chunk {k} of the npy.zst member gives {got} bytes, expected {wanted}.")

    def _packets(self, track: VideoTrack, start: int, data: bytes) -> None:
        video = track.index
        begin_P = video.offset_P - start
        if len(begin_P) and (begin_P.min() < 0 or (begin_P + video.size_P).max() > len(data)):
            raise ShardCorruptError(f"a packet lies outside its video of {len(data)} bytes.")
        packets = [data[a : a + n] for a, n in zip(begin_P.tolist(), video.size_P.tolist(), strict=True)]
        bounds = [*video.gop_start_G.tolist(), len(packets)]
        for g, (first, last) in enumerate(pairwise(bounds)):
            if checksum_of(b"".join(packets[first:last])) != int(video.gop_checksum_G[g]):
                raise ShardCorruptError(
                    f"group of pictures {g}, packets [{first}, {last}), does not have its checksum."
                )
            self._report.num_gops += 1

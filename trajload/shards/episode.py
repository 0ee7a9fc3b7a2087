"""One episode, checked whole and turned into members before a byte of it is written."""

# Shapes: N rows

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.errors import ConfigError
from trajload.manifest import canonical_json
from trajload.shards import layout
from trajload.shards.npy import npy_header
from trajload.shards.pictures import encode_images, encode_video_stream
from trajload.shards.records import EpisodeRecord, Member, StepClock, TrackRecord, info_json
from trajload.shards.values import EncodedStream, check_times_ns, encode_signal, encode_text, flat_bytes
from trajload.shards.zst import ChunkDetail
from trajload.spec import StreamSpec
from trajload.types import Int64Array, NDArray

if TYPE_CHECKING:
    from trajload.shards.video_encode import VideoEncode

__all__ = ["EpisodeInput", "PreparedEpisode", "prepare_episode"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeInput:
    """What `Writer.add_episode` was given."""

    key: str
    values: Mapping[str, Any]
    num_steps: int | None
    terminated: bool | None
    start_ns: int
    step_times_ns: Any
    timestamps_ns: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PreparedEpisode:
    """An episode ready to be written, and its numeric rows for statistics."""

    record: EpisodeRecord
    signals: dict[str, NDArray]


def prepare_episode(
    episode: EpisodeInput,
    streams: Mapping[str, StreamSpec],
    *,
    step_rate_hz: Fraction | None,
    video: Mapping[str, VideoEncode],
) -> PreparedEpisode:
    """Return `episode` as members and records.

    Raises:
        ConfigError: Anything about the episode that does not fit the streams; the message names it.
        SourceError, DecodeError: A video file that cannot be stored so that its frames come out exactly.
    """
    _check_names(episode, streams)
    encoded: dict[str, EncodedStream] = {}
    for name, spec in streams.items():
        if episode.values.get(name) is not None:
            encoded[name] = _encode(spec, episode.values[name], step_rate_hz, video.get(name))
    num_steps = _num_steps(episode, streams, encoded)
    for name, stream in encoded.items():
        if streams[name].clock == "stepwise" and stream.num_rows != num_steps and not stream.is_whole:
            raise ConfigError(
                f"stepwise stream {name!r} has {stream.num_rows} rows: expected {num_steps}, the steps of the episode. "
                "Streams at another rate are declared with clock='clocked'."
            )
    clock, step_times = _step_clock(episode, num_steps, step_rate_hz)
    tracks = []
    for code, (name, spec) in enumerate(streams.items()):
        if name in encoded:
            tracks.append(_track(episode, code, spec, encoded[name]))
    return PreparedEpisode(
        record=_record(episode, num_steps, clock, step_times, streams, tracks),
        signals={name: stream.rows for name, stream in encoded.items() if stream.rows is not None},
    )


def _check_names(episode: EpisodeInput, streams: Mapping[str, StreamSpec]) -> None:
    for argument, names in (("the episode", episode.values), ("timestamps_ns", episode.timestamps_ns)):
        unknown = [name for name in names if name not in streams]
        if unknown:
            raise ConfigError(
                f"{argument} names stream {unknown[0]!r}, which the Writer does not have: expected one of "
                f"{', '.join(map(repr, streams))}."
            )
    for name in episode.timestamps_ns:
        if streams[name].clock != "clocked":
            raise ConfigError(
                f"timestamps_ns names stepwise stream {name!r}: its row i belongs to step i. Give step_times_ns, or "
                "declare the stream with clock='clocked'."
            )
        if episode.values.get(name) is None:
            raise ConfigError(f"timestamps_ns names stream {name!r}, but the episode has no values for it.")
    if episode.terminated is not None and not isinstance(episode.terminated, (bool, np.bool_)):
        raise ConfigError(f"terminated={episode.terminated!r} is invalid: expected True, False or None.")


def _encode(spec: StreamSpec, value: Any, step_rate_hz: Fraction | None, encode: VideoEncode | None) -> EncodedStream:
    if spec.is_video:
        rate_hz = Fraction(spec.rate_hz).limit_denominator(100_000) if spec.rate_hz else None
        if spec.clock == "stepwise":
            rate_hz = step_rate_hz or rate_hz
        # The rate only sets the container's own clock; trajload takes times from the index.
        return encode_video_stream(spec, value, rate_hz=rate_hz or Fraction(30), encode=encode)
    if spec.is_picture:
        return encode_images(spec, value)
    return encode_text(spec, value) if spec.is_text else encode_signal(spec, value)


def _num_steps(episode: EpisodeInput, streams: Mapping[str, StreamSpec], encoded: Mapping[str, EncodedStream]) -> int:
    """Return the steps of the episode: as given, or the rows of its first stepwise stream."""
    num_steps = episode.num_steps
    if num_steps is None and episode.step_times_ns is not None:
        if np.ndim(episode.step_times_ns) != 1:
            raise ConfigError(
                f"step_times_ns={episode.step_times_ns!r} is unusable: expected int64 nanoseconds (num_steps,), strictly rising."
            )
        num_steps = len(episode.step_times_ns)
    if num_steps is None:
        rows = (s.num_rows for name, s in encoded.items() if streams[name].clock == "stepwise" and not s.is_whole)
        num_steps = next(rows, None)
    if num_steps is None:
        raise ConfigError(
            "num_steps is not given, and the episode has no stepwise stream to take it from. Pass num_steps=."
        )
    if isinstance(num_steps, bool) or not isinstance(num_steps, (int, np.integer)) or num_steps < 1:
        raise ConfigError(f"num_steps={num_steps!r} is invalid: an episode has at least 1 step.")
    return int(num_steps)


def _step_clock(
    episode: EpisodeInput, num_steps: int, step_rate_hz: Fraction | None
) -> tuple[StepClock, Member | None]:
    start_ns = episode.start_ns
    if isinstance(start_ns, bool) or not isinstance(start_ns, (int, np.integer)) or not -(2**62) < start_ns < 2**62:
        raise ConfigError(f"start_ns={start_ns!r} is invalid: expected int nanoseconds.")
    if episode.step_times_ns is not None:
        if start_ns:
            raise ConfigError("start_ns and step_times_ns are both given: explicit times say where step 0 is.")
        times = check_times_ns("step_times_ns", episode.step_times_ns, num_steps).copy()
        name = f"{episode.key}.{layout.STEP_TIMES_EXTENSION}"
        return times, Member.of(name, layout.ROLE_STEP_TIMES, -1, *_npy(times))
    if step_rate_hz is None:
        raise ConfigError("step_times_ns is missing: the Writer has no step_rate_hz, so every episode needs its times.")
    return (step_rate_hz, int(start_ns)), None


def _npy(times: Int64Array) -> tuple[bytes, bytes]:
    return npy_header(times.dtype, times.shape), bytes(flat_bytes(times))


def _track(episode: EpisodeInput, code: int, spec: StreamSpec, stream: EncodedStream) -> TrackRecord:
    timestamps: Member | None = None
    times: Int64Array | None = None
    if spec.clock == "clocked":
        if spec.name not in episode.timestamps_ns:
            raise ConfigError(f"clocked stream {spec.name!r} has no timestamps: expected timestamps_ns[{spec.name!r}].")
        what = f"timestamps_ns[{spec.name!r}]"
        times = check_times_ns(what, episode.timestamps_ns[spec.name], stream.num_rows).copy()
        member_name = layout.timestamps_member_name(episode.key, spec.name)
        timestamps = Member.of(member_name, layout.ROLE_TIMESTAMPS, code, *_npy(times))
    members = tuple(
        Member.of(layout.data_member_name(episode.key, spec.name, stream.encoding, row), layout.ROLE_DATA, code, *parts)
        for row, parts in enumerate(stream.contents)
    )
    return TrackRecord(code, stream.encoding, stream.num_rows, members, stream.detail, timestamps, times)


def _record(
    episode: EpisodeInput,
    num_steps: int,
    clock: StepClock,
    step_times: Member | None,
    streams: Mapping[str, StreamSpec],
    tracks: list[TrackRecord],
) -> EpisodeRecord:
    names = list(streams)
    described: dict[str, dict[str, Any]] = {}
    for track in tracks:
        described[names[track.stream]] = {"encoding": track.encoding, "num_rows": track.num_rows}
        if isinstance(track.detail, ChunkDetail):
            described[names[track.stream]]["rows_per_chunk"] = track.detail.rows_per_chunk
    terminated = None if episode.terminated is None else bool(episode.terminated)
    try:
        metadata_json = canonical_json(dict(episode.metadata)) if episode.metadata else b""
        info = info_json(
            key=episode.key,
            num_steps=num_steps,
            terminated=terminated,
            clock=clock,
            streams=described,
            metadata=dict(episode.metadata),
        )
    except (TypeError, ValueError, RecursionError) as err:
        raise ConfigError(f"metadata of the episode are not JSON: {err}.") from err
    return EpisodeRecord(
        key=episode.key,
        num_steps=num_steps,
        terminated=terminated,
        clock=clock,
        metadata_json=metadata_json,
        info=Member.of(f"{episode.key}.{layout.INFO_EXTENSION}", layout.ROLE_INFO, -1, info),
        step_times=step_times,
        tracks=tuple(tracks),
    )

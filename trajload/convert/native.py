"""`convert`: a dataset read in place, written in trajload's own format, every value and frame the same.

Videos keep their bits: a file that is exactly one episode is stored as it is, a stretch of a longer file is cut out with its
packets unchanged (`trajload.convert.cut`). Frames are encoded anew only where the user asks for it with `reencode`.
"""

# Shapes: N rows

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from trajload.arguments import explains_calls
from trajload.convert.encodings import Reencode, check_reencode, encode_of, reencode_json
from trajload.convert.reencode import reencode_native, reencodes_something
from trajload.convert.values import json_safe, native_spec, remuxed_value, table_value, video_value
from trajload.errors import ConfigError, DecodeError, SourceError, at
from trajload.refs import TableTrack, VideoTrack
from trajload.shards.writer import Writer
from trajload.sources.base import Dataset
from trajload.sources.lerobot import LeRobotSource
from trajload.sources.native import NativeDataset, open_native
from trajload.sources.open import open as open_dataset
from trajload.spec import UniformClock
from trajload.types import PathLikeStr

__all__ = ["ConvertReport", "convert"]

DEFAULT_SHARD_BYTES = 256 * 2**20
_VIDEO_COUNTS = ("num_videos_copied", "num_videos_cut", "num_videos_remuxed", "num_videos_encoded")


@dataclass(slots=True)
class ConvertReport:
    """What a conversion wrote, left out, and did with the videos."""

    out: str
    source: str
    kind: str
    digest: str = ""
    """Of the new dataset."""
    num_episodes: int = 0
    num_steps: int = 0
    num_shards: int = 0
    num_bytes: int = 0
    """Of the shards."""
    streams: list[str] = field(default_factory=list)
    num_videos_copied: int = 0
    """Files stored as they were, byte for byte."""
    num_videos_cut: int = 0
    """Stretches of longer files, packets unchanged."""
    num_videos_remuxed: int = 0
    """Packets unchanged, in another container, since the first one could not be indexed."""
    num_videos_encoded: int = 0
    """Frames encoded anew, as asked for."""
    skipped: list[str] = field(default_factory=list)
    """Episodes left out, with the reason."""
    notes: list[dict[str, Any]] = field(default_factory=list)
    """What was noticed when the source was opened."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@explains_calls
def convert(
    source: Dataset | PathLikeStr,
    out: PathLikeStr,
    *,
    reencode: Reencode = None,
    episodes: Sequence[int] | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    name: str | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertReport:
    """Write `source` as a native dataset in the new folder `out`, and return what was done.

    A source that is native already is written anew only where `reencode` asks for it: all but its videos keeps its bytes, its
    shards keep their episodes, and a run that was killed goes on with the same call.

    Nothing is visible in `out` before all episodes are written. Windows of the result equal windows of the source: arrays,
    frames, tasks and step times.

    Args:
        source: A dataset, or the path of one (opened with missing="error").
        out: Folder to write; must not hold a dataset and must not lie inside the source.
        reencode: Encode all videos anew, or some: stream → VideoEncode. None and streams left out keep their bits.
        episodes: Positions of the episodes wanted, in that order (of a native source in its own); all by default.
        shard_bytes: A shard is closed before the episode that would make it larger. Not for a native source.
        name: Name of the new dataset; that of the source by default.
        provenance: Added to the manifest's provenance: licence, consent tags, and so on.
        progress: Called with (episodes done, episodes in all) after each episode.

    Raises:
        ConfigError: `out` holds a dataset already, or lies inside the source; the source is native and nothing is to be
            encoded anew; `reencode` names a stream that is no video.
        SourceError: A file of the source does not hold what it must, or a video cannot be kept bit by bit.

    Example:
        >>> report = convert("pusht-lerobot", "pusht", episodes=range(10))       # doctest: +SKIP
    """
    started = time.monotonic()
    dataset = source if isinstance(source, Dataset) else open_dataset(source)
    reencode = check_reencode(reencode, dataset)
    _check_places(dataset, Path(out), reencode)
    wanted = range(dataset.num_episodes) if episodes is None else [dataset.check_episode(int(e)) for e in episodes]
    if not len(wanted):
        raise ConfigError(f"there is no episode to convert: the dataset {dataset.name!r} has {dataset.num_episodes}.")
    if isinstance(dataset, NativeDataset):
        return _convert_native(dataset, Path(out), reencode, wanted, name, provenance or {}, progress)
    rate = _step_rate(dataset)
    job = _Job(dataset, reencode, rate)
    report = ConvertReport(out=str(out), source=dataset.path, kind=dataset.kind)
    report.notes = [note.to_json() for note in dataset.notes]
    specs = [native_spec(spec, encode_of(spec, reencode)) for spec in dataset.streams.values()]
    about = {
        **(provenance or {}),
        "source": json_safe(dataset.provenance()),
        "converter": f"trajload.convert {_version()}",
        "arguments": {"reencode": reencode_json(reencode), "episodes": _stated(episodes, dataset)},
    }
    writer = Writer(
        out, streams=specs, name=name or dataset.name, step_rate_hz=rate, shard_bytes=shard_bytes, provenance=about
    )
    with writer:
        for done, episode in enumerate(wanted, 1):
            with at(dataset=dataset.name, episode=dataset.episode_key(episode)):
                job.add(writer, episode, report)
            if progress is not None:
                progress(done, len(wanted))
    return _told(report, started)


def _told(report: ConvertReport, started: float) -> ConvertReport:
    """Return the report with what now stands in the folder."""
    written = open_native(report.out)
    report.digest = written.digest
    report.num_episodes, report.num_steps = written.num_episodes, written.num_steps
    report.streams = list(written.streams)
    shards = written.manifest.shards
    report.num_shards, report.num_bytes = len(shards), sum(shard.num_bytes for shard in shards)
    report.seconds = round(time.monotonic() - started, 3)
    return report


def _convert_native(
    dataset: NativeDataset,
    out: Path,
    reencode: Reencode,
    wanted: Sequence[int],
    name: str | None,
    provenance: Mapping[str, Any],
    progress: Callable[[int, int], None] | None,
) -> ConvertReport:
    """Encode videos of a native dataset anew."""
    started = time.monotonic()
    report = ConvertReport(out=str(out), source=dataset.path, kind=dataset.kind)
    report.num_videos_encoded, num_kept = reencode_native(
        dataset,
        out,
        reencode=reencode,
        episodes=wanted,
        name=name,
        provenance=provenance,
        tool=f"trajload.convert {_version()}",
        progress=progress,
    )
    if num_kept:
        report.notes.append({"kind": "went-on", "message": f"{num_kept} shards of an earlier run were whole and kept."})
    return _told(report, started)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trajload")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


def _check_places(dataset: Dataset, out: Path, reencode: Reencode) -> None:
    if isinstance(dataset, NativeDataset):
        if not reencodes_something(dataset, reencode):
            raise ConfigError(
                f"{dataset.path!r} is a native dataset already"
                + (
                    ": there is nothing to convert, unless videos are to be encoded anew (reencode=, --gop, --reencode)."
                    if not reencode
                    else ", and has no video that could be encoded anew as asked: there is nothing to convert."
                )
            )
        return
    source, target = Path(dataset.path).resolve(), out.expanduser().resolve()
    if target == source or source in target.parents:
        raise ConfigError(
            f"out={str(out)!r} lies inside the source {dataset.path!r}: choose a folder beside it, so that the source stays as it is."
        )


def _step_rate(dataset: Dataset) -> Fraction | None:
    info = getattr(dataset, "info", None)
    if info is not None:
        return Fraction(info.fps)
    return Fraction(str(dataset.step_rate_hz)) if dataset.step_rate_hz else None


def _stated(episodes: Sequence[int] | None, dataset: Dataset) -> Any:
    if episodes is None:
        return "all"
    keys = [dataset.episode_key(int(e)) for e in episodes]
    return keys if len(keys) <= 100 else f"{len(keys)} of {dataset.num_episodes}"


@dataclass(frozen=True, slots=True)
class _Job:
    """One conversion: reads an episode of `dataset` and hands it to a writer."""

    dataset: Dataset
    reencode: Reencode
    rate: Fraction | None

    def add(self, writer: Writer, episode: int, report: ConvertReport) -> None:
        info = self.dataset.episode(episode)
        if info.num_steps == 0:
            report.skipped.append(f"{info.key}: it has no steps")
            return
        values: dict[str, Any] = {}
        counts = replace(report)
        for stream in self.dataset.streams:
            with at(stream=stream):
                value = self._value(episode, stream, counts)
            if value is not None:
                values[stream] = value
        writer.add_episode(
            values,
            key=info.key,
            num_steps=info.num_steps,
            terminated=info.terminated,
            metadata=json_safe(info.metadata),
            **self._clock(episode, info.num_steps),
        )
        for name in _VIDEO_COUNTS:
            setattr(report, name, getattr(counts, name))

    def _clock(self, episode: int, num_steps: int) -> dict[str, Any]:
        """Return the writer's arguments for the step clock: nothing where it is uniform from 0."""
        steps = np.arange(num_steps, dtype=np.int64)
        times = self.dataset.step_times_ns(episode, steps)
        if self.rate is not None and np.array_equal(times, UniformClock(rate_hz=self.rate).times_ns(steps)):
            return {}
        return {"step_times_ns": times}

    def _value(self, episode: int, stream: str, counts: ConvertReport) -> Any:
        try:
            track = self.dataset.track(episode, stream)
        except (SourceError, DecodeError):
            data = self._remuxed(episode, stream)
            if data is None:
                raise
            counts.num_videos_remuxed += 1
            return data
        if track is None:
            return None
        spec = self.dataset.spec(stream)
        if isinstance(track, TableTrack):
            return table_value(track, spec)
        if isinstance(track, VideoTrack):
            value, how = video_value(
                track,
                spec,
                store=self.dataset.store,
                root=Path(self.dataset.path),
                reencode=encode_of(spec, self.reencode),
                rate=self.rate,
            )
            setattr(counts, how, getattr(counts, how) + 1)
            return value
        raise SourceError(f"stream {stream!r} is kept as {type(track).__name__}, which convert does not read.")

    def _remuxed(self, episode: int, stream: str) -> bytes | None:
        """Return a video whose container is the only thing wrong with it, in one that can be indexed."""
        if encode_of(self.dataset.spec(stream), self.reencode) or not isinstance(self.dataset, LeRobotSource):
            return None
        found = self.dataset.video_file(episode, stream)
        if found is None or not found[1]:
            return None
        return remuxed_value(Path(self.dataset.path, found[0]), int(self.dataset.num_steps_E[episode]))

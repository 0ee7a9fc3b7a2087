"""A native dataset with some of its videos encoded anew: all else keeps its bytes, and shards their episodes.

Every shard is written for itself, so a run that was killed goes on with the same call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from trajload.convert.encodings import Reencode, encode_of, reencode_json
from trajload.convert.rewrite import RewritePlan, Rewriting, check_target, rewritten_from
from trajload.convert.values import iter_frames, native_spec
from trajload.decode import DecodeContext
from trajload.errors import ConfigError, DecodeError, at
from trajload.manifest import FileEntry, canonical_json, sha256_hex
from trajload.pipeline.rows import read_rows
from trajload.refs import VideoTrack
from trajload.shards import layout
from trajload.shards.records import EpisodeRecord, Member, TrackRecord
from trajload.shards.stats import DatasetStats, has_stats
from trajload.shards.stored import stored_record
from trajload.shards.video_encode import encode_video
from trajload.shards.video_index import build_video_index
from trajload.sources.native import NativeDataset
from trajload.spec import StreamSpec
from trajload.storage.atomic import write_atomic

__all__ = ["reencode_native", "reencodes_something"]

_PROVENANCE = "reencoded"


def reencode_native(
    dataset: NativeDataset,
    out: Path,
    *,
    reencode: Reencode,
    episodes: Iterable[int],
    name: str | None,
    provenance: Mapping[str, Any],
    tool: str,
    progress: Callable[[int, int], None] | None,
) -> tuple[int, int]:
    """Write `dataset` into the folder `out` with some videos encoded anew.

    Args:
        dataset: The source; it is only read.
        out: Folder to write.
        reencode: Checked settings, at least one of which applies.
        episodes: Positions of the episodes wanted; they stay in the order and in the shards of the dataset.
        name: Of the new dataset; that of the source by default.
        provenance: Added to the manifest's.
        tool: What the manifest says did it.
        progress: Called with (episodes done, episodes in all).

    Returns:
        How many videos were encoded in this run, and how many shards an earlier run had finished.

    Raises:
        ConfigError: The folder holds something else.
        TrajloadError: An episode cannot be read or encoded; nothing is published.
    """
    check_target(dataset, out)
    wanted = sorted(set(episodes))
    by_shard: dict[str, list[int]] = {}
    for episode in wanted:
        by_shard.setdefault(dataset.located(episode)[0].name, []).append(episode)
    settings = {"reencode": reencode_json(reencode), "episodes": wanted, "name": name}
    job = _Job(dataset, reencode)
    with Rewriting(out, list(dataset.streams)) as work:
        found = rewritten_from(out, _PROVENANCE)
        if found is not None:
            said = {key: found[1].get(key) for key in ("from_digest", "reencode", "num_episodes")}
            if said != _said(dataset, reencode, wanted):
                raise ConfigError(
                    f"out={str(out)!r} already holds a dataset, which is not this one encoded so. Choose another folder."
                )
            work.drop_plan()
            return 0, len(found[0].shards)
        plan = work.go_on(dataset.digest, settings)
        if plan is None:
            plan = RewritePlan(dataset.digest, settings, list(by_shard.values()))
            plan.save(out)
        num_kept = len(plan.done)
        entries = work.write(plan, job.record, progress)
        old = dataset.manifest
        is_whole = len(wanted) == dataset.num_episodes
        folder = Path(dataset.path)
        # Signals stay as they are, and so do their statistics; of some episodes only they are others.
        beside = (old.stats, old.sketch) if is_whole else _write_stats(dataset, wanted, out)
        if is_whole:
            for entry in beside:
                work.copy_beside(folder, entry)
        manifest = replace(
            old,
            name=name or old.name,
            streams=tuple(job.specs.values()),
            shards=tuple(entries),
            stats=beside[0],
            sketch=beside[1],
            provenance={
                **old.provenance,
                **provenance,
                _PROVENANCE: [
                    *old.provenance.get(_PROVENANCE, []),
                    {**_said(dataset, reencode, wanted), "tool": tool},
                ],
            },
            stored_digest=None,
        )
        work.publish(manifest)
    return job.num_encoded, num_kept


def _write_stats(dataset: NativeDataset, episodes: list[int], out: Path) -> tuple[FileEntry, FileEntry]:
    """Write the statistics of some episodes, and return the entries of both files."""
    stats, context = DatasetStats(dataset.streams), DecodeContext()
    for episode in episodes:
        for name, spec in dataset.streams.items():
            track = dataset.track(episode, name) if has_stats(spec) else None
            if track is None:
                continue
            rows = read_rows(dataset, episode, name, np.arange(track.num_rows, dtype=np.int64), context=context)
            if rows is not None:
                stats.add(name, dataset.episode_key(episode), rows)
    context.close()
    entries = []
    for file, data in (("stats.json", stats.to_json()), ("stats-sketch.safetensors", stats.sketch())):
        write_atomic(out / file, data)
        entries.append(FileEntry(name=file, num_bytes=len(data), sha256=sha256_hex(data)))
    return entries[0], entries[1]


def _said(dataset: NativeDataset, reencode: Reencode, wanted: list[int]) -> dict[str, Any]:
    said = {"from_digest": dataset.digest, "reencode": reencode_json(reencode), "num_episodes": len(wanted)}
    plain: dict[str, Any] = json.loads(canonical_json(said))
    return plain


class _Job:
    def __init__(self, dataset: NativeDataset, reencode: Reencode) -> None:
        self.dataset, self.reencode = dataset, reencode
        self.specs: dict[str, StreamSpec] = {
            name: native_spec(spec, encode_of(spec, reencode)) for name, spec in dataset.streams.items()
        }
        self.num_encoded = 0

    def record(self, episode: int) -> EpisodeRecord:
        """Return an episode with its videos encoded anew."""
        dataset = self.dataset
        entry, index, local = dataset.located(episode)
        with at(dataset=dataset.path, shard=entry.name, episode=dataset.episode_key(episode)):
            stored = stored_record(index, entry.name, dataset.manifest.streams, local, dataset.store.read)
            names = list(dataset.streams)
            tracks = tuple(self._track(episode, stored.key, names[track.stream], track) for track in stored.tracks)
            return replace(stored, tracks=tracks, info=_info(stored, names, tracks))

    def _track(self, episode: int, key: str, name: str, stored: TrackRecord) -> TrackRecord:
        spec = self.dataset.spec(name)
        encode = encode_of(spec, self.reencode)
        track = None if encode is None else self.dataset.track(episode, name)
        if encode is None or not isinstance(track, VideoTrack) or not track.num_rows:
            return stored
        with at(stream=name):
            data, encoding = encode_video(
                iter_frames(track, spec, self.dataset.store), rate_hz=self._rate(spec), encode=encode
            )
            index = build_video_index(data)
            if index.num_frames != stored.num_rows:
                raise DecodeError(
                    f"the video was encoded with {index.num_frames} frames: expected {stored.num_rows}. Try another codec."
                )
        self.num_encoded += 1
        member = Member.of(layout.data_member_name(key, name, encoding), layout.ROLE_DATA, stored.stream, data)
        return replace(stored, encoding=encoding, members=(member,), detail=index)

    def _rate(self, spec: StreamSpec) -> Fraction:
        """Return the rate of the container's own clock; times come from the index."""
        if spec.clock == "stepwise" and self.dataset.manifest.step_rate_hz is not None:
            return self.dataset.manifest.step_rate_hz
        return Fraction(spec.rate_hz).limit_denominator(100_000) if spec.rate_hz else Fraction(30)


def _info(stored: EpisodeRecord, names: list[str], tracks: tuple[TrackRecord, ...]) -> Member:
    """Return the member that says how streams are encoded; unchanged where they are as before."""
    (data,) = stored.info.parts
    said = json.loads(bytes(data))
    for track in tracks:
        said["streams"][names[track.stream]]["encoding"] = track.encoding
    return Member.of(stored.info.name, stored.info.role, stored.info.stream, canonical_json(said))


def reencodes_something(dataset: NativeDataset, reencode: Reencode) -> bool:
    """Return whether any stream of the dataset would be encoded anew."""
    return any(encode_of(spec, reencode) is not None for spec in dataset.streams.values())

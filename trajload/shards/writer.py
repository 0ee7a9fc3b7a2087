"""`tl.Writer`: one's own episodes into a dataset, all or nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.arguments import explains_calls
from trajload.checks import check_bool, check_int, check_path
from trajload.errors import ConfigError, ShardError, at
from trajload.manifest import MANIFEST_NAME, FileEntry, Manifest, ShardEntry, canonical_json, read_manifest, sha256_hex
from trajload.manifest.files import write_manifest
from trajload.shards import layout
from trajload.shards.episode import EpisodeInput, prepare_episode
from trajload.shards.index import ShardIndex
from trajload.shards.lock import FolderLock
from trajload.shards.shard_writer import ShardWriter
from trajload.shards.stats import DatasetStats
from trajload.spec import StreamSpec
from trajload.storage.atomic import TEMP_SUFFIX, fsync_dir, write_atomic
from trajload.storage.own_folder import check_own_folder
from trajload.types import PathLikeStr

if TYPE_CHECKING:
    from trajload.shards.video_encode import VideoEncode

__all__ = ["Writer"]

_DEFAULT_SHARD_BYTES = 256 << 20
_MIN_SHARD_BYTES = 4096


def _rate(value: int | float | Fraction | str | None) -> Fraction | None:
    """Return a rate as an exact fraction; a float gives the nearest one with a denominator up to 100,000."""
    if value is None:
        return None
    try:
        # NumPy's numbers would stay in the fraction, and no JSON holds them.
        rate = Fraction(value.item() if isinstance(value, np.generic) else value)
        if isinstance(value, (float, np.floating)):
            rate = rate.limit_denominator(100_000)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError) as err:
        raise ConfigError(f"step_rate_hz={value!r} is invalid: expected a number above 0, or a Fraction.") from err
    if not 0 < rate <= 10**9 or rate.denominator > 10**9 or isinstance(value, bool):
        raise ConfigError(f"step_rate_hz={value!r} is invalid: expected a number above 0, or a Fraction.")
    return rate


@explains_calls
class Writer:
    """Writes a dataset of trajload's own format; a context manager.

    Nothing is visible until `close` (or the end of the `with`) publishes shards and manifest; an exception inside
    the `with`, or a kill at any moment, leaves the folder's dataset as it was. One Writer at a time writes to a folder.
    Not thread-safe.

    Example:
        >>> with tl.Writer("out", streams=[tl.StreamSpec(...)], step_rate_hz=30) as w:  # doctest: +SKIP
        ...     w.add_episode({"action": actions, "cam_front": Path("episode-0.mp4")}, terminated=True)
    """

    def __init__(
        self,
        path: PathLikeStr,
        *,
        streams: Sequence[StreamSpec] | None = None,
        name: str | None = None,
        step_rate_hz: int | float | Fraction | None = None,
        shard_bytes: int = _DEFAULT_SHARD_BYTES,
        provenance: Mapping[str, Any] | None = None,
        video: Mapping[str, VideoEncode] | None = None,
        append: bool = False,
    ) -> None:
        """Prepare to write to folder `path`, which is made where needed.

        Args:
            path: Folder of the dataset.
            streams: What episodes may hold. With `append` those of the dataset, which is the default then.
            name: Of the dataset; the folder's name by default.
            step_rate_hz: Rate of the step clock. None: every episode brings `step_times_ns`.
            shard_bytes: A shard is closed before the episode that would make it larger.
            provenance: JSON object: source, converter, arguments, licence, consent_tags.
            video: How frames given as arrays are encoded, by stream. Default: H.264 for 8-bit colour, else FFV1.
            append: Add shards to the dataset in `path` instead of writing a new one.

        Raises:
            ConfigError: A bad argument; `path` holds a dataset or anything else (without `append`), no dataset (with it), or
                another Writer is at work there.
        """
        self.path = check_path("path", path)
        rate = _rate(step_rate_hz)
        self._shard_bytes = check_int("shard_bytes", shard_bytes, _MIN_SHARD_BYTES)
        check_bool("append", append)
        if name is not None and not (isinstance(name, str) and name):
            raise ConfigError(f"name={name!r} is unusable: expected text, or None for the folder's name.")
        for argument, value in (("provenance", provenance), ("video", video)):
            if value is not None and not isinstance(value, Mapping):
                raise ConfigError(f"{argument}={value!r} is unusable: expected a dict with names as keys, or None.")
        try:
            self._provenance: dict[str, Any] = json.loads(canonical_json(dict(provenance or {})))
        except (TypeError, ValueError) as err:
            raise ConfigError(f"provenance is not JSON: {err}.") from err
        self._base: Manifest | None = None
        if not append:
            if streams is None:
                raise ConfigError("streams is missing: expected a list of StreamSpec.")
            specs = layout.check_streams(streams)
            self._name, self._rate = name or self.path.resolve().name, rate
        if not append and not (self.path / MANIFEST_NAME).exists():
            _check_unused(self.path)
        try:
            (self.path / layout.SHARD_FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise ConfigError(f"path={str(path)!r} cannot be made a folder: {err.strerror}.") from err
        self._lock = FolderLock(self.path)
        try:
            if append:
                self._base = read_manifest(self.path)
                specs = self._check_append(self._base, streams, name, rate)
                self._name, self._rate = self._base.name, self._base.step_rate_hz
            elif (self.path / MANIFEST_NAME).exists():
                raise ConfigError(
                    f"path={str(path)!r} already holds a dataset. Pass append=True to add to it, or choose another folder."
                )
            self._streams = {spec.name: spec for spec in specs}
            self._video = self._check_video(video or {})
            self._stats = DatasetStats(self._streams)
            self._keys: set[str] = set()
            if self._base is not None:
                self._load_base(self._base)
            self._first_number = self._clear_leftovers()
        except BaseException:
            self._lock.release()
            raise
        self._finished: list[ShardWriter] = []
        self._entries: list[ShardEntry] = []
        self._open: ShardWriter | None = None
        self._state = "open"

    def __repr__(self) -> str:
        return f"<Writer {str(self.path)!r} ({self._state}): {len(self._keys)} episodes, streams {', '.join(self._streams)}>"

    # ---- opening ----

    def _check_append(
        self, base: Manifest, streams: Sequence[StreamSpec] | None, name: str | None, rate: Fraction | None
    ) -> tuple[StreamSpec, ...]:
        if name is not None and name != base.name:
            raise ConfigError(f"name={name!r} differs from that of the dataset to append to, {base.name!r}.")
        if rate is not None and rate != base.step_rate_hz:
            raise ConfigError(
                f"step_rate_hz={rate} differs from that of the dataset to append to, {base.step_rate_hz}."
            )
        if streams is not None:
            given, held = list(layout.check_streams(streams)), list(base.streams)
            if given != held:
                differing = [spec.name for spec in (*given, *held) if (spec in given) != (spec in held)] or [
                    spec.name for spec in given
                ]
                raise ConfigError(
                    f"streams differ from those of the dataset to append to, in {', '.join(map(repr, dict.fromkeys(differing)))}. "
                    "Leave streams out, or write another dataset."
                )
        return layout.check_streams(base.streams)

    def _check_video(self, video: Mapping[str, VideoEncode]) -> dict[str, VideoEncode]:
        for stream in video:
            if stream not in self._streams or not self._streams[stream].is_video:
                videos = [name for name, spec in self._streams.items() if spec.is_video]
                raise ConfigError(f"video names {stream!r}: expected one of the video streams {videos}.")
        return dict(video)

    def _load_base(self, base: Manifest) -> None:
        """Take up keys and statistics of the dataset that is appended to."""
        for entry in base.shards:
            with at(shard=entry.name):
                self._keys.update(ShardIndex(self.path / entry.index.name, entry).episode_keys())
        if base.sketch is not None:
            data = (self.path / base.sketch.name).read_bytes() if (self.path / base.sketch.name).is_file() else b""
            if sha256_hex(data) != base.sketch.sha256:
                raise ConfigError(
                    f"file {base.sketch.name!r} is absent or changed: appending needs it for the statistics. Restore it."
                )
            self._stats.load_sketch(self.path / base.sketch.name)

    def _clear_leftovers(self) -> int:
        """Remove what a killed Writer left unfinished; return the first free shard number.

        Finished files that no manifest lists are kept and passed over: they may be someone's data.
        """
        numbers = [-1]
        for file in (self.path / layout.SHARD_FOLDER).iterdir():
            number = layout.shard_number(file.name)
            if number is None:
                continue
            if file.name.endswith(TEMP_SUFFIX):
                file.unlink()
            else:
                numbers.append(number)
        return max(numbers) + 1

    # ---- writing ----

    @property
    def num_episodes(self) -> int:
        """Episodes of the dataset so far, those appended to included."""
        return len(self._keys)

    def add_episode(
        self,
        values: Mapping[str, Any],
        *,
        key: str | None = None,
        num_steps: int | None = None,
        terminated: bool | None = None,
        start_ns: int = 0,
        step_times_ns: Any = None,
        timestamps_ns: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        """Write one episode and return its index in the dataset.

        The episode is checked whole before a byte is written; after an error the Writer goes on as if the call had
        not been made.

        Args:
            values: Value of each stream the episode has (None or left out: it lacks the stream). Signals: (N, *shape).
                Video: frames (N, H, W, C), or a file as Path or bytes, kept as it is where its packets can be indexed.
                Pictures: frames, or a list of encoded bytes. Text: one value for the episode, or a list of N.
            key: Stable name, unique in the dataset; the episode's index with six digits by default.
            num_steps: Taken from `step_times_ns` or the first stepwise stream by default.
            terminated: The last step is a terminal state (True), was cut off (False), or it is not known (None).
            start_ns: Time of step 0 on the uniform step clock.
            step_times_ns: int64 (num_steps,), strictly rising, instead of the uniform step clock.
            timestamps_ns: int64 (N,) of each clocked stream, strictly rising, on the same zero as the step clock.
            metadata: JSON object kept with the episode.

        Raises:
            ConfigError: The episode does not fit the streams; the message names what.
            SourceError, DecodeError: A video cannot be stored so that its frames come out exactly.
            ShardError: The disk refused the bytes; the Writer can then only be closed.
        """
        if self._state != "open":
            raise ConfigError(f"this Writer is {self._state}: no episode can be added.")
        for argument, value in (("values", values), ("timestamps_ns", timestamps_ns), ("metadata", metadata)):
            if not isinstance(value, Mapping) and (value is not None or argument == "values"):
                raise ConfigError(f"{argument} is a {type(value).__name__}: expected a dict with names as keys.")
        if key is None:
            key = f"{self.num_episodes:06d}"
        with at(dataset=str(self.path), episode=key):
            layout.check_episode_key(key)
            if key in self._keys:
                raise ConfigError(f"key={key!r} is already taken by another episode of the dataset.")
            prepared = prepare_episode(
                EpisodeInput(
                    key=key,
                    values=values,
                    num_steps=num_steps,
                    terminated=terminated,
                    start_ns=start_ns,
                    step_times_ns=step_times_ns,
                    timestamps_ns=timestamps_ns or {},
                    metadata=metadata or {},
                ),
                self._streams,
                step_rate_hz=self._rate,
                video=self._video,
            )
            try:
                size = ShardWriter.size_of(prepared.record)
                if self._open is not None and self._open.num_bytes + size > self._shard_bytes:
                    self._finish_shard()
                if self._open is None:
                    number = self._first_number + len(self._finished)
                    self._open = ShardWriter(self.path, number, list(self._streams))
                self._open.add(prepared.record)
            except OSError as err:
                self._state = "failed"
                raise ShardError(f"episode cannot be written: {err.strerror or err}. Nothing was published.") from err
        for stream, rows in prepared.signals.items():
            self._stats.add(stream, key, rows)
        self._keys.add(key)
        return self.num_episodes - 1

    def _finish_shard(self) -> None:
        assert self._open is not None
        self._entries.append(self._open.finish())
        self._finished.append(self._open)
        self._open = None

    # ---- closing ----

    def close(self) -> None:
        """Publish what was added: shards and indexes, statistics, then the manifest. Idempotent.

        Raises:
            ConfigError: No episode was added to a new dataset.
            ShardError: The disk refused; the folder's dataset is as it was.
        """
        if self._state in ("closed", "aborted"):
            return
        if self._state == "failed":
            self.abort()
            raise ShardError(
                f"dataset {str(self.path)!r} was not written: an episode before failed. Nothing was published."
            )
        if self._open is None and not self._finished:
            self.abort()
            if self._base is None:
                raise ConfigError(
                    f"dataset {str(self.path)!r} has no episode: expected at least 1. Nothing was written."
                )
            return
        try:
            self._publish()
        except OSError as err:
            self.abort()
            raise ShardError(f"dataset {str(self.path)!r} cannot be published: {err.strerror or err}.") from err
        except BaseException:
            self.abort()
            raise
        self._state = "closed"
        self._lock.release()

    def _publish(self) -> None:
        if self._open is not None:
            self._finish_shard()
        for shard in self._finished:
            shard.publish()
        fsync_dir(self.path / layout.SHARD_FOLDER)
        base = self._base
        stats = self._write_beside("stats", "json", self._stats.to_json())
        sketch = self._write_beside("stats-sketch", "safetensors", self._stats.sketch())
        provenance = self._provenance
        if base is not None:
            provenance = dict(base.provenance)
            if self._provenance:
                provenance["appended"] = [*provenance.get("appended", []), self._provenance]
        manifest = Manifest(
            name=self._name,
            streams=tuple(self._streams.values()),
            step_rate_hz=self._rate,
            shards=(*(base.shards if base is not None else ()), *self._entries),
            stats=stats,
            sketch=sketch,
            provenance=provenance,
        )
        write_manifest(self.path, manifest)
        if base is not None and base.sketch is not None and base.sketch.name != sketch.name:
            (self.path / base.sketch.name).unlink(missing_ok=True)

    def _write_beside(self, stem: str, extension: str, data: bytes) -> FileEntry:
        """Write a file the old manifest does not name: its own may not change before the new manifest stands."""
        digest = sha256_hex(data)
        name = f"{stem}.{extension}" if self._base is None else f"{stem}-{digest[:12]}.{extension}"
        write_atomic(self.path / name, data)
        return FileEntry(name=name, num_bytes=len(data), sha256=digest)

    def abort(self) -> None:
        """Drop what was added; the folder's dataset stays as it was. Idempotent."""
        if self._state in ("closed", "aborted"):
            return
        self._state = "aborted"
        for shard in (*self._finished, *([self._open] if self._open is not None else [])):
            shard.abort()
        self._lock.release()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _check_unused(folder: Path) -> None:
    """Refuse a folder that holds anything but what a Writer leaves that was killed."""
    beside = ("stats.json", "stats-sketch.safetensors", MANIFEST_NAME)
    check_own_folder(
        folder,
        argument="path",
        may_hold=lambda name: name == layout.SHARD_FOLDER or name.removesuffix(TEMP_SUFFIX) in beside,
    )
    shards = folder / layout.SHARD_FOLDER
    check_own_folder(shards, argument="path", may_hold=lambda name: layout.shard_number(name) is not None)

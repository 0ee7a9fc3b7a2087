"""What every dataset is to the rest of the library: a table of episodes, and tracks on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, NoReturn

import numpy as np

from trajload.checks import did_you_mean, quoted
from trajload.errors import ConfigError, SourceError, WindowError
from trajload.refs import Track
from trajload.sources.columns import ArrayColumns, ClockColumns
from trajload.sources.notes import Note
from trajload.spec import StreamSpec
from trajload.storage import ByteStore
from trajload.types import Int8Array, Int64Array

__all__ = ["Dataset", "EpisodeInfo", "Reopening"]


@dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """One episode as `Dataset.episode` describes it. Built on request, never kept for all episodes."""

    index: int
    key: str
    num_steps: int
    file: str
    """Shard, or the foreign file that holds the episode's rows."""
    terminated: bool | None
    """True: the last step is a terminal state. False: cut off (truncated). None: the data do not say."""
    metadata: Mapping[str, Any]


class Dataset(ABC):
    """A dataset opened for reading; what `tl.open` returns. Thread-safe; holds no file open between calls.

    Opening is columnar: per-episode Python objects are made on request only, so that 100,000 episodes open in
    seconds. Subclasses: `sources.native.NativeDataset`, `sources.lerobot...`.
    """

    name: str
    path: str
    kind: str
    """'native', 'lerobot-v2.0', 'lerobot-v2.1', 'lerobot-v3.0', ..."""
    digest: str
    """Hex digest of the dataset version: equal digests mean equal episodes, streams and bytes."""
    streams: Mapping[str, StreamSpec]
    num_steps_E: Int64Array
    """Steps of each episode (E,), int64."""
    terminated_E: Int8Array
    """int8 (E,): 1 = the last step is terminal, 0 = truncated, -1 = the data do not say."""
    step_rate_hz: float | None
    """Nominal rate of the step clock."""
    store: ByteStore
    """Where the files that tracks name are read from."""
    notes: Sequence[Note] = ()
    """What the metadata say otherwise than the files, and what was left out; empty for native datasets."""

    @property
    def num_episodes(self) -> int:
        """Episodes; `len(dataset)` too."""
        return len(self.num_steps_E)

    @property
    def num_steps(self) -> int:
        """Steps of all episodes together."""
        return int(self.num_steps_E.sum())

    @abstractmethod
    def episode_key(self, episode: int) -> str:
        """Return the stable name of an episode."""

    @abstractmethod
    def episode(self, episode: int) -> EpisodeInfo:
        """Return what is known of one episode."""

    @abstractmethod
    def track(self, episode: int, stream: str) -> Track | None:
        """Return where `stream` of `episode` stands, or None where the episode lacks it.

        Raises:
            ShardNotFoundError, SourceError: The data promise the stream but its file is absent or unusable.
        """

    @abstractmethod
    def step_times_ns(self, episode: int, steps: Int64Array) -> Int64Array:
        """Return the time of each of `steps` (inside [0, num_steps)), int64 nanoseconds, same shape."""

    @abstractmethod
    def stream_times_ns(self, episode: int, stream: str) -> Int64Array:
        """Return the timestamps (N,) of a clocked stream, int64 nanoseconds, strictly rising, on the step clock's zero."""

    def stats(self) -> Mapping[str, Any]:
        """Return per-stream statistics (count, mean, std, min, max, q01, q99), empty where none are stored."""
        return {}

    def provenance(self) -> Mapping[str, Any]:
        """Return source, converter and arguments, licence, consent tags; empty where unknown."""
        return {}

    def close(self) -> None:
        """Release open files and mappings. Idempotent; a later call opens again what it needs."""
        self.store.close()

    def reopening(self) -> Reopening | None:
        """Return how to open the same dataset in another process, in a few hundred bytes; None where only a pickle tells."""
        return None

    # ---- shared conveniences ----

    def has_stream(self, episode: int, stream: str) -> bool:
        """Return whether `episode` has at least one row of `stream`."""
        track = self.track(episode, stream)
        return track is not None and track.num_rows > 0

    def array_columns(self, episode: int, stream: str) -> ArrayColumns | None:
        """Return the raw arrays of a stepwise stream in `episode` and its neighbours, or None: ask `track`, one by one.

        An override is worth it where an index holds many episodes in columns.
        """
        return None

    def clock_columns(self, episode: int) -> ClockColumns | None:
        """Return the uniform step clocks of `episode` and its neighbours, or None: ask `step_times_ns`, one by one."""
        return None

    def check_episode(self, episode: int) -> int:
        """Return `episode` as a non-negative index, or raise WindowError."""
        try:
            number = index(episode)
        except TypeError:
            raise ConfigError(
                f"episode {episode!r} is no number: expected an int, the episode's position in the dataset "
                f"{self.name!r}, not its key."
            ) from None
        if not -self.num_episodes <= number < self.num_episodes:
            raise WindowError(
                f"episode {episode} does not exist: the dataset {self.name!r} has {self.num_episodes} episodes."
            )
        return number % self.num_episodes

    def __getitem__(self, item: object) -> NoReturn:
        raise TypeError(
            f"a dataset is not indexed, nor iterated: {self.name!r}[{item!r}]. episode(i) describes an episode, and episodes() all of them; "
            "windows come from tl.Loader(dataset, window=..., global_batch_size=...), whose as_dataloader() is for trainers."
        )

    def spec(self, stream: str) -> StreamSpec:
        """Return the spec of `stream`, or raise ConfigError listing the streams there are."""
        try:
            return self.streams[stream]
        except KeyError:
            raise ConfigError(
                f"stream {stream!r} is unknown: the dataset {self.name!r} has {quoted(self.streams)}."
                f"{did_you_mean(stream, self.streams)}"
            ) from None

    def episodes(self) -> Iterator[EpisodeInfo]:
        """Yield every episode's description in order."""
        return (self.episode(i) for i in range(self.num_episodes))

    def __len__(self) -> int:
        return self.num_episodes

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r} ({self.kind}): {self.num_episodes} episodes, {self.num_steps} steps, "
            f"streams {', '.join(self.streams)}>"
        )

    def __str__(self) -> str:
        """Return a few lines: what the dataset is, and each stream with its modality, dtype, shape of a row, rate and encoding."""
        rate = "" if self.step_rate_hz is None else f" at {self.step_rate_hz:g} Hz"
        rows = [_told(spec) for spec in self.streams.values()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        head = (
            f"{self.name!r} ({self.kind}): {self.num_episodes} episodes, {self.num_steps} steps{rate}, in {self.path}"
        )
        notes = [f"{len(self.notes)} notes on what the files lack or say otherwise: see .notes"] if self.notes else []
        return "\n".join([head, *(f"  {line}" for line in lines), *notes])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show `str(dataset)` in notebooks."""
        printer.text(str(self))


def _told(spec: StreamSpec) -> tuple[str, ...]:
    rate = "" if spec.rate_hz is None else f"{spec.rate_hz:g} Hz"
    clock = f"own clock {rate}".rstrip() if spec.clock == "clocked" else "each step"
    return spec.name, str(spec.modality), spec.dtype, str(spec.shape), clock, spec.encoding


def episode_offsets(num_steps_E: Sequence[int] | Int64Array) -> Int64Array:
    """Return prefix sums (E + 1,) of the episodes' steps."""
    out = np.zeros(len(num_steps_E) + 1, dtype=np.int64)
    np.cumsum(num_steps_E, out=out[1:])
    return out


@dataclass(frozen=True)
class Reopening:
    """How to open a dataset again: its path and digest, not its tables, which would be megabytes for every worker."""

    kind: type[Dataset]
    arguments: Mapping[str, Any]
    """Of `kind`."""
    name: str
    digest: str

    def open(self) -> Dataset:
        """Open the dataset.

        Raises:
            SourceError: It has changed.
        """
        dataset = self.kind(**self.arguments)
        dataset.name = self.name
        if dataset.digest != self.digest:
            raise SourceError(
                f"dataset {self.name!r} at {dataset.path!r} has changed since this process was told of it: got digest "
                f"{dataset.digest[:12]}…, expected {self.digest[:12]}…. Open it again and build a new loader."
            )
        return dataset

"""The round through a dataset: every episode, every stream, each handed to the check that knows it."""

# Shapes: T steps, N rows

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trajload.decode import DecodeContext
from trajload.doctor.clocks import look_at_step_clock, look_at_stream_clock
from trajload.doctor.report import Collector, DoctorReport
from trajload.doctor.signals import SignalCheck
from trajload.doctor.video import TYPICAL_NUM_STEPS, PictureCheck
from trajload.errors import ConfigError, TrajloadError
from trajload.pipeline.rows import read_rows, read_value
from trajload.refs import ArrayTrack, ChunkTrack, Track
from trajload.sources.base import Dataset
from trajload.sources.open import open as open_dataset
from trajload.spec import StreamSpec
from trajload.types import Int64Array, PathLikeStr

__all__ = ["examine"]

Progress = Callable[[int, int], None]


def examine(
    dataset: Dataset | PathLikeStr,
    *,
    max_episodes: int | None = None,
    decode: bool = True,
    deep: bool = False,
    num_steps: int = TYPICAL_NUM_STEPS,
    progress: Progress | None = None,
) -> DoctorReport:
    """Return what is wrong, doubtful or costly in a dataset.

    `verify` asks whether bytes are as they were written; this asks whether what they say makes sense.

    Args:
        dataset: An opened dataset, or its path.
        max_episodes: Look at this many episodes only, spread evenly over the dataset; None for all.
        decode: Decode the first and the last picture of every picture stream.
        deep: Decode one picture of every group of pictures, too. Takes about as long as decoding everything.
        num_steps: Length of the windows that will be drawn: what costly video and short episodes are judged by.
        progress: Called with (episodes done, episodes in all).

    Raises:
        TrajloadError: The dataset cannot be opened at all. Everything found later becomes a finding.
    """
    if max_episodes is not None and max_episodes < 1:
        raise ConfigError(f"max_episodes={max_episodes!r} is invalid: expected at least 1, or None for all.")
    if num_steps < 1:
        raise ConfigError(f"num_steps={num_steps!r} is invalid: expected at least 1.")
    if not isinstance(dataset, Dataset):
        # An incomplete dataset is what a doctor is called to.
        opened = open_dataset(dataset, missing="skip")
        try:
            return examine(
                opened, max_episodes=max_episodes, decode=decode, deep=deep, num_steps=num_steps, progress=progress
            )
        finally:
            opened.close()
    found = Collector()
    _take_notes(dataset, found)
    episodes = _choose(dataset.num_episodes, max_episodes)
    pictures = PictureCheck(dataset, found, decode=decode, deep=deep, num_steps=num_steps)
    visit = _Visit(dataset, found, pictures)
    try:
        for done, episode in enumerate(episodes):
            visit.episode(episode)
            if progress is not None:
                progress(done + 1, len(episodes))
        visit.finish(len(episodes))
    finally:
        pictures.close()
        visit.context.close()
    return DoctorReport(
        dataset=dataset.name,
        path=dataset.path,
        kind=dataset.kind,
        digest=dataset.digest,
        num_episodes=dataset.num_episodes,
        num_examined=len(episodes),
        num_frames_decoded=pictures.num_frames_decoded,
        findings=found.findings(),
    )


def _choose(num_episodes: int, max_episodes: int | None) -> list[int]:
    if max_episodes is None or max_episodes >= num_episodes:
        return list(range(num_episodes))
    return np.unique(np.linspace(0, num_episodes - 1, max_episodes).astype(np.int64)).tolist()


def _take_notes(dataset: Dataset, found: Collector) -> None:
    """Pass on what the source noticed while opening: a camera without files, counts that disagree."""
    if dataset.num_episodes == 0:
        found.add("error", "no-episodes", f"dataset {dataset.name!r} has no episode.", "There is nothing to train on.")
    for remark in dataset.notes:
        found.add(
            "warning",
            f"source-{remark.kind}",
            remark.message,
            "The metadata and the files disagree; what the files hold is used.",
            stream=remark.stream,
            shard=remark.file,
        )


class _Visit:
    """Looks at one episode after the other, and remembers what only the whole can tell."""

    def __init__(self, dataset: Dataset, found: Collector, pictures: PictureCheck) -> None:
        self.dataset = dataset
        self.found = found
        self.pictures = pictures
        self.context = DecodeContext()
        self._missing: dict[str, list[str]] = {name: [] for name in dataset.streams}
        self._signals = {
            name: SignalCheck(spec, found)
            for name, spec in dataset.streams.items()
            if not spec.is_text and not spec.is_picture
        }

    def episode(self, episode: int) -> None:
        num_steps, key = int(self.dataset.num_steps_E[episode]), self.dataset.episode_key(episode)
        if num_steps == 0:
            self.found.add(
                "warning", "empty-episode", "the episode has no steps.", "It gives no window; drop it.", episode=key
            )
            return
        if num_steps < self.pictures.num_steps:
            self.found.add(
                "note",
                "short-episode",
                f"the episode has {num_steps} steps, fewer than a window of {self.pictures.num_steps}.",
                "It gives no such window under pad='none'; pad='edge' uses it.",
                episode=key,
            )
        times_T = self._try(key, None, lambda: look_at_step_clock(self.dataset, episode, self.found))
        for name, spec in self.dataset.streams.items():
            self._try(key, name, lambda spec=spec: self._stream(episode, key, spec, times_T))  # type: ignore[misc]

    def _try(self, key: str, stream: str | None, look: Callable[[], Int64Array | None]) -> Int64Array | None:
        """Run one check; what it raises is a finding, never the end of the round."""
        try:
            return look()
        except TrajloadError as err:
            self.found.add(
                "error",
                "unreadable",
                err.message,
                "Windows that touch it fail, or are replaced under on_error='substitute'.",
                stream=err.at.stream or stream,
                episode=key,
                shard=err.at.shard,
            )
        return None

    def _stream(self, episode: int, key: str, spec: StreamSpec, times_T: Int64Array | None) -> None:
        track = self.dataset.track(episode, spec.name)
        if track is None:
            self._missing[spec.name].append(key)
            return
        if spec.is_text:
            self._text(episode, key, spec)
            return
        self._rows(episode, key, spec, track)
        if spec.clock == "clocked" and times_T is not None:
            look_at_stream_clock(self.dataset, episode, spec, track.num_rows, times_T, self.found)
        if spec.is_picture:
            self.pictures.look(episode, spec, track)
            return
        if not self._fits_spec(key, spec, track):
            return
        values = read_rows(
            self.dataset, episode, spec.name, np.arange(track.num_rows, dtype=np.int64), context=self.context
        )
        if values is not None:
            self._signals[spec.name].look(key, values)

    def _rows(self, episode: int, key: str, spec: StreamSpec, track: Track) -> None:
        num_steps = int(self.dataset.num_steps_E[episode])
        if track.num_rows == 0:
            self.found.add(
                "error", "no-rows", f"stream {spec.name!r} has no rows.", "Leave the stream out of the episode instead.",
                stream=spec.name, episode=key, shard=track.file,
            )  # fmt: skip
        elif spec.clock == "stepwise" and track.num_rows != num_steps:
            fewer = track.num_rows < num_steps
            self.found.add(
                "error" if fewer else "warning",
                "rows-missing" if fewer else "rows-left-over",
                f"stream {spec.name!r} has {track.num_rows} rows for {num_steps} steps.",
                "Windows that reach the end fail; repair or cut the episode."
                if fewer
                else "The rows beyond the last step are never delivered; check which side is off by one.",
                stream=spec.name,
                episode=key,
                steps=(track.num_rows, num_steps) if fewer else None,
                shard=track.file,
            )

    def _fits_spec(self, key: str, spec: StreamSpec, track: Track) -> bool:
        if not isinstance(track, (ArrayTrack, ChunkTrack)):
            return True  # tables convert, and say so where they cannot
        if (track.row_shape, track.dtype.newbyteorder("=")) == (spec.shape, np.dtype(spec.dtype)):
            return True
        self.found.add(
            "error",
            "shape-or-dtype",
            f"stream {spec.name!r} holds {track.dtype} {track.row_shape}, but declares {spec.dtype} {spec.shape}.",
            "A batch needs one shape; convert the dataset anew.",
            stream=spec.name,
            episode=key,
            shard=track.file,
        )
        return False

    def _text(self, episode: int, key: str, spec: StreamSpec) -> None:
        value = read_value(self.dataset, episode, spec.name, context=self.context)
        if spec.dtype == "str" and not str(value or "").strip():
            self.found.add(
                "warning",
                "empty-text",
                f"stream {spec.name!r} is empty text.",
                "A language-conditioned policy learns to ignore it; fill it in, or mask these episodes.",
                stream=spec.name,
                episode=key,
            )

    def finish(self, num_examined: int) -> None:
        """Report streams that episodes lack, and what the signals tell as a whole."""
        for name, keys in self._missing.items():
            if not keys:
                continue
            if len(keys) == num_examined:
                self.found.add(
                    "warning",
                    "declared-without-data",
                    f"stream {name!r} is declared, but none of {num_examined} episodes has it.",
                    "Batches hold zeros with is_missing=True; leave it out with streams=[...].",
                    stream=name,
                )
                continue
            for key in keys:
                self.found.add(
                    "note",
                    "missing-stream",
                    f"stream {name!r} is missing in {len(keys)} of {num_examined} episodes.",
                    f"There batch['{name}_is_missing'] is True and the values are zero: mask the loss.",
                    stream=name,
                    episode=key,
                )
        for check in self._signals.values():
            check.finish()

"""The exception tree, and the location every error carries.

    TrajloadError
      ConfigError (ValueError)              bad argument or combination, found before any I/O
        ArgumentError (TypeError)           a call with a name that the function does not take, or without one that it needs
      MissingDependencyError (ImportError)  an extra is not installed; the message gives the command
      ManifestError                         missing field, unknown version, digest mismatch
      ShardError
        ShardCorruptError                   bytes differ from what the index promises
        ShardNotFoundError (FileNotFoundError)
      SourceError                           a foreign dataset (LeRobot, ...) does not hold what it declares
      DecodeError                           bytes do not give the promised frames or arrays
      AlignError                            clocks do not overlap, or a gap is over the tolerance
      WindowError (IndexError)              step range outside its episode, or no window at all
      ResumeError                           state does not fit this dataset, order version or batch size
        CheckpointMismatchError             a checkpoint of another model, dataset, world size or newer format; also a CheckpointError
      CheckpointError                       a checkpoint store cannot do what was asked
        CheckpointCorruptError              bytes of a checkpoint differ from their digest, or a part is missing
        WriterConflictError                 another process writes this store
        CheckpointSpaceError                not enough free space; nothing was written
        CheckpointAbortedError              a save that did not commit; chained to its cause
      StageFailedError                      a pipeline stage failed; chained to the first cause
      LoaderExhaustedError                  end of a finite run asked for by train_step

A message says what failed, what was got and expected, and what to do. The location follows in brackets,
added once by the stage that knows it (`with at(shard=..., episode=...)`), so leaves stay free of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import partial
from types import TracebackType
from typing import Any

__all__ = [
    "AlignError",
    "ArgumentError",
    "CheckpointAbortedError",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointSpaceError",
    "ConfigError",
    "DecodeError",
    "LoaderExhaustedError",
    "Locus",
    "ManifestError",
    "MissingDependencyError",
    "ResumeError",
    "ShardCorruptError",
    "ShardError",
    "ShardNotFoundError",
    "SourceError",
    "StageFailedError",
    "TrajloadError",
    "WindowError",
    "WriterConflictError",
    "at",
    "described",
    "locate",
    "words_of",
]

_MOST_WORDS = 4000
"""Characters of a foreign exception's message that are worth carrying into one of our own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Locus:
    """Where something happened. Every field is optional; `steps` is half-open."""

    dataset: str | None = None
    shard: str | None = None
    """File the bytes came from: a shard, a parquet file, a video."""
    episode: str | int | None = None
    stream: str | None = None
    steps: tuple[int, int] | None = None
    train_step: int | None = None
    window_id: int | None = None

    def merged(self, outer: Locus) -> Locus:
        """Return this locus with fields it lacks taken from `outer` (the inner one knows better)."""
        missing = {f.name: getattr(outer, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **missing)

    def __str__(self) -> str:
        parts = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None:
                continue
            parts.append(f"steps=[{value[0]}, {value[1]})" if f.name == "steps" else f"{f.name}={value}")
        return f"[{' '.join(parts)}]" if parts else ""


class TrajloadError(Exception):
    """Base of all errors trajload raises on purpose.

    `message` is the text without location, `at` the `Locus` (possibly empty). Picklable with its location,
    so it survives the way out of a worker process.
    """

    def __init__(self, message: str, *, at: Locus | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.at = at or Locus()

    def __str__(self) -> str:
        locus = str(self.at)
        return f"{self.message} {locus}" if locus else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (partial(type(self), at=self.at), (self.message,))


class ConfigError(TrajloadError, ValueError):
    """A bad argument or combination of arguments, found before any I/O."""


class ArgumentError(ConfigError, TypeError):
    """A call that does not fit its function: an argument it does not have, one missing, or one too many without a name."""


class MissingDependencyError(TrajloadError, ImportError):
    """An optional dependency is absent; the message gives the install command."""


class ManifestError(TrajloadError):
    """The manifest lacks a field, has an unknown version, or its digest does not fit."""


class ShardError(TrajloadError):
    """Something is wrong with a shard or its index."""


class ShardCorruptError(ShardError):
    """Bytes differ from what the index promises: truncated, flipped, replaced."""


class ShardNotFoundError(ShardError, FileNotFoundError):
    """A file the manifest or index names is not there."""


class SourceError(TrajloadError):
    """A foreign dataset does not hold what its own metadata declares, or cannot be read in place."""


class DecodeError(TrajloadError):
    """Bytes do not give the promised frames or arrays."""


class AlignError(TrajloadError):
    """A stream's clock does not reach a step within its tolerance."""


class WindowError(TrajloadError, IndexError):
    """A step range lies outside its episode, or a dataset has no window of the wanted length."""


class ResumeError(TrajloadError):
    """A saved state does not fit; the message names each differing field."""


class CheckpointError(TrajloadError):
    """A checkpoint store cannot do what was asked."""


class CheckpointCorruptError(CheckpointError):
    """Bytes of a checkpoint differ from their digest or size, a record is torn, or a part is missing."""


class CheckpointMismatchError(CheckpointError, ResumeError):
    """A checkpoint of another model, dataset, sampler or world size, of a newer format, or not in a safe format."""


class WriterConflictError(CheckpointError):
    """Another process writes this store, or published the same sequence number first."""


class CheckpointSpaceError(CheckpointError):
    """The planned checkpoint does not fit into the free space; nothing was written."""


class CheckpointAbortedError(CheckpointError):
    """A save that did not commit; earlier checkpoints are untouched. Chained to its cause."""


class StageFailedError(TrajloadError):
    """A pipeline stage failed for a reason that is not a TrajloadError; chained to it."""


class LoaderExhaustedError(TrajloadError):
    """A train_step at or beyond the end of a finite run was asked for. Not a StopIteration (PEP 479)."""


def words_of(err: BaseException) -> str:
    """Return the message of a foreign exception without addresses of objects, which differ from run to run.

    Example:
        >>> words_of(ValueError("cannot identify image file <_io.BytesIO object at 0x7f571bfecfe0>"))
        'cannot identify image file <_io.BytesIO object>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+(?=>)", "", str(err))


def described(err: BaseException) -> str:
    """Return class and message of a foreign exception, whatever it is: its own words may be endless, or fail themselves.

    Example:
        >>> described(KeyError("a"))
        "KeyError: 'a'"
    """
    try:
        words = words_of(err)
    except Exception as failed:
        words = f"(its message cannot be had: {type(failed).__name__})"
    return f"{type(err).__name__}: {words if len(words) <= _MOST_WORDS else words[:_MOST_WORDS] + '…'}"


class at:
    """Add a location to every TrajloadError that passes through; inner locations win.

    A class, since a generator costs five times as much to enter and leave, and every stream of every window does. What
    takes time to find may be given as a function; it is called only when an error passes.

    Example:
        >>> with at(shard="000000.tar", episode="ep-17"):  # doctest: +SKIP
        ...     decode(...)
    """

    __slots__ = ("_locus",)

    def __init__(self, **locus: Any) -> None:
        self._locus = locus

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TrajloadError):
            locate(error, **self._locus)


def locate(error: TrajloadError, **locus: Any) -> None:
    """Do to an error that was caught what `at` does to one that passes: for where even `at` costs too much."""
    known = {name: value() if callable(value) else value for name, value in locus.items()}
    error.at = error.at.merged(Locus(**known))

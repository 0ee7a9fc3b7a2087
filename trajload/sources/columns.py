"""What a dataset can tell of many episodes at once, for readers that work on whole batches."""

# Shapes: R neighbouring episodes

from __future__ import annotations

from dataclasses import dataclass

from trajload.types import Int8Array, Int64Array, UInt64Array

__all__ = ["ASK", "LACKS", "RAW", "ArrayColumns", "ClockColumns"]

ASK, RAW, LACKS = 0, 1, 2
"""Only `Dataset.track` can tell; a raw array with a row for each step; the episode lacks the stream."""


@dataclass(frozen=True, slots=True, eq=False)
class ArrayColumns:
    """The raw arrays of one stepwise stream in a run of neighbouring episodes, as their tracks would say."""

    first_episode: int
    file: str
    kind_R: Int8Array
    """ASK, RAW or LACKS. The other columns count where RAW."""
    offset_R: Int64Array
    """Of row 0 in `file`."""
    num_rows_R: Int64Array
    checksum_R: UInt64Array
    """xxh3_64 of all row bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class ClockColumns:
    """The step clocks of a run of neighbouring episodes: step i is at `start_ns + round(i * den / num seconds)`."""

    first_episode: int
    num_R: Int64Array
    """0 where the clock is not uniform, or not known to be."""
    den_R: Int64Array
    start_ns_R: Int64Array

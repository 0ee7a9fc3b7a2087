"""The same loader with the work of a stage left out: what a verdict says must show here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trajload.bench.observe import observe
from trajload.bench.verdict import Verdict
from trajload.loader import Loader

__all__ = ["Headspace", "fresh_loader", "headspace"]

_MORE = 1.2
"""So many times as fast counts as faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Headspace:
    """How fast the same loader delivers where some work is left out, in windows/s."""

    measured: float
    decode_cached: float
    """Rows are filled instead of decoded; everything else is done."""
    reads_cached: float
    """Nothing is read, either."""
    transforms_off: float | None
    """Nor transformed; None where there are no transforms."""
    supports: bool | None
    """Whether this fits the verdict; None where it cannot tell."""
    words: str


def fresh_loader(loader: Loader, change: Mapping[str, Any] | None = None) -> Loader:
    """Return a loader of the same arguments, with some of them changed; nothing is shared but the dataset."""
    return Loader(**{**loader.arguments, **(change or {}), "check_ranks": False})


def headspace(
    loader: Loader, verdict: Verdict, measured: float, *, seconds: float = 2.0, step_s: float = 0.0
) -> Headspace:
    """Measure what is left when decoding is free, then reading too, then transforms.

    Args:
        loader: That was measured; it is left alone.
        verdict: To be tested.
        measured: Its windows/s.
        seconds: For each of the runs.
        step_s: As in the measurement.
    """

    def run(change: Mapping[str, Any] | None = None, *, reads: bool = False) -> float:
        with fresh_loader(loader, change) as free:
            free._engine.leave_out(reads=reads)
            seen = observe(free, seconds=seconds, step_s=step_s)
        return statistics.median(seen.rates)

    decode_cached = run()
    reads_cached = run(reads=True)
    has_transforms = any(source.transforms is not None for source in loader._engine.builder.sources)
    off = run({"transforms": ()}, reads=True) if has_transforms else None
    supports, words = _test(verdict, measured, decode_cached, reads_cached, off)
    return Headspace(
        measured=measured,
        decode_cached=decode_cached,
        reads_cached=reads_cached,
        transforms_off=off,
        supports=supports,
        words=words,
    )


def _test(verdict: Verdict, measured: float, decode: float, reads: float, off: float | None) -> tuple[bool | None, str]:
    """Return whether the runs fit the verdict, and in words why."""
    by_decode = decode / measured if measured else 1.0
    by_reads = reads / decode if decode else 1.0
    by_transforms = None if off is None or not reads else off / reads
    if verdict.limit == "decode":
        fits = by_decode >= _MORE
        return fits, f"With decoding free it is {by_decode:.1f} times as fast: {_yes(fits)}."
    if verdict.limit == "storage":
        fits = by_decode < 2 * _MORE and by_reads >= _MORE
        return fits, (
            f"With decoding free it is {by_decode:.1f} times as fast, with reading free as well {by_reads:.1f} times "
            f"more: {_yes(fits)}."
        )
    if verdict.limit == "transform" and by_transforms is not None:
        fits = by_decode * by_reads < 2 * _MORE and by_transforms >= _MORE
        return fits, (
            f"With decoding and reading free it is {by_decode * by_reads:.1f} times as fast, without transforms "
            f"{by_transforms:.1f} times more: {_yes(fits)}."
        )
    if verdict.limit in ("consumer", "collate", "transfer"):
        fits = by_decode < 2 * _MORE
        return fits, f"With decoding free it is {by_decode:.1f} times as fast: {_yes(fits)}."
    return None, f"With decoding free it is {by_decode:.1f} times as fast, which says nothing for or against this."


def _yes(fits: bool) -> str:
    return "that fits" if fits else "that does not fit, so take the verdict with care"

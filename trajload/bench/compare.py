"""Two measurements side by side: what changed, and whether by more than they vary by themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajload.bench.report import FORMAT
from trajload.errors import ConfigError
from trajload.types import PathLikeStr

__all__ = ["Line", "compare", "load_report"]

_SETTINGS = (
    *("dataset", "order", "num_workers", "num_readers", "workers", "prefetch", "global_batch_size", "num_steps"),
    "consumer_ms",
)
_FIGURES: tuple[tuple[str, str, int], ...] = (
    ("windows_per_s", "windows/s", 1),
    ("frames_per_s", "frames/s", 1),
    ("wait_share", "consumer waits, share", -1),
    ("wait_p99_ms", "wait p99, ms", -1),
    ("longest_wait_ms", "longest wait, ms", -1),
    ("first_batch_s", "first batch, s", -1),
    ("bytes_per_window", "bytes read per window", -1),
    ("decoded_per_delivered", "decoded per delivered frame", -1),
    ("order_score", "order score", 1),
    ("peak_rss_mb", "peak memory, MB", -1),
)
"""(field, name for people, 1 where more is better)."""
_NOISE = 0.1


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of both."""

    name: str
    a: Any
    b: Any
    ratio: float | None
    """b / a."""
    word: str
    """'better', 'worse', 'same' (within what they vary by), or 'differs' for settings."""


def load_report(path: PathLikeStr) -> dict[str, Any]:
    """Return what `trajload bench --json` printed.

    Raises:
        ConfigError: No such file, or no report.
    """
    try:
        value = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"file {str(path)!r} does not exist: expected what 'trajload bench --json' printed."
        ) from None
    except (OSError, ValueError) as err:
        raise ConfigError(f"file {str(path)!r} is no report of 'trajload bench --json': {err}.") from err
    if not isinstance(value, dict) or not str(value.get("format", "")).startswith("trajload-bench/"):
        raise ConfigError(f"file {str(path)!r} is no report: expected what 'trajload bench --json' printed.")
    if value["format"] != FORMAT:
        raise ConfigError(
            f"file {str(path)!r} is a report of format {value['format']!r}, of another version of trajload: expected {FORMAT!r}. "
            "Measure both with one version."
        )
    for name in ("windows_per_s", "windows_per_s_min", "windows_per_s_max", "wait_share"):
        if isinstance(value.get(name), bool) or not isinstance(value.get(name), (int, float)):
            raise ConfigError(f"file {str(path)!r} is damaged: {name!r} is {value.get(name)!r}, expected a number.")
    return value


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Line]:
    """Return settings that differ, then figures; `b` is judged against `a`.

    Speeds count as changed where the ranges of their slices do not overlap, other figures beyond 10 %.
    """
    lines = [Line(name, a.get(name), b.get(name), None, "differs") for name in _SETTINGS if a.get(name) != b.get(name)]
    lines += _machines(a, b)
    for name, label, sign in _FIGURES:
        one, two = a.get(name), b.get(name)
        if one is None or two is None:
            continue
        ratio = two / one if one else None
        lines.append(Line(label, one, two, ratio, _word(name, a, b, one, two, sign)))
    lines += _shares(a, b)
    lines.append(_settled("bottleneck", a, b))
    for stage in a.get("stages", {}):
        one, two = (value.get("stages", {}).get(stage, {}).get("median_ms") for value in (a, b))
        if one and two:
            lines.append(Line(f"{stage}, median ms", one, two, two / one, _by_ratio(two / one, -1)))
    return lines


def _machines(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Line]:
    """Return what differs of the machines, which makes figures of two loaders figures of two machines."""
    one, two = ({**value.get("machine", {})} for value in (a, b))
    for told in (one, two):
        told.update({f"version of {name}": number for name, number in told.pop("versions", {}).items()})
    names = dict.fromkeys([*one, *two])
    return [
        Line(name, one.get(name), two.get(name), None, "differs") for name in names if one.get(name) != two.get(name)
    ]


def _shares(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Line]:
    """Return the shares of sources that differ."""
    one, two = ({told["name"]: told["share"] for told in value.get("sources", [])} for value in (a, b))
    names = dict.fromkeys([*one, *two])
    return [
        Line(f"share of {name}", one.get(name), two.get(name), None, "differs")
        for name in names
        if one.get(name) != two.get(name)
    ]


def _settled(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Line:
    return Line(name, a.get(name), b.get(name), None, "same" if a.get(name) == b.get(name) else "differs")


def _word(name: str, a: Mapping[str, Any], b: Mapping[str, Any], one: float, two: float, sign: int) -> str:
    if name == "windows_per_s":
        low, high = a["windows_per_s_min"], a["windows_per_s_max"]
        if b["windows_per_s_min"] <= high and b["windows_per_s_max"] >= low:
            return "same"
    if name == "wait_share":
        if abs(one - two) < 0.02:
            return "same"
        return "better" if two < one else "worse"
    return "same" if one == two else "differs" if not one else _by_ratio(two / one, sign)


def _by_ratio(ratio: float, sign: int) -> str:
    if 1 - _NOISE < ratio < 1 + _NOISE:
        return "same"
    return "better" if (ratio > 1) == (sign > 0) else "worse"

"""What a doctor says: findings, merged by kind and stream, with the places where they were seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from trajload.errors import Locus

__all__ = ["Collector", "DoctorReport", "Finding", "Severity"]

Severity = Literal["error", "warning", "note"]
_ORDER: Mapping[str, int] = {"error": 0, "warning": 1, "note": 2}
_MAX_PLACES = 10
"""Places a merged finding lists; `count` goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One kind of trouble in one stream (or in the dataset)."""

    severity: Severity
    """error: a loader fails or is given wrong data; warning: training is likely to suffer; note: good to know."""
    code: str
    """Stable name of the kind, for programs: 'nan-values', 'long-gop', ..."""
    message: str
    """What was found at the first place."""
    advice: str
    """What to do about it."""
    count: int = 1
    """Places where it was found, the listed ones included."""
    places: tuple[Locus, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        out = asdict(self)
        out["places"] = [{k: v for k, v in asdict(p).items() if v is not None} for p in self.places]
        return out

    def __str__(self) -> str:
        where = f" {self.places[0]}" if self.places and str(self.places[0]) else ""
        more = f" ({self.count:,} places like this)" if self.count > 1 else ""
        return f"{self.severity}: {self.message}{where}{more} {self.advice}"


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorReport:
    """The result of one examination."""

    dataset: str
    path: str
    kind: str
    digest: str
    num_episodes: int
    num_examined: int
    """Episodes looked at."""
    num_frames_decoded: int
    findings: tuple[Finding, ...]
    """Errors first, then warnings, then notes."""

    @property
    def num_errors(self) -> int:
        return sum(f.severity == "error" for f in self.findings)

    @property
    def num_warnings(self) -> int:
        return sum(f.severity == "warning" for f in self.findings)

    @property
    def is_healthy(self) -> bool:
        """True without any error; warnings and notes allowed."""
        return self.num_errors == 0

    def of(self, code: str) -> tuple[Finding, ...]:
        """Return the findings of one kind."""
        return tuple(f for f in self.findings if f.code == code)

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "path": self.path,
            "kind": self.kind,
            "digest": self.digest,
            "num_episodes": self.num_episodes,
            "num_examined": self.num_examined,
            "num_frames_decoded": self.num_frames_decoded,
            "num_errors": self.num_errors,
            "num_warnings": self.num_warnings,
            "is_healthy": self.is_healthy,
            "findings": [f.to_json() for f in self.findings],
        }


class Collector:
    """Gathers findings; those of the same code and stream are counted, not repeated. Not thread-safe."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str | None], Finding] = {}

    def add(
        self,
        severity: Severity,
        code: str,
        message: str,
        advice: str,
        *,
        stream: str | None = None,
        episode: str | None = None,
        steps: tuple[int, int] | None = None,
        shard: str | None = None,
    ) -> None:
        """Note one place; the first message of a (code, stream) is the one that is shown."""
        place = Locus(shard=shard, episode=episode, stream=stream, steps=steps)
        old = self._found.get((code, stream))
        if old is None:
            self._found[code, stream] = Finding(
                severity=severity, code=code, message=message, advice=advice, places=(place,)
            )
            return
        places = (*old.places, place) if len(old.places) < _MAX_PLACES else old.places
        self._found[code, stream] = replace(old, count=old.count + 1, places=places)

    def findings(self) -> tuple[Finding, ...]:
        """Return what was found, errors first, otherwise in the order met."""
        return tuple(sorted(self._found.values(), key=lambda f: _ORDER[f.severity]))


def shorten(items: Sequence[object], most: int = 8) -> str:
    """Return 'a, b, c and 12 more'."""
    text = ", ".join(str(item) for item in items[:most])
    return f"{text} and {len(items) - most} more" if len(items) > most else text

"""What tuning says: costs, bytes and quality of each setting, and which one is recommended and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Candidate", "StreamTuning", "TuneReport"]

_NEAR = 1.1
"""Settings within a tenth of the cheapest count as equally cheap, and a saving of less is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One way to encode a stream."""

    codec: str
    gop: int
    crf: int | None
    """None for what is stored now."""
    window_ms: float
    """CPU milliseconds that decoding an average random window takes."""
    decoded_per_frame: float
    """Frames decoded for each frame delivered."""
    bytes_per_frame: float
    psnr_db: float | None
    """Against the pictures as they are now; None where they are the same."""
    encode_ms: float | None
    """CPU milliseconds that encoding a frame takes."""


@dataclass(slots=True)
class StreamTuning:
    """What was measured of one stream."""

    stream: str
    now: Candidate
    num_frames_sampled: int
    candidates: list[Candidate] = field(default_factory=list)
    best: Candidate | None = None
    """None: the stream is better left as it is."""
    why: str = ""
    notes: list[str] = field(default_factory=list)

    def recommend(self, *, min_psnr_db: float, max_growth: float) -> None:
        """Choose among the candidates."""
        now = self.now
        good = [c for c in self.candidates if c.psnr_db is None or c.psnr_db >= min_psnr_db]
        fitting = [c for c in good if c.bytes_per_frame <= max_growth * now.bytes_per_frame]
        if not fitting:
            self.why = f"no setting has at least {min_psnr_db:g} dB and at most {max_growth:g} times the bytes: ask for less, or for another crf."
            return
        cheapest = min(c.window_ms for c in fitting)
        if cheapest * _NEAR > now.window_ms:
            self.why = f"no setting decodes windows more than a tenth faster than the {now.window_ms:.2f} ms of now."
            return
        near = [c for c in fitting if c.window_ms <= _NEAR * cheapest]
        best = min(near, key=lambda c: (c.bytes_per_frame, c.window_ms))
        self.best = best
        quality = "the same pictures" if best.psnr_db is None else f"{best.psnr_db:.1f} dB"
        self.why = (
            f"windows cost {now.window_ms / best.window_ms:.1f} times less ({best.window_ms:.2f} ms instead of {now.window_ms:.2f}), with "
            f"{best.bytes_per_frame / now.bytes_per_frame:.2f} times the bytes and {quality}."
        )


@dataclass(slots=True)
class TuneReport:
    """What was measured of all streams."""

    dataset: str
    path: str
    digest: str
    window: dict[str, Any]
    size: list[int] | None
    machine: dict[str, Any]
    streams: list[StreamTuning] = field(default_factory=list)
    seconds: float = 0.0
    stopped: str | None = None
    """How far it came where it was ended early; None where it was not."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

"""What a source noticed while opening a dataset that is no error: `dataset.notes`, printed by `inspect` and `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Note"]


@dataclass(frozen=True, slots=True)
class Note:
    """One disagreement or omission. `kind` is stable and meant for programs, `message` for people."""

    kind: str
    """'missing-files', 'missing-episodes', 'totals', 'shape', 'dtype', 'column', 'length', 'rate', 'cache'."""
    message: str
    stream: str | None = None
    file: str | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": self.kind, "message": self.message}
        if self.stream is not None:
            out["stream"] = self.stream
        if self.file is not None:
            out["file"] = self.file
        return out

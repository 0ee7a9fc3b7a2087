"""What a process under test has done so far, kept where its death cannot take it: in memory shared with its parent.

The process writes a note before and after everything that matters ("about to save step 20", "step 20 acknowledged").
A note costs no system call, so taking notes neither moves the points at which the process is killed nor adds any.
"""

from __future__ import annotations

import json
import mmap
import struct
from typing import Any

__all__ = ["Board"]

_HEAD = struct.Struct("<q")


class Board:
    """A list of notes in anonymous shared memory; made before the fork, written by the child, read by the parent."""

    def __init__(self, size: int = 1 << 18) -> None:
        self._memory = mmap.mmap(-1, size)
        self._memory[: _HEAD.size] = _HEAD.pack(0)

    def note(self, kind: str, **values: Any) -> None:
        """Add one note; it counts once its length does, which is written last."""
        line = json.dumps([kind, values]).encode() + b"\n"
        (used,) = _HEAD.unpack(self._memory[: _HEAD.size])
        start = _HEAD.size + used
        if start + len(line) > len(self._memory):
            raise MemoryError(f"the board is full: {used} bytes used")
        self._memory[start : start + len(line)] = line
        self._memory[: _HEAD.size] = _HEAD.pack(used + len(line))

    def notes(self) -> list[tuple[str, dict[str, Any]]]:
        """Return all notes in the order they were made."""
        (used,) = _HEAD.unpack(self._memory[: _HEAD.size])
        text = self._memory[_HEAD.size : _HEAD.size + used]
        return [(kind, values) for kind, values in map(json.loads, text.splitlines())]

    def clear(self) -> None:
        """Forget all notes."""
        self._memory[: _HEAD.size] = _HEAD.pack(0)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()

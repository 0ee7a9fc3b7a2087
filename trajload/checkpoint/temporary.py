"""A temporary folder that goes with the object that has it, without a word."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

__all__ = ["TemporaryFolder"]


class TemporaryFolder:
    """A folder outside any store: for copies of objects, and for files on their way to one."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="trajload-checkpoint-"))
        # `tempfile.TemporaryDirectory` warns where nobody closes it, which users of a checkpoint should not have to.
        self._end = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder. Idempotent."""
        self._end()

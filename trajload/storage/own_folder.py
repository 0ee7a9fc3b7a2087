"""Folders that hold one thing only: what is written there may not end up among somebody else's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trajload.errors import ConfigError

__all__ = ["check_own_folder"]

_MAX_SHOWN = 3


def check_own_folder(folder: Path, *, argument: str, may_hold: Callable[[str], bool]) -> None:
    """Raise ConfigError if `folder` holds anything that a killed run of the same kind did not leave there.

    A folder that does not exist is fine. Hidden names are: version control and file managers keep theirs everywhere.

    Args:
        folder: To be written into.
        argument: Its name, for the message.
        may_hold: Whether a run may have left a file or folder of this name.

    Source: docs/decisions/0151-a-folder-for-each-dataset.md
    """
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError:
        return  # whoever makes or opens it says what is wrong
    others = [name for name in names if not may_hold(name)]
    if not others:
        return
    more = f" and {len(others) - _MAX_SHOWN} more" if len(others) > _MAX_SHOWN else ""
    raise ConfigError(
        f"{argument}={str(folder)!r} is not empty: it holds {', '.join(map(repr, others[:_MAX_SHOWN]))}{more}, and no run left that "
        "there which could be gone on with. Give a new folder, or move away what is there."
    )

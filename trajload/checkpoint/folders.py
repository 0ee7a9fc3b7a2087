"""Where the checkpoints of a trial stand, so that users, experiments and trials of one disk do not meet."""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path

from trajload.arguments import explains_calls
from trajload.errors import ConfigError
from trajload.types import PathLikeStr

__all__ = ["trial_folder"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,99}")


@explains_calls
def trial_folder(root: PathLikeStr, *, experiment: str, trial: str, user: str | None = None) -> str:
    """Return '{root}/checkpoints/{user}/{experiment}/{trial}', for `Checkpointer`; `root` may be a URL. Makes nothing.

    One trial is one store with one writer. Steps and sequence numbers stand in the names inside it, epochs in its records.

    Args:
        root: Of all runs.
        experiment: What is tried.
        trial: Which attempt at it: a seed, a setting.
        user: None for who runs this process.

    Raises:
        ConfigError: A name that is no single folder name: of letters, digits, '_', '-', '.', '+' and '='.

    Example:
        >>> trial_folder("/runs", user="ada", experiment="pusht", trial="seed3")
        '/runs/checkpoints/ada/pusht/seed3'
    """
    if user is None:
        try:
            user = getpass.getuser()
        except (OSError, KeyError) as err:  # a container whose user has no name
            raise ConfigError(
                f"user=None is unusable: this process runs as user {os.getuid()}, who has no name. Pass user=."
            ) from err
    for name, value in (("user", user), ("experiment", experiment), ("trial", trial)):
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ConfigError(
                f"{name}={value!r} is no folder name: expected letters, digits, '_', '-', '.', '+' and '=', at most 100, not "
                "beginning with a dot."
            )
    where = os.fspath(root)
    if "://" in where:
        return "/".join([where.rstrip("/"), "checkpoints", user, experiment, trial])
    return str(Path(where) / "checkpoints" / user / experiment / trial)

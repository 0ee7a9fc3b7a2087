"""The `trajload` command: parses, calls, prints. One file per command; heavy imports wait until a command runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 fine, 1 a fault was found in the data, 2 wrong usage or an error.

    Args:
        argv: Arguments without the program's name; None takes the process's own.
    """
    import os
    import sys

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it (>&-)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115

    try:
        from trajload.cli.app import run
    except KeyboardInterrupt:  # while libraries are imported, which takes a second or more
        raise SystemExit(130) from None

    raise SystemExit(run(sys.argv[1:] if argv is None else argv))

"""A process killed just before or after every fsync and rename it makes, one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["kill_at_every_call"]

# Forks a child for each call number n; it works and kills itself just before or after its n-th fsync or rename. The loop
# ends when a child lives long enough to finish, so every call has been a moment of death.
_SCRIPT = """
import os, signal, sys
from pathlib import Path

def die_at(calls_left):
    def dying(function, dies_first):
        def call(*args):
            nonlocal calls_left
            calls_left -= 1
            if calls_left == 0 and dies_first:
                os.kill(os.getpid(), signal.SIGKILL)
            out = function(*args)
            if calls_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return out
        return call
    os.fsync, os.replace = dying(os.fsync, True), dying(os.replace, bool(calls_left % 2))

{work}

n = 0
while True:
    n += 1
    pid = os.fork()
    if pid == 0:
        work(Path(sys.argv[1]) / f"{{n:03d}}", lambda: die_at(n), *sys.argv[2:])
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    print(n, -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)
    if not os.WIFSIGNALED(status):
        break
"""


def kill_at_every_call(work: str, root: Path, *arguments: str, timeout_s: float) -> list[tuple[Path, int]]:
    """Return each folder that a child worked in, and the child's exit status; the last one finished.

    Args:
        work: Source of a function `work(folder, arm, *arguments)`, which calls `arm()` where the calls begin to count,
            and of what it imports.
        root: Where the folders 001, 002, ... stand, one for each child.
        arguments: For `work`.
        timeout_s: For all children together.
    """
    command = [sys.executable, "-c", _SCRIPT.format(work=work), str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True)
    pairs = [line.split() for line in done.stdout.splitlines()]
    return [(root / f"{int(n):03d}", int(status)) for n, status in pairs]

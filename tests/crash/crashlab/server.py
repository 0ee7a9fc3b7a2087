"""The process that strace watches: it forks a child for every case, so that Python starts once and not a thousand times.

    strace -f -e inject=fsync:signal=SIGKILL:when=M ... python server.py SOCKET_FD

strace counts the calls of each process from its birth. A child that is to die at its i-th `fsync` first makes M - i of
them that fail (`fsync(-1)`), and so one strace serves every i. The socket is there since `send` is not among the calls
that are counted, and `write` is.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import socket
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]

from crashlab import scenario
from crashlab.board import Board

from trajload.errors import TrajloadError

NUMBERS = {
    "write": 1, "pwrite64": 18, "writev": 20, "sendfile": 40, "fsync": 74, "fdatasync": 75, "ftruncate": 77,
    "rename": 82, "mkdir": 83, "rmdir": 84, "link": 86, "unlink": 87, "fchmod": 91, "openat": 257, "mkdirat": 258,
    "unlinkat": 263, "renameat": 264, "linkat": 265, "fallocate": 285, "renameat2": 316, "copy_file_range": 326,
}  # fmt: skip
"""Calls that change files, and `openat`, which makes them; their numbers on x86-64."""

SUPPORTED = platform.machine() == "x86_64"


def burn(name: str, times: int) -> None:
    """Make a call that fails at once, `times` times."""
    call = ctypes.CDLL(None).syscall
    for _ in range(times):
        call(NUMBERS[name], -1, None, None, None)


def child(board: Board, job: dict) -> int:  # type: ignore[type-arg]
    """Carry out one case; return its exit status."""
    stop_on = (TrajloadError,) if job["goes_on"] else ()
    actions = [tuple(action) for action in job["actions"]]
    if job["call"]:
        burn(job["call"], job["burn"])
    try:
        player = scenario.Player(Path(job["root"]), board)
        player.play(actions, stop_on)
    except stop_on as error:
        board.note("error", action="open", type=type(error).__name__, text=str(error))
    except BaseException as error:
        board.note("raised", type=type(error).__name__, text=str(error))
        return 3
    board.note("end")
    return 0


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    board = Board()
    requests = link.makefile("r")
    gc.freeze()
    for line in requests:
        job = json.loads(line)
        board.clear()
        pid = os.fork()
        if pid == 0:
            status = 4
            try:
                status = child(board, job)
            finally:
                os._exit(status)
        _, wait_status = os.waitpid(pid, 0)
        reply = {"pid": pid, "status": os.waitstatus_to_exitcode(wait_status), "notes": board.notes()}
        link.sendall(json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    main()

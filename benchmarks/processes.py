"""Starts measurements in processes of their own, and sees to it that nothing of them is left when they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
QUIET_S = 0.5
"""Rest after a measurement: what was killed gives its memory and cores back."""
KILLED_S = 60.0
"""How long a killed process may take to be gone."""


def run_child(
    script: str, *args: str, timeout: float, cores: set[int] | None = None, log: Path | None = None
) -> dict[str, Any]:
    """Run `benchmarks/<script> args --out FILE --started T` in a session of its own and return what it wrote to FILE.

    Whatever happens the answer is a dict: with "error" where the process failed, hung or wrote nothing. All processes
    of its session are ended afterwards, for some loaders' workers outlive their parent and would disturb the next one.

    Args:
        cores: CPUs the process and its children may use; None for all.
        log: File for what it prints; None drops it.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-W", "ignore", str(HERE / script), *args, "--out", str(out)]
        # The copy of trajload beside these benchmarks is measured, whichever is installed. Spawned workers need both.
        environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}"}
        with open(log or os.devnull, "w") as prints:
            child = subprocess.Popen(
                [*command, "--started", repr(time.monotonic())],
                stdout=prints,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
            )
            try:
                code: int | None = child.wait(timeout)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_session(child.pid)
                child.wait()
        time.sleep(QUIET_S)
        if out.exists():
            return json.loads(out.read_text())
    if code is None:
        return {"error": f"no result within {timeout:.0f} s"}
    return {"error": f"the process ended with {code} and wrote no result"}


def shared_memory_bytes() -> int:
    """Return what files in /dev/shm hold, all programs' together: what a killed loader leaves there stays until a reboot."""
    total = 0
    for path in Path("/dev/shm").glob("*"):
        with contextlib.suppress(OSError):  # gone since it was listed
            total += path.stat().st_size if path.is_file() else 0
    return total


def end_session(session: int) -> None:
    """Kill every process of a session that this module started (its leader's pid is the session's number).

    Returns when none of them runs any more: a killed process goes on until it is next given a core, which on a busy
    machine is later than the kill.

    Raises:
        TimeoutError: Some still run a minute after they were killed (in an uninterruptible wait for a disk, say).
    """
    deadline = time.monotonic() + KILLED_S
    while alive := _alive(session):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {alive} of session {session} still run {KILLED_S:.0f} s after SIGKILL")
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _alive(session: int) -> list[int]:
    """Return the processes of a session that still run, zombies left out."""
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            # Fields after the name, which may hold spaces: state, parent, group, session.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                alive.append(int(stat.parent.name))
    return alive

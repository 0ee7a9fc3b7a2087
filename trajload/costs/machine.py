"""Where costs were measured: a table of another machine may still balance well, but its nanoseconds are not these."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trajload.machine import num_cpus

__all__ = ["machine_facts"]

_PACKAGES = ("trajload", "torch", "av", "numpy", "numba")


def machine_facts() -> dict[str, Any]:
    """Return processor, number of CPUs this process may use, system and versions: JSON-able."""
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # run from a source tree that is not installed
            versions[name] = "unknown"
    return {
        "processor": _processor(),
        "cpus": num_cpus(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())

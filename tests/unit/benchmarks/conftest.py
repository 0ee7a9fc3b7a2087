"""Puts benchmarks/ on the path, as running a script there does, and takes its modules away again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder, importable while a test runs; its short module names do not stay behind for others."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield BENCHMARKS
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]

"""A few random runs; `scripts/fuzz` makes as many as one likes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from by_path import load

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("seed", range(4))
def test_random_runs_deliver_what_batch_at_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Random data, loaders, speeds, seeks, states and ends: every batch is the oracle's, and the oracle keeps to the documentation."""
    monkeypatch.setitem(sys.modules, "fuzz_truth", load(FOLDER / "fuzz_truth.py", importable=True))
    runs = load(FOLDER / "fuzz_runs.py")
    assert runs.fuzz(seed, 4, tmp_path) > 0

"""Fixtures shared by all tests: where real data stand, and guards against leaks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real trajectory data made by others; skips where absent, fails where CI promises it."""
    folder = Path(os.environ.get("TRAJLOAD_REAL_DATA", REPO.parent / "shared" / "data"))
    if not (folder / "INDEX.md").is_file():
        message = f"real data not found at {folder}: set TRAJLOAD_REAL_DATA"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder

"""Torch on one thread: the demo's arrays are too small for more, and runners share their cores."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def small_arrays(one_thread: None) -> None:
    """Every test of the demo."""

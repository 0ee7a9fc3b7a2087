"""Batches larger than memory are refused before anything is allocated for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trajload as tl

ASKS: dict[str, Callable[[tl.Loader], Any]] = {
    "iterate": lambda loader: next(iter(loader)),
    "batch_at": lambda loader: loader.batch_at(0),
}


@pytest.mark.parametrize("ask", list(ASKS))
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batch_beyond_memory_is_refused(demo_dataset: Path, num_workers: int, ask: str) -> None:
    """The error says how large it is, what is free and what to change; some of its rows can be made all the same."""
    with tl.Loader(
        demo_dataset,
        window=tl.Window(num_steps=4),
        streams=["action"],
        global_batch_size=2**31 - 1,
        num_workers=num_workers,
        rank=0,
        world_size=1,
    ) as loader:
        with pytest.raises(tl.errors.ConfigError, match=r"2147483647 windows takes \d{12,} bytes.*Lower global_batch"):
            ASKS[ask](loader)
        assert loader.batch_at(0, rows=slice(10**6, 10**6 + 2))["action"].shape == (2, 4, 2)

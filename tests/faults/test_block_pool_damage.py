"""Damage inside a block: only the windows that touch it fail or are replaced, as if there were no pool."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from damaging import flip_in_member

import trajload as tl

COMMON: dict[str, Any] = {
    "window": tl.Window(num_steps=4),
    "global_batch_size": 4,
    "seed": 5,
    "rank": 0,
    "world_size": 1,
    "order": tl.Interleaved(block_windows=16, lanes_per_row=2),
    "streams": ["cam_front", "action"],
    "num_epochs": 1,
}


@pytest.fixture(scope="module")
def damaged(demo_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with one bit flipped in the middle of one video."""
    out = tmp_path_factory.mktemp("damaged") / "copy"
    shutil.copytree(demo_dataset, out)
    flip_in_member(out, f"{tl.open(demo_dataset).episode_key(1)}.cam_front.mp4")
    return out


@pytest.mark.parametrize("num_workers", [1, 2])
def test_damage_is_raised_where_the_oracle_raises_it(damaged: Path, num_workers: int) -> None:
    """Batches before it are delivered, windows of the same block that do not touch it among them; then the same error."""
    with tl.Loader(damaged, num_workers=num_workers, **COMMON) as loader:
        with pytest.raises(tl.TrajloadError) as of_iteration:
            for batch in loader:
                assert batch.digest() == loader.batch_at(batch.train_step).digest()
        with pytest.raises(tl.TrajloadError) as of_oracle:
            loader.batch_at(loader.train_step)
        assert type(of_iteration.value) is type(of_oracle.value)
        assert str(of_iteration.value) == str(of_oracle.value)


@pytest.mark.parametrize("num_workers", [1, 4])
@pytest.mark.parametrize("pool_bytes", [None, 1 << 20])
def test_substitutes_and_quarantine_are_those_of_the_oracle(
    damaged: Path, num_workers: int, pool_bytes: int | None
) -> None:
    """Byte for byte over the epoch, and the same list of bad windows in the state, before and after a resume."""
    with tl.Loader(damaged, num_workers=0, on_error="substitute", **COMMON) as loader:
        expected = [batch.digest() for batch in loader]
        state = loader.state_dict()
    assert 0 < len(state["quarantine"]) < loader.num_windows // 3
    with tl.Loader(damaged, num_workers=num_workers, on_error="substitute", pool_bytes=pool_bytes, **COMMON) as loader:
        assert [batch.digest() for batch in loader] == expected
        assert loader.state_dict()["quarantine"] == state["quarantine"]
        pool = loader.stats()["pool"]
        assert pool["blocks_failed"] > 0
        assert pool["blocks_failed"] + pool["blocks_decoded"] - pool["blocks_decoded_again"] < loader.num_windows / 4
        loader.seek(0)
        assert [batch.digest() for batch in itertools.islice(loader, 20)] == expected[:20]

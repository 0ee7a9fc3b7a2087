"""A window as long as the longest episode, with no neighbour: each episode once an epoch, whole, padded behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trajload as tl
from trajload.pipeline.rows import read_rows


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_episode_comes_once_and_whole(demo_dataset: Path, num_workers: int) -> None:
    """Pictures and signals equal the track, zeros and `_is_pad` behind its end."""
    dataset = tl.open(demo_dataset)
    longest = int(dataset.num_steps_E.max())
    with tl.Loader(
        dataset,
        window=tl.Window(num_steps=longest, stride=longest, pad="zero"),
        global_batch_size=2,
        streams=["cam_front", "action"],
        num_epochs=1,
        num_workers=num_workers,
        rank=0,
        world_size=1,
    ) as loader:
        assert loader.num_windows == dataset.num_episodes
        seen = []
        for batch in loader:
            for b, ref in enumerate(batch.refs):
                if bool(batch["row_is_pad"][b]):
                    continue
                seen.append(ref.episode_index)
                length = int(dataset.num_steps_E[ref.episode_index])
                for name in ("cam_front", "action"):
                    values = batch[name][b].numpy()
                    np.testing.assert_array_equal(
                        values[:length], read_rows(dataset, ref.episode_index, name, list(range(length)))
                    )
                    assert not values[length:].any()
                    assert batch.valid_mask(name)[b].tolist() == [t < length for t in range(longest)]
                assert batch["is_first"][b].nonzero().flatten().tolist() == [0]
                assert batch["is_last"][b].nonzero().flatten().tolist() == [length - 1]
    assert sorted(seen) == list(range(dataset.num_episodes))
    dataset.close()

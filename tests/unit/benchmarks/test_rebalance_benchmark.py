"""The benchmark of even shards and ranks, on a small dataset: it runs, and its arithmetic is right."""

from __future__ import annotations

from pathlib import Path

import pytest

import trajload as tl


def test_workers_measure_the_shards_of_their_half(mixed: Path) -> None:
    """Three shards, two workers: the first takes two of them, and every shard is measured once."""
    import rebalance

    results = [rebalance.worker(str(mixed), number) for number in range(2)]
    assert [sorted(result["cpu_s"]) for result in results] == [["0", "1"], ["2"]]
    assert all(seconds > 0 for result in results for seconds in result["cpu_s"].values())


def test_ranks_are_evener_with_load_weights(mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By costs measured window by window, with costs of a table made by hand: no way of cutting beats the best possible one."""
    import rebalance

    monkeypatch.setattr(rebalance, "BATCH", 24)
    monkeypatch.setattr(rebalance, "NUM_STEPS", 8)
    dataset = tl.open(mixed)
    large = [300 if dataset.has_stream(e, "cam_large") else 0 for e in range(12)]
    small = [100 if dataset.has_stream(e, "cam_small") else 0 for e in range(12)]
    table = tl.CostTable(
        {"cam_large": large, "cam_small": small}, dataset_digest=dataset.digest, lead_ns={"cam_large": large}
    )
    table.save(tmp_path / "costs.json")
    dataset.close()
    found = rebalance.ranks(str(mixed), str(tmp_path / "costs.json"), 1, 3)
    assert found["num_train_steps"] == 3
    for name in ("even", "weighted"):
        assert found[name]["max_over_mean"] >= found["best possible"]["max_over_mean"] - 1e-9
        assert found[name]["worst"] >= found[name]["max_over_mean"]


def test_rows_of_ranks_are_those_that_the_loaders_take(mixed: Path) -> None:
    """Sizes at the cursor, added up, are the rows of the global batch."""
    import rebalance

    loaders = [
        tl.Loader(mixed, window=tl.Window(num_steps=4), global_batch_size=10, rank=r, world_size=3, num_workers=0)
        for r in range(3)
    ]
    assert rebalance.rows_of_ranks(loaders, 7) == [slice(0, 4), slice(4, 7), slice(7, 10)]
    for loader in loaders:
        loader.close()

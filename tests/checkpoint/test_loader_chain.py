"""The loader's place in a checkpoint: resumed, saved at once and resumed again, wherever it stood and whoever loads."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.demo import EpisodeLength, generate
from trajload.errors import CheckpointMismatchError

BATCH = 4


def make_loader(dataset: Path, **options: Any) -> tl.Loader:
    arguments: dict[str, Any] = {
        "window": tl.Window(num_steps=4),
        "global_batch_size": BATCH,
        "seed": 3,
        "streams": ["action"],
    }
    return tl.Loader(dataset, **{**arguments, **options})


def take(loader: tl.Loader, number: int) -> list[str]:
    """Return digests of the next batches; iteration is left with batches under way."""
    return [batch.digest() for batch in itertools.islice(loader, number)]


@pytest.mark.parametrize("order", ["shuffled", "interleaved", "continuous"])
@pytest.mark.parametrize("where", ["0", "1", "mid-prefetch", "epoch end"])
def test_chain_of_resumes_gives_the_stream_of_one_run(
    demo_dataset: Path, tmp_path: Path, order: str, where: str
) -> None:
    """Four lives, each resumed from a save that the one before made at once or after a few batches, with 0, 2 and 4 workers."""
    with make_loader(demo_dataset, order=order, num_workers=0) as oracle:
        start = {"0": 0, "1": 1, "mid-prefetch": 7, "epoch end": round(oracle.steps_per_epoch)}[where]
        expected = [oracle.batch_at(step).digest() for step in range(start, start + 13)]
    with (
        make_loader(demo_dataset, order=order, num_workers=2, prefetch=4) as loader,
        tl.Checkpointer(tmp_path, {"loader": loader}, mode="sync") as ckpt,
    ):
        assert ckpt.resume().fresh
        loader.seek(max(0, start - 3))
        take(loader, start - max(0, start - 3))
        ckpt.save(loader.train_step)
    found = []
    for life, workers in enumerate((2, 0, 4, 2)):
        with (
            make_loader(demo_dataset, order=order, num_workers=workers, prefetch=3) as loader,
            tl.Checkpointer(tmp_path, {"loader": loader}, mode="sync") as ckpt,
        ):
            report = ckpt.resume()
            assert report.step == loader.train_step == start + len(found)
            ckpt.save(loader.train_step)
            if life % 2:
                continue  # the next life goes on from what was saved of a resumed loader
            found += take(loader, 3)
            ckpt.save(loader.train_step)
    with (
        make_loader(demo_dataset, order=order, num_workers=1) as loader,
        tl.Checkpointer(tmp_path, {"loader": loader}) as ckpt,
    ):
        ckpt.resume()
        found += take(loader, 7)
    assert found == expected


def test_other_dataset_is_refused_by_name_unless_that_is_meant(demo_dataset: Path, tmp_path: Path) -> None:
    """The component and the digests of both datasets; the loader is left where it was."""
    other = generate(tmp_path / "other", num_episodes=3, seed=4, length=EpisodeLength(60, 80))
    with make_loader(demo_dataset) as loader, tl.Checkpointer(tmp_path / "s", {"loader": loader}, mode="sync") as ckpt:
        take(loader, 2)
        ckpt.save(2)
        [commit] = ckpt.store.commits()
        digest = loader.state_dict()["manifests"][0][1]
        assert commit.info["loaders"]["loader"]["manifests"] == [[0, digest]]
    with make_loader(other) as loader, tl.Checkpointer(tmp_path / "s", {"loader": loader}) as ckpt:
        with pytest.raises(CheckpointMismatchError, match=rf"loader(?s:.*)manifests: saved {digest[:12]}"):
            ckpt.resume()
        assert loader.train_step == 0
        assert ckpt.resume(allow_data_change=True).step == loader.train_step == 2


def test_other_order_version_is_refused(demo_dataset: Path, tmp_path: Path) -> None:
    """Batches to come would be others."""
    with make_loader(demo_dataset) as loader, tl.Checkpointer(tmp_path, {"loader": loader}, mode="sync") as ckpt:
        ckpt.save(0)
    with (
        make_loader(demo_dataset, order="sequential") as loader,
        tl.Checkpointer(tmp_path, {"loader": loader}) as ckpt,
        pytest.raises(CheckpointMismatchError, match=r"order: saved 'shuffled/1', here 'sequential/1'"),
    ):
        ckpt.resume()


def test_epochs_are_counted_by_the_loader(demo_dataset: Path, tmp_path: Path) -> None:
    """Every(epochs=1) without an argument: a save when each epoch ends, also after a resume."""

    def run(steps: int) -> list[int]:
        every = tl.Every(epochs=1)
        with (
            make_loader(demo_dataset, global_batch_size=32, num_workers=0) as loader,
            tl.Checkpointer(tmp_path, {"loader": loader}, every=every, mode="sync", keep=tl.Keep(last=9)) as ckpt,
        ):
            ckpt.resume()
            begun = []
            for _ in loader:
                if ckpt.step(loader.train_step):
                    begun.append(loader.train_step)
                if loader.train_step >= steps:
                    break
            return begun

    with make_loader(demo_dataset, global_batch_size=32) as loader:
        ends = [math.ceil(epoch * loader.steps_per_epoch) for epoch in (1, 2, 3)]
    assert run(ends[1] + 1) == ends[:2]
    assert run(ends[2] + 2) == ends[2:]

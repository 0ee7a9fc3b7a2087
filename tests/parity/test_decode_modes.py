"""Who decodes video changes no batch, and asking for a GPU where there is none says so."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.decode.nvdec import find_nvdec
from trajload.errors import ConfigError, MissingDependencyError, ResumeError

COMMON: dict[str, Any] = {
    **{"window": tl.Window(num_steps=4), "global_batch_size": 4, "seed": 2, "streams": ["cam_front", "action"]},
    **{"rank": 0, "world_size": 1},
}


@pytest.mark.parametrize("order", ["shuffled", "interleaved"])
def test_auto_gives_the_same_batches(demo_dataset: Path, order: str) -> None:
    """Chosen per stream, with its reason; without a GPU all of it is the CPU's."""
    with tl.Loader(demo_dataset, order=order, **COMMON) as plain:
        expected = [plain.batch_at(k).digest() for k in range(8)]
        assert "decode" not in plain.stats()
    with tl.Loader(demo_dataset, order=order, decode="auto", num_workers=2, **COMMON) as loader:
        assert [batch.digest() for batch in itertools.islice(loader, 8)] == expected
        report = loader.stats()["decode"]
        loader.load_state_dict(loader.state_dict())
    assert report["mode"] == "auto"
    assert report["found"] == find_nvdec().reason
    if not report["is_available"]:
        assert {row["device"] for row in report["streams"]} == {"cpu"}


@pytest.mark.skipif(find_nvdec().is_available, reason="there is a GPU here")
def test_cuda_without_a_gpu_says_what_is_missing(demo_dataset: Path) -> None:
    """At construction, not at the first batch."""
    with pytest.raises(MissingDependencyError, match="decode='cuda' cannot be used here"):
        tl.Loader(demo_dataset, decode="cuda", **COMMON)


def test_unknown_mode_is_refused(demo_dataset: Path) -> None:
    """The message lists the modes."""
    with pytest.raises(ConfigError, match="'cpu', 'auto', 'cuda'"):
        tl.Loader(demo_dataset, decode="gpu", **COMMON)  # type: ignore[arg-type]


def test_state_of_a_run_on_the_gpu_is_not_taken_for_one_on_the_cpu(demo_dataset: Path) -> None:
    """Its pictures may differ by a grey level, so the difference is named, and allowed where it is meant."""
    with tl.Loader(demo_dataset, **COMMON) as loader:
        loader.seek(3)
        state = loader.state_dict()
        state["config"]["decode"] = "cuda"
        with pytest.raises(ResumeError, match="decode: saved 'cuda', here absent"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, allow=("decode",))
        assert loader.train_step == 3

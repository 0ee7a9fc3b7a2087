"""`loader.costs()`: tables out of what a run noted, whoever decoded."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.errors import ConfigError
from trajload.pipeline.stats_costs import CostLog

COMMON: dict[str, Any] = {"window": tl.Window(num_steps=8), "global_batch_size": 8, "seed": 2}
CAMERAS = ["cam_small", "cam_large"]


def iterate(loader: tl.Loader, num_batches: int) -> None:
    batches = iter(loader)
    for _ in itertools.islice(batches, num_batches):
        pass
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "how",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 1, "order": "interleaved"},
        pytest.param({"num_workers": 2, "workers": "processes:2"}, marks=pytest.mark.multiproc),
    ],
    ids=["inline", "threads", "blocks", "processes"],
)
def test_a_run_gives_a_table_that_its_loader_takes(mixed: Path, how: dict[str, Any]) -> None:
    """Costs of the streams that were decoded, in every episode that has them; larger pictures are dearer."""
    with tl.Loader(mixed, **COMMON, streams=CAMERAS, **how) as loader:
        iterate(loader, 60)
        table = loader.costs()
        assert isinstance(table, tl.CostTable)
        assert set(table.row_ns) == set(CAMERAS) and table.dataset_digest == loader.dataset.digest
        for name in CAMERAS:
            has_E = [loader.dataset.has_stream(e, name) for e in range(12)]
            np.testing.assert_array_equal(table.row_ns[name] > 0, has_E)
        small_E, large_E = (table.row_ns[name] + table.lead_ns[name] for name in CAMERAS)
        assert np.median(large_E[4:]) > np.median(small_E[:4])
        assert table.info["measured"] == "run" and table.info["machine"]["processor"]
    tl.Loader(mixed, **COMMON, streams=CAMERAS, load_weights=table).close()


def test_first_note_of_a_thread_counts_for_nothing() -> None:
    """It opens a decoder: half a second against a millisecond would make its episode the dearest of all."""
    log = CostLog()
    for cpu_ns in (500_000_000, 1_000_000, 1_000_000):
        log.add(0, 1, 3, 16, 20, cpu_ns, cpu_ns)
    other = threading.Thread(target=lambda: log.add(0, 1, 3, 16, 20, 500_000_000, 500_000_000))
    other.start()
    other.join()
    sums = log.sums()[1]
    assert (int(sums.rows[3]), int(sums.frames[3]), int(sums.cpu_ns[3])) == (32, 40, 2_000_000)


def test_nothing_decoded_gives_no_table(mixed: Path) -> None:
    """The message says what to do."""
    loader = tl.Loader(mixed, **COMMON, streams=CAMERAS, num_workers=0)
    with pytest.raises(ConfigError, match="no window of 'mixed' was measured yet: iterate the loader first"):
        loader.costs()
    loader.close()


def test_a_mixture_gives_a_table_for_each_source(mixed: Path) -> None:
    """By the names of the sources, ready for load_weights."""
    mixture = tl.Mixture({"a": (tl.open(mixed), 0.5), "b": (tl.open(mixed), 0.5)})
    with tl.Loader(mixture, **COMMON, streams=CAMERAS, num_workers=1) as loader:
        iterate(loader, 30)
        tables = loader.costs()
        assert isinstance(tables, dict) and set(tables) == {"a", "b"}
    tl.Loader(mixture, **COMMON, streams=CAMERAS, num_workers=1, load_weights=tables).close()

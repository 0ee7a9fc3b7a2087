"""Text with a row for each step or each timestamp: what the row says, and nothing where there is none."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.errors import ConfigError

COMMON: dict[str, Any] = {"global_batch_size": 3, "rank": 0, "world_size": 1, "order": "sequential"}
LENGTHS = (1, 3)
STREAMS = [
    tl.StreamSpec(name="action", modality=tl.Modality.ACTION, encoding="npy", shape=(), dtype="float32"),
    tl.StreamSpec(name="subtask", modality=tl.Modality.LANGUAGE, encoding="json", shape=(), dtype="str"),
    tl.StreamSpec(name="event", modality=tl.Modality.METADATA, encoding="json", shape=(), dtype="json"),
    tl.StreamSpec(
        name="said", modality=tl.Modality.LANGUAGE, encoding="json", shape=(), dtype="str", clock="clocked", rate_hz=10
    ),
]


def write(path: Path, said_ms: list[list[int]]) -> tl.Dataset:
    """Two episodes at 10 Hz, of one step and of three; `said_ms`: when something was said in each."""
    with tl.Writer(path, streams=STREAMS, step_rate_hz=10) as writer:
        for e, length in enumerate(LENGTHS):
            values: dict[str, Any] = {
                "action": np.zeros(length, np.float32),
                "subtask": [f"{e}.{i}" for i in range(length)],
                "event": [["a", i] for i in range(length)],
                "said": [f"at {ms}" for ms in said_ms[e]],
            }
            writer.add_episode(values, timestamps_ns={"said": np.array(said_ms[e], dtype=np.int64) * 1_000_000})
    return tl.open(path)


def test_a_list_of_one_is_one_row_and_not_the_value(tmp_path: Path) -> None:
    """Episodes of one step and clocks of one row give what stands in the list, as longer ones do."""
    dataset = write(tmp_path / "d", [[0], [0]])
    with tl.Loader(dataset, window=tl.Window(), num_workers=0, **COMMON) as loader:
        batch = loader.batch_at(0)
    assert batch["subtask"] == ["0.0", "1.0", "1.1"]
    assert batch["event"] == [["a", 0], ["a", 0], ["a", 1]]
    assert batch["said"][:2] == ["at 0", "at 0"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_text_without_a_row_in_time_is_missing(tmp_path: Path, num_workers: int) -> None:
    """`previous` never takes what is said later, nor beyond the tolerance; the mask says so, also of a clock of one row."""
    dataset = write(tmp_path / "d", [[50], [100, 1000]])
    streams = {"said": tl.Signal(align="previous", tolerance_s=0.05), "action": None}
    with tl.Loader(dataset, window=tl.Window(), streams=streams, num_workers=num_workers, **COMMON) as loader:
        batch, after = itertools.islice(loader, 2)
    assert batch["said"] == ["", "", "at 100"]
    assert batch["said_is_missing"].tolist() == [True, True, False]
    assert not batch.valid_mask("said")[:2].any()
    assert after["said"][0] == ""
    assert after["said_is_missing"][0]


def test_substitute_without_text_does_not_keep_that_of_the_bad_window(tmp_path: Path) -> None:
    """A window whose second stream is damaged leaves no text behind in the row of the one that replaces it."""
    order = ("said", "subtask", "event", "action")
    path = tmp_path / "d"
    with tl.Writer(path, streams=sorted(STREAMS, key=lambda s: order.index(s.name)), step_rate_hz=10) as writer:
        for e in range(2):
            values: dict[str, Any] = {"action": np.full(4, 7 + e, np.float32)}
            if e == 0:
                values["subtask"] = list("abcd")
            writer.add_episode(values)
    shard = next(path.rglob("*.tar"))
    data = shard.read_bytes()
    at = data.index(np.full(4, 7, np.float32).tobytes())
    shard.write_bytes(data[:at] + bytes(16) + data[at + 16 :])
    with tl.Loader(
        path,
        window=tl.Window(),
        num_workers=0,
        on_error="substitute",
        streams=["subtask", "action"],
        **{**COMMON, "order": "shuffled", "global_batch_size": 8},
    ) as loader:
        batch = loader.batch_at(0)
    assert batch["episode_index"].tolist() == [1] * 8
    assert batch["subtask_is_missing"].all()
    assert batch["subtask"] == [""] * 8


def test_dtype_that_no_batch_can_hold_is_refused_with_the_loader(tmp_path: Path) -> None:
    """Not with the first batch, and with the stream's name."""
    spec = tl.StreamSpec(name="token", modality=tl.Modality.METADATA, encoding="npy", shape=(), dtype="uint32")
    with tl.Writer(tmp_path / "d", streams=[spec], step_rate_hz=10) as writer:
        writer.add_episode({"token": np.arange(4, dtype=np.uint32)})
    with pytest.raises(ConfigError, match="stream 'token' cannot be put in a batch: got dtype uint32"):
        tl.Loader(tmp_path / "d", window=tl.Window(), num_workers=0, **COMMON)

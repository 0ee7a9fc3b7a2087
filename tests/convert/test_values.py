"""Values of foreign columns, as the Writer takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.convert.values import table_value
from trajload.refs import TableTrack

SPEC = tl.StreamSpec(name="tags", modality=tl.Modality.METADATA, encoding="json", shape=(), dtype="json")


class Column:
    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def read_rows(self, rows: Any) -> list[Any]:
        return [self.values[i] for i in rows]


@pytest.mark.parametrize(
    "values", [[["a", "b"]] * 2, [["a", "b"]] * 3, [["a"]], [{"a": 1}] * 3, ["x", "x"], ["x", "y"]]
)
def test_rows_of_a_text_column_come_back_after_conversion(tmp_path: Path, values: list[Any]) -> None:
    """Rows that are all the same are stored once, but never a list, which would be taken for a value of each row."""
    given = table_value(TableTrack("t.parquet", Column(values), len(values)), SPEC)
    action = tl.StreamSpec(name="action", modality=tl.Modality.ACTION, encoding="npy", shape=(), dtype="float32")
    with tl.Writer(tmp_path / "d", streams=[action, SPEC], step_rate_hz=10) as writer:
        writer.add_episode({"tags": given, "action": np.zeros(len(values), np.float32)})
    with tl.Loader(
        tmp_path / "d", window=tl.Window(), global_batch_size=len(values), order="sequential", num_workers=0
    ) as loader:
        assert loader.batch_at(0)["tags"] == values

"""Cost tables: what they hold, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trajload.costs.table import CostTable
from trajload.errors import ConfigError


def make(**row_ns: list[int]) -> CostTable:
    return CostTable(row_ns or {"cam": [400, 9000], "depth": [1, 2]}, dataset_digest="9f3c")


def test_cost_of_a_window_counts_the_rows_of_each_stream() -> None:
    """Streams without costs add nothing."""
    got_E = make().window_ns({"cam": 16, "depth": 3, "action": 50})
    np.testing.assert_array_equal(got_E, [16 * 400 + 3 * 1, 16 * 9000 + 3 * 2])


def test_table_comes_back_from_its_file(tmp_path: Path) -> None:
    """Save and load keep the digest and the description; nothing else is left in the folder."""
    table = CostTable({"cam": [400, 9000]}, dataset_digest="9f3c", info={"backend": "libav"})
    table.save(tmp_path / "costs.json")
    found = CostTable.load(tmp_path / "costs.json")
    assert found == table
    assert found.info == {"backend": "libav"}
    assert [p.name for p in tmp_path.iterdir()] == ["costs.json"]


def test_digest_depends_on_costs_and_data_and_on_nothing_else() -> None:
    """How the costs were measured does not change what they are."""
    base = CostTable({"cam": [1, 2]}, dataset_digest="a")
    assert base.digest == CostTable({"cam": [1, 2]}, dataset_digest="a", info={"machine": "other"}).digest
    others = [
        CostTable({"cam": [1, 3]}, dataset_digest="a"),
        CostTable({"cam": [1, 2]}, dataset_digest="b"),
        CostTable({"top": [1, 2]}, dataset_digest="a"),
    ]
    assert len({base.digest, *(table.digest for table in others)}) == 4


@pytest.mark.parametrize(
    ("row_ns", "message"),
    [
        ({}, "at least one stream"),
        ({"cam": [1, 2], "top": [1]}, "different lengths"),
        ({"cam": [1, -2]}, r"'cam' hold -2 ns"),
        ({"cam": [1, 2**40]}, "2\\*\\*40"),
        ({"cam": [1.5, 2.0]}, "float64, expected one integer"),
        ({"cam": [[1], [2]]}, r"shape \(2, 1\)"),
        ({"cam": []}, "unusable"),
    ],
)
def test_unusable_costs_are_refused(row_ns: dict, message: str) -> None:
    """The message names the stream and what was expected."""
    with pytest.raises(ConfigError, match=message):
        CostTable(row_ns, dataset_digest="9f3c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist"),
        ("{", "no cost table"),
        ("[]", "got 'list'"),
        ('{"format_version": 3}', "got 3"),
        ('{"format_version": 1}', "lacks 'row_ns'"),
        ('{"format_version": 1, "row_ns": {"cam": [1]}}', "dataset_digest"),
    ],
)
def test_file_that_is_no_table_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    """Absent, damaged, of another version, or incomplete."""
    path = tmp_path / "costs.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        CostTable.load(path)


def test_leads_are_kept_and_count_in_the_digest(tmp_path: Path) -> None:
    """Costs of frames before the rows come back from a file; a table without them has the digest it always had."""
    plain = CostTable({"cam": [1, 2], "top": [3, 4]}, dataset_digest="a")
    table = CostTable({"cam": [1, 2], "top": [3, 4]}, dataset_digest="a", lead_ns={"cam": [5, 6]})
    table.save(tmp_path / "costs.json")
    found = CostTable.load(tmp_path / "costs.json")
    assert found == table != plain
    np.testing.assert_array_equal(found.lead_ns["cam"], [5, 6])
    assert plain.digest == "6aacd966a0f426b8739a2b486ddb5c7f2cad88fe847729b0f5e9614781bd719a"


def test_table_of_version_1_is_read(tmp_path: Path) -> None:
    """It has no leads."""
    (tmp_path / "costs.json").write_text('{"format_version": 1, "dataset_digest": "a", "row_ns": {"cam": [1, 2]}}')
    assert CostTable.load(tmp_path / "costs.json") == CostTable({"cam": [1, 2]}, dataset_digest="a")


def test_leads_of_a_stream_without_rows_are_refused() -> None:
    """Nobody would know what to do with them."""
    with pytest.raises(ConfigError, match="'top', which has no row_ns"):
        CostTable({"cam": [1, 2]}, dataset_digest="a", lead_ns={"top": [1, 2]})


def test_taken_episodes_keep_their_costs() -> None:
    """The table of a dataset that holds the same episodes in another order."""
    table = CostTable({"cam": [1, 2, 3]}, dataset_digest="a", lead_ns={"cam": [4, 5, 6]})
    taken = table.taken([2, 0], dataset_digest="b")
    assert taken == CostTable({"cam": [3, 1]}, dataset_digest="b", lead_ns={"cam": [6, 4]})

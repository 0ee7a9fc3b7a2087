"""Parquet rows: contiguous arrays, decoded once, within a byte budget."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from in_threads import in_threads

from trajload.errors import ConfigError, ShardNotFoundError, SourceError
from trajload.sources.parquet import ParquetTables

NUM = 100


@pytest.fixture
def tables(tmp_path: Path) -> ParquetTables:
    values = np.arange(NUM * 4, dtype=np.float32).reshape(NUM, 4)
    pq.write_table(
        pa.table(
            {
                "fixed": pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 4),
                "list": pa.array(values.astype(np.float64).tolist(), type=pa.list_(pa.float64())),
                "large": pa.array(values.tolist(), type=pa.large_list(pa.float32())),
                "matrix": pa.array(values.reshape(NUM, 2, 2).tolist(), type=pa.list_(pa.list_(pa.float32()))),
                "scalar": pa.array(np.arange(NUM)),
                "flag": pa.array(np.arange(NUM) % 3 == 0),
                "text": pa.array([f"row {i}" for i in range(NUM)]),
                "word": pa.array([f"w{i % 2}" for i in range(NUM)]).dictionary_encode(),
            }
        ),
        tmp_path / "a.parquet",
        row_group_size=16,
    )
    return ParquetTables(str(tmp_path))


ROWS = {
    "run": np.arange(20, 30),
    "across row groups": np.arange(10, 70),
    "reversed": np.arange(70, 10, -1),
    "repeated": np.array([5, 5, 99, 0, 5]),
    "one": np.array([99]),
    "none": np.array([], dtype=np.int64),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize(
    ("column", "shape", "dtype"),
    [
        ("fixed", (4,), "float32"),
        ("list", (4,), "float64"),
        ("large", (4,), "float32"),
        ("matrix", (2, 2), "float32"),
        ("scalar", (), "int64"),
        ("flag", (), "bool"),
    ],
)
def test_rows_of_numeric_columns_equal_the_table(tables, rows, column, shape, dtype):
    """Any rows of any list type come as one array of the stored dtype, equal to what pyarrow's own objects say."""
    got = tables.rows("a.parquet", column, rows)
    whole = pq.read_table(Path(tables.root, "a.parquet"), columns=[column]).column(column).to_pylist()
    want = np.array([whole[i] for i in rows.tolist()], dtype=dtype).reshape(len(rows), *shape)
    assert got.shape == want.shape and got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_rows_of_text_columns_come_as_strings_in_order(tables, rows):
    """Text rows keep the order asked for, also across row groups and from dictionaries."""
    assert tables.rows("a.parquet", "text", rows) == [f"row {i}" for i in rows.tolist()]
    assert tables.rows("a.parquet", "word", rows) == [f"w{i % 2}" for i in rows.tolist()]


def test_rows_are_read_only_views_of_the_cache(tables):
    """A caller cannot change what other windows get."""
    got = tables.rows("a.parquet", "fixed", np.arange(3))
    with pytest.raises(ValueError, match="read-only"):
        got[0, 0] = 7


def test_row_groups_not_asked_for_are_not_decoded(tables):
    """Rows of one row group decode one row group."""
    tables.rows("a.parquet", "fixed", np.arange(32, 40))
    assert tables.num_decodes == 1
    assert tables.used_bytes == 16 * 4 * 4


def test_columns_asked_for_before_are_decoded_together(tables):
    """From the second row group on, all columns in use come from one decode."""
    for column in ("fixed", "scalar", "list"):
        tables.rows("a.parquet", column, np.array([0]))
    assert tables.num_decodes == 3
    for column in ("fixed", "scalar", "list"):
        tables.rows("a.parquet", column, np.array([20]))
    assert tables.num_decodes == 4


def test_many_threads_decode_a_row_group_once(tables):
    """Threads that ask for the same rows at the same moment share one decode."""
    start = threading.Barrier(8)
    got: list[np.ndarray] = []

    def read(_: int) -> None:
        start.wait()
        got.append(tables.rows("a.parquet", "fixed", np.arange(16)))

    in_threads(read, range(8))
    assert tables.num_decodes == 1
    assert all((g == got[0]).all() for g in got) and len(got) == 8


def test_cache_stays_within_its_budget_and_keeps_the_newest(tmp_path, tables):
    """Columns read longest ago are dropped first."""
    small = ParquetTables(tables.root, cache_bytes=3 * 16 * 4 * 4)
    for start in range(0, 96, 16):
        small.rows("a.parquet", "fixed", np.array([start]))
        assert small.used_bytes <= small.cache_bytes
    before = small.num_decodes
    small.rows("a.parquet", "fixed", np.array([80]))
    assert small.num_decodes == before
    small.rows("a.parquet", "fixed", np.array([0]))
    assert small.num_decodes == before + 1


def test_a_row_group_over_the_budget_is_still_read(tables):
    """A budget smaller than one row group costs decodes, never data."""
    tiny = ParquetTables(tables.root, cache_bytes=1)
    for _ in range(2):
        np.testing.assert_array_equal(tiny.rows("a.parquet", "scalar", np.arange(NUM)), np.arange(NUM))


def test_tables_survive_pickling_without_their_cache(tables):
    """A worker process gets the description and reads for itself."""
    tables.rows("a.parquet", "fixed", np.arange(3))
    again = pickle.loads(pickle.dumps(tables))
    assert again.used_bytes == 0
    np.testing.assert_array_equal(again.rows("a.parquet", "scalar", np.array([4])), [4])


def test_scan_reads_a_whole_column_and_keeps_nothing(tables):
    """`scan` is for columns read once, such as episode_index."""
    np.testing.assert_array_equal(tables.scan("a.parquet", "scalar"), np.arange(NUM))
    assert tables.used_bytes == 0


def test_rows_beyond_the_file_name_both_numbers(tables):
    """Rows that are not there are an error with the numbers, not clipped."""
    with pytest.raises(SourceError, match=r"rows \[98, 102\) are not all there: the file has 100 rows"):
        tables.rows("a.parquet", "scalar", np.arange(98, 102))


@pytest.mark.parametrize("method", ["rows", "scan"])
def test_absent_column_lists_those_there_are(tables, method):
    """A column that is not there is named with what is."""
    args = ("a.parquet", "nope", np.array([0]))[: 3 if method == "rows" else 2]
    with pytest.raises(SourceError, match=r"column 'nope' is absent: the file has fixed, flag, large"):
        getattr(tables, method)(*args)


def test_absent_file_and_outside_path_are_told_apart(tables):
    """A missing file is ShardNotFoundError; a name that leaves the folder is ConfigError."""
    with pytest.raises(ShardNotFoundError, match=r"b\.parquet' does not exist"):
        tables.rows("b.parquet", "scalar", np.array([0]))
    with pytest.raises(ConfigError, match=r"'\.\./a\.parquet' leaves the dataset folder"):
        tables.rows("../a.parquet", "scalar", np.array([0]))


def test_null_row_is_named_not_filled(tmp_path):
    """A null has no value to give: the row is named."""
    pq.write_table(pa.table({"x": pa.array([[1.0], [2.0], None, [4.0]])}), tmp_path / "n.parquet")
    with pytest.raises(SourceError, match=r"row 2 holds a null: expected a value in each of 4 rows"):
        ParquetTables(str(tmp_path)).rows("n.parquet", "x", np.array([0]))


def test_null_inside_a_row_is_named_by_its_row(tmp_path):
    """A null component names the row it stands in."""
    pq.write_table(pa.table({"x": pa.array([[1.0, 2.0], [3.0, None]])}), tmp_path / "n.parquet")
    with pytest.raises(SourceError, match=r"row 1 holds a null"):
        ParquetTables(str(tmp_path)).rows("n.parquet", "x", np.array([0]))


def test_ragged_rows_are_refused_with_both_lengths(tmp_path):
    """Rows of different length are no signal."""
    pq.write_table(pa.table({"x": pa.array([[1.0, 2.0], [3.0]])}), tmp_path / "r.parquet")
    with pytest.raises(SourceError, match=r"rows differ in length: row 0 has 2 values, row 1 has 1"):
        ParquetTables(str(tmp_path)).rows("r.parquet", "x", np.array([0]))


def test_empty_file_gives_empty_rows(tmp_path):
    """A file without rows answers a request for no rows."""
    pq.write_table(
        pa.table({"x": pa.array([], type=pa.float32()), "t": pa.array([], type=pa.string())}), tmp_path / "e.parquet"
    )
    tables = ParquetTables(str(tmp_path))
    assert tables.rows("e.parquet", "x", np.array([], dtype=np.int64)).shape == (0,)
    assert tables.rows("e.parquet", "t", np.array([], dtype=np.int64)) == []

"""Laws of the memory a batch is filled in."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from trajload.collate.pool import TensorPool
from trajload.collate.slots import BatchSlots, SlotPlan
from trajload.collate.stream_slots import StreamSlots
from trajload.errors import ConfigError

LAYOUT = {"cam": ((3, 4, 5), "uint8"), "action": ((2,), np.float32), "reward": ((), np.dtype("float64"))}


def opened(*layout: Any, **options: Any) -> BatchSlots:
    """Return memory for a batch, made for it alone."""
    return SlotPlan(*layout, **options).reserve().open()


def filled(num_rows: int = 3, **kwargs: bool) -> BatchSlots:
    """Return slots whose every row is written, so that no undefined memory is left."""
    slots = opened(num_rows, 2, LAYOUT, ["task"], **kwargs)
    for name, array in slots.values.items():
        array[...] = len(name)
    return slots


def test_slots_give_the_keys_shapes_and_dtypes_of_a_batch() -> None:
    """A finished batch has every key of its streams and of the window, batch first, then time."""
    batch = filled().finish(9)
    shapes = {k: (tuple(v.shape), v.dtype) for k, v in batch.items() if isinstance(v, torch.Tensor)}
    flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), ((3, 2), torch.bool))
    masks = {f"{k}_is_pad": ((3, 2), torch.bool) for k in LAYOUT}
    missing = {f"{k}_is_missing": ((3,), torch.bool) for k in (*LAYOUT, "task")}
    assert shapes == {
        "cam": ((3, 2, 3, 4, 5), torch.uint8),
        "action": ((3, 2, 2), torch.float32),
        "reward": ((3, 2), torch.float64),
        **dict.fromkeys(("step_index", "timestamp_ns"), ((3, 2), torch.int64)),
        **dict.fromkeys(("episode_index", "window_id", "epoch"), ((3,), torch.int64)),
        **flags,
        **masks,
        **missing,
    }
    assert (batch["task"], batch["source"]) == (["", "", ""], ["", "", ""])
    assert (batch.train_step, batch.streams) == (9, ("cam", "action", "reward", "task"))


def test_slots_start_with_false_masks_and_zero_numbers() -> None:
    """Nothing but stream values is undefined before it is written."""
    batch = filled(row_is_pad=True).finish(0)
    for key, value in batch.items():
        if isinstance(value, torch.Tensor) and key not in LAYOUT:
            assert not value.any(), key
    assert tuple(batch["row_is_pad"].shape) == (3,)  # type: ignore[union-attr]


def test_slots_without_row_padding_have_no_such_key() -> None:
    """`row_is_pad` is there only where asked for."""
    slots = filled()
    assert slots.row_is_pad is None
    assert "row_is_pad" not in slots.finish(0)


def test_slots_written_through_numpy_show_in_the_batch_without_a_copy() -> None:
    """The NumPy views and the tensors are one memory."""
    slots = filled(row_is_pad=True)
    slots.values["action"][1] = [[1, 2], [3, 4]]
    slots.is_pad["action"][1, 1] = True
    slots.step_index[1] = [7, 8]
    slots.timestamp_ns[2, 0] = 2**62
    slots.is_first[0, 0] = slots.is_last[0, 1] = slots.is_terminal[0, 1] = True
    slots.episode_index[0], slots.window_id[1], slots.epoch[2] = 4, 5, 6
    slots.source[2] = "pusht"
    slots.set_text("task", 0, "push the T")
    assert slots.row_is_pad is not None
    slots.row_is_pad[2] = True
    batch = slots.finish(0)
    got = {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    assert got["action"][1] == [[1.0, 2.0], [3.0, 4.0]]
    assert got["action_is_pad"] == [[False, False], [False, True], [False, False]]
    assert got["step_index"][1] == [7, 8]
    assert got["timestamp_ns"][2][0] == 2**62
    assert (got["is_first"][0], got["is_last"][0], got["is_terminal"][0]) == (
        [True, False],
        [False, True],
        [False, True],
    )
    assert (got["episode_index"][0], got["window_id"][1], got["epoch"][2]) == (4, 5, 6)
    assert (got["source"], got["task"], got["row_is_pad"]) == (
        ["", "", "pusht"],
        ["push the T", "", ""],
        [False, False, True],
    )
    assert batch["action"].data_ptr() == slots.values["action"].ctypes.data  # type: ignore[union-attr]


def test_zero_of_marked_steps_touches_those_alone() -> None:
    """Only the marked steps of that row and stream become zero; without marks all of the row does."""
    slots = filled()
    slots.zero("cam", 1, np.array([False, True]))
    slots.zero("action", 2)
    assert [bool((x == 0).all()) for x in slots.values["cam"].reshape(6, -1)] == [
        False,
        False,
        False,
        True,
        False,
        False,
    ]
    assert slots.values["cam"][slots.values["cam"] != 0].min() == 3
    assert slots.values["action"].any(axis=(1, 2)).tolist() == [True, True, False]
    slots.zero("reward", 0, np.array([True, False]))
    assert slots.values["reward"][0].tolist() == [0.0, 6.0]
    assert not any(m.any() for m in slots.is_pad.values())


def test_set_missing_zeroes_the_row_and_sets_both_masks() -> None:
    """A stream the episode lacks is zeros, missing, and padding at every step; other rows stay."""
    slots = filled()
    slots.set_missing("action", 1)
    slots.set_missing("task", 2)
    assert slots.values["action"].any(axis=(1, 2)).tolist() == [True, False, True]
    assert slots.is_missing["action"].tolist() == [False, True, False]
    assert slots.is_pad["action"].tolist() == [[False, False], [True, True], [False, False]]
    assert slots.is_missing["task"].tolist() == [False, False, True]
    assert not slots.is_missing["cam"].any()


def test_text_an_episode_lacks_is_empty_text_or_no_object() -> None:
    """Missing language is "" and a missing JSON object None, unless set."""
    slots = opened(2, 1, {}, {"task": "str", "meta": "json"})
    slots.set_text("meta", 1, {"a": 1})
    batch = slots.finish(0)
    assert (batch["task"], batch["meta"]) == (["", ""], [None, {"a": 1}])


@pytest.mark.parametrize("dtype", ["uint32", "uint64", "str", "datetime64[ns]", "longdouble", "object", "S4"])
def test_slots_of_a_dtype_torch_lacks_name_the_stream(dtype: str) -> None:
    """A dtype that no usable tensor has is refused, with the stream's name and the dtypes that work."""
    with pytest.raises(
        ConfigError, match=r"stream 'lidar' cannot be put in a batch: got dtype .*expected one of bool, uint8, uint16"
    ):
        opened(1, 1, {"lidar": ((), dtype)})


def test_slots_of_no_dtype_at_all_name_the_stream() -> None:
    """A dtype NumPy does not know is refused by stream too."""
    with pytest.raises(ConfigError, match=r"dtype 'float33' of stream 'lidar' is unusable"):
        opened(1, 1, {"lidar": ((), "float33")})


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "uint16", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"],
)
def test_slots_of_a_supported_dtype_round_trip(dtype: str) -> None:
    """Values written through NumPy are the tensor's values, in the same dtype; 16-bit depth included."""
    slots = opened(1, 3, {"x": ((), dtype)})
    slots.values["x"][0] = np.array([0, 1, 1], dtype=dtype) * (60000 if dtype == "uint16" else 1)
    tensor = slots.finish(0)["x"]
    assert str(tensor.dtype) == f"torch.{dtype}"  # type: ignore[union-attr]
    assert tensor.numpy().tolist() == slots.values["x"].tolist()  # type: ignore[union-attr]


def test_slots_of_a_foreign_byte_order_hold_the_values_not_the_bytes() -> None:
    """Big-endian data land as the same numbers."""
    slots = opened(1, 2, {"x": ((), ">i4")})
    slots.values["x"][0] = np.array([1, 258], dtype=">i4")
    assert slots.finish(0)["x"].tolist() == [[1, 258]]  # type: ignore[union-attr]


def test_slots_filled_by_threads_row_by_row_equal_slots_filled_by_one() -> None:
    """Rows are disjoint memory: eight threads writing side by side give the same digest."""

    def fill(slots: BatchSlots, row: int) -> None:
        for name, array in slots.values.items():
            array[row] = np.arange(array[row].size).reshape(array[row].shape) % 97 + row
            slots.is_pad[name][row, 1] = row % 2 == 0
        slots.step_index[row] = row
        slots.set_text("task", row, f"task {row}")

    one, many = (opened(64, 2, LAYOUT, ["task"]) for _ in range(2))
    for row in range(64):
        fill(one, row)
    threads = [threading.Thread(target=lambda k=k: [fill(many, r) for r in range(k, 64, 8)]) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert one.finish(0).digest() == many.finish(0).digest()


def test_slots_of_no_rows_make_an_empty_batch() -> None:
    """Zero rows are an empty batch with the same keys."""
    batch = opened(0, 2, LAYOUT, ["task"]).finish(0)
    assert tuple(batch["cam"].shape) == (0, 2, 3, 4, 5)  # type: ignore[union-attr]
    assert batch["task"] == []
    assert len(batch.digest()) == 32


# ---- one window on its way through transforms ----


def row_of(pool: TensorPool) -> StreamSlots:
    layout = {"cam": ((3, 2, 2), np.uint8), "action": ((2,), np.float32)}
    row = StreamSlots.empty_row(3, layout, {"task": "str", "meta": "json"}, pool)
    row.values["cam"][0], row.values["action"][0] = 9, 1.5
    return row


def test_window_shows_a_row_as_views_and_copies_of_objects() -> None:
    """Arrays are written through; a JSON object that others may share is not."""
    row = row_of(TensorPool(max_free=1))
    shared = {"goal": [1, 2]}
    row.set_text("meta", 0, shared)
    window = row.window(0)
    assert set(window) == {
        *("cam", "action", "task", "meta", "cam_is_pad", "action_is_pad"),
        *(f"{name}_is_missing" for name in ("cam", "action", "task", "meta")),
    }
    window["cam"][1] = 4
    window["meta"]["goal"].append(3)
    assert row.values["cam"][0, 1, 0, 0, 0] == 4
    assert shared == {"goal": [1, 2]}


def test_set_window_writes_a_row_and_zeroes_what_has_no_data() -> None:
    """Values, masks and text arrive; steps without data are zeros whatever the window holds there."""
    row = row_of(TensorPool(max_free=1))
    row.zero("action", 0, np.array([False, False, True]))
    window = row.window(0)
    window["action"][...] = 7
    window["cam_is_pad"][1] = True
    window["task"] = "lift"
    out = opened(2, 3, {"cam": ((3, 2, 2), np.uint8), "action": ((2,), np.float32)}, {"task": "str", "meta": "json"})
    out.set_window(1, window, {name: is_zero[0] for name, is_zero in row.is_zero.items()})
    assert out.values["action"][1, :, 0].tolist() == [7, 7, 0]
    assert (out.values["cam"][1] == 9).all()
    assert out.is_pad["cam"][1].tolist() == [False, True, False]
    assert out.text["task"] == ["", "lift"]


def test_begin_row_forgets_the_window_before() -> None:
    """A row written anew is neither missing nor without data."""
    row = row_of(TensorPool(max_free=1))
    row.set_missing("cam", 0)
    assert row.is_missing["cam"][0] and row.is_zero["cam"][0].all()
    row.begin_row("cam", 0)
    assert not row.is_missing["cam"][0] and not row.is_zero["cam"].any()
    row.begin_row("task", 0)
    assert not row.is_missing["task"][0]

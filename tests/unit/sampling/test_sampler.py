"""Laws of the sampler: what a train_step trains on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trajload.errors import ConfigError, LoaderExhaustedError
from trajload.sampling.assign import rank_rows
from trajload.sampling.orders import make_order
from trajload.sampling.sampler import BatchRefs, Sampler
from trajload.sampling.windows import WindowTable
from trajload.spec import Window
from trajload.world import World

ORDERS = ["sequential", "shuffled"]


def table_of(*num_steps: int, **window: object) -> WindowTable:
    return WindowTable(np.array(num_steps), Window(**{"num_steps": 2, **window}))  # type: ignore[arg-type]


def sampler_of(table: WindowTable, **kwargs: object) -> Sampler:
    return Sampler(table, **{"order": "shuffled", "seed": 7, "global_batch_size": 4, **kwargs})  # type: ignore[arg-type]


def rows_of(refs: BatchRefs) -> list[tuple[int, ...]]:
    """Return each row as (position, epoch, window id, episode, start, is_pad)."""
    arrays = (refs.position_B, refs.epoch_B, refs.window_id_B, refs.episode_B, refs.start_B, refs.row_is_pad_B)
    return list(zip(*(x.tolist() for x in arrays), strict=True))


def flat_sequence(table: WindowTable, order_name: str, seed: int, num_epochs: int) -> list[tuple[int, ...]]:
    """Return the whole run written out: (position, epoch, window id, episode, start) of each position."""
    order = make_order(order_name, num_windows=table.num_windows, seed=seed)
    out = []
    for epoch in range(num_epochs):
        ids = order.window_ids(epoch, np.arange(table.num_windows))
        episode_B, start_B = table.locate(ids)
        for i, row in enumerate(zip(ids.tolist(), episode_B.tolist(), start_B.tolist(), strict=True)):
            out.append((epoch * table.num_windows + i, epoch, *row))
    return out


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(lambda x: max(x) >= 2),
    order=st.sampled_from(ORDERS),
    seed=st.integers(-(2**63), 2**63 - 1),
    size=st.integers(1, 40),
    num_epochs=st.integers(1, 5),
    drop_last=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_refs_of_a_finite_run_equal_the_run_written_out(
    lengths: list[int], order: str, seed: int, size: int, num_epochs: int, drop_last: bool
) -> None:
    """Batches are the flat sequence cut in pieces; the last one is dropped, or padded with the last window."""
    table = table_of(*lengths)
    flat = flat_sequence(table, order, seed, num_epochs)
    kwargs = {"order": order, "seed": seed, "global_batch_size": size, "num_epochs": num_epochs, "drop_last": drop_last}
    if drop_last and len(flat) < size:
        with pytest.raises(ConfigError, match=f"drop_last=True leaves no batch: {len(flat)} windows"):
            sampler_of(table, **kwargs)
        return
    sampler = sampler_of(table, **kwargs)
    got = [row for s in range(sampler.num_train_steps or 0) for row in rows_of(sampler.refs(s))]
    kept = flat[: len(flat) // size * size] if drop_last else flat
    num_pad = 0 if drop_last else -len(flat) % size
    assert got == [(*row, False) for row in kept] + [(*flat[-1], True)] * num_pad
    with pytest.raises(LoaderExhaustedError, match=f"train_step={sampler.num_train_steps} is beyond the end"):
        sampler.refs(sampler.num_train_steps or 0)


@pytest.mark.parametrize("order", ORDERS)
@given(size=st.integers(1, 30), world_size=st.integers(1, 30), train_step=st.integers(0, 2**60))
@settings(max_examples=150, deadline=None)
def test_global_batch_is_the_same_for_every_world_size(order: str, size: int, world_size: int, train_step: int) -> None:
    """The ranks' rows, put together, are the global batch, at any train_step and across epoch ends."""
    size = max(size, world_size)
    sampler = sampler_of(table_of(5, 9, 3), order=order, global_batch_size=size)
    parts = [
        row
        for r in range(world_size)
        for row in rows_of(sampler.refs(train_step, rank_rows(size, World(rank=r, world_size=world_size))))
    ]
    assert parts == rows_of(sampler.refs(train_step))


@given(size=st.integers(1, 2000), train_step=st.integers(0, 2**60), lengths=st.integers(2, 10**6))
@example(size=2000, train_step=2**60, lengths=2)
@example(size=256, train_step=2**60 - 1, lengths=2)
@settings(max_examples=200, deadline=None)
def test_refs_far_out_equal_exact_integer_arithmetic(size: int, train_step: int, lengths: int) -> None:
    """Positions and epochs are exact where train_step * global_batch_size passes 64 bits."""
    table = table_of(lengths, 17)
    sampler = sampler_of(table, global_batch_size=size)
    order = make_order("shuffled/1", num_windows=table.num_windows, seed=7)
    first = train_step * size
    if (first + size) // table.num_windows >= 2**63 - 1:
        with pytest.raises(ConfigError, match=r"is out of range: its epoch \d+ passes 2\*\*63") as caught:
            sampler.refs(train_step)
        assert caught.value.at.train_step == train_step
        return
    rows = rows_of(sampler.refs(train_step))
    for i in {0, size // 2, size - 1}:
        position, epoch, window_id, *_ = rows[i]
        assert position == first + i
        assert (epoch, 0) == (position // table.num_windows, 0)
        assert order.offsets(epoch, np.array([window_id])).tolist() == [position % table.num_windows]


def test_refs_are_pure_whatever_was_asked_before() -> None:
    """Asking out of order, twice, or of another Sampler of the same arguments gives the same rows."""
    table = table_of(30, 40, 50)
    one, other = sampler_of(table), sampler_of(table)
    backwards = {s: rows_of(one.refs(s)) for s in reversed(range(60))}
    assert [backwards[s] for s in range(60)] == [rows_of(other.refs(s)) for s in range(60)]
    assert rows_of(one.refs(3)) == backwards[3]


def test_infinite_run_has_full_batches_across_epoch_ends_and_no_length() -> None:
    """Without num_epochs an epoch may end inside a batch: no row is padding and each epoch stays complete."""
    sampler = sampler_of(table_of(4, 5), global_batch_size=5)  # 7 windows an epoch
    assert sampler.num_train_steps is None
    rows = [row for s in range(7) for row in rows_of(sampler.refs(s))]
    assert not any(row[-1] for row in rows)
    for epoch in range(5):
        assert sorted(row[2] for row in rows if row[1] == epoch) == list(range(7))


def test_batch_larger_than_an_epoch_holds_several_epochs() -> None:
    """With fewer windows than rows, a batch runs through whole epochs one after another."""
    refs = sampler_of(table_of(3), global_batch_size=9).refs(1)
    assert refs.epoch_B.tolist() == [4, 5, 5, 6, 6, 7, 7, 8, 8]
    assert sorted(refs.window_id_B[1:3].tolist()) == [0, 1]


def test_refs_of_no_rows_and_of_rows_beyond_the_end_of_a_run_are_empty_or_padding() -> None:
    """A rank whose rows all lie beyond the run's end gets the run's last window, marked."""
    sampler = sampler_of(table_of(6), order="sequential", global_batch_size=4, num_epochs=1)  # 5 windows
    assert len(sampler.refs(0, slice(2, 2))) == 0
    last = sampler.refs(1, slice(2, 4))
    assert (last.window_id_B.tolist(), last.row_is_pad_B.tolist()) == ([4, 4], [True, True])
    assert last.position_B.tolist() == [4, 4]


def test_refs_hold_int64_and_bool() -> None:
    """All numbers are int64 and the mask is bool, so that nothing narrows on the way to a tensor."""
    refs = sampler_of(table_of(6)).refs(0)
    for array in (refs.position_B, refs.epoch_B, refs.window_id_B, refs.episode_B, refs.start_B):
        assert array.dtype == np.int64
    assert refs.row_is_pad_B.dtype == np.bool_
    assert (refs.train_step, len(refs)) == (0, 4)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"global_batch_size": 0}, "global_batch_size=0 is invalid: expected an int of at least 1"),
        ({"global_batch_size": 2.0}, "global_batch_size=2.0 is invalid"),
        ({"global_batch_size": True}, "global_batch_size=True is invalid"),
        ({"global_batch_size": 2**31}, "global_batch_size=2147483648 is too large"),
        ({"num_epochs": 0}, "num_epochs=0 is invalid"),
        ({"num_epochs": 1.5}, "num_epochs=1.5 is invalid"),
        ({"drop_last": 1}, "drop_last=1 is invalid: expected True or False"),
        ({"seed": "7"}, "seed must be an int: got '7'"),
        ({"order": "shuffle"}, "order='shuffle' is unknown"),
        ({"num_epochs": 1, "drop_last": True, "global_batch_size": 6}, "drop_last=True leaves no batch: 5 windows"),
    ],
)
def test_sampler_with_an_unusable_argument_names_it(kwargs: dict[str, object], message: str) -> None:
    """Each argument is checked when the sampler is made."""
    with pytest.raises(ConfigError, match=message):
        sampler_of(table_of(6), **kwargs)


@pytest.mark.parametrize("train_step", [-1, 1.0, "3", True, None])
def test_refs_of_an_unusable_train_step_are_refused(train_step: object) -> None:
    """A train_step that is negative or no int is a ConfigError naming it."""
    with pytest.raises(ConfigError, match=f"train_step={train_step!r} is invalid"):
        sampler_of(table_of(6)).refs(train_step)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [slice(0, 4, 2), slice(None, None, -1), 3])
def test_refs_of_rows_that_are_no_plain_slice_are_refused(rows: object) -> None:
    """Only contiguous rows can be asked for."""
    with pytest.raises(ConfigError, match="expected a slice without a step"):
        sampler_of(table_of(6)).refs(0, rows)  # type: ignore[arg-type]


def test_config_json_is_json_and_names_all_that_decides_the_sequence() -> None:
    """The state can hold the config as it is."""
    config = sampler_of(table_of(6, stride=2), num_epochs=3).config_json()
    assert json.loads(json.dumps(config)) == {
        "order": "shuffled/1",
        "seed": 7,
        "global_batch_size": 4,
        "num_epochs": 3,
        "drop_last": False,
        "num_windows": 3,
        "window": {"num_steps": 2, "stride": 2, "dilation": 1, "pad": "none"},
    }


def test_sampler_accepts_numpy_integers_and_keeps_plain_ones() -> None:
    """np.int64 arguments are as good as int and leave no NumPy type in the JSON."""
    sampler = sampler_of(table_of(6), global_batch_size=np.int64(2), num_epochs=np.int32(1), seed=np.int64(7))
    assert json.dumps(sampler.config_json())
    assert rows_of(sampler.refs(np.int64(1))) == rows_of(sampler.refs(1))  # type: ignore[arg-type]

"""continuous/1: rows that go on where they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import WindowError
from trajload.sampling.continuous import ContinuousOrder
from trajload.sampling.orders import make_order
from trajload.sampling.sampler import Sampler
from trajload.sampling.windows import WindowTable
from trajload.spec import Window


def order_of(table: WindowTable, size: int, seed: int = 7) -> ContinuousOrder:
    order = make_order("continuous", table=table, seed=seed, global_batch_size=size)
    assert isinstance(order, ContinuousOrder)
    return order


@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=10).filter(lambda x: max(x) >= 13),
    num_steps=st.integers(1, 5),
    dilation=st.integers(1, 3),
    stride=st.integers(1, 7),
    pad=st.sampled_from(["none", "edge"]),
    size=st.integers(1, 9),
)
@settings(max_examples=200, deadline=None)
def test_row_of_the_next_batch_continues_the_row_or_starts_an_episode(
    lengths: list[int], num_steps: int, dilation: int, stride: int, pad: str, size: int
) -> None:
    """Inside an epoch a row's next window starts after the last one's steps, or is another episode's first window."""
    window = Window(num_steps=num_steps, dilation=dilation, stride=stride, pad=pad)  # type: ignore[arg-type]
    table = WindowTable(np.array(lengths), window)
    order = order_of(table, size)
    sampler = Sampler(table, order="continuous", seed=7, global_batch_size=size)
    assert sampler.num_windows == order.num_windows
    for train_step in range(order.num_windows * 2 // size):
        now, then = sampler.refs(train_step), sampler.refs(train_step + 1)
        for b in range(size):
            if now.epoch_B[b] != then.epoch_B[b]:
                continue
            if now.episode_B[b] == then.episode_B[b]:
                gap = then.start_B[b] - now.start_B[b] - num_steps * dilation
                assert 0 <= gap < stride
                assert gap == 0 or (num_steps * dilation) % stride
            else:
                assert then.start_B[b] == 0
                num_windows = np.diff(table.first_E1)[now.episode_B[b]]
                assert num_windows * stride <= now.start_B[b] + num_steps * dilation + stride - 1
            offset = int(then.position_B[b]) % order.num_windows
            assert order.continues(int(then.epoch_B[b]), np.array([offset])).tolist() == [then.start_B[b] > 0]


def test_first_batch_of_an_epoch_continues_nothing() -> None:
    """A lane that begins inside an episode says that it continues nothing."""
    table = WindowTable(np.array([100]), Window(num_steps=10))
    order = order_of(table, 4)
    assert order.num_windows == 10
    ids = order.window_ids(0, np.arange(10)).tolist()
    assert ids == [0, 30, 60, 80, 10, 40, 70, 90, 20, 50]
    assert order.continues(0, np.arange(10)).tolist() == [False] * 4 + [True] * 6


def test_epochs_take_episodes_in_other_orders() -> None:
    """With one lane the episodes of an epoch come whole, in keyed order."""
    table = WindowTable(np.full(40, 30), Window(num_steps=10))
    order = order_of(table, 1)
    orders = []
    for epoch in range(3):
        episode_B, start_B = table.locate(order.window_ids(epoch, np.arange(120)))
        assert start_B.tolist() == [0, 10, 20] * 40
        orders.append(episode_B[::3].tolist())
        assert sorted(orders[-1]) == list(range(40))
    assert orders[0] != orders[1] != orders[2]


def test_offset_of_a_window_outside_the_tiling_is_refused() -> None:
    """A window that never comes has no offset; the message says which windows do."""
    order = order_of(WindowTable(np.array([30, 30]), Window(num_steps=10)), 2)
    with pytest.raises(
        WindowError, match=r"window id 24 never comes in order 'continuous/1': expected every 10th window"
    ):
        order.offsets(0, np.array([0, 24]))

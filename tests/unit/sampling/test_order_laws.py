"""Laws of the orders that depend on episodes: once an epoch, both ways, no matter how many ranks, seek is iterating."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_threads import in_threads

from trajload.errors import ConfigError, WindowError
from trajload.sampling.assign import rank_rows
from trajload.sampling.orders import (
    Continuous,
    Interleaved,
    Interleaved1,
    Interleaved2,
    Order,
    OrderConfig,
    Sequential,
    Shuffled,
    Weighted,
    make_order,
    order_config,
)
from trajload.sampling.sampler import Sampler
from trajload.sampling.windows import WindowTable
from trajload.spec import Window
from trajload.world import World

SEEDS = st.integers(-(2**63), 2**63 - 1)
EPOCHS = st.integers(0, 2**63 - 1)
LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(lambda x: max(x) >= 3)
CONFIGS = st.one_of(
    st.builds(Interleaved, block_windows=st.integers(1, 40), lanes_per_row=st.integers(1, 6)),
    st.builds(Interleaved1, block_windows=st.integers(1, 40), lanes_per_row=st.integers(1, 6)),
    st.just(Continuous()),
)


def table_of(lengths: list[int], **window: object) -> WindowTable:
    return WindowTable(np.array(lengths), Window(**{"num_steps": 3, **window}))  # type: ignore[arg-type]


def order_of(config: OrderConfig, lengths: list[int], seed: int = 7, size: int = 4, **window: object) -> Order:
    return make_order(config, table=table_of(lengths, **window), seed=seed, global_batch_size=size)


@given(config=CONFIGS, lengths=LENGTHS, seed=SEEDS, epoch=EPOCHS, size=st.integers(1, 50), stride=st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_each_window_comes_exactly_once_an_epoch_and_its_offset_is_found(
    config: OrderConfig, lengths: list[int], seed: int, epoch: int, size: int, stride: int
) -> None:
    """An epoch is a permutation of all windows (or of the tiling), and `offsets` is its inverse."""
    table = table_of(lengths, stride=stride)
    order = make_order(config, table=table, seed=seed, global_batch_size=size)
    all_B = np.arange(order.num_windows)
    ids = order.window_ids(epoch, all_B)
    if isinstance(config, Continuous):
        tile = -(-3 // stride)
        firsts = table.first_E1
        expected = [w for a, b in pairwise(firsts) for w in range(a, b, tile)]
    else:
        expected = list(range(table.num_windows))
    assert np.sort(ids).tolist() == expected
    assert np.array_equal(order.offsets(epoch, ids), all_B)


@pytest.mark.parametrize(
    "config", [Interleaved(), Interleaved1(), Continuous(), Weighted(episode_weights=[1, 2, 3])], ids=str
)
def test_order_of_part_of_an_epoch_equals_that_part_of_the_whole(config: OrderConfig) -> None:
    """What stands at an offset does not depend on which others are asked for along with it, nor on their shape."""
    order = order_of(config, [400, 300, 222])
    whole = order.window_ids(3, np.arange(order.num_windows))
    assert np.array_equal(order.window_ids(3, np.arange(20, 60)), whole[20:60])
    assert order.window_ids(3, np.arange(12).reshape(3, 4)).tolist() == whole[:12].reshape(3, 4).tolist()
    assert order.window_ids(3, np.array([], dtype=np.int64)).tolist() == []


@pytest.mark.parametrize(
    "config", [Interleaved(), Interleaved1(), Continuous(), Weighted(episode_weights=[1] * 30)], ids=str
)
def test_other_seeds_and_epochs_give_other_orders(config: OrderConfig) -> None:
    """No two of (seed, epoch) agree in more places than chance has it."""
    ids = {}
    for seed, epoch in ((7, 0), (7, 1), (8, 0), (43, 0), (42, 1)):
        order = order_of(config, [60] * 30, seed=seed)
        ids[seed, epoch] = order.window_ids(epoch, np.arange(order.num_windows))
    one, *others = ids.values()
    assert all((one == other).mean() < 0.15 for other in others)
    assert (ids[43, 0] == ids[42, 1]).mean() < 0.15


@pytest.mark.parametrize(
    "config",
    [Interleaved(block_windows=4), Interleaved1(block_windows=4), Continuous(), Weighted(episode_weights=[1, 2, 3])],
    ids=str,
)
@pytest.mark.parametrize("world_size", range(1, 65))
def test_global_batch_is_the_same_for_every_number_of_ranks(config: OrderConfig, world_size: int) -> None:
    """Ranks are disjoint and complete: their rows, in order, are the global batch, across an epoch's end too."""
    sampler = Sampler(table_of([90, 50, 33]), order=config, seed=3, global_batch_size=64)
    for train_step in (0, sampler.num_windows // 64, 10**12):
        whole = sampler.refs(train_step)
        parts = [
            sampler.refs(train_step, rank_rows(64, World(rank=r, world_size=world_size))) for r in range(world_size)
        ]
        for name in ("position_B", "epoch_B", "window_id_B", "episode_B", "start_B"):
            joined = np.concatenate([getattr(part, name) for part in parts])
            assert joined.tolist() == getattr(whole, name).tolist()


@given(config=CONFIGS, lengths=LENGTHS, size=st.integers(1, 20), seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_any_train_step_equals_the_sequence_written_out(
    config: OrderConfig, lengths: list[int], size: int, seed: int
) -> None:
    """Batches are the epochs' sequences cut into pieces, whichever is asked for first."""
    table = table_of(lengths)
    sampler = Sampler(table, order=config, seed=seed, global_batch_size=size)
    order = make_order(config, table=table, seed=seed, global_batch_size=size)
    flat = np.concatenate([order.window_ids(e, np.arange(order.num_windows)) for e in range(4)])
    last = len(flat) // size
    for train_step in sorted({0, 1, last // 2, last - 1}, reverse=True):
        if 0 <= train_step < last:
            expected = flat[train_step * size : (train_step + 1) * size].tolist()
            assert sampler.refs(train_step).window_id_B.tolist() == expected


@pytest.mark.parametrize(
    "config", [Sequential(), Shuffled(), Interleaved(), Interleaved1(), Interleaved2(), Continuous()], ids=str
)
def test_order_outside_its_epoch_is_refused(config: OrderConfig) -> None:
    """Offsets, ids and epochs out of range are named."""
    order = order_of(config, [30])
    limits = f"0 <= offset < num_windows={order.num_windows}"
    with pytest.raises(WindowError, match=rf"offset {order.num_windows} does not exist: expected {limits}"):
        order.window_ids(0, np.array([order.num_windows]))
    with pytest.raises(WindowError, match=r"window id -1 does not exist"):
        order.offsets(0, np.array([-1]))
    for epoch in (-1, 2**63):
        with pytest.raises(ConfigError, match=f"epoch={epoch} is out of range"):
            order.window_ids(epoch, np.array([0]))
        with pytest.raises(ConfigError, match=f"epoch={epoch} is out of range"):
            order.offsets(epoch, np.array([0]))


def test_order_asked_by_many_threads_for_many_epochs_answers_each_right() -> None:
    """The tables of recent epochs are shared by threads without mixing them up."""
    order = order_of(Interleaved(), [50] * 20)
    expected = {e: order_of(Interleaved(), [50] * 20).window_ids(e, np.arange(100)).tolist() for e in range(5)}
    wrong: list[int] = []

    def ask(start: int) -> None:
        for i in range(200):
            epoch = (start * 3 + i) % 5
            if order.window_ids(epoch, np.arange(100)).tolist() != expected[epoch]:
                wrong.append(epoch)

    in_threads(ask, range(8))
    assert wrong == []


@pytest.mark.parametrize("num_windows", [10**12, 10**12 + 5, 2**51])
@pytest.mark.parametrize(
    ("version", "tables"), [("interleaved/1", "sums"), ("interleaved/2", "sequence"), ("interleaved/3", "slots")]
)
def test_order_of_long_episodes_holds_memory_for_episodes_only(version: str, tables: str, num_windows: int) -> None:
    """Memory does not grow with the number of windows or blocks, and look-ups stay right."""
    table = WindowTable(np.full(1000, num_windows), Window(num_steps=1))
    order: Any = make_order(version, table=table, seed=1, global_batch_size=32)
    offset_B = np.arange(0, 1000 * num_windows, num_windows)
    ids = order.window_ids(0, offset_B)
    assert len(np.unique(ids)) == 1000
    assert np.array_equal(order.offsets(0, ids), offset_B)
    assert order.version == version and getattr(order._epochs.get(0), tables).nbytes < 100_000


# ---- how an order is asked for ----


def test_order_config_comes_back_from_its_json() -> None:
    """What a state records makes the same order again."""
    for config in (
        Interleaved(block_windows=5, lanes_per_row=2),
        Interleaved1(block_windows=5, lanes_per_row=2),
        Continuous(),
        order_config("sequential"),
    ):
        assert order_config(config.to_json()) == config
        assert type(order_config(config.to_json())) is type(config)
    assert Interleaved() != Interleaved1() == order_config("interleaved/1")
    assert order_config("interleaved") == Interleaved(block_windows=16, lanes_per_row=4)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({"version": "interleaved/1", "blocks": 3}, r"order='interleaved/1' does not take \['blocks'\]"),
        ({"block_windows": 3}, "is unknown: expected one of"),
        ({"version": "nothing/1"}, "order='nothing/1' is unknown"),
        ("weighted", "order='weighted/1' needs weights"),
        (3, "order=3 is unknown"),
    ],
)
def test_order_config_of_an_unusable_value_says_what_is_wrong(order: object, message: str) -> None:
    """Unknown names and parameters are named."""
    with pytest.raises(ConfigError, match=message):
        order_config(order)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"block_windows": 0}, "block_windows=0 is invalid"),
        ({"block_windows": 2**20 + 1}, "block_windows=1048577 is too large: expected less than 1048577"),
        ({"block_windows": 2.0}, r"block_windows=2\.0 is invalid"),
        ({"lanes_per_row": 0}, "lanes_per_row=0 is invalid"),
        ({"lanes_per_row": True}, "lanes_per_row=True is invalid"),
    ],
)
def test_interleaved_of_unusable_parameters_is_refused(arguments: dict[str, object], message: str) -> None:
    """Each parameter is checked when the value is made."""
    with pytest.raises(ConfigError, match=message):
        Interleaved(**arguments)  # type: ignore[arg-type]


def test_make_order_without_what_it_needs_says_so() -> None:
    """Orders over episodes ask for the table; a table of another size is refused."""
    with pytest.raises(ConfigError, match=r"order='interleaved/3' depends on episodes and batch size: pass table="):
        make_order("interleaved", num_windows=10, seed=1)
    with pytest.raises(ConfigError, match=r"order='weighted/1' depends on episodes: pass table="):
        make_order(Weighted(episode_weights=[1]), num_windows=10, seed=1)
    with pytest.raises(ConfigError, match=r"num_windows=3 does not fit the table: it has 5 windows"):
        make_order("shuffled", num_windows=3, table=table_of([7]), seed=1)
    with pytest.raises(ConfigError, match=r"make_order needs num_windows= or table="):
        make_order("shuffled", seed=1)


def test_state_records_order_and_parameters() -> None:
    """Simple orders stand as their version, others with their parameters; weights as a digest."""
    table = table_of([30, 20])
    got = [
        Sampler(table, order=order, seed=1, global_batch_size=2).config_json()["order"]
        for order in ("shuffled", "continuous", Interleaved(block_windows=8), Weighted(episode_weights=[1, 2]))
    ]
    assert got[:3] == [
        "shuffled/1",
        "continuous/1",
        {"version": "interleaved/3", "block_windows": 8, "lanes_per_row": 4},
    ]
    assert (got[3]["version"], got[3]["num_weights"], len(got[3]["weights_digest"])) == ("weighted/1", 2, 64)

"""The number of rounds in use shuffles fairly, and the measures can tell when one does not."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from by_path import load

from trajload.sampling.orders import make_order
from trajload.sampling.permute import NUM_ROUNDS

NUM_KEYS = 20_000
LIMIT = 6.0
"""A fair shuffle passes this once in a thousand million trials, and keys are fixed: the test cannot flake."""


@pytest.fixture(scope="module")
def evidence() -> ModuleType:
    """The measures of decision 0040."""
    return load(Path(__file__).with_name("round_evidence.py"))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 12, 16, 17, 64, 100, 257])
def test_first_position_and_pairs_are_uniform_over_epochs(evidence: ModuleType, n: int) -> None:
    """Over 20,000 epochs position 0, and positions 0 and 1 together, go everywhere equally often."""
    head = evidence.heads(n, NUM_ROUNDS, NUM_KEYS, 2)
    assert evidence.first_position_z(n, head) < LIMIT
    if n > 2:
        assert evidence.pair_z(n, head) < LIMIT


@pytest.mark.parametrize("n", [3, 4])
def test_all_orders_of_a_tiny_set_are_equally_frequent(evidence: ModuleType, n: int) -> None:
    """Each of the n! bijections comes as often as the others."""
    assert evidence.whole_z(n, evidence.heads(n, NUM_ROUNDS, NUM_KEYS, n)) < LIMIT


@pytest.mark.parametrize("n", [1_000_003, 2**20 + 1, 2**40])
def test_neighbours_of_a_large_set_go_far_apart_and_everywhere(evidence: ModuleType, n: int) -> None:
    """Every part of an epoch draws from every part of the data, and steps between neighbours are uniform."""
    assert evidence.spread_z(n, NUM_ROUNDS, 5) < LIMIT
    assert evidence.neighbour_z(n, NUM_ROUNDS, 5) < LIMIT


@pytest.mark.parametrize("flip_key", [False, True], ids=["input bit", "key bit"])
def test_one_changed_bit_flips_each_output_bit_half_the_time(evidence: ModuleType, flip_key: bool) -> None:
    """Avalanche: on 32 bits, over each pair of a flipped and an output bit, near one half."""
    low, high = evidence.avalanche(NUM_ROUNDS, flip_key, num_keys=16)
    assert 0.45 < low < high < 0.55


def test_the_measures_find_too_few_rounds(evidence: ModuleType) -> None:
    """Each measure fails for a network that is too shallow, so passing says something."""
    head = evidence.heads(7, 2, NUM_KEYS, 2)
    assert evidence.first_position_z(7, head) > LIMIT
    assert evidence.pair_z(7, head) > LIMIT
    assert evidence.whole_z(4, evidence.heads(4, 2, NUM_KEYS, 4)) > LIMIT
    assert evidence.spread_z(1_000_003, 2, 2) > LIMIT
    assert evidence.neighbour_z(1_000_003, 2, 2) > LIMIT
    assert evidence.avalanche(2, False, num_keys=4)[0] < 0.1


def test_the_measures_use_the_keys_of_the_shuffled_order(evidence: ModuleType) -> None:
    """What is measured is the order users get: same keys, same ids."""
    order = make_order("shuffled/1", num_windows=100, seed=7)
    for epoch in range(3):
        assert (
            order.window_ids(epoch, evidence.np.arange(2)).tolist()
            == evidence.heads(100, NUM_ROUNDS, 3, 2)[epoch].tolist()
        )

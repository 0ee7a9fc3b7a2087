"""Memory of dropped tensors is used again, and never while anyone can still see it."""

from __future__ import annotations

import gc

import numpy as np
import torch

from trajload.collate.pool import MIN_POOLED_BYTES, TensorPool

BIG = (4, MIN_POOLED_BYTES // 4)


def take(pool: TensorPool, shape: tuple[int, ...] = BIG) -> torch.Tensor:
    return torch.from_numpy(pool.empty_array(shape, np.dtype(np.uint8)))


def test_memory_of_a_dropped_tensor_is_handed_out_again() -> None:
    """A steady run allocates once."""
    pool = TensorPool(max_free=2)
    first = take(pool)
    where = first.data_ptr()
    assert where % 64 == 0
    del first
    assert take(pool).data_ptr() == where
    for _ in range(10):
        take(pool).fill_(1)
    assert pool.num_allocated == 1


def test_memory_in_use_through_any_view_is_not_handed_out() -> None:
    """Slices, NumPy arrays, reinterpretations and detached copies of the handle keep their memory."""
    pool = TensorPool(max_free=8)
    for view_of in (
        lambda t: t[1:2, 5:9],
        lambda t: t.numpy(),
        lambda t: t.numpy()[2],
        lambda t: t.view(torch.int32),
        lambda t: t.detach(),
        lambda t: memoryview(t.numpy()),
        lambda t: t.untyped_storage(),
        lambda t: t.permute(1, 0),
    ):
        tensor = take(pool)
        tensor.fill_(7)
        view = view_of(tensor)
        del tensor
        gc.collect()
        other = take(pool)
        other.fill_(9)
        assert set(
            np.asarray(view).ravel().tolist() if not isinstance(view, torch.UntypedStorage) else view.tolist()
        ) <= {7, 0x07070707}
        del view, other


def test_pool_keeps_at_most_max_free_pieces_of_a_size() -> None:
    """What a consumer hoarded and dropped at once does not stay forever."""
    pool = TensorPool(max_free=2)
    hoard = [take(pool) for _ in range(6)]
    assert pool.num_allocated == 6
    del hoard
    again = [take(pool) for _ in range(6)]
    assert pool.num_allocated == 10
    del again


def test_tensor_outlives_its_pool_and_a_cleared_pool_takes_nothing_back() -> None:
    """Closing a loader does not pull memory from under a batch."""
    pool = TensorPool(max_free=2)
    kept, late = take(pool), take(pool)
    kept.fill_(3)
    pool.clear()
    del late
    assert pool.num_allocated == 2
    take(pool)
    assert pool.num_allocated == 3
    del pool
    gc.collect()
    assert int(kept.min()) == int(kept.max()) == 3


def test_small_tensors_and_saved_tensors_stand_alone(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Each tensor has a storage of its own, of its own size."""
    pool = TensorPool(max_free=2)
    small = take(pool, (3, 5))
    assert pool.num_allocated == 0
    assert small.shape == (3, 5)
    big = take(pool)
    big.zero_()
    assert big.untyped_storage().nbytes() == big.nbytes
    torch.save(big, tmp_path / "x.pt")
    assert (tmp_path / "x.pt").stat().st_size < big.nbytes + 4096


def test_pool_keeps_more_pieces_where_they_are_small() -> None:
    """A number of batches in the works that goes up and down costs no fresh memory."""
    pool = TensorPool(max_free=2, max_free_bytes=4 * MIN_POOLED_BYTES)
    hoard = [take(pool) for _ in range(6)]
    del hoard
    for pieces in (4, 3):
        hoard = [take(pool) for _ in range(pieces)]
        del hoard
    assert pool.num_allocated == 6
    assert len([take(pool) for _ in range(5)]) == 5
    assert pool.num_allocated == 7

"""Shared batch memory: layout, and buffers that come back when nobody looks at them."""

from __future__ import annotations

import gc
import os
import resource

import numpy as np
import pytest
import torch

from trajload.errors import StageFailedError
from trajload.pipeline.shared_batch import Arena, SharedPool, anonymous_file, map_file

SHAPES = {
    "image": ((3, 2, 5), np.dtype(np.uint8)),
    "empty": ((3, 0), np.dtype(np.float32)),
    "flag": ((3,), np.dtype(np.bool_)),
    "number": ((3, 2), np.dtype(np.int64)),
}


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_arena_gives_each_tensor_memory_of_its_own() -> None:
    """Shapes and dtypes are those asked for, aligned, without overlap; a part of the rows is a view."""
    arena = Arena(SHAPES)
    memory = np.zeros(arena.num_bytes, dtype=np.uint8)
    arrays = arena.arrays(memory)
    assert {key: (a.shape, a.dtype) for key, a in arrays.items()} == SHAPES
    for value, array in enumerate(arrays.values(), start=1):
        array[...] = value
        assert array.ctypes.data % 64 == memory.ctypes.data % 64
    assert [np.unique(a).tolist() for a in arrays.values()] == [[1], [], [True], [4]]
    arena.arrays(memory, slice(1, 2))["number"][...] = 9
    assert arrays["number"].tolist() == [[4, 4], [9, 9], [4, 4]]


def test_two_mappings_of_a_file_are_the_same_memory_and_go_with_their_last_view() -> None:
    """No descriptor is needed to keep a mapping, and no view is needed for it to go."""
    before, num_mapped = num_fds(), _num_mapped("trajload-test")
    fd = anonymous_file("trajload-test", 8192)
    one, two = map_file(fd, 8192), map_file(fd, 8192)
    os.close(fd)
    one[5000] = 7
    view = two[4096:].reshape(64, 64)[14:15]
    del two
    assert view[0, 8] == 7
    assert num_fds() == before
    del one, view
    gc.collect()
    assert _num_mapped("trajload-test") == num_mapped


def _num_mapped(name: str) -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum(name in line for line in maps)


def test_buffer_comes_back_only_when_the_last_tensor_is_gone() -> None:
    """Tensors, their NumPy arrays and views of those all keep the buffer out."""
    pool = SharedPool(max_free=2, max_leased=4)
    buffer = pool.take(8192)
    lease = pool.lease(buffer)
    tensor = torch.from_numpy(lease[:4096].view(np.int64).reshape(8, 64))
    row = tensor[3].numpy()[5:]
    del lease
    assert pool.take(8192) is not buffer
    del tensor
    gc.collect()
    assert pool.take(8192) is not buffer
    del row
    assert pool.take(8192) is buffer
    pool.close()


def test_pool_keeps_few_descriptors_whatever_is_held() -> None:
    """What is held longest gives up its descriptor and does not come back; spare buffers are given up, too."""
    before = num_fds()
    pool = SharedPool(max_free=1, max_leased=2)
    buffers = [pool.take(4096) for _ in range(5)]
    held = [pool.lease(buffer) for buffer in buffers]
    assert pool.discard_spare() == [0, 1, 2]
    assert num_fds() == before + 2
    held[0][...] = 1  # still memory
    del held[4], held[3]
    assert pool.discard_spare() == [4]
    assert pool.take(8192).number == 5
    assert pool.take(4096) is buffers[3]
    pool.close()
    pool.close()
    assert num_fds() == before


def test_no_descriptor_left_is_an_error_with_advice() -> None:
    """The message says what to do, and nothing is left open."""
    pool = SharedPool(max_free=1, max_leased=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        with pytest.raises(StageFailedError, match="Keep fewer batches, or use workers='threads'"):
            for _ in range(100):
                pool.take(4096)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        pool.close()

"""Everything decoded in memory: what a loader would do with unlimited RAM, and what copying alone allows."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from workloads.formats import format_path
from workloads.windows import endless, locate

from rivals.request import Batches, Request


def _read(path: Path, dtype: str, *shape: int) -> np.ndarray:
    return np.fromfile(path, dtype).reshape(shape)


def load_arrays(request: Request) -> dict[str, tuple[np.ndarray, int]]:
    """Return name → (all rows of all episodes, steps a window)."""
    work = request.workload
    raw = format_path("raw", work, request.data)
    height, width = work.size or (work.data.height, work.data.width)
    arrays = {
        camera: (_read(raw / f"{camera}.u8", "u1", -1, 3, height, width), work.frame_steps) for camera in work.cameras
    }
    for name, steps in work.signal_steps.items():
        arrays[name] = (_read(raw / f"{name}.f32", "f4", -1, work.data.signals[name]), steps)
    return arrays


def numpy_batches(request: Request, is_ahead: bool) -> Batches:
    """Gather rows with NumPy, two batches ahead, in as many threads as other loaders have workers; or when they are asked for."""
    work = request.workload
    arrays = load_arrays(request)
    numbers = endless(work, request.seed)

    def gather(windows: list[int]) -> dict[str, np.ndarray]:
        first = np.array(
            [episode * work.data.num_steps + start for episode, start in (locate(work, w) for w in windows)]
        )
        return {name: values[first[:, None] + np.arange(steps)] for name, (values, steps) in arrays.items()}

    if not is_ahead:
        while True:
            yield gather(list(itertools.islice(numbers, work.batch)))
    with ThreadPoolExecutor(request.workers) as pool:
        works = [pool.submit(gather, list(itertools.islice(numbers, work.batch))) for _ in range(2 * request.workers)]
        while True:
            batch = works.pop(0).result()
            works.append(pool.submit(gather, list(itertools.islice(numbers, work.batch))))
            yield batch


def copy_limit(request: Request) -> Batches:
    """`torch.index_select` of all rows into one buffer used again and again: the limit of gathering, not a loader."""
    work = request.workload
    torch.set_num_threads(request.workers)
    arrays = {name: (torch.from_numpy(values), steps) for name, (values, steps) in load_arrays(request).items()}
    out = {
        name: torch.empty((work.batch * steps, *values.shape[1:]), dtype=values.dtype)
        for name, (values, steps) in arrays.items()
    }
    windows = np.array(list(itertools.islice(endless(work, request.seed), min(work.num_windows, 1 << 16))))
    first = torch.from_numpy(windows // work.starts * work.data.num_steps + windows % work.starts)
    usable = len(first) // work.batch * work.batch
    rows = [
        {name: (first[i : i + work.batch, None] + torch.arange(steps)).flatten() for name, (_, steps) in arrays.items()}
        for i in range(0, usable, work.batch)
    ]
    for index in itertools.cycle(rows):
        for name, (values, _) in arrays.items():
            torch.index_select(values, 0, index[name], out=out[name])
        yield {name: value.unflatten(0, (work.batch, -1)) for name, value in out.items()}


def batches(request: Request, limit: bool = False, is_ahead: bool = True) -> Batches:
    return copy_limit(request) if limit else numpy_batches(request, is_ahead)

"""TorchRL: a replay buffer over memory-mapped raw arrays, slices drawn by SliceSampler."""

from __future__ import annotations

import torch
from tensordict import MemoryMappedTensor, TensorDict
from torchrl.data import SliceSampler, TensorDictReplayBuffer
from torchrl.data.replay_buffers import TensorStorage
from workloads.formats import format_path

from rivals.request import Batches, Request


def batches(request: Request) -> Batches:
    work, data = request.workload, request.workload.data
    raw = format_path("raw", work, request.data)
    total = data.num_episodes * data.num_steps
    height, width = work.size or (data.height, data.width)
    values = {
        camera: MemoryMappedTensor.from_filename(raw / f"{camera}.u8", torch.uint8, (total, 3, height, width))
        for camera in work.cameras
    }
    for name in work.signal_steps:
        values[name] = MemoryMappedTensor.from_filename(raw / f"{name}.f32", torch.float32, (total, data.signals[name]))
    ends = torch.zeros(total, dtype=torch.bool)
    ends[data.num_steps - 1 :: data.num_steps] = True
    buffer = TensorDictReplayBuffer(
        storage=TensorStorage(TensorDict(values, batch_size=[total])),
        sampler=SliceSampler(slice_len=work.span, ends=ends, cache_values=True),
        batch_size=work.batch * work.span,
        prefetch=request.workers,
    )
    while True:
        sample = buffer.sample()
        yield {name: sample[name].unflatten(0, (work.batch, work.span)) for name in values}

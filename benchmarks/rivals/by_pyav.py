"""PyAV in a DataLoader, as people write it by hand: containers kept open, seek to the keyframe, decode on."""

from __future__ import annotations

import av
import torch
from workloads.signals import make_signals
from workloads.spec import FPS
from workloads.windows import locate

from rivals._torch_loader import load
from rivals.request import Batch, Batches, Request


class Windows(torch.utils.data.Dataset):
    def __init__(self, request: Request) -> None:
        self.workload, self.data = request.workload, request.data
        self.containers: dict = {}
        data = self.workload.data
        self.signals = [make_signals(data, e) for e in range(data.num_episodes)] if self.workload.signal_steps else []

    def frames(self, camera: str, episode: int, start: int, steps: int) -> torch.Tensor:
        container = self.containers.get((camera, episode))
        if container is None:
            container = self.containers[camera, episode] = av.open(
                str(self.workload.data.mp4(self.data, camera, episode))
            )
            container.streams.video[0].codec_context.thread_count = 1
        stream = container.streams.video[0]
        container.seek(round(start / FPS / stream.time_base), stream=stream)
        size = self.workload.size
        out: list[torch.Tensor] = []
        for frame in container.decode(stream):
            # Indexed by time, as people do: right where the rate is constant and the file starts at 0, as here.
            if round(frame.pts * stream.time_base * FPS) < start:
                continue
            if size:
                frame = frame.reformat(width=size[1], height=size[0], format="rgb24", interpolation="AREA")
            out.append(torch.from_numpy(frame.to_ndarray(format="rgb24")))
            if len(out) == steps:
                break
        return torch.stack(out).permute(0, 3, 1, 2).contiguous()

    def __getitem__(self, window: int) -> Batch:
        work = self.workload
        episode, start = locate(work, window)
        out = {camera: self.frames(camera, episode, start, work.frame_steps) for camera in work.cameras}
        for name, steps in work.signal_steps.items():
            out[name] = torch.from_numpy(self.signals[episode][name][start : start + steps])
        return out


def batches(request: Request) -> Batches:
    return load(Windows(request), request)

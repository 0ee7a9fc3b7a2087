"""torchcodec in a DataLoader, as people write it by hand: one decoder a file, kept open. The baseline of all ratios."""

from __future__ import annotations

import torch
import torchcodec.decoders  # noqa: F401  its loading belongs to the import time
from workloads.signals import make_signals
from workloads.windows import locate

from rivals._torch_loader import load, torchcodec_decoder
from rivals.request import Batch, Batches, Request


class Windows(torch.utils.data.Dataset):
    def __init__(self, request: Request, order: str) -> None:
        self.workload, self.data, self.order = request.workload, request.data, order
        self.decoders: dict = {}
        data = self.workload.data
        # Signals are small: all of them in memory, as one would.
        all_signals = [make_signals(data, e) for e in range(data.num_episodes)] if self.workload.signal_steps else []
        self.signals = [{name: torch.from_numpy(values) for name, values in one.items()} for one in all_signals]

    def __getitem__(self, window: int) -> Batch:
        work = self.workload
        episode, start = locate(work, window)
        out = {}
        for camera in work.cameras:
            decoder = self.decoders.get((camera, episode))
            if decoder is None:
                path = str(work.data.mp4(self.data, camera, episode))
                decoder = self.decoders[camera, episode] = torchcodec_decoder(work, path, self.order)
            out[camera] = decoder.get_frames_in_range(start, start + work.frame_steps).data
        for name, steps in work.signal_steps.items():
            out[name] = self.signals[episode][name][start : start + steps]
        return out


def batches(request: Request, order: str = "NCHW") -> Batches:
    return load(Windows(request, order), request)

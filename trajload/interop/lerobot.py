"""Batches with the keys and shapes that LeRobot's policies train on."""

# Shapes: B windows, T steps

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch

from trajload.errors import ConfigError

if TYPE_CHECKING:
    from trajload.collate.batch import Batch

__all__ = ["policy_batch"]


def policy_batch(
    batch: Batch,
    *,
    rename: Mapping[str, str] | None = None,
    keep_steps: Collection[str] = ("action",),
    history: int = 0,
    task: str | None = None,
    as_uint8: bool = False,
) -> dict[str, Any]:
    """Return what `policy.forward` of LeRobot takes: ACT, diffusion, VLAs.

    A stream of one step loses its T, as in LeRobot without `delta_timestamps`; others keep it and have `<stream>_is_pad`
    (True = padding, LeRobot's polarity), which also covers missing streams and rows that only fill up a batch. Pictures
    become float32 in [0, 1]. Ask for chunks and histories with `Window(num_steps=1, delta_indices={"action": range(50)})`.

    Args:
        batch: Of a loader, on any device.
        rename: Stream → LeRobot's key, where the dataset has other names: {"cam_front": "observation.images.front"}.
        keep_steps: Keys (after renaming) that keep T even if it is 1.
        history: `window.history`: which column of the window is the present step.
        task: Text stream that says what to do; it becomes `task`.
        as_uint8: Leave pictures as they are, for `return_uint8` policies.

    Returns:
        The streams, their `_is_pad`, `episode_index`, `frame_index`, `timestamp` (seconds, float32) and `task`.

    Raises:
        ConfigError: A stream that the batch lacks, or two streams with one key.
    """
    names = dict(rename or {})
    for name in (*names, *(() if task is None else (task,))):
        if name not in batch.streams:
            raise ConfigError(f"stream {name!r} is not in this batch: it has {', '.join(map(repr, batch.streams))}.")
    out: dict[str, Any] = {}
    for stream in batch.streams:
        key, value = names.get(stream, stream), batch[stream]
        if key in out:
            raise ConfigError(f"two streams are called {key!r}: give them different names.")
        if not isinstance(value, torch.Tensor):
            out["task" if stream == task else key] = list(value)
            continue
        if value.dtype == torch.uint8 and value.ndim == 5 and not as_uint8:
            value = value.to(torch.float32) / 255
        if value.shape[1] == 1 and key not in keep_steps:
            out[key] = value[:, 0]
        else:
            out[key], out[f"{key}_is_pad"] = value, ~batch.valid_mask(stream)
    step_BT, time_BT = batch["step_index"], batch["timestamp_ns"]
    assert isinstance(step_BT, torch.Tensor) and isinstance(time_BT, torch.Tensor)
    if not 0 <= history < step_BT.shape[1]:
        raise ConfigError(f"history={history!r} is invalid: the window has {step_BT.shape[1]} steps.")
    out["episode_index"] = batch["episode_index"]
    out["frame_index"] = step_BT[:, history]
    out["timestamp"] = (time_BT[:, history].double() / 1e9).to(torch.float32)
    return out

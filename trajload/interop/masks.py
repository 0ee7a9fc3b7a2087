"""Masks as Octo and TorchRL name them. Theirs are True where data are real; trajload's and LeRobot's where they are not."""

# Shapes: B windows, T steps, A components of an action

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trajload.errors import ConfigError

if TYPE_CHECKING:
    from trajload.collate.batch import Batch

__all__ = ["octo_masks", "step_mask", "torchrl_masks"]


def step_mask(batch: Batch, *, leave_out: tuple[str, ...] = ()) -> torch.Tensor:
    """Return which steps of the window are real, bool (B, T): those where some stream has data.

    Streams with a T of their own (action chunks) do not count, nor those named in `leave_out`.

    Raises:
        ConfigError: No stream of the batch goes along the window's steps.
    """
    shape_BT = batch["step_index"].shape  # type: ignore[union-attr]
    masks_BT = [batch.valid_mask(s) for s in batch.streams if f"{s}_is_pad" in batch and s not in leave_out]
    masks_BT = [mask_BT for mask_BT in masks_BT if mask_BT.shape == shape_BT]
    if not masks_BT:
        raise ConfigError(
            f"no stream has the {shape_BT[1]} steps of the window: got {', '.join(map(repr, batch.streams)) or 'none'}, without "
            f"{', '.join(map(repr, leave_out)) or 'any'}. Ask for one more stream, or use batch.valid_mask(stream)."
        )
    return torch.stack(masks_BT).any(0)


def octo_masks(batch: Batch, *, action: str = "action") -> dict[str, Any]:
    """Return the masks of an Octo batch, True = real data, in Octo's nesting.

    Returns:
        `observation`: `timestep_pad_mask` (B, T) and `pad_mask_dict`, stream → (B, T); `task`: `pad_mask_dict`, text stream →
        (B,); `action_pad_mask`, of the action's shape.

    Raises:
        ConfigError: The batch has no stream `action`, or no other one.
    """
    valid = {stream: batch.valid_mask(stream) for stream in batch.streams}
    mask_BT, action_BTA = batch.valid_mask(action), batch[action]
    assert isinstance(action_BTA, torch.Tensor)
    while mask_BT.ndim < action_BTA.ndim:
        mask_BT = mask_BT.unsqueeze(-1)
    return {
        "observation": {
            "timestep_pad_mask": step_mask(batch, leave_out=(action,)),
            "pad_mask_dict": {s: mask for s, mask in valid.items() if s != action and f"{s}_is_pad" in batch},
        },
        "task": {"pad_mask_dict": {s: mask for s, mask in valid.items() if f"{s}_is_pad" not in batch}},
        "action_pad_mask": mask_BT.expand(action_BTA.shape).contiguous(),
    }


def torchrl_masks(batch: Batch) -> dict[Any, torch.Tensor]:
    """Return what TorchRL expects of padded trajectories: `mask` (B, T), True = real, and the flags of the next step (B, T, 1).

    `("next", "done")` ends an episode: `terminated` in a terminal state, `truncated` where it was cut off. Steps that are
    padding carry no flag.
    """
    mask_BT = step_mask(batch)
    is_last_BT, is_terminal_BT = batch["is_last"], batch["is_terminal"]
    assert isinstance(is_last_BT, torch.Tensor) and isinstance(is_terminal_BT, torch.Tensor)
    flags = {"done": is_last_BT, "terminated": is_terminal_BT, "truncated": is_last_BT & ~is_terminal_BT}
    return {"mask": mask_BT, **{("next", name): (flag_BT & mask_BT).unsqueeze(-1) for name, flag_BT in flags.items()}}

"""A tiny latent world model: encode pictures, roll latents forward under actions, decode pictures and rewards.

Small enough to train for a few hundred train_steps on one CPU core in seconds, real enough to use everything a
batch holds: pictures, actions, proprioception on another clock, rewards, and the masks.
"""

# Shapes: B windows, T steps, C channels, H height, W width, Z latent size

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.nn import functional as F

from trajload.collate.batch import Batch
from trajload.demo.barcode import barcode_height
from trajload.rng import key_u64

__all__ = ["Losses", "WorldModel", "make_model", "make_optimizer"]

LATENT = 48
HIDDEN = 96
_PICTURE = (28, 32)
"""Height and width of the pictures the model works on."""
_PATCH = 4
_LOW = (32, 7, 8)
"""Channels, height and width of the grid of patches between pixels and latent."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Scalars of one train_step; `total` is what is minimised."""

    total: Tensor
    reconstruction: Tensor
    prediction: Tensor
    reward: Tensor


class WorldModel(nn.Module):
    """z[t] = encode(x[t]); h[t] = GRU(z[t], proprioception[t], action[t]); h[t] predicts z[t+1] and reward[t+1]."""

    def __init__(self, *, action_size: int, proprioception_size: int) -> None:
        super().__init__()
        channels, height, width = _LOW
        flat = channels * height * width
        # Pictures are worked on as a grid of patches of 4 x 4 pixels, whose values are channels: with strided
        # convolutions on pixels a train_step costs three times the CPU and learns no more.
        values = 3 * _PATCH * _PATCH
        self.encoder = nn.Sequential(
            nn.Conv2d(values, 24, 1),
            nn.SiLU(),
            nn.Conv2d(24, channels, 3, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(flat, LATENT),
        )
        self.dynamics = nn.GRU(LATENT + action_size + proprioception_size, HIDDEN, batch_first=True)
        self.next_latent = nn.Linear(HIDDEN, LATENT)
        self.reward = nn.Linear(HIDDEN, 1)
        self.expand = nn.Linear(LATENT, flat)
        self.decoder = nn.Sequential(nn.SiLU(), nn.Conv2d(channels, values, 1))

    def patches(self, rgb_BTCHW: Tensor) -> Tensor:
        """Return uint8 pictures as the model sees them: barcode cut off, small, in [-0.5, 0.5], (B, T, 48, 7, 8)."""
        cut = rgb_BTCHW[..., barcode_height(rgb_BTCHW.shape[-1]) :, :].flatten(0, 1)
        if cut.shape[-2:] == (2 * _PICTURE[0], 2 * _PICTURE[1]):
            # The exact average of 2 x 2 in integers: a sixth of the time of torch's pooling on CPU.
            rows = cut[..., ::2, :].to(torch.int16) + cut[..., 1::2, :]
            small = (rows[..., ::2] + rows[..., 1::2]).float() / 4.0
        else:
            small = F.interpolate(cut.float(), size=_PICTURE, mode="area")
        return F.pixel_unshuffle(small / 255.0 - 0.5, _PATCH).unflatten(0, rgb_BTCHW.shape[:2])

    def encode(self, x_BTCHW: Tensor) -> Tensor:
        """Return latents (B, T, Z) of patches."""
        return self.encoder(x_BTCHW.flatten(0, 1)).unflatten(0, x_BTCHW.shape[:2])

    def decode(self, z_BTZ: Tensor) -> Tensor:
        """Return patches (B, T, 48, 7, 8) of latents."""
        low = self.expand(z_BTZ.flatten(0, 1)).unflatten(1, _LOW)
        return self.decoder(low).unflatten(0, z_BTZ.shape[:2])

    def losses(self, batch: Batch) -> Losses:
        """Return the losses of one batch; steps that a mask calls unreal count nowhere."""
        values: dict[str, Any] = batch
        x_BTCHW = self.patches(values["cam_front"])
        real_BT = batch.valid_mask("cam_front").float()
        pair_BT = real_BT[:, 1:] * real_BT[:, :-1]
        z_BTZ = self.encode(x_BTCHW)
        inputs = torch.cat([z_BTZ, values["action"], values["proprioception"]], dim=-1)
        hidden, _ = self.dynamics(inputs[:, :-1])
        ahead_BTZ = self.next_latent(hidden)
        reconstruction = _masked_mean((self.decode(z_BTZ) - x_BTCHW).square().mean(dim=(2, 3, 4)), real_BT)
        prediction = _masked_mean((self.decode(ahead_BTZ) - x_BTCHW[:, 1:]).square().mean(dim=(2, 3, 4)), pair_BT)
        reward_BT = self.reward(hidden).squeeze(-1)
        reward = _masked_mean((reward_BT - values["reward"][:, 1:].reshape(reward_BT.shape)).square(), pair_BT)
        consistency = _masked_mean((ahead_BTZ - z_BTZ[:, 1:].detach()).square().mean(dim=-1), pair_BT)
        total = reconstruction + prediction + 0.1 * reward + 0.01 * consistency
        return Losses(total, reconstruction, prediction, reward)


def _masked_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return (value_BT * mask_BT).sum() / mask_BT.sum().clamp(min=1.0)


def make_model(seed: int, *, action_size: int = 2, proprioception_size: int = 4) -> WorldModel:
    """Return a model whose weights are a function of the arguments; no global generator is drawn from."""
    with torch.device("meta"):
        model = WorldModel(action_size=action_size, proprioception_size=proprioception_size)
    model.to_empty(device="cpu")
    # torch takes seeds of 63 bits and a sign
    generator = torch.Generator().manual_seed(key_u64(seed, "demo-init")[0] >> 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.zero_()
            else:
                fan_in = parameter[0].numel()
                parameter.normal_(0.0, fan_in**-0.5, generator=generator)
    return model


def make_optimizer(model: WorldModel, *, learning_rate: float = 2e-3) -> torch.optim.Adam:
    """Return the optimiser of the demo: Adam, one fixed learning rate."""
    return torch.optim.Adam(model.parameters(), lr=learning_rate)


def weights_digest(model: torch.nn.Module) -> str:
    """Return a hex digest of all parameters and buffers, by name."""
    digest = xxhash.xxh3_128()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)} ".encode())
        digest.update(value.contiguous().numpy())
    return digest.hexdigest()

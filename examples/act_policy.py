"""Train a policy that answers with a chunk of actions, in the manner of ACT, and ensemble its chunks over one episode.

usage: python examples/act_policy.py [dataset] [--steps 300]
       Without a dataset, the demo's is generated in ./demo-dataset. Less than a minute on one CPU core.

It sees two pictures and where it stands, and says the next 10 actions at once. Training is that of a conditional
autoencoder: an encoder sees the recorded chunk and leaves a few numbers about its style, which are zero when acting.
What matters on the way are the masks: chunks near an episode's end hold actions that nobody took.
"""

# Shapes: B windows, N pictures of the history, K steps of a chunk, D action size, W model width, C H W of pictures

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trajload as tl
from trajload.demo.barcode import barcode_height
from trajload.demo.job import prepare_dataset

CHUNK, BATCH, SIZE = 10, 32, 32
HISTORY = [-4, 0]  # steps from now: two pictures tell how things move
WIDTH, STYLE = 64, 8

WINDOW = tl.Window(
    delta_indices={
        "cam_front": HISTORY,
        "action": range(CHUNK),
    },  # proprioception has no deltas: its step is the anchor
    # Every step of an episode is an anchor, the first and the last ones too. Outside the episode the nearest row stands:
    # right for pictures, since a robot that has just been switched on also sees only the present. Actions are masked.
    pad="edge",
)


class ACT(nn.Module):
    """Pictures, proprioception and style become tokens; one query for each step of the chunk asks them for its action."""

    def __init__(self, action_size: int, state_size: int) -> None:
        super().__init__()
        self.patches = nn.Sequential(
            nn.PixelUnshuffle(4), nn.Conv2d(48, 64, 1), nn.SiLU(), nn.Conv2d(64, WIDTH, 3, 2, 1)
        )
        self.place = nn.Parameter(0.1 * torch.randn(len(HISTORY), 16, WIDTH))  # which picture, and where in it
        self.state, self.action = nn.Linear(state_size, WIDTH), nn.Linear(action_size, WIDTH)
        self.when = nn.Parameter(0.1 * torch.randn(CHUNK, WIDTH))
        self.query = nn.Parameter(0.1 * torch.randn(CHUNK, WIDTH))
        self.summary = nn.Parameter(0.1 * torch.randn(1, WIDTH))
        # No dropout: it would draw from torch's global generator, and small models on short runs have no need of it.
        layer: dict[str, Any] = {
            "nhead": 4,
            "dim_feedforward": 128,
            "dropout": 0.0,
            "batch_first": True,
            "norm_first": True,
        }
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, **layer), 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, **layer), 2)
        self.style, self.from_style = nn.Linear(WIDTH, 2 * STYLE), nn.Linear(STYLE, WIDTH)
        self.out = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, action_size))

    def encode(self, action_BKD: Tensor, is_pad_BK: Tensor, state_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log variance of a recorded chunk's style. Actions that are padding are not attended to."""
        state_B1W = self.state(state_BS)[:, None]
        tokens = torch.cat(
            [self.summary.expand(len(state_BS), -1, -1), state_B1W, self.action(action_BKD) + self.when], 1
        )
        is_hidden = F.pad(is_pad_BK, (2, 0))  # summary and state are never hidden
        mean, log_var = self.style(self.encoder(tokens, src_key_padding_mask=is_hidden)[:, 0]).chunk(2, -1)
        return mean, log_var

    def forward(self, rgb_BNCHW: Tensor, state_BS: Tensor, style_BZ: Tensor) -> Tensor:
        """Return the chunk (B, K, D), in the normalizer's units."""
        grid = self.patches(rgb_BNCHW.flatten(0, 1)).flatten(2).transpose(1, 2)
        seen = (grid.unflatten(0, rgb_BNCHW.shape[:2]) + self.place).flatten(1, 2)
        memory = torch.cat([seen, self.state(state_BS)[:, None], self.from_style(style_BZ)[:, None]], 1)
        return self.out(self.decoder(self.query.expand(len(memory), -1, -1), memory))


def inputs(batch: tl.Batch, top: int) -> tuple[Tensor, Tensor]:
    """Return pictures in [-0.5, 0.5] and proprioception (B, S). `top` rows are grey: the demo writes the frame's number there."""
    values: dict[str, Any] = batch
    rgb_BNCHW = values["cam_front"].float() / 255.0 - 0.5
    rgb_BNCHW[..., :top, :] = 0.0
    return rgb_BNCHW, values["proprioception"][:, 0]


def losses(model: ACT, batch: tl.Batch, noise: torch.Generator, top: int) -> dict[str, Tensor]:
    """Return the loss and its parts. Actions beyond an episode's end count nowhere, neither as aim nor in the mean."""
    values: dict[str, Any] = batch
    rgb_BNCHW, state_BS = inputs(batch, top)
    action_BKD, is_pad_BK = values["action"], values["action_is_pad"]
    mean, log_var = model.encode(action_BKD, is_pad_BK, state_BS)
    style_BZ = mean + (0.5 * log_var).exp() * torch.randn(mean.shape, generator=noise)
    error_BK = (model(rgb_BNCHW, state_BS, style_BZ) - action_BKD).abs().mean(-1)
    action = error_BK.masked_fill(is_pad_BK, 0.0).sum() / (~is_pad_BK).sum()
    kl = 0.5 * (mean.square() + log_var.exp() - 1.0 - log_var).sum(-1).mean()
    return {"loss": action + 0.1 * kl, "action": action, "kl": kl}


def ensemble(chunk_TKD: Tensor, decay: float = 0.1) -> Tensor:
    """Return for each step the weighted mean of all chunks that reach it, oldest first by exp(-decay * i): (T, D).

    Chunk t says the actions of steps t, t + 1, ...; so step t is said by chunks t - K + 1 to t, where there are those.
    """
    num_steps, length, _ = chunk_TKD.shape
    out_TD = torch.zeros_like(chunk_TKD[:, 0])
    for t in range(num_steps):
        made = torch.arange(max(0, t - length + 1), t + 1)  # when the chunks were made, oldest first
        said = chunk_TKD[made, t - made]
        weight = torch.exp(-decay * torch.arange(len(made)))
        out_TD[t] = (weight[:, None] * said).sum(0) / weight.sum()
    return out_TD


@torch.no_grad()
def evaluate(model: ACT, loader: tl.Loader, normalizer: tl.Normalizer, top: int) -> dict[str, tuple[float, float]]:
    """Return over one episode, in the units recorded: how far the guesses are off, and how far they jump from step to step.

    The pictures are the recorded ones: this is what the policy would do at each step had all before gone as recorded.
    """
    chunks, taken = [], []
    for batch in loader:
        values: dict[str, Any] = batch
        rgb_BNCHW, state_BS = inputs(batch, top)
        chunk_BKD = model(rgb_BNCHW, state_BS, torch.zeros(len(state_BS), STYLE))
        real_B = ~values["row_is_pad"]  # the last batch of a finite run is filled up
        chunks.append(chunk_BKD[real_B])
        taken.append(values["action"][real_B, 0])
    chunk_TKD = normalizer.denormalize(torch.cat(chunks), "action")
    taken_TD = normalizer.denormalize(torch.cat(taken), "action")
    guesses = {
        "first of each chunk": chunk_TKD[:, 0],
        "ensembled": ensemble(chunk_TKD),
        "mean action": taken_TD.mean(0).expand_as(taken_TD),
    }
    return {
        name: ((guess - taken_TD).abs().mean().item(), guess.diff(dim=0).abs().mean().item())
        for name, guess in guesses.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "dataset", nargs="?", type=Path, help="with cam_front, proprioception, action; default: the demo's"
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--log-every", type=int, default=25)
    args = parser.parse_args()

    # One thread: the sum of many numbers then does not depend on how many cores are there. The loader has its own threads.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = tl.open(args.dataset or prepare_dataset("demo-dataset", num_episodes=24, seed=0))
    top = barcode_height(SIZE) if dataset.name == "trajload-demo" else 0
    # As a transform it runs in the loader's threads; below it turns the policy's answers back into forces.
    normalizer = tl.Normalizer.from_dataset(dataset, {"action": "mean_std", "proprioception": "mean_std"})
    parts = tl.split(dataset, {"train": 0.9, "val": 0.1}, seed=0)
    arguments: dict[str, Any] = {
        "window": WINDOW,
        "global_batch_size": BATCH,
        "seed": 0,
        "streams": {
            "cam_front": tl.Image(size=(SIZE, SIZE)),
            "proprioception": tl.Signal(
                align="previous"
            ),  # 100 Hz on its own clock; a policy knows nothing of the future
            "action": tl.Signal(),
        },
        "transforms": [normalizer],
    }
    model = ACT(dataset.spec("action").shape[0], dataset.spec("proprioception").shape[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    noise = torch.Generator().manual_seed(0)
    with tl.Loader(dataset, episodes=parts["train"], order="interleaved", **arguments) as loader:
        since = time.perf_counter()
        for batch in loader:
            if batch.train_step >= args.steps:
                break
            told = losses(model, batch, noise, top)
            optimizer.zero_grad()
            told["loss"].backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            done = batch.train_step + 1
            if done % args.log_every == 0 or done == args.steps:
                numbers = "  ".join(f"{name} {value.item():.9g}" for name, value in told.items())
                speed = args.log_every * BATCH / (time.perf_counter() - since)
                print(f"train_step {done}  {numbers}  windows/s {speed:.0f}", flush=True)
                since = time.perf_counter()

    # One episode that was not trained on, step by step: sequential order, every step an anchor, one epoch.
    episode = int(parts["val"][0])
    with tl.Loader(dataset, episodes=[episode], order="sequential", num_epochs=1, **arguments) as loader:
        for name, (error, jump) in evaluate(model, loader, normalizer, top).items():
            print(f"episode {episode}, {name}: off by {error:.4g}, jumps by {jump:.4g}")


if __name__ == "__main__":
    main()

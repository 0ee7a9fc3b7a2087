"""Train a recurrent state-space model (RSSM) on video with actions; kill it whenever you like, and go on with --resume.

usage: python examples/rssm_world_model.py [dataset] [--steps 300] [--resume]
       Without a dataset, the demo's is generated in ./demo-dataset. About half a minute on one CPU core.

The model is the one that Dreamer made popular, as small as it can be: a deterministic state h, moved on by a GRU under
actions, and a stochastic state s, which a prior guesses from h and a posterior corrects by looking at the picture.
What is learned: pictures, rewards, and priors that come true. At the end it imagines a few windows with its eyes shut.
"""

# Shapes: B windows, T steps, C channels, H height, W width, F feature (h and s together), Z stochastic size

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trajload as tl
from trajload.demo.barcode import barcode_height
from trajload.demo.job import prepare_dataset

NUM_STEPS, BATCH, SIZE = 16, 16, 32
HIDDEN, Z, EMBED = 128, 24, 128
CONTEXT = 6  # steps that are seen before imagination begins


class Gaussian(NamedTuple):
    mean: Tensor
    std: Tensor

    def sample(self, noise: torch.Generator) -> Tensor:
        return self.mean + self.std * torch.randn(self.mean.shape, generator=noise)

    def detach(self) -> Gaussian:
        return Gaussian(self.mean.detach(), self.std.detach())


def kl(p: Gaussian, q: Gaussian) -> Tensor:
    """KL(p || q), summed over the last axis."""
    ratio = (p.std / q.std).square()
    return 0.5 * (ratio + ((p.mean - q.mean) / q.std).square() - 1.0 - ratio.log()).sum(-1)


class RSSM(nn.Module):
    """h[t] = GRU(h[t-1], s[t-1], a[t-1]); prior p(s[t] | h[t]); posterior q(s[t] | h[t], picture[t])."""

    def __init__(self, action_size: int) -> None:
        super().__init__()
        # Pictures are worked on as a grid of patches of 4 x 4 pixels: on a CPU a quarter of the time of strided convolutions.
        self.encoder = nn.Sequential(
            *(nn.PixelUnshuffle(4), nn.Conv2d(48, 32, 1), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1), nn.SiLU()),
            *(nn.Flatten(), nn.Linear(32 * 8 * 8, EMBED), nn.SiLU()),
        )
        self.decoder = nn.Sequential(
            *(nn.Linear(HIDDEN + Z, 32 * 8 * 8), nn.SiLU(), nn.Unflatten(1, (32, 8, 8))),
            *(nn.Conv2d(32, 48, 1), nn.PixelShuffle(4)),
        )
        self.into = nn.Linear(Z + action_size, HIDDEN)
        self.cell = nn.GRUCell(HIDDEN, HIDDEN)
        self.prior = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 2 * Z))
        self.posterior = nn.Sequential(nn.Linear(HIDDEN + EMBED, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 2 * Z))
        self.reward = nn.Sequential(nn.Linear(HIDDEN + Z, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 1))
        # Two ways to begin: at the first step of an episode nothing has happened yet; anywhere else something has, and
        # the window does not say what. One learned vector each lets the model tell them apart.
        self.start_of_episode = nn.Parameter(torch.zeros(HIDDEN))
        self.start_of_window = nn.Parameter(torch.zeros(HIDDEN))

    def forward(
        self, x_BTCHW: Tensor, action_BTD: Tensor, is_first_BT: Tensor, noise: torch.Generator, seen: int | None = None
    ) -> tuple[Tensor, Gaussian, Gaussian]:
        """Return features (B, T, F), priors and posteriors of all steps; from step `seen` on pictures are not looked at."""
        num_windows, num_steps = action_BTD.shape[:2]
        embed_BTE = self.encoder(x_BTCHW.flatten(0, 1)).unflatten(0, (num_windows, num_steps))
        h = self.start_of_window.expand(num_windows, -1)
        s, action = torch.zeros(num_windows, Z), torch.zeros_like(action_BTD[:, 0])
        features, priors, posteriors = [], [], []
        for t in range(num_steps):
            if t > 0:
                action = action_BTD[:, t - 1]  # action[t] is taken at step t: it moves step t to step t + 1
                h = self.cell(F.silu(self.into(torch.cat([s, action], -1))), h)
            # Reset where an episode begins. Windows never cross episodes, so here that is at t = 0 or nowhere; with
            # order="continuous" and h carried from batch to batch the same line is what makes it right.
            h = torch.where(is_first_BT[:, t, None], self.start_of_episode, h)
            prior = gaussian(self.prior(h))
            posterior = gaussian(self.posterior(torch.cat([h, embed_BTE[:, t]], -1)))
            s = (posterior if seen is None or t < seen else prior).sample(noise)
            features.append(torch.cat([h, s], -1))
            priors.append(prior)
            posteriors.append(posterior)
        return torch.stack(features, 1), stack(priors), stack(posteriors)

    def pictures(self, feature_BTF: Tensor) -> Tensor:
        """Return decoded pictures (B, T, 3, H, W) in [-0.5, 0.5]."""
        return self.decoder(feature_BTF.flatten(0, 1)).unflatten(0, feature_BTF.shape[:2])


def gaussian(x: Tensor) -> Gaussian:
    mean, raw = x.chunk(2, -1)
    return Gaussian(mean, F.softplus(raw) + 0.1)


def stack(steps: list[Gaussian]) -> Gaussian:
    return Gaussian(torch.stack([g.mean for g in steps], 1), torch.stack([g.std for g in steps], 1))


def masked_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.where(mask_BT, value_BT, 0.0).sum() / mask_BT.sum().clamp(min=1)


def to_float(rgb_BTCHW: Tensor, top: int) -> Tensor:
    """Return uint8 pictures in [-0.5, 0.5]; `top` rows are grey: the demo writes the frame's number there in black and white."""
    x = rgb_BTCHW.float() / 255.0 - 0.5
    x[..., :top, :] = 0.0
    return x


def losses(model: RSSM, batch: tl.Batch, noise: torch.Generator, top: int) -> dict[str, Tensor]:
    """Return the total loss and its parts; steps that are padding count nowhere."""
    values: dict[str, Any] = batch
    x_BTCHW = to_float(values["cam_front"], top)
    feature_BTF, prior, posterior = model(x_BTCHW, values["action"], values["is_first"], noise)
    # Each stream has its own mask: a camera may be missing in an episode whose rewards are there.
    seen_BT, rewarded_BT = batch.valid_mask("cam_front"), batch.valid_mask("reward")
    error_BT = (model.pictures(feature_BTF) - x_BTCHW).square().sum((2, 3, 4))
    picture = masked_mean(error_BT, seen_BT)
    reward = masked_mean((model.reward(feature_BTF).squeeze(-1) - values["reward"]).square(), rewarded_BT)
    # Most of the pull goes to the prior: it shall come true, rather than the posterior become vague. One nat is free.
    pull_BT = 0.8 * kl(posterior.detach(), prior) + 0.2 * kl(posterior, prior.detach())
    surprise = masked_mean(pull_BT.clamp(min=1.0), seen_BT)
    return {"loss": 20.0 * picture + 10.0 * reward + surprise, "picture": picture, "reward": reward, "kl": surprise}


@torch.no_grad()
def imagine(model: RSSM, batch: tl.Batch, top: int) -> tuple[float, float]:
    """Return the error of pictures imagined after CONTEXT steps, and that of repeating the last one seen."""
    values: dict[str, Any] = batch
    x_BTCHW = to_float(values["cam_front"], top)
    noise = torch.Generator().manual_seed(1)
    feature_BTF, _, _ = model(x_BTCHW, values["action"], values["is_first"], noise, seen=CONTEXT)
    ahead_BT = batch.valid_mask("cam_front")[:, CONTEXT:]

    def error(guess_BTCHW: Tensor) -> float:
        return masked_mean((guess_BTCHW - x_BTCHW[:, CONTEXT:]).square().sum((2, 3, 4)), ahead_BT).item()

    return error(model.pictures(feature_BTF)[:, CONTEXT:]), error(x_BTCHW[:, CONTEXT - 1 : CONTEXT])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", type=Path, help="with cam_front, action and reward; default: the demo's")
    parser.add_argument("--steps", type=int, default=300, help="train_steps in all")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")
    parser.add_argument("--checkpoints", type=Path, default=Path("rssm-checkpoints"), help="folder")
    parser.add_argument("--checkpoint-every", type=int, default=50)
    parser.add_argument("--log-every", type=int, default=25)
    args = parser.parse_args()

    # One thread: the sum of many numbers then does not depend on how many cores are there. The loader has its own threads.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = tl.open(args.dataset or prepare_dataset("demo-dataset", num_episodes=24, seed=0))
    top = barcode_height(SIZE) if dataset.name == "trajload-demo" else 0
    loader = tl.Loader(
        dataset,
        window=tl.Window(num_steps=NUM_STEPS, pad="edge"),  # the last steps of an episode start windows too, masked
        global_batch_size=BATCH,
        seed=0,
        # Windows that share frames come close together, each in another batch: the frames are decoded once.
        order="interleaved",
        streams={"cam_front": tl.Image(size=(SIZE, SIZE)), "action": tl.Signal(), "reward": tl.Signal()},
    )
    model = RSSM(action_size=dataset.spec("action").shape[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    noise = torch.Generator().manual_seed(0)
    checkpointer = tl.Checkpointer(
        args.checkpoints,
        {"model": model, "optimizer": optimizer, "loader": loader},
        rng=tl.Streams(noise=noise),  # what the model draws from, and the generators that belong to everybody
        every=tl.Every(steps=args.checkpoint_every),
        resume="auto" if args.resume else "off",
    )
    with loader, checkpointer:
        # Refuses another model, dataset or other windows, and says what differs.
        if not checkpointer.resume().fresh:
            print(f"resumed at train_step {loader.train_step}", flush=True)
        since, num_windows = time.perf_counter(), 0
        for batch in loader:
            if batch.train_step >= args.steps:
                break
            parts = losses(model, batch, noise, top)
            optimizer.zero_grad()
            parts["loss"].backward()
            nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            optimizer.step()
            done, num_windows = batch.train_step + 1, num_windows + BATCH
            if done % args.log_every == 0 or done == args.steps:
                # Nine digits tell any two float32 apart: a resumed run prints the same ones.
                told = "  ".join(f"{name} {value.item():.9g}" for name, value in parts.items())
                speed = num_windows / (time.perf_counter() - since)
                print(f"train_step {done}  {told}  windows/s {speed:.0f}", flush=True)
                since, num_windows = time.perf_counter(), 0
            if not checkpointer.step(done) and done == args.steps:
                checkpointer.save(done)
        imagined, repeated = imagine(model, loader.batch_at(args.steps), top)  # a batch that was not trained on
        print(f"imagined pictures: error {imagined:.4g}, against {repeated:.4g} by repeating the last one seen")


if __name__ == "__main__":
    main()

"""Windows of state only, against an in-RAM NumPy loader, TorchRL's SliceSampler where it is installed, and the limit.

    python benchmarks/state_windows.py             # writes benchmarks/results/state_windows.json

1,000 episodes of 200 to 400 steps, observation (17,), action (6,), reward (), float32, seeded; 32-step windows, batch
256, every window anywhere in the data. "limit" is what a copy of the same rows costs when all rows stand in one tensor
in memory and the row numbers are known: one `index_select` a stream. The in-RAM loader draws windows and gathers rows with NumPy.
Rivals' rows are compared with the stored episodes before anything is timed. Rounds are interleaved; the figures are the
median of the rounds and their range.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import trajload as tl
from trajload.rng import key_rng
from trajload.spec import StreamSpec
from trajload.types import Modality

sys.path.insert(0, str(Path(__file__).parent))
from _common import summary, write_result

NUM_EPISODES, NUM_STEPS, BATCH, RATE_HZ = 1_000, 32, 256, 30
STREAMS = {
    "observation": (Modality.PROPRIOCEPTION, (17,)),
    "action": (Modality.ACTION, (6,)),
    "reward": (Modality.REWARD, ()),
}
Make = Callable[[], Any]
"""Makes the next batch."""


def generate(folder: Path) -> dict[str, np.ndarray]:
    """Write the dataset and return its streams, all episodes joined; `first` holds where each begins."""
    rng = key_rng(11, "state-windows")
    specs = [
        StreamSpec(name=name, modality=modality, encoding="npy", shape=shape, dtype="float32")
        for name, (modality, shape) in STREAMS.items()
    ]
    parts: dict[str, list[np.ndarray]] = {name: [] for name in STREAMS}
    lengths = rng.integers(200, 401, NUM_EPISODES)
    with tl.Writer(folder, streams=specs, step_rate_hz=RATE_HZ) as writer:
        for length in lengths.tolist():
            values = {
                name: rng.standard_normal((length, *shape), dtype=np.float32) for name, (_, shape) in STREAMS.items()
            }
            writer.add_episode(values)
            for name, value in values.items():
                parts[name].append(value)
    return {
        **{name: np.concatenate(values) for name, values in parts.items()},
        "first": np.concatenate([[0], np.cumsum(lengths)]),
    }


def draw_rows(data: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Return the rows (B, T) of windows drawn uniformly over all windows."""
    first_E1 = data["first"]
    count_E = np.diff(first_E1) - NUM_STEPS + 1
    end_E = np.cumsum(count_E)
    draw_B = rng.integers(0, end_E[-1], BATCH)
    episode_B = np.searchsorted(end_E, draw_B, side="right")
    start_B = first_E1[episode_B] + draw_B - (end_E[episode_B] - count_E[episode_B])
    return np.asarray(start_B[:, None] + np.arange(NUM_STEPS))


def in_ram_numpy(data: dict[str, np.ndarray]) -> Make:
    rng = key_rng(12, "in-ram")

    def make() -> dict[str, torch.Tensor]:
        rows = draw_rows(data, rng)
        return {name: torch.from_numpy(data[name][rows]) for name in STREAMS}

    return make


def limit(data: dict[str, np.ndarray]) -> Make:
    """Return index_select alone: rows are drawn before."""
    rng = key_rng(13, "limit")
    rows = [torch.from_numpy(draw_rows(data, rng).reshape(-1)) for _ in range(64)]
    tensors = {name: torch.from_numpy(data[name]) for name in STREAMS}
    turn = iter(range(10**12))

    def make() -> dict[str, torch.Tensor]:
        index = rows[next(turn) % len(rows)]
        return {
            name: torch.index_select(tensor, 0, index).view(BATCH, NUM_STEPS, *tensor.shape[1:])
            for name, tensor in tensors.items()
        }

    return make


def torchrl(data: dict[str, np.ndarray]) -> Make | None:
    """Return TorchRL's replay buffer over the same rows in memory, or None where it is not installed."""
    try:
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
    except ImportError:
        return None
    num_rows = len(data["reward"])
    episode = np.repeat(np.arange(NUM_EPISODES), np.diff(data["first"]))
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(num_rows),
        sampler=SliceSampler(slice_len=NUM_STEPS, traj_key="episode", strict_length=True, cache_values=True),
        batch_size=BATCH * NUM_STEPS,
    )
    columns = {name: torch.from_numpy(data[name]) for name in STREAMS}
    buffer.extend(TensorDict({**columns, "episode": torch.from_numpy(episode)}, batch_size=[num_rows]))

    def make() -> dict[str, torch.Tensor]:
        sample = buffer.sample()
        return {name: sample[name].reshape(BATCH, NUM_STEPS, *data[name].shape[1:]) for name in STREAMS}

    return make


def check_trajload(batch: tl.Batch, data: dict[str, np.ndarray]) -> None:
    """Raise unless every row holds the stored rows that its reference names."""
    for b, ref in enumerate(batch.refs):
        start = data["first"][ref.episode_index] + ref.start
        for name in STREAMS:
            value = batch[name]
            assert isinstance(value, torch.Tensor)
            np.testing.assert_array_equal(value[b].numpy(), data[name][start : start + NUM_STEPS])


def check_rival(batch: dict[str, torch.Tensor], data: dict[str, np.ndarray]) -> None:
    """Raise unless every window is a run of rows of one episode, the same in each stream."""
    place = {row.tobytes(): i for i, row in enumerate(data["observation"])}
    for b in range(BATCH):
        start = place[batch["observation"][b, 0].numpy().tobytes()]
        episode = np.searchsorted(data["first"], [start, start + NUM_STEPS - 1], side="right")
        assert episode[0] == episode[1]
        for name in STREAMS:
            np.testing.assert_array_equal(batch[name][b].numpy(), data[name][start : start + NUM_STEPS])


def rate(make: Make, seconds: float) -> float:
    """Return windows per second."""
    num_batches, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        make()
        num_batches += 1
    return num_batches * BATCH / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="result file; default benchmarks/results/state_windows.json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round and each contestant")
    parser.add_argument("--torch-threads", type=int, default=1, help="of index_select and of TorchRL's gathers")
    args = parser.parse_args()
    torch.set_num_threads(args.torch_threads)
    with tempfile.TemporaryDirectory() as folder:
        data = generate(Path(folder) / "state")
        dataset = tl.open(Path(folder) / "state")
        loaders = {
            f"trajload, {n} threads" if n else "trajload, calling thread": tl.Loader(
                dataset,
                window=tl.Window(num_steps=NUM_STEPS),
                global_batch_size=BATCH,
                seed=1,
                num_workers=n,
                rank=0,
                world_size=1,
            )
            for n in (0, 1, 2)
        }
        iterators: dict[str, Iterator[tl.Batch]] = {name: iter(loader) for name, loader in loaders.items()}
        for name, loader in loaders.items():
            batch = next(iterators[name])
            check_trajload(batch, data)
            assert batch.digest() == loader.batch_at(0).digest()
        makes: dict[str, Make] = {name: it.__next__ for name, it in iterators.items()}
        rivals = {"in-RAM NumPy": in_ram_numpy(data), "limit (index_select)": limit(data), "TorchRL": torchrl(data)}
        for name, make in rivals.items():
            if make is not None:
                check_rival(make(), data)
                makes[name] = make
        for make in makes.values():
            rate(make, args.seconds)  # every episode is met, every cache filled
        rates: dict[str, list[float]] = {name: [] for name in makes}
        for _ in range(args.rounds):
            for name, make in makes.items():
                rates[name].append(rate(make, args.seconds))
        for name, loader in loaders.items():
            iterators[name].close()  # type: ignore[attr-defined]
            loader.close()
    result: dict[str, Any] = {
        "windows_per_s": {name: summary(values) for name, values in rates.items()},
        "torch_threads": torch.get_num_threads(),
    }
    for name, values in result["windows_per_s"].items():
        print(f"{name:24} {values['median']:12,.0f} windows/s ({values['min']:,.0f} to {values['max']:,.0f})")
    print(f"-> {write_result('state_windows', result, args.json)}")


if __name__ == "__main__":
    main()

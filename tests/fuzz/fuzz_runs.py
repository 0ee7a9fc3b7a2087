"""Random runs of random loaders over random datasets: what they deliver is what `batch_at` gives, come what may.

usage: scripts/fuzz [--seed N] [--num-worlds N]; one seed repeats one world with all its runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

import fuzz_truth as truth
import numpy as np
from fuzz_truth import pick

import trajload as tl
from trajload.errors import ConfigError, WindowError


def random_loader(rng: np.random.Generator, world: truth.World) -> dict[str, Any]:
    """Return what decides the batches of a loader."""
    streams: dict[str, Any] = {}
    for spec in world.specs:
        options: dict[str, Any] = {"on_missing": pick(rng, "mask", "mask", "mask", "drop")}
        if spec.clock == "clocked":
            options |= {"align": pick(rng, "nearest", "previous", "exact"), "offset_s": pick(rng, 0.0, 0.001, -0.05)}
            options |= {"on_miss": pick(rng, "mask", "mask", "drop"), "age": not spec.is_text and rng.random() < 0.5}
            if options["align"] != "exact":
                options["tolerance_s"] = pick(rng, None, 0, 0.02, 3.0)
        streams[spec.name] = (tl.Image if spec.is_picture else tl.Signal)(**options)
    num_steps = int(pick(rng, 1, 2, 5, 9))
    deltas = {s.name: sorted({*rng.integers(-6, 9, 3).tolist()}) for s in world.specs if not s.is_text}
    window = tl.Window(
        num_steps=num_steps,
        stride=pick(rng, 1, 2, 7),
        dilation=pick(rng, 1, 3),
        pad=pick(rng, "none", "edge", "zero"),
        history=int(rng.integers(num_steps)),
        delta_indices={name: steps for name, steps in deltas.items() if rng.random() < 0.2},
    )
    order = pick(rng, "shuffled", "sequential", "continuous", tl.Interleaved(block_windows=pick(rng, 1, 4, 16)))
    finite = {"num_epochs": pick(rng, 1, 2), "drop_last": pick(rng, True, False)} if rng.random() < 0.4 else {}
    size = pick(rng, 1, 2, 4, 7)
    return {"streams": streams, "window": window, "order": order, "global_batch_size": size, "seed": 5, **finite}


def random_speed(rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Return what changes no batch."""
    world_size = min(size, pick(rng, 1, 1, 2, 3))
    return {
        "num_workers": pick(rng, 0, 1, 2, 3),
        "prefetch": pick(rng, 1, 3, "auto"),
        "pool_bytes": pick(rng, None, None, 0, 1 << 20),
        "rank": int(rng.integers(world_size)),
        "world_size": world_size,
    }


class Run:
    """A loader that is used at random, beside another one that makes the same batches plainly."""

    def __init__(self, rng: np.random.Generator, world: truth.World, arguments: dict[str, Any]) -> None:
        self.rng, self.world, self.arguments = rng, world, arguments
        self.oracle = tl.Loader(world.path, num_workers=0, rank=0, world_size=1, **arguments)
        self.end = len(self.oracle) if "num_epochs" in arguments else None
        self.cursor, self.states, self.held, self.log = 0, [], [], []
        self.fast = self.fresh()

    def fresh(self) -> tl.Loader:
        size = self.arguments["global_batch_size"]
        self.speed = random_speed(self.rng, size)
        self.log.append(self.speed)
        least, more = divmod(size, self.speed["world_size"])
        first = self.speed["rank"] * least + min(self.speed["rank"], more)
        self.rows = slice(first, first + least + (self.speed["rank"] < more))
        try:
            return tl.Loader(self.world.path, **self.arguments, **self.speed)
        except ConfigError as err:
            if "pool_bytes" not in str(err):  # smaller than one block
                raise
            self.speed["pool_bytes"] = None
            return tl.Loader(self.world.path, **self.arguments, **self.speed)

    def check(self, batch: tl.Batch) -> None:
        """The next batch, byte for byte; some are kept, some written over, by their owner."""
        plain = self.oracle.batch_at(self.cursor, rows=self.rows)
        got = (batch.train_step, batch.digest(), batch.refs, list(batch))
        assert got == (self.cursor, plain.digest(), plain.refs, list(plain))
        self.cursor += 1
        assert self.fast.train_step == self.cursor
        fate = self.rng.integers(4)
        if fate == 0:
            self.held.append((batch, batch.digest()))
        elif fate == 1:
            for value in batch.values():
                for item in value if isinstance(value, list) else [value.zero_()]:
                    if isinstance(item, dict):
                        item.clear()

    def far(self) -> int:
        return int(self.rng.integers(self.end + 1)) if self.end is not None else int(pick(self.rng, 0, 7, 40, 10**9))

    def take(self, batches: Any, most: int) -> None:
        for _ in range(most):
            batch = next(batches, None)
            if batch is None:
                assert self.cursor == self.end
                return
            self.check(batch)
            del batch
            if self.rng.random() < 0.2:
                self.states.append((json.dumps(self.fast.state_dict()), self.cursor))
            if self.rng.random() < 0.1:
                self.cursor = self.far()
                self.fast.seek(self.cursor)

    def step(self) -> None:
        """Do one thing that a user may do."""
        rng, fast = self.rng, self.fast
        action = pick(
            rng, "iterate", "iterate", "two", "load", "seek", "close", "replace", "dataloader", "at", "pickle"
        )
        self.log.append((action, self.cursor))
        if action == "iterate":
            self.take(iter(fast), int(rng.integers(1, 7)))
        elif action == "two":
            one, other = iter(fast), iter(fast)
            for _ in range(3):
                self.take(pick(rng, one, other), 1)
        elif action == "load" and self.states:
            state, self.cursor = self.states[rng.integers(len(self.states))]
            fast.load_state_dict(json.loads(state))
        elif action == "seek":
            self.cursor = self.far()
            fast.seek(self.cursor)
        elif action == "close":
            fast.close()
        elif action == "replace":
            state = json.dumps(fast.state_dict())
            assert len(state) < 4096
            fast.close()
            self.fast = self.fresh()
            self.fast.load_state_dict(json.loads(state))
        elif action == "dataloader":
            steps = int(rng.integers(1, 5))
            stop = (self.cursor // steps + 1) * steps
            for batch in fast.as_dataloader(steps_per_epoch=steps):
                self.check(batch)
                del batch
            assert self.cursor == (stop if self.end is None else min(stop, self.end))
        elif action in ("at", "pickle") and self.end != 0:
            k = int(rng.integers(self.end if self.end is not None else 50))
            batch = fast.batch_at(k)
            if action == "pickle":
                batch = pickle.loads(pickle.dumps(batch))
            assert batch.digest() == self.oracle.batch_at(k, rows=self.rows).digest()

    def close(self) -> None:
        self.fast.close()
        self.oracle.close()


def fuzz(seed: int, num_runs: int, folder: Path) -> int:
    """Make one world and use it in so many runs; return how many there were windows for."""
    rng = np.random.Generator(np.random.Philox(seed))
    world, done = truth.make_world(rng, folder / f"world-{seed}"), 0
    for number in range(num_runs):
        arguments = random_loader(rng, world)
        where = f"seed {seed}, run {number}: {arguments}"
        try:
            run = Run(rng, world, arguments)
        except (ConfigError, WindowError) as err:
            if "leaves no batch" not in str(err) and truth.all_windows(
                world, arguments["streams"], arguments["window"]
            ):
                raise AssertionError(f"{where}: there are windows") from err
            continue
        try:
            for k in {0, (run.end or 10**6) - 1} if run.end != 0 else ():
                truth.check_batch(world, run.oracle.batch_at(k), arguments["streams"], arguments["window"])
            for _ in range(int(rng.integers(2, 7))):
                run.step()
            assert all(batch.digest() == digest for batch, digest in run.held), "a batch that was held has changed"
        except Exception as err:
            raise AssertionError(f"{where}, {run.log}: {type(err).__name__}: {err}") from err
        finally:
            run.close()
        done += 1
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first world")
    parser.add_argument("--num-worlds", type=int, default=None, help="None: until it is stopped")
    arguments = parser.parse_args()
    total = 0
    seeds = itertools.count(arguments.seed)
    for seed in itertools.islice(seeds, arguments.num_worlds):
        with tempfile.TemporaryDirectory() as folder:
            total += fuzz(seed, 10, Path(folder))
        print(f"seed {seed} is fine; {total} runs", flush=True)


if __name__ == "__main__":
    sys.exit(main())

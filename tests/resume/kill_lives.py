"""Run a loader again and again, each life killed with SIGKILL at a random moment, and log what it delivered.

    python kill_lives.py DATASET LOG NUM_KILLS NUM_STEPS

The last life, which is left alone, goes to train_step NUM_STEPS, or to the end of its first batch if that is passed.

One line a train_step goes to LOG in a single write: the digest of each row of the global batch, and the state after it.
So batch and state are kept or lost together, as a training job's checkpoint keeps model and loader together.
Lives differ in ranks, workers and prefetch depth. The children are forked from a process that has imported
everything and started no thread, so that fifty lives take seconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import trajload as tl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))  # as a script it has not the path of the tests
from row_digests import row_digests


def make_loader(dataset: str, rank: int, world_size: int, num_workers: int, prefetch: int) -> tl.Loader:
    return tl.Loader(
        dataset,
        window=tl.Window(num_steps=6, pad="edge"),
        global_batch_size=8,
        seed=11,
        rank=rank,
        world_size=world_size,
        num_workers=num_workers,
        prefetch=prefetch,
    )


def last_state(log: Path) -> dict | None:
    """Return the state of the last whole line; a torn one was never delivered."""
    whole = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    return json.loads(whole[-1])["state"] if whole else None


def life(
    dataset: str, log: Path, world_size: int, num_workers: int, prefetch: int, num_steps: int, started: int
) -> None:
    state = last_state(log)
    loaders = [make_loader(dataset, rank, world_size, num_workers, prefetch) for rank in range(world_size)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    iterators = [iter(loader) for loader in loaders]
    is_first = True
    while is_first or loaders[0].train_step < num_steps:
        is_first, step = False, loaders[0].train_step
        batches = [next(it) for it in iterators]
        line = {
            "train_step": step,
            "rows": [d for batch in batches for d in row_digests(batch)],
            "state": loaders[0].state_dict(),
        }
        os.write(fd, json.dumps(line).encode() + b"\n")
        if started >= 0:
            os.close(started)
            started = -1
        time.sleep(0.004)  # the consumer is slower than the pipeline, so that the prefetch queue is full at the kill
    for loader in loaders:
        loader.close()


def main() -> None:
    dataset, log, num_kills, num_steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    with make_loader(dataset, 0, 1, 0, 1) as loader:
        loader.batch_at(0)
    rng = random.Random(5)
    kills = 0
    while True:
        settings = (rng.choice([1, 2, 4]), rng.choice([0, 1, 4]), rng.choice([1, 2, 8]))
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            try:
                # Until it is killed, however long a busy machine lets it live.
                life(dataset, log, *settings, num_steps if kills >= num_kills else 10**9, write_end)
            except BaseException as err:
                print(f"life failed: {settings}: {type(err).__name__}: {err}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        os.close(write_end)
        os.read(read_end, 1)  # returns at the first delivered batch
        os.close(read_end)
        is_last = kills >= num_kills
        if not is_last:
            time.sleep(rng.uniform(0, 0.06))
            os.kill(pid, signal.SIGKILL)
            kills += 1
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
            raise SystemExit(f"a life ended with {os.WEXITSTATUS(status)}")
        if is_last:
            break
    print(json.dumps({"kills": kills}))


if __name__ == "__main__":
    main()

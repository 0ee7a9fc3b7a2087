"""Through other people's training loops, with lives that are killed: each is given exactly the loader's batches."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import trajload as tl
from trajload.errors import ConfigError

# From 3.12 on Python warns of forks beside threads; workers build loaders of their own and use none of the parent's.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

Make = Callable[..., tl.Loader]
HERE = Path(__file__).parent


GROUPS = {
    "torch": ("threads", "workers", "dcp"),
    "torchdata": ("stateful-0", "stateful-1", "stateful-2", "rows"),
    "lightning": ("lightning", "lightning-workers"),
    "accelerate": ("accelerate", "accelerate-workers"),
}
"""Module that is needed → ways of lives.py that need it."""


def test_every_way_through_is_tested(lives: ModuleType) -> None:
    """What lives.py can do is what is run here."""
    assert [way for group in GROUPS.values() for way in group] == list(lives.THROUGH)


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize(("module", "framework"), [(module, way) for module, group in GROUPS.items() for way in group])
def test_killed_in_the_middle_of_a_pass_and_resumed(
    need: Callable[[str], None], live: Callable[[str, tuple[str, ...]], None], module: str, framework: str
) -> None:
    """Four lives with other numbers of ranks, two resumes from one checkpoint: every rank is given the rows it must be."""
    need(module)
    live(framework, GROUPS[module])


TORCHRUN = """
import json, os, sys
import torch.distributed as dist
import trajload as tl

dist.init_process_group("gloo")
with tl.Loader(sys.argv[1], window=tl.Window(num_steps=4, pad="edge"), global_batch_size=6, seed=11, num_workers=1) as loader:
    got = [batch["window_id"].tolist() for batch in loader.as_dataloader(steps_per_epoch=3)]
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, got)
if dist.get_rank() == 0:
    print(json.dumps(everyone), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.multiproc
def test_torchrun_needs_no_arguments(
    make_loader: Make, demo_dataset: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Ranks come from the environment that torchrun makes; together they have each global batch once."""
    script = tmp_path / "job.py"
    script.write_text(TORCHRUN)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    done = subprocess.run([*launch, str(demo_dataset)], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    with make_loader() as loader:
        for train_step in range(3):
            assert first[train_step] + second[train_step] == loader.batch_at(train_step)["window_id"].tolist()


@pytest.mark.multiproc
@pytest.mark.slow
def test_ray_train_restarts_at_the_last_checkpoint(
    make_loader: Make, demo_dataset: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Two workers are killed at train_step 7; Ray starts them again, and they go on at 6 with the right rows."""
    # Not in every run, even of CI: see docs/decisions/0100-train-steps-are-what-torch-sends.md.
    pytest.importorskip("ray", reason="ray is not installed: pip install 'trajload[ray]'", exc_type=ImportError)
    command = [sys.executable, str(HERE / "ray_job.py"), str(demo_dataset), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    with make_loader(global_batch_size=12, streams=["action"]) as loader:
        for attempt, expected in ((0, range(8)), (1, range(6, 10))):
            ranks = [
                [json.loads(line) for line in (tmp_path / f"{attempt}-{rank}.jsonl").read_text().splitlines()]
                for rank in range(2)
            ]
            assert [[line["train_step"] for line in rank] for rank in ranks] == [list(expected)] * 2
            for i, train_step in enumerate(expected):
                rows = ranks[0][i]["window_id"] + ranks[1][i]["window_id"]
                assert rows == loader.batch_at(train_step)["window_id"].tolist()


# ---- Accelerate, in this process ----


@pytest.fixture
def accelerator(need: Callable[[str], None]) -> Iterator[Any]:
    """An Accelerator of one CPU process; its state, which lives in class variables, is reset afterwards."""
    need("accelerate")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from accelerate import Accelerator

        made = Accelerator(cpu=True)
    yield made
    made.free_memory()
    type(made.state)._reset_state(reset_partial_state=True)


def test_accelerate_leaves_the_dataloader_as_it_is(make_loader: Make, want: list[str], accelerator: Any) -> None:
    """`prepare` neither deals rows out again nor seeds anything."""
    with make_loader().as_dataloader(steps_per_epoch=3) as dataloader:
        assert accelerator.prepare(dataloader) is dataloader
        assert [batch.digest() for batch in dataloader] == want[:3]


@pytest.mark.parametrize("loaded", [False, True], ids=["fresh", "after-load_state"])
def test_skip_first_batches_goes_to_the_nth_of_the_pass(
    make_loader: Make, want: list[str], accelerator: Any, loaded: bool
) -> None:
    """As trainers resume that save no loader; where a state was loaded, too, nothing is skipped twice. The cursor moves along."""
    with make_loader().as_dataloader(steps_per_epoch=5) as dataloader:
        dataloader.set_epoch(1)
        if loaded:
            dataloader.loader.seek(7)
        rest = accelerator.skip_first_batches(accelerator.prepare(dataloader), 2)
        got = []
        for batch in rest:
            got.append(batch.digest())
            assert dataloader.loader.train_step == batch.train_step + 1
        assert got == want[7:10]
        assert [batch.digest() for batch in dataloader] == want[10:15]
        rest.dataset.close()


@pytest.mark.multiproc
def test_skip_first_batches_refuses_workers(make_loader: Make, accelerator: Any) -> None:
    """Workers are ahead of what is delivered, so the cursor could not be kept."""
    with (
        make_loader().as_dataloader(num_workers=1, multiprocessing_context="fork") as dataloader,
        pytest.raises(ConfigError, match=r"batches cannot be skipped for 1 workers.*load a state"),
    ):
        next(iter(accelerator.skip_first_batches(accelerator.prepare(dataloader), 2)))


# ---- Lightning, in this process ----


@pytest.mark.global_rng  # Lightning and layers draw
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.multiproc)])
def test_lightning_passes_are_epochs(
    need: Callable[[str], None], make_loader: Make, want: list[str], tmp_path: Path, num_workers: int
) -> None:
    """Trainer.fit goes through passes; set_epoch reaches the sampler; a shortened epoch begins the next pass anew."""
    need("lightning")
    import lightning

    got: list[tuple[int, str]] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
            torch.nn.init.zeros_(self.layer.weight)

        def training_step(self, batch: tl.Batch, batch_idx: int) -> torch.Tensor:
            got.append((batch.train_step, batch.digest()))
            return self.layer(batch["action"].flatten(1)).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with make_loader().as_dataloader(
        num_workers=num_workers, steps_per_epoch=5, multiprocessing_context="fork" if num_workers else None
    ) as dataloader:
        for most in (1.0, 2):
            got.clear()
            dataloader.loader.seek(0)
            _trainer(lightning, tmp_path, max_epochs=2, limit_train_batches=most).fit(Module(), dataloader)
            steps = [*range(10)] if most == 1.0 else [0, 1, 5, 6]
            assert got == [(step, want[step]) for step in steps]


def _trainer(lightning: Any, folder: Path, **options: Any) -> Any:
    import warnings

    warnings.simplefilter("ignore")  # undone after the test by pytest
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )

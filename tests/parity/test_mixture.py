"""Mixtures through the whole loader: rows equal those of each source alone; workers, resume and ranks change nothing."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from damaging import flip

import trajload as tl
from trajload.errors import ResumeError, ShardCorruptError
from trajload.pipeline.quarantine import MAX_QUARANTINED_MIXED

NUM_BATCHES = 12
SIZE = tl.Image(size=(16, 16))
ORDERS = {
    "shuffled": "shuffled",
    "interleaved": tl.Interleaved(block_windows=5, lanes_per_row=2),
    "continuous": "continuous",
}


def mixture_of(folders: dict[str, Path], **more: Any) -> tl.Mixture:
    """Return three sources: other windows, renamed streams, a change of weights, transforms of their own."""
    lab = tl.open(folders["lab"])
    return tl.Mixture(
        {
            "sim": (folders["sim"], {0: 0.5, 6: 0.25}),
            "lab": tl.Source(
                lab,
                weight={0: 0.3, 6: 0.25},
                streams={"image": SIZE, "action": None, "wrist": None, "text": None},
                transforms=[tl.Normalizer.from_dataset(lab, {"action": "mean_std"})],
            ),
            "field": tl.Source(
                folders["field"],
                weight={0: 0.2, 6: 0.5},
                window=tl.Window(num_steps=4, dilation=2, stride=3, pad="edge"),
                rename={"front": "image", "command": "action"},
                transforms=[tl.ActionNoise(streams=["command"], std=0.25)],
            ),
        },
        by="windows",
        **more,
    )


def loader_of(mixture: tl.Mixture, order: Any = "shuffled", num_workers: int = 0, **more: Any) -> tl.Loader:
    arguments: dict[str, Any] = {
        "window": tl.Window(num_steps=4),
        "global_batch_size": 20,
        "seed": 3,
        "rank": 0,
        "world_size": 1,
        "streams": {"image": SIZE, "action": None, "wrist": None, "text": None},
    }
    return tl.Loader(mixture, order=order, num_workers=num_workers, **{**arguments, **more})


@pytest.fixture(scope="module")
def oracle(three_folders: dict[str, Path]) -> dict[str, list[str]]:
    out = {}
    for name, order in ORDERS.items():
        with loader_of(mixture_of(three_folders), order) as loader:
            out[name] = [loader.batch_at(k).digest() for k in range(NUM_BATCHES)]
    return out


def test_rows_are_those_of_each_source_alone(three_folders: dict[str, Path]) -> None:
    """Every value of every row, masks, times and numbers, is what the source's own loader gives for that window."""
    mixture = mixture_of(three_folders)
    own = {"sim": ("image", "action"), "lab": ("image", "action"), "field": ("front", "command")}
    alone: dict[str, tl.Loader] = {}
    for name, (camera, action) in own.items():
        source = mixture.sources[name]
        streams = {
            camera: SIZE,
            action: None,
            **{s: None for s in ("wrist", "text") if s in mixture.datasets[name].streams},
        }
        window = source.window or tl.Window(num_steps=4)
        seed = mixture.seed_of(name, 3)
        alone[name] = tl.Loader(
            mixture.datasets[name], window=window, global_batch_size=1, order="sequential", seed=seed, streams=streams,
            num_workers=0, transforms=source.transforms if name == "lab" else (), rank=0, world_size=1,
        )  # fmt: skip
    seen = set()
    with loader_of(mixture, num_workers=2) as loader:
        for batch in itertools.islice(loader, 8):
            for b, name in enumerate(batch["source"]):
                camera, action = own[name]
                expected = alone[name].batch_at(int(batch["window_id"][b]))
                for key in (
                    "is_first",
                    "is_last",
                    "is_terminal",
                    "step_index",
                    "timestamp_ns",
                    "episode_index",
                    "window_id",
                ):
                    assert torch.equal(batch[key][b], expected[key][0]), (name, key)
                for key, stream in (("image", camera), ("action", action)):
                    for end in ("_is_pad", "_is_missing") if stream == "command" else ("", "_is_pad", "_is_missing"):
                        assert torch.equal(batch[key + end][b], expected[stream + end][0]), (name, key)
                assert bool(batch["wrist_is_missing"][b]) == (name != "lab")
                assert bool(batch["text_is_missing"][b]) == (name == "sim")
                if name == "lab":
                    assert torch.equal(batch["wrist"][b], expected["wrist"][0])
                else:
                    assert not batch["wrist"][b].any() and batch["wrist_is_pad"][b].all()
                assert batch["text"][b] == ("" if name == "sim" else expected["text"][0])
                ref, wanted = batch.refs[b], expected.refs[0]
                assert (ref.source, ref.episode_key, ref.start, ref.stop) == (
                    name,
                    wanted.episode_key,
                    wanted.start,
                    wanted.stop,
                )
                assert ref.position == batch.train_step * 20 + b
                noise = batch["action"][b] - expected[action][0]
                assert bool(noise.any()) == (name == "field")
                seen.add(name)
    assert seen == set(own)
    for each in alone.values():
        each.close()


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_iteration_and_resume_equal_the_oracle(
    three_folders: dict[str, Path], oracle: dict[str, list[str]], name: str, num_workers: int
) -> None:
    """Batches by iteration are those of `batch_at`, before and after a resume through JSON with other workers."""
    with loader_of(mixture_of(three_folders), ORDERS[name], num_workers) as loader:
        got = [batch.digest() for batch in itertools.islice(loader, 4)]
        state = json.dumps(loader.state_dict())
    assert len(state) < 4096
    with loader_of(mixture_of(three_folders), ORDERS[name], 2 - num_workers) as loader:
        loader.load_state_dict(json.loads(state))
        got += [batch.digest() for batch in itertools.islice(loader, NUM_BATCHES - 4)]
        loader.seek(2)
        got.append(next(iter(loader)).digest())
    assert got == [*oracle[name], oracle[name][2]]


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("world_size", [3, 4])
def test_ranks_hold_the_rows_of_the_global_batch(three_folders: dict[str, Path], name: str, world_size: int) -> None:
    """Whatever the number of ranks, values included; a rank may have rows of one source only."""
    with loader_of(mixture_of(three_folders), ORDERS[name]) as loader:
        expected = loader.batch_at(7)
    parts = []
    for rank in range(world_size):
        with loader_of(mixture_of(three_folders), ORDERS[name], rank=rank, world_size=world_size) as loader:
            parts.append(loader.batch_at(7))
    assert tuple(ref for part in parts for ref in part.refs) == expected.refs
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(torch.cat([part[key] for part in parts]), value), key
        else:
            assert [v for part in parts for v in part[key]] == value


def test_loader_transforms_see_every_stream_of_the_batch(three_folders: dict[str, Path]) -> None:
    """A flip of all cameras takes the one that most sources lack, too; draws tell which transform and source seed."""
    mixture = mixture_of(three_folders)
    with loader_of(mixture, transforms=[tl.RandomFlip(p=1.0, streams=["image", "wrist"])]) as loader:
        flipped, draws = loader.batch_at(1), loader.draws_at(1)
        assert next(iter(loader)).digest() == loader.batch_at(0).digest()
    with loader_of(mixture) as loader:
        plain = loader.batch_at(1)
    for key in ("image", "wrist"):
        assert torch.equal(flipped[key], plain[key].flip(-1))
    assert torch.equal(flipped["action"], plain["action"])
    for name, row in zip(plain["source"], draws, strict=True):
        assert [d["transform"] for d in row] == [
            *{"lab": ["Normalizer"], "field": ["ActionNoise"]}.get(name, []),
            "RandomFlip",
        ]
        assert {d["key"]["seed"] for d in row} == {mixture.seed_of(name, 3)}


def test_shares_are_told_and_change_at_their_train_step(three_folders: dict[str, Path]) -> None:
    """In the repr of the mixture, in `stats`, and in the batches."""
    mixture = mixture_of(three_folders)
    assert repr(mixture) == (
        "Mixture(by windows: 'sim' 0.5, 'lab' 0.3, 'field' 0.2; from train_step 6 on 'sim' 0.25, 'lab' 0.25, 'field' 0.5)"
    )
    assert (
        mixture.weights(5)["sim"] == 0.5
        and mixture.weights(6)["sim"] == 0.25
        and list(mixture) == ["sim", "lab", "field"]
    )
    with loader_of(mixture) as loader:
        assert loader.order == "mixture/1" and "'sim + lab + field'" in repr(loader)
        for step, counts in ((0, [10, 6, 4]), (5, [10, 6, 4]), (6, [5, 5, 10])):
            source = loader.batch_at(step)["source"]
            assert [source.count(name) for name in mixture] == counts
            loader.seek(step)
            assert loader.stats()["shares"] == {n: c / 20 for n, c in zip(mixture, counts, strict=True)}


def test_each_block_is_decoded_by_one_rank(tmp_path: Path, mixture_maker: ModuleType) -> None:
    """Three sources, interleaved, stretches of five steps, four ranks: at most 1.1 ranks load a block in an epoch."""
    folders = mixture_maker.write_three(tmp_path, num_episodes=6, num_steps=150)
    mixture = tl.Mixture(
        {
            "sim": (folders["sim"], 0.5),
            "lab": (folders["lab"], 0.3),
            "field": tl.Source(folders["field"], weight=0.2, rename={"command": "action"}),
        },
        by="windows",
    )
    loaded: set[tuple[int, int, int, int]] = set()
    frames = 0
    order = tl.Interleaved(block_windows=8, lanes_per_row=2)
    for rank in range(4):
        with loader_of(mixture, order, global_batch_size=16, streams=["action"], rank=rank, world_size=4) as loader:
            sampler = loader._engine.sampler
            assert sampler.phases[0].cells.num_steps == 5
            for step in range(400):
                refs = sampler.refs(step, loader._engine.split.even)
                uses = sampler.block_uses(refs)
                rows = zip(refs.source_B, refs.epoch_B, uses.block_B, strict=True)
                loaded |= {(int(s), int(e), int(b), rank) for s, e, b in rows if e == 0}
                frames += len(refs)
    blocks = {use[:3] for use in loaded}
    assert len(blocks) > 300 and frames == 6400
    assert len(loaded) / len(blocks) <= 1.1


# ---- bad windows ----


def test_a_bad_window_is_replaced_by_one_of_its_own_source(three_folders: dict[str, Path], tmp_path: Path) -> None:
    """Quarantine counts (source, window); the same others come with other workers, and after a resume."""
    folders = dict(three_folders)
    for name in ("sim", "lab"):
        folders[name] = tmp_path / name
        shutil.copytree(three_folders[name], folders[name])
        track = tl.open(folders[name]).track(0, "image")
        assert track is not None
        path = folders[name] / track.file
        path.chmod(0o644)
        for row in range(5, 9):
            flip(path, int(track.offset_N[row]) + 9)

    def run(num_workers: int, steps: int = 10) -> tuple[list[str], dict[str, Any], list[Any]]:
        with loader_of(mixture_of(folders), "interleaved", num_workers, on_error="substitute") as loader:
            batches = list(itertools.islice(loader, steps))
            return [b.digest() for b in batches], loader.state_dict(), batches

    digests, state, batches = run(0)
    threaded, other, _ = run(3)
    assert digests == threaded
    assert all(row in other["quarantine"] for row in state["quarantine"]), "threads look ahead, and may know of more"
    sources = {row[3] if len(row) == 4 else 0 for row in state["quarantine"]}
    assert sources == {0, 1} and len(json.dumps(state)) < 4096
    with loader_of(mixture_of(three_folders), "interleaved") as loader:
        for batch in batches:
            assert batch["source"] == loader.batch_at(batch.train_step)["source"]
    with loader_of(mixture_of(folders), "interleaved", on_error="substitute") as loader:
        loader.load_state_dict(state)
        assert loader.state_dict()["quarantine"] == state["quarantine"]
    with (
        loader_of(mixture_of(folders), "interleaved") as loader,
        pytest.raises(ShardCorruptError, match=r"\[dataset=sim|dataset=lab"),
    ):
        for _ in itertools.islice(loader, 10):
            pass


# ---- states ----


def test_a_state_names_the_source_that_differs(three_folders: dict[str, Path]) -> None:
    """Weights, windows, streams, data of a source: refused by its name; `allow` lets sources change."""
    streams = {"image": SIZE, "action": None, "text": None}
    with loader_of(mixture_of(three_folders), streams=streams) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
    folders = {**three_folders, "lab": three_folders["field"]}
    source = tl.Source(
        folders["lab"], weight={0: 0.3, 6: 0.25}, streams={"front": SIZE, "command": None},
        rename={"front": "image", "command": "action"},
    )  # fmt: skip
    changed = mixture_of(three_folders)
    other_weight = tl.Mixture({**changed.sources, "sim": tl.Source(three_folders["sim"], weight={0: 0.5, 9: 0.25}),
        "field": tl.Source(three_folders["field"], weight={0: 0.2, 9: 0.5}, rename=changed.sources["field"].rename),
        "lab": tl.Source(three_folders["lab"], weight={0: 0.3, 9: 0.25})}, by="windows")  # fmt: skip
    other_data = tl.Mixture({**changed.sources, "lab": source}, by="windows")
    for mixture, message in (
        (other_weight, r"sources\.sim\.weight\.6: saved '1/4', here absent.*sources\.field\.window\S*: saved"),
        (other_data, r"manifests: source 'lab': saved [0-9a-f]{12}… .*sources\.lab\.streams"),
        (tl.Mixture(changed.sources, by="episodes"), r"order\.by: saved 'windows', here 'episodes'"),
        (tl.Mixture(changed.sources, by="windows", stretch_steps=3), r"order\.stretch_steps: saved None, here 3"),
    ):
        with loader_of(mixture, streams=streams) as loader, pytest.raises(ResumeError, match=f"(?s){message}"):
            loader.load_state_dict(state)
    with loader_of(other_weight, streams=streams) as loader:
        loader.load_state_dict(state, allow=("sources", "num_windows"))


def test_a_state_knows_the_places_of_the_sources(three_folders: dict[str, Path]) -> None:
    """The same sources in another order give other rows, even where all are one dataset; JSON may be sorted on the way."""

    def same_data(*names: str) -> tl.Mixture:
        return tl.Mixture(dict.fromkeys(names, (three_folders["sim"], 0.5)))

    with loader_of(same_data("a", "b"), streams=["action"]) as loader:
        state = json.loads(json.dumps(loader.state_dict(), sort_keys=True))
        loader.load_state_dict(state)
        before = loader.batch_at(0).digest()
    with loader_of(same_data("b", "a"), streams=["action"]) as loader:
        assert loader.batch_at(0).digest() != before
        with pytest.raises(ResumeError, match=r"sources\.a\.place: saved 0, here 1"):
            loader.load_state_dict(state)


def test_state_of_eight_sources_is_small_and_still_names_fields(three_folders: dict[str, Path]) -> None:
    """Under 4 KiB with all the bad windows a run may have; a changed window is still found at its source."""

    def mixed(stride: int) -> tl.Mixture:
        return tl.Mixture(
            {
                f"source-with-a-long-name-{i}": tl.Source(
                    three_folders["sim"],
                    weight={0: 0.125, 100: 0.125},
                    window=tl.Window(num_steps=4, stride=stride if i == 5 else 2),
                )
                for i in range(8)
            },
            by="windows",
        )

    transforms = [tl.RandomCrop(size=12), tl.RandomFlip(), tl.ColorJitter()]
    more: dict[str, Any] = {"streams": None, "transforms": transforms, "order": "interleaved"}
    with loader_of(mixed(2), **more) as loader:
        state = loader.state_dict()
        full = {
            **state,
            "quarantine": [[10**6 + i, 10**7, "ShardCorruptError", 7] for i in range(MAX_QUARANTINED_MIXED)],
        }
        assert len(json.dumps(full)) < 4096
        loader.load_state_dict(json.loads(json.dumps(state)))
    with (
        loader_of(mixed(3), **more) as loader,
        pytest.raises(ResumeError, match=r"sources\.source-with-a-long-name-5\.window"),
    ):
        loader.load_state_dict(state)

"""What a commit says it was trained on, what ranks and resumed runs compare of the order, and what is done after a resume."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.checkpoint import episodes_seen
from trajload.errors import CheckpointMismatchError, ConfigError
from trajload.pipeline.facts import tags_of
from trajload.sampling.sampler import Sampler

BATCH = 4


def make_loader(dataset: Any, **options: Any) -> tl.Loader:
    arguments: dict[str, Any] = {"window": tl.Window(num_steps=4), "global_batch_size": BATCH, "seed": 3}
    return tl.Loader(dataset, **{**arguments, "streams": ["action"], "num_workers": 0, **options})


def take(loader: tl.Loader, number: int) -> Counter[str]:
    """Return how often the next batches hold windows of each episode."""
    return Counter(ref.episode_key for batch in itertools.islice(loader, number) for ref in batch.refs)


def ranges(commit: Any, name: str = "loader") -> list[Any]:
    return [segment["train_steps"] for segment in commit.info["exposure"][name]]


def test_exposure_is_carried_on_from_commit_to_commit(demo_dataset: Path, tmp_path: Path) -> None:
    """Jumps, resumes, and going back to an older commit, whose state has not seen what came after it."""
    keep = tl.Keep(last=9)
    with make_loader(demo_dataset) as loader, tl.Checkpointer(tmp_path, {"loader": loader}, keep=keep) as ckpt:
        ckpt.save(0)
        seen = take(loader, 5)
        ckpt.save(5)
        loader.seek(20)
        seen += take(loader, 2)
        ckpt.save(22)
        ckpt.wait()
        assert [ranges(commit) for commit in ckpt.store.commits()] == [[], [[[0, 5]]], [[[0, 5], [20, 22]]]]
        newest = ckpt.store.commits()[-1]
        told = newest.info["exposure"]["loader"][0]["sources"]
        [(name, numbers)] = told.items()
        assert numbers["windows"] == 7 * BATCH and numbers["steps"] == 7 * BATCH * 4
        assert numbers["epochs"] == round(7 * BATCH / loader.num_windows, 4)
        assert episodes_seen(newest, loader) == {name: dict(seen)}
    with make_loader(demo_dataset) as loader, tl.Checkpointer(tmp_path, {"loader": loader}, keep=keep) as ckpt:
        ckpt.resume()
        take(loader, 1)
        ckpt.save(23)
        ckpt.resume(at=5)
        take(loader, 1)
        ckpt.save(6)
        ckpt.wait()
        assert [ranges(commit) for commit in ckpt.store.commits()[-2:]] == [[[[0, 5], [20, 23]]], [[[0, 6]]]]
        with pytest.raises(ConfigError, match=r"name='other'.*has the loaders \['loader'\]"):
            episodes_seen(newest, loader, name="other")


def test_another_configuration_or_dataset_begins_another_segment(demo_dataset: Path, tmp_path: Path) -> None:
    """Train_steps of the one hold other windows than those of the other."""
    with make_loader(demo_dataset) as loader, tl.Checkpointer(tmp_path, {"loader": loader}) as ckpt:
        take(loader, 3)
        ckpt.save(3)
        digest = loader.state_dict()["config_digest"]
    with (
        make_loader(demo_dataset, seed=4) as loader,
        make_loader(demo_dataset) as old,
        tl.Checkpointer(tmp_path, {"loader": old}) as ckpt,
    ):
        ckpt.resume()
        ckpt._whole.state["loader"] = loader  # what load_state_dict(allow=("seed",)) of one's own comes to
        loader.seek(3)
        take(loader, 2)
        ckpt.save(5)
        ckpt.wait()
        commit = ckpt.store.commits()[-1]
        assert ranges(commit) == [[[0, 3]], [[3, 5]]]
        assert commit.info["exposure"]["loader"][0]["config_digest"] == digest
        with pytest.raises(CheckpointMismatchError, match=r"has seen another dataset or configuration in train_steps"):
            episodes_seen(commit, loader)


def test_order_that_is_computed_otherwise_is_refused_before_anything_is_changed(
    demo_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dataset, configuration and version say the same, and the windows are others."""
    with make_loader(demo_dataset) as loader, tl.Checkpointer(tmp_path, {"loader": loader}) as ckpt:
        take(loader, 3)
        ckpt.save(3)
    plain = Sampler._window_ids
    monkeypatch.setattr(Sampler, "_window_ids", lambda self, *args: (plain(self, *args) + 1) % self.num_windows)
    with make_loader(demo_dataset) as loader, tl.Checkpointer(tmp_path, {"loader": loader}) as ckpt:
        with pytest.raises(CheckpointMismatchError, match=r"loader: windows around train_step 3: saved [0-9a-f]{12}"):
            ckpt.resume()
        assert loader.train_step == 0


def test_consent_tags_that_are_no_longer_allowed_are_refused(demo_dataset: Path, tmp_path: Path) -> None:
    """By tag, source and train_steps; a commit that has not seen them is taken, and so is any where nobody asks."""
    dataset = tl.open(demo_dataset)
    dataset.provenance = lambda: {"licence": "mine", "consent_tags": ["research", "faces"]}  # type: ignore[method-assign]
    with make_loader(dataset) as loader, tl.Checkpointer(tmp_path, {"loader": loader}) as ckpt:
        ckpt.save(0)
        take(loader, 3)
        ckpt.save(3)
        ckpt.wait()
        [told] = ckpt.store.commits()[-1].info["exposure"]["loader"][0]["sources"].values()
        assert (told["licence"], told["consent_tags"]) == ("mine", ["faces", "research"])
    for allowed, step in ((["research", "faces"], 3), (None, 3)):
        with (
            make_loader(dataset) as loader,
            tl.Checkpointer(tmp_path, {"loader": loader}, allowed_tags=allowed) as ckpt,
        ):
            assert ckpt.resume().step == step == loader.train_step
    with (
        make_loader(dataset) as loader,
        tl.Checkpointer(tmp_path, {"loader": loader}, allowed_tags=["research"]) as ckpt,
    ):
        with pytest.raises(CheckpointMismatchError, match=r"is tagged \['faces'\], train_steps \[\[0, 3\]\]"):
            ckpt.resume()
        assert loader.train_step == 0
        assert ckpt.resume(at=0).step == 0
    with pytest.raises(ConfigError, match="allowed_tags='research' is invalid"):
        tl.Checkpointer(tmp_path, {"n": {}}, allowed_tags="research")


def test_provenance_is_free_and_stops_no_save() -> None:
    """One tag for itself, none, a number, a set; what is not text becomes text."""
    given = [{}, {"consent_tags": None}, {"consent_tags": "a"}, {"consent_tags": 5}, {"consent_tags": {"b", "a"}}]
    assert [tags_of(provenance) for provenance in given] == [[], [], ["a"], ["5"], ["a", "b"]]


def test_inference_engines_are_told_after_a_resume(tmp_path: Path) -> None:
    """With the report, once everything is loaded; not by a fresh start; what they raise comes out."""
    counts = {"updates": 0}
    told: list[Any] = []

    def synchronise(report: Any) -> None:
        told.append((report.step, dict(counts)))
        if len(told) == 2:
            raise ConnectionError("no engine")

    with tl.Checkpointer(tmp_path, {"n": counts}, after_resume=synchronise) as ckpt:
        ckpt.resume()
        assert told == []
        counts["updates"] = 8
        ckpt.save(8)
        counts["updates"] = 9
        ckpt.resume()
        assert told == [(8, {"updates": 8})]
        with pytest.raises(ConnectionError, match="no engine"):
            ckpt.resume()
    with pytest.raises(ConfigError, match="after_resume=3 is invalid"):
        tl.Checkpointer(tmp_path, {"n": {}}, after_resume=3)  # type: ignore[arg-type]

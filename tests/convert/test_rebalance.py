"""Rebalancing: the same windows, bytes and statistics in other shards, and shards that are even."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaging import flip

import trajload as tl
from trajload.convert.rebalance import rebalance
from trajload.convert.rewrite import PLAN_NAME
from trajload.errors import ConfigError, ShardCorruptError, ShardError
from trajload.manifest import read_manifest
from trajload.shards.scan import iter_members
from trajload.shards.verify import verify
from trajload.sources.native import open_native

COMMON: dict[str, Any] = {"num_shards": 4, "window": tl.Window(num_steps=8)}


def table_of(folder: Path) -> tl.CostTable:
    """Return costs by hand: a row of the large camera costs six times one of the small camera."""
    dataset = open_native(folder)
    large_E = [600 if dataset.has_stream(e, "cam_large") else 0 for e in range(dataset.num_episodes)]
    small_E = [100 if dataset.has_stream(e, "cam_small") else 0 for e in range(dataset.num_episodes)]
    dataset.close()
    return tl.CostTable(
        {"cam_large": large_E, "cam_small": small_E},
        dataset_digest=dataset.digest,
        lead_ns={"cam_large": [cost // 2 for cost in large_E]},
    )


def windows(folder: Path) -> Counter[tuple[str, int, str]]:
    """Return (episode, first step, digest of all streams and masks) of every window."""
    out: Counter[tuple[str, int, str]] = Counter()
    loader = tl.Loader(
        folder, window=tl.Window(num_steps=8), global_batch_size=1, order="sequential", num_epochs=1, num_workers=0
    )
    for batch in loader:
        (ref,) = batch.refs
        kept = {key: value for key, value in batch.items() if key not in ("episode_index", "window_id")}
        out[ref.episode_key, ref.start, tl.Batch(kept, train_step=0, refs=()).digest()] += 1
    loader.close()
    return out


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return bytes and time of change of every file."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    }


def members(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every member of every shard, by name."""
    out = {}
    for entry in read_manifest(folder).shards:
        data = (folder / entry.name).read_bytes()
        for member in iter_members(folder / entry.name):
            assert member.name not in out
            out[member.name] = data[member.offset : member.offset + member.size]
    return out


@pytest.fixture(scope="module")
def even(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset rebalanced into four shards by costs made by hand."""
    out = tmp_path_factory.mktemp("even") / "out"
    report = rebalance(mixed, out, costs=table_of(mixed), measure=False, **COMMON)
    assert report.predicted["before"]["max_over_mean"] > 1.5
    assert report.predicted["after"]["max_over_mean"] < 1.05
    return out


def test_every_window_is_there_once_with_the_same_content(mixed: Path, even: Path) -> None:
    """The multiset of windows, pictures and masks included, does not depend on the shards."""
    before = windows(mixed)
    assert before == windows(even)
    assert len(before) == sum(before.values()) > 400


def test_members_keep_their_bytes_and_the_dataset_verifies(mixed: Path, even: Path) -> None:
    """Names, bytes, statistics; checksums, tar headers and indexes of the new shards."""
    assert members(mixed) == members(even)
    report = verify(even)
    assert report.ok and not report.problems, report.problems
    old, new = read_manifest(mixed), read_manifest(even)
    assert (old.stats, old.sketch) == (new.stats, new.sketch)


def test_episodes_can_be_appended_afterwards(even: Path, tmp_path: Path) -> None:
    """Statistics go on from where they were."""
    copy = tmp_path / "copy"
    shutil.copytree(even, copy)
    with tl.Writer(copy, append=True) as writer:
        writer.add_episode({"action": np.zeros((5, 7), np.float32)}, key="more")
    dataset = open_native(copy)
    assert verify(copy).ok and dataset.num_episodes == 13
    assert dataset.stats()["action"]["count"] == dataset.num_steps
    dataset.close()


def test_provenance_says_where_it_came_from(mixed: Path, even: Path) -> None:
    """Digest of the old manifest, what was made even, and by which costs; what the source said of itself stays."""
    old, new = read_manifest(mixed), read_manifest(even)
    (said,) = new.provenance["rebalanced"]
    assert said["from_digest"] == old.digest != new.digest
    assert (said["by"], said["num_shards"], said["costs_digest"]) == ("cost", 4, table_of(mixed).digest)
    assert {k: v for k, v in new.provenance.items() if k != "rebalanced"} == dict(old.provenance)
    assert (new.name, new.streams, new.step_rate_hz) == (old.name, old.streams, old.step_rate_hz)


def test_old_dataset_is_untouched(mixed: Path, tmp_path: Path) -> None:
    """Not a byte, not a time of change, and no file more."""
    before = files(mixed)
    rebalance(mixed, tmp_path / "out", by="steps", measure=False, **COMMON)
    assert files(mixed) == before


def test_same_call_gives_the_same_dataset(mixed: Path, even: Path, tmp_path: Path) -> None:
    """Shards, indexes and manifest, byte for byte."""
    rebalance(mixed, tmp_path / "out", costs=table_of(mixed), measure=False, **COMMON)
    assert {k: v[0] for k, v in files(tmp_path / "out").items()} == {k: v[0] for k, v in files(even).items()}


@pytest.mark.parametrize("by", ["bytes", "steps"])
def test_shards_are_even_in_what_was_asked_for(mixed: Path, tmp_path: Path, by: Any) -> None:
    """Bytes of the new shards, or their steps, as the manifest counts them."""
    report = rebalance(mixed, tmp_path / "out", by=by, measure=False, **COMMON)
    entries = read_manifest(tmp_path / "out").shards
    amounts = [entry.num_bytes - 1024 if by == "bytes" else entry.num_steps for entry in entries]
    assert [shard["amount"] for shard in report.shards] == amounts
    assert max(amounts) / np.mean(amounts) < 1.08


def test_dry_run_writes_nothing_and_predicts_the_same(mixed: Path, tmp_path: Path) -> None:
    """Not even the folder."""
    report = rebalance(mixed, tmp_path / "out", costs=table_of(mixed), dry_run=True, **COMMON)
    assert not (tmp_path / "out").exists()
    assert report.digest == "" and report.measured is None
    assert report.predicted["after"]["max_over_mean"] < 1.05 and len(report.shards) == 4


def test_measured_spread_falls_and_costs_come_along(mixed: Path, tmp_path: Path) -> None:
    """Costs are measured twice, before to deal and afterwards to see; the new dataset's own table serves its loader."""
    report = rebalance(mixed, tmp_path / "out", num_shards=3, window=tl.Window(num_steps=8))
    assert report.measured is not None
    assert report.measured["before"]["max_over_mean"] > 1.3
    assert report.measured["after"]["max_over_mean"] < 0.9 * report.measured["before"]["max_over_mean"]
    costs = tl.CostTable.load(tmp_path / "out" / "costs.json")
    assert costs.dataset_digest == report.digest
    arguments = {"window": tl.Window(num_steps=8), "global_batch_size": 8, "streams": ["cam_large"]}
    tl.Loader(tmp_path / "out", **arguments, load_weights=tmp_path / "out" / "costs.json").close()


def test_costs_beside_the_dataset_are_taken(mixed: Path, tmp_path: Path) -> None:
    """Those of an earlier version are not; both are said."""
    copy = tmp_path / "data"
    shutil.copytree(mixed, copy)
    table_of(copy).save(copy / "costs.json")
    report = rebalance(copy, tmp_path / "out", dry_run=True, **COMMON)
    assert report.predicted["costs_digest"] == table_of(copy).digest
    assert "costs are those of" in report.notes[0]
    foreign = table_of(copy)
    foreign.info["machine"] = {"processor": "Abacus 1"}
    report = rebalance(copy, tmp_path / "out", dry_run=True, costs=foreign, **COMMON)
    assert ["costs were measured on 'Abacus 1', this is " in remark for remark in report.notes] == [True]
    old = tl.CostTable({"cam_large": [1] * 12}, dataset_digest="0" * 64)
    old.save(copy / "costs.json")
    report = rebalance(copy, tmp_path / "out", dry_run=True, **COMMON)
    assert report.predicted["costs_digest"] not in (old.digest, table_of(copy).digest)
    assert "earlier version" in report.notes[0]


def test_an_episode_larger_than_a_share_is_said(mixed: Path, tmp_path: Path) -> None:
    """No dealing helps, fewer shards do."""
    report = rebalance(mixed, tmp_path / "out", costs=table_of(mixed), dry_run=True, num_shards=11)
    assert "alone is" in report.notes[0] and "Take fewer shards" in report.notes[0]


def test_a_finished_folder_is_taken_as_it_is(mixed: Path, even: Path) -> None:
    """The same call again writes nothing; another call refuses the folder."""
    before = files(even)
    report = rebalance(mixed, even, measure=False, **COMMON)
    assert files(even) == before and "nothing was written" in report.notes[0]
    with pytest.raises(ConfigError, match="already holds a dataset"):
        rebalance(mixed, even, measure=False, **{**COMMON, "num_shards": 3})


def test_a_table_of_other_data_is_refused_where_all_is_done_already(mixed: Path, tmp_path: Path) -> None:
    """What was passed is wrong, whether it is needed or not."""
    common: dict[str, Any] = {"num_shards": 2, "measure": False}
    rebalance(mixed, tmp_path / "out", costs=table_of(mixed), **common)
    other = tl.CostTable({"cam_large": [1] * 12}, dataset_digest="0" * 64)
    with pytest.raises(ConfigError, match="belongs to other data"):
        rebalance(mixed, tmp_path / "out", costs=other, **common)
    assert rebalance(mixed, tmp_path / "out", costs=table_of(mixed), **common).was_there


@pytest.mark.parametrize("where", ["", "inside", ".."])
def test_folders_inside_each_other_are_refused(mixed: Path, where: str) -> None:
    """The old dataset stays as it is."""
    with pytest.raises(ConfigError, match="inside each other"):
        rebalance(mixed, mixed / where, measure=False, **COMMON)


def test_someone_elses_shards_are_refused(mixed: Path, tmp_path: Path) -> None:
    """Files that no plan knows are not overwritten."""
    (tmp_path / "out" / "shards").mkdir(parents=True)
    (tmp_path / "out" / "shards" / "000000.tar").write_bytes(b"mine")
    with pytest.raises(ConfigError, match="belongs to no dataset and no plan"):
        rebalance(mixed, tmp_path / "out", by="steps", measure=False, **COMMON)
    assert (tmp_path / "out" / "shards" / "000000.tar").read_bytes() == b"mine"


def test_another_plan_in_the_folder_is_refused(mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun is finished with the same settings, or deleted by hand."""
    interrupt(monkeypatch, after=3)
    with pytest.raises(KeyboardInterrupt):
        rebalance(mixed, tmp_path / "out", by="steps", measure=False, **COMMON)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="differs in num_shards, by"):
        rebalance(mixed, tmp_path / "out", by="bytes", measure=False, **{**COMMON, "num_shards": 2})
    (tmp_path / "out" / PLAN_NAME).write_text(json.dumps({"format_version": 9}))
    with pytest.raises(ConfigError, match="no plan that can be gone on with"):
        rebalance(mixed, tmp_path / "out", by="steps", measure=False, **COMMON)


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int, error: BaseException | None = None) -> None:
    """Make the episode number `after` fail, once."""
    from trajload.convert import rebalance as module

    left, real = after, module.stored_record

    def record(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise error or KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, "stored_record", record)


def test_a_run_goes_on_with_the_shards_that_are_whole(
    mixed: Path, even: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished shards are kept, a damaged one and those behind it are written again, and the end is the same dataset."""
    out = tmp_path / "out"
    costs = table_of(mixed)
    interrupt(monkeypatch, after=10)
    with pytest.raises(KeyboardInterrupt):
        rebalance(mixed, out, costs=costs, measure=False, **COMMON)
    monkeypatch.undo()
    assert not (out / "manifest.json").exists() and not list(out.rglob("*.tmp"))
    times = {p.name: p.stat().st_mtime_ns for p in (out / "shards").iterdir()}
    assert len(times) >= 4
    flip(out / "shards" / "000001.tar", 700)
    # The plan stands, whatever costs are measured by now.
    other = tl.CostTable({"cam_large": [1] * 12}, dataset_digest=costs.dataset_digest)
    report = rebalance(mixed, out, costs=other, measure=False, **COMMON)
    assert report.num_shards_kept == 1
    assert (out / "shards" / "000000.tar").stat().st_mtime_ns == times["000000.tar"]
    assert {k: v[0] for k, v in files(out).items()} == {k: v[0] for k, v in files(even).items()}


def test_a_full_disk_is_a_shard_error_and_the_next_run_goes_on(
    mixed: Path, even: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says that nothing was published and how to go on."""
    interrupt(monkeypatch, after=8, error=OSError(28, "No space left on device"))
    with pytest.raises(ShardError, match=r"No space left on device\. Nothing was published; run again"):
        rebalance(mixed, tmp_path / "out", costs=table_of(mixed), measure=False, **COMMON)
    monkeypatch.undo()
    report = rebalance(mixed, tmp_path / "out", costs=table_of(mixed), measure=False, **COMMON)
    assert report.num_shards_kept >= 1
    assert report.digest == read_manifest(even).digest


def test_a_damaged_source_publishes_nothing(mixed: Path, tmp_path: Path) -> None:
    """A member without its checksum stops the run, with shard and episode named."""
    copy = tmp_path / "data"
    shutil.copytree(mixed, copy)
    shard = copy / "shards" / "000002.tar"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 8
    shard.write_bytes(data)
    with pytest.raises(ShardCorruptError, match="is damaged") as caught:
        rebalance(copy, tmp_path / "out", by="steps", measure=False, **COMMON)
    assert caught.value.at.episode and caught.value.at.episode.startswith("robot2-")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_foreign_layouts_are_to_be_converted_first(v2_folder: Path, cache: Path, tmp_path: Path) -> None:
    """They have no shards."""
    dataset = tl.open(v2_folder, cache_dir=cache)
    with pytest.raises(ConfigError, match="Convert it first: trajload convert"):
        rebalance(dataset, tmp_path / "out", measure=False, **COMMON)
    dataset.close()


def test_unknown_measure_is_refused(mixed: Path, tmp_path: Path) -> None:
    """The message lists what there is."""
    with pytest.raises(ConfigError, match="expected one of 'cost', 'bytes', 'steps'"):
        rebalance(mixed, tmp_path / "out", by="size", **COMMON)  # type: ignore[arg-type]

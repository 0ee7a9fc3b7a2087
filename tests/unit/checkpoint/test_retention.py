"""What goes, what stays, and that nothing goes before what stays is known to be good."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from trajload.checkpoint.entries import Keep
from trajload.checkpoint.store import Store
from trajload.errors import CheckpointCorruptError, CheckpointError, ConfigError


def steps(store: Store) -> list[int]:
    return [commit.step for commit in store.commits()]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


def test_newest_k_stay(store: Store, save: Any) -> None:
    """The others go, with their files."""
    made = [save(store, step) for step in (1, 2, 3, 4, 5)]
    assert store.retain(Keep(last=2)) == made[:3]
    assert steps(store) == [4, 5]
    assert len(list((store.root / "gen").iterdir())) == 2
    assert store.retain(Keep(last=2)) == []


def test_first_commit_at_or_after_each_multiple_stays(store: Store, save: Any) -> None:
    """Steps need not be multiples themselves; a rewind keeps no second one."""
    for step in (5, 99, 103, 150, 199, 305, 310, 120, 330, 340):
        save(store, step)
    store.retain(Keep(last=1, every=100))
    assert steps(store) == [103, 305, 340]


def test_best_by_metric_stay(store: Store, save: Any) -> None:
    """NaN and absent are never best; of equals the later stays."""
    for step, loss in enumerate([3.0, 1.0, float("nan"), 1.0, 2.0, None, True, 9.0]):
        save(store, step, info={"metrics": {} if loss is None else {"loss": loss}})
    store.retain(Keep(last=1, best="min:loss", best_count=2))
    assert steps(store) == [1, 3, 7]
    store.retain(Keep(last=1, best="max:loss"))
    assert steps(store) == [7]


def test_nothing_goes_while_too_few_of_the_newest_verify(store: Store, save: Any) -> None:
    """A damaged successor keeps its predecessor alive."""
    made = [save(store, step) for step in (1, 2, 3)]
    flip(store.part(made[2], 0).path("model.safetensors"))
    assert store.retain(Keep(last=3)) == []
    assert "damaged" in str(store.faults[0])
    save(store, 4)
    assert [c.step for c in store.retain(Keep(last=2))] == [1]
    assert steps(store) == [2, 3, 4], "a damaged commit among the newest is not removed"
    save(store, 5)
    assert [c.step for c in store.retain(Keep(last=2))] == [2, 3]


def test_damaged_record_is_removed_once_it_is_old(store: Store, save: Any) -> None:
    """It does not stay for ever, and takes its files along."""
    bad = save(store, 1)
    flip(store.root / "commits" / "0000000001.json")
    save(store, 2)
    store.sweep()
    assert (store.root / bad.generation).exists()
    store.retain(Keep(last=1))
    assert [p.name for p in (store.root / "commits").iterdir()] == ["0000000002.json"]
    assert not (store.root / bad.generation).exists()


def test_pinned_commit_stays_until_it_is_unpinned(store: Store, save: Any) -> None:
    """By name; the same name twice for the same commit is no error."""
    first, second = save(store, 1), save(store, 2)
    other = Store(store.root)
    with store.writer():  # a training is running
        other.pin("paper-v1", first)
        other.pin("paper-v1", first)
    with pytest.raises(ConfigError, match=r"pin 'paper-v1' is taken by step 1"):
        store.pin("paper-v1", second)
    assert store.retain(Keep(last=1)) == []
    assert store.pins() == {"paper-v1": first}
    assert store.pick("pin:paper-v1") == first
    store.unpin("paper-v1")
    assert store.retain(Keep(last=1)) == [first]
    with pytest.raises(ConfigError, match=r"no pin 'paper-v1' in .*there are \[\]"):
        store.unpin("paper-v1")
    with pytest.raises(ConfigError, match="no pin 'paper-v1'"):
        store.pick("pin:paper-v1")


def test_commit_that_is_gone_cannot_be_pinned(store: Store, save: Any) -> None:
    """A pin always names something."""
    first = save(store, 1)
    save(store, 2)
    store.retain(Keep(last=1))
    with pytest.raises(CheckpointError, match=r"commit 1 \(step 1\) is not in .* any more"):
        store.pin("a", first)


def test_nothing_goes_while_a_pin_cannot_be_read(store: Store, save: Any) -> None:
    """It may name any commit."""
    first, second = save(store, 1), save(store, 2)
    store.pin("a", first)
    flip(store.root / "pins" / "a.json")
    assert store.retain(Keep(last=1)) == []
    assert "pins/a.json" in str(store.faults[0])
    with pytest.raises(ConfigError, match="exists and is damaged"):
        store.pin("a", second)
    store.unpin("a")
    assert store.retain(Keep(last=1)) == [first]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../x", "a.json", "x" * 101, "ä"])
def test_bad_pin_name_is_refused(store: Store, save: Any, name: str) -> None:
    """Names are file names everywhere."""
    with pytest.raises(ConfigError, match="is not usable"):
        store.pin(name, save(store, 1))


@pytest.mark.parametrize(
    "rule",
    [{"last": 0}, {"last": True}, {"every": -1}, {"best": "loss"}, {"best": "avg:loss"}, {"best_count": 0}],
    ids=str,
)
def test_bad_keep_is_refused(rule: Any) -> None:
    """Before anything is removed."""
    with pytest.raises(ConfigError, match=next(iter(rule))):
        Keep(**rule)


def test_newer_format_stops_removal(store: Store, save: Any) -> None:
    """What it refers to is not known here."""
    from trajload.checkpoint import record

    save(store, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "VERSION", 2)
        save(store, 2)
    save(store, 3)
    assert store.retain(Keep(last=1)) == []
    assert [fault.kind for fault in store.faults] == ["newer"]


# ---- references ----


def refer(store: Store, step: int, old: Any, *names: str, verify: bool = True) -> Any:
    with store.writer():
        generation = store.begin(step)
        part = generation.part(0)
        part.write("head", [b"head %d" % step])
        for name in names:
            part.refer(name, store.part(old, 0).entry(name), verify=verify)
        return store.commit(generation, [part.finish()], {})


def test_file_that_a_live_commit_refers_to_outlives_its_own(store: Store, save: Any) -> None:
    """References of references go to the file itself; it goes with the last of them."""
    first = save(store, 1, {"encoder": b"frozen" * 1000, "head": b"h"})
    second = refer(store, 2, first, "encoder")
    third = refer(store, 3, second, "encoder")
    assert (third.bytes, third.written_bytes) == (6006, 6)
    assert [c.step for c in store.retain(Keep(last=1))] == [1, 2]
    assert store.newest() == (third, [])
    left = sorted(str(p.relative_to(store.root)) for p in (store.root / "gen").rglob("*") if p.is_file())
    assert [f"{first.generation}/r00000/encoder" in left, f"{first.generation}/r00000/head" in left] == [True, False]
    assert store.sweep() == []
    save(store, 4)
    store.retain(Keep(last=1))
    assert not (store.root / first.generation).exists()


def test_damage_does_not_pass_into_a_new_commit_by_reference(store: Store, save: Any) -> None:
    """The old file is read before it is relied on again."""
    first = save(store, 1, {"encoder": b"frozen" * 1000})
    flip(store.part(first, 0).path("encoder"))
    with pytest.raises(CheckpointCorruptError, match="encoder' is damaged"):
        refer(store, 2, first, "encoder")


def test_reference_to_a_removed_file_aborts(store: Store, save: Any) -> None:
    """Also where it is removed between reference and commit."""
    first = save(store, 1, {"encoder": b"frozen"})
    with store.writer():
        generation = store.begin(2)
        part = generation.part(0)
        part.refer("encoder", store.part(first, 0).entry("encoder"))
        vote = part.finish()
        (store.root / "commits" / "0000000001.json").unlink()
        with pytest.raises(CheckpointError, match="no commit has it any more"):
            store.commit(generation, [vote], {})


def test_saves_go_on_while_retention_reads(store: Store, save: Any) -> None:
    """Reading gigabytes back keeps no commit waiting; what is committed meanwhile stays."""
    first, second = save(store, 1), save(store, 2)
    verify = store.verify

    def slow(commit: Any, level: Any = "full", ranks: Any = None) -> Any:
        thread = threading.Thread(target=save, args=(store, 3))
        thread.start()
        thread.join(300)
        assert not thread.is_alive()
        return verify(commit, level, ranks)

    store.verify = slow  # type: ignore[method-assign]
    with store.writer():
        assert store.retain(Keep(last=1)) == [first]
    assert steps(store) == [2, 3]
    assert second in store.commits()

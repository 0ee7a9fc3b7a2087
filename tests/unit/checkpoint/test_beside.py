"""Reading while somebody else writes and removes: what is gone is told from what is damaged, and newer ones are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from trajload.checkpoint import catalog
from trajload.checkpoint import store as store_module
from trajload.checkpoint.entries import Keep
from trajload.checkpoint.saved import read_saved
from trajload.checkpoint.store import Store
from trajload.cli.app import build_app
from trajload.errors import CheckpointCorruptError, CheckpointError


@pytest.fixture
def meanwhile(store: Store, save: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let three saves and a removal happen in front of each of the next so many verifications of a commit."""
    real, left, writer = catalog.verify_commit, [0], Store(store.root)

    def verify(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            replace(writer, save)
        return real(*arguments)

    monkeypatch.setattr(catalog, "verify_commit", verify)
    return lambda times: left.__setitem__(0, times)


def replace(writer: Store, save: Any) -> None:
    """Save three times and remove all that was there before."""
    step = max((commit.step for commit in writer.commits()), default=0)
    for more in (1, 2, 3):
        save(writer, step + more)
    with writer.writer():
        writer.retain(Keep(last=2))


def test_newest_is_found_although_all_that_was_listed_has_gone(store: Store, save: Any, meanwhile: Any) -> None:
    """A training beside that keeps few, or a clean-up: nothing is damaged, and there is a newest one at any time."""
    save(store, 1)
    reader = Store(store.root, create=False)
    meanwhile(2)
    newest, faults = reader.newest()
    assert newest is not None and (newest.step, faults) == (7, [])
    meanwhile(1)
    assert reader.pick().step == 10


def test_commits_that_go_faster_than_they_are_read_are_no_empty_store(store: Store, save: Any, meanwhile: Any) -> None:
    """None would mean that there is no checkpoint, and a training would start anew."""
    save(store, 1)
    meanwhile(1_000)
    with pytest.raises(
        CheckpointError, match=r"were removed while they were read, 10 times.*Let it keep more, pin one"
    ):
        Store(store.root, create=False).newest()


@pytest.mark.global_rng
def test_commit_removed_while_it_is_read_is_not_called_damaged(store: Store, kept: Any, save: Any) -> None:
    """Its list of files, a file, a component, tensors that are loaded late: each time the same words, and the cure."""
    part = kept.keep(store, {"model": torch.nn.Linear(2, 2)})
    saved, commit = read_saved(part, "model"), store.commits()[-1]
    replace(store, save)
    gone = pytest.raises(
        CheckpointError, match=rf"record 'commits/{commit.seq:010d}.json' was removed while it was.*Pick again"
    )
    for read in (
        lambda: store.part(commit, 0),
        lambda: part.read("model.json"),
        lambda: part.read("model.json", verify=False),
        lambda: read_saved(part, "model"),
        saved.load,
    ):
        with gone as raised:
            read()
        assert not isinstance(raised.value, CheckpointCorruptError)
    assert [fault.what for fault in store.verify(commit)] == ["the record is gone: the commit was removed."]


def test_damage_of_what_is_there_is_still_called_so(store: Store, save: Any) -> None:
    """A file is missing, and its record is not."""
    commit = save(store, 1)
    part = store.part(commit, 0)
    name = next(iter(part.files))
    part.path(name).unlink()
    with pytest.raises(CheckpointCorruptError, match="is missing: the checkpoint is not whole"):
        part.read(name)
    assert store.newest()[0] is None and "is missing" in str(store.newest()[1])


def test_verify_all_beside_a_training_finds_no_damage(store: Store, save: Any, meanwhile: Any) -> None:
    """What was removed since it was listed is not verified, and not a fault."""
    for step in (1, 2):
        save(store, step)
    real = store_module.verify_commit
    with pytest.MonkeyPatch.context() as patched:

        def verify(*arguments: Any) -> Any:
            patched.undo()
            replace(Store(store.root), save)
            return real(*arguments)

        patched.setattr(store_module, "verify_commit", verify)
        done = CliRunner().invoke(build_app(), ["checkpoints", "verify", str(store.root), "--all"])
    assert (done.exit_code, "DAMAGED" in done.output) == (0, False), done.output

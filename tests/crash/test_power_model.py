"""Every state that a power cut may leave, by a model; it needs nothing of the machine and stands alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from crashlab.modelled import judge_mutant, judge_states, record
from crashlab.mutants import MUTANTS, Mutant, NoFileSync, NoFolderSync
from crashlab.scenario import MUTANT_SCRIPT, SCRIPT, SHORT_SCRIPT

from trajload.checkpoint.disk import Disk
from trajload.checkpoint.store import Store


def test_no_power_cut_loses_an_acknowledged_checkpoint(memory_folder: Path) -> None:
    """Each prefix of the operations x names and 4 KiB blocks not synced, in a folder that did not exist before."""
    recording = record(memory_folder / "recorded", SCRIPT)
    verdict = judge_states(recording, memory_folder / "states", most_per_prefix=3, every=12)
    assert not verdict.violations, verdict.told()
    assert verdict.num_states > 300


class NoLinks(Disk):
    """A file system without hard links."""

    def link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(target))


def test_no_power_cut_loses_an_acknowledged_checkpoint_where_links_do_not_exist(memory_folder: Path) -> None:
    """There the record is written in place, and a torn one fails its own digest; its files stay until it is removed."""
    recording = record(memory_folder / "recorded", SHORT_SCRIPT, lambda root: Store(root, disk=NoLinks()))
    verdict = judge_states(recording, memory_folder / "states", most_per_prefix=3, every=6, sweeps=False)
    assert not verdict.violations, verdict.told()
    assert verdict.num_states > 100


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_protocol_is_caught(mutant: Mutant, memory_folder: Path) -> None:
    """The same harness finds the fault that was put in: what passes has been tested."""
    recording = record(memory_folder / "recorded", MUTANT_SCRIPT, mutant.open_to_write())
    verdict = judge_mutant(mutant, recording, memory_folder / "states")
    assert verdict.violations, f"{verdict.num_states} states and no fault found"


@pytest.mark.parametrize("disk", [NoFileSync, NoFolderSync], ids=lambda disk: disk.__name__)
def test_export_that_leaves_out_a_sync_is_caught(disk: type[Disk], memory_folder: Path) -> None:
    """Exports are looked at apart from checkpoints: one that is there in part, and one that was acknowledged and is gone."""
    actions = (("save", 10), ("export", 10))
    recording = record(memory_folder / "recorded", actions, lambda root: Store(root, disk=disk()))
    verdict = judge_states(recording, memory_folder / "states", most_per_prefix=64, every=4, lay_out_every=10_000)
    assert [text for _, texts in verdict.violations for text in texts if text.startswith("export 10")]

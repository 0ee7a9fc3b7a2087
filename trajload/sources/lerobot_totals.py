"""Totals that info.json states, compared with the table of episodes: a disagreement is a note, the content wins."""

# Shapes: E episodes

from __future__ import annotations

from trajload.sources.lerobot_meta import LeRobotInfo
from trajload.sources.notes import Note
from trajload.types import Int64Array

__all__ = ["total_notes"]


def total_notes(info: LeRobotInfo, length_E: Int64Array, num_tasks: int) -> list[Note]:
    """Return a note for each total or split of info.json that the metadata tables contradict."""
    counted = {"total_episodes": len(length_E), "total_frames": int(length_E.sum()), "total_tasks": num_tasks}
    notes = [
        Note("totals", f"info.json says {name} {info.raw[name]}, the metadata tables hold {found}.")
        for name, found in counted.items()
        if name in info.raw and info.raw[name] != found
    ]
    splits = info.raw.get("splits")
    for name, text in (splits if isinstance(splits, dict) else {}).items():
        stop = str(text).rsplit(":", 1)[-1]
        if stop.isdigit() and int(stop) > len(length_E):
            notes.append(
                Note("totals", f"info.json says split {name!r} is {text!r}, but there are {len(length_E)} episodes.")
            )
    return notes

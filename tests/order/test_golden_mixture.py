"""No release changes which window of which source a mixture puts where."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from by_path import load

from trajload.sampling.mixture import MixturePart, MixtureSampler
from trajload.sampling.orders import order_config
from trajload.sampling.windows import WindowTable
from trajload.spec import Window

FILE = Path(__file__).parent / "golden" / "mixture" / "mixture-1.json"
CASES = json.loads(FILE.read_text())["cases"]


def definition() -> ModuleType:
    """Return the plain definition as a module."""
    return load(FILE.parents[2] / "mixture_definition.py")


def sampler_of(case: dict[str, Any]) -> MixtureSampler:
    parts = []
    for one in case["sources"]:
        order: Any = one["order"]
        if order.startswith("interleaved/"):
            order = {"version": order, "block_windows": one["block_windows"], "lanes_per_row": one["lanes_per_row"]}
        parts.append(
            MixturePart(
                name=one["name"],
                weight={int(step): Fraction(weight) for step, weight in one["weights"].items()},  # type: ignore[arg-type]
                table=WindowTable(np.array(one["windows_of_episodes"]), Window(num_steps=1)),
                order=order_config(order),
            )
        )
    return MixtureSampler(parts, by=case["by"], seed=case["seed"], global_batch_size=case["global_batch_size"])


@pytest.mark.parametrize("number", range(len(CASES)))
def test_mixture_gives_the_checked_in_rows(number: int) -> None:
    """Sources, epochs and window ids of every row, near the start, around changes of weights and far away."""
    case = CASES[number]
    sampler = sampler_of(case)
    assert sampler.order == "mixture/1"
    for step, expected in zip(case["train_steps"], case["rows"], strict=True):
        refs = sampler.refs(step)
        rows = zip(refs.source_B.tolist(), refs.epoch_B.tolist(), refs.window_id_B.tolist(), strict=True)
        assert [list(row) for row in rows] == expected, step


def test_checked_in_rows_are_those_of_the_plain_definition(capsys: pytest.CaptureFixture[str]) -> None:
    """The file comes from plain Python, not from the code it tests; the script does not overwrite it."""
    module = definition()
    for case, written in zip(module.CASES, CASES, strict=True):
        assert module.mixture_1(case, module.TRAIN_STEPS[:13]) == written["rows"][:13]
    assert module.main() == 1
    assert "exists: not overwritten" in capsys.readouterr().err

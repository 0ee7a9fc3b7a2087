"""No release changes an order: every version still gives the window ids that were checked in for it."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from by_path import load

from trajload.sampling import orders
from trajload.sampling.orders import Continuous, Interleaved, Interleaved2, Order, Weighted, make_order, order_config
from trajload.sampling.windows import WindowTable
from trajload.spec import Window

FOLDER = Path(__file__).parent / "golden"
FILES = sorted(FOLDER.glob("*.json"))


def script(name: str) -> ModuleType:
    """Return a script of this folder as a module."""
    return load(Path(__file__).with_name(f"{name}.py"))


def order_of(version: str, case: dict[str, Any]) -> Order:
    """Return the order of a case; its episodes are given by their numbers of windows."""
    if "windows_of_episodes" not in case:
        return make_order(version, num_windows=case["num_windows"], seed=case["seed"])
    counts = np.array([num for num, times in case["windows_of_episodes"] for _ in range(times)])
    window = Window(num_steps=case["tile_windows"] if version == "continuous/1" else 1)
    num_steps_E = np.where(counts > 0, counts + window.num_steps - 1, 0)
    interleaved = {key: case[key] for key in ("block_windows", "lanes_per_row")}
    config: dict[str, Any] = {
        "interleaved/1": lambda: order_config({"version": "interleaved/1", **interleaved}),
        "interleaved/2": lambda: Interleaved2(**interleaved),
        "interleaved/3": lambda: Interleaved(**interleaved),
        "continuous/1": Continuous,
        "weighted/1": lambda: Weighted(episode_weights=np.resize(case["weights"], len(counts))),
    }
    return make_order(
        config[version](),
        table=WindowTable(num_steps_E, window),
        seed=case["seed"],
        global_batch_size=case["global_batch_size"],
    )


def cases_of(path: Path) -> tuple[str, list[dict[str, Any]]]:
    content = json.loads(path.read_text())
    return content["order"], content["cases"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_order_gives_the_checked_in_window_ids_in_both_directions(path: Path) -> None:
    """For each size, seed and epoch written down, offsets map to those ids and back."""
    version, cases = cases_of(path)
    assert len(cases) > 200
    for case in cases:
        order = order_of(version, case)
        offsets, ids = np.array(case["offsets"]), np.array(case["window_ids"])
        where = {k: case[k] for k in ("num_windows", "seed", "epoch")}
        assert order.window_ids(case["epoch"], offsets).tolist() == case["window_ids"], where
        if version != "weighted/1":  # draws with replacement: no way back
            assert order.offsets(case["epoch"], ids).tolist() == case["offsets"], where


def test_every_order_version_has_golden_ids() -> None:
    """An order cannot be added without writing its ids down."""
    assert {cases_of(p)[0] for p in FILES} == set(orders._ORDERS)


def test_make_golden_never_overwrites_a_released_order_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script refuses to touch a file that is there; with --force it writes the same bytes again."""
    module = script("make_golden")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "SIZES", (3, 100))
    monkeypatch.setattr(module, "LAYOUTS", module.LAYOUTS[:3])
    assert module.main([]) == 0
    written = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert sorted(written) == [p.name for p in FILES]
    (tmp_path / "shuffled-1.json").write_text("old")
    assert module.main([]) == 1
    assert "shuffled-1.json exists: not overwritten without --force" in capsys.readouterr().err
    assert (tmp_path / "shuffled-1.json").read_text() == "old"
    assert module.main(["--force"]) == 0
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == written

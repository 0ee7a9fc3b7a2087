"""Merging repeats, ratios and the table: the arithmetic between measurement and page."""

from __future__ import annotations

from typing import Any


def run(rate: float, gap: float = 0.1) -> dict[str, float]:
    return {"windows_per_s": rate, "longest_gap_s": gap}


def entry(*rates: float, **more: Any) -> dict[str, Any]:
    from reporting import merge_runs

    runs = [run(rate) for rate in rates]
    return {"status": "measured", "limit": False, "notes": "n", "runs": runs, "figures": merge_runs(runs), **more}


def test_merge_gives_median_and_spread() -> None:
    """The figure is the median of the repeats; a mean would let one disturbed repeat decide."""
    from reporting import merge_runs

    merged = merge_runs([run(10, 0.5), run(99, 0.1), run(12, 0.2)])
    assert merged["windows_per_s"] == {"median": 12, "min": 10, "max": 99}
    assert merged["longest_gap_s"] == {"median": 0.2, "min": 0.1, "max": 0.5}


def test_ratios_pair_repeats_with_the_baseline_of_the_same_repeat() -> None:
    """A machine that slows down between repeats does not change the ratio's spread."""
    from reporting import add_ratios

    rivals = {"base": entry(100, 50, 80), "fast": entry(200, 100, 240), "gone": {"status": "failed"}}
    add_ratios(rivals, "base")
    assert rivals["fast"]["ratio"] == {"median": 200 / 80, "min": 2, "max": 3}
    assert rivals["base"]["ratio"]["median"] == 1
    assert "ratio" not in rivals["gone"]


def test_ratio_is_absent_without_a_baseline() -> None:
    """Ratios to a figure of another run would compare two machines' moods."""
    from reporting import add_ratios

    rivals = {"fast": entry(200), "base": {"status": "failed", "reason": "broken"}}
    add_ratios(rivals, "base")
    assert rivals["fast"]["ratio"] is None


def test_markdown_sorts_by_speed_and_names_who_is_missing() -> None:
    """Limits stand last in italics, and whoever could not be measured is listed with the reason."""
    from reporting import HEADER, add_ratios, markdown

    check = {"distinct_episodes_per_batch": 1.6, "distinct_episodes_uniform": 13.32}
    rivals = {
        "slow": entry(50, 40, 60, check=check, stored_bytes=2_000_000),
        "limit": entry(900, limit=True),
        "fast": entry(1234.5),
        "absent": {"status": "not installed", "reason": "missing: absent", "limit": False, "notes": "n"},
    }
    add_ratios(rivals, "slow")
    text = markdown({"workload": "w", "setting": "s", "protocol": "p", "baseline": "slow", "rivals": rivals})
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in rows] == ["loader", "fast", "slow", "*limit*"]
    assert rows[0][2] == "× slow"
    assert {len(row) for row in rows} == {len(HEADER)}
    assert rows[2][1:4] == ["50.0 (40.0–60.0)", "1.00", "100"]
    assert rows[1][1:3] == ["1,234", "24.7"]
    assert "2.00" in rows[2] and "1.60" in rows[2] and "–" in rows[1]
    assert "come from 13.3 episodes" in text
    assert "- absent: not installed. missing: absent" in text

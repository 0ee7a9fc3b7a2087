"""A report is one page that needs nothing else, shows what was measured, and is drawn by a browser without complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from trajload.bench.html import report_html, write_html
from trajload.bench.measure import measure_with_details
from trajload.bench.svg import bars, lanes_plot, waits_plot
from trajload.bench.trace import Lane, lanes_of
from trajload.loader import Loader
from trajload.spec import Window

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLOTS = ("waterfall", "headspace", "waits", "timeline")


@pytest.fixture(scope="module")
def measured(demo_dataset: Path) -> tuple[dict[str, Any], list[Lane]]:
    """A report of a real run, with a name that HTML must not take for a tag."""
    arguments: dict[str, Any] = {"window": Window(num_steps=2), "streams": ["cam_front"], "global_batch_size": 4}
    with Loader(demo_dataset, num_workers=2, rank=0, world_size=1, **arguments) as loader:
        found = measure_with_details(loader, seconds=0.3, headspace_s=0.1, trace=True)
    report = {**found.report.to_json(), "dataset": "<b>pushing & pulling</b>"}
    return report, lanes_of(found.seen.spans)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        self.links += [value for name in ("src", "href", "xlink:href") if (value := found.get(name))]
        if tag not in ("meta", "rect", "line", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids.add(dict(attrs).get("id") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line"):
            assert self.open.pop() == tag


def test_page_stands_alone_and_is_well_formed(measured: tuple[dict[str, Any], list[Lane]]) -> None:
    """All tags are closed, nothing is loaded, no script runs, and names from data are text."""
    page = report_html(*measured)
    assert "2 decoder threads, 1 reader," in page
    assert "<td>wait</td>" not in page, "its exact quantiles stand above: those of a histogram would contradict them"
    tags = _Tags()
    tags.feed(page)
    assert tags.open == [] and tags.links == []
    assert "<script" not in page and "url(" not in page and "@import" not in page
    assert tags.ids >= {*PLOTS, "verdict", "figures"}
    assert "<b>pushing" not in page and "&lt;b&gt;pushing &amp; pulling&lt;/b&gt;" in page


def test_page_shows_what_was_measured(measured: tuple[dict[str, Any], list[Lane]]) -> None:
    """Verdict, figures, stages and threads of the report stand on it."""
    report, lanes = measured
    page = report_html(report, lanes)
    assert report["advice"].split(":")[0].replace('"', "&quot;") in page
    assert f"<b>{report['windows_per_s']:.1f}</b>" in page and f"<b>{report['wait_share']:.0%}</b>" in page
    assert "<td>decode-0</td>" in page and "<td>decode</td>" in page
    assert 'id="timeline"' not in report_html(report, []), "no timeline without a trace"


def test_bars_are_as_long_as_their_values() -> None:
    """The longest bar fills the plot."""
    widths = [
        float(w)
        for w in re.findall(r'width="([0-9.]+)" height="16"', bars([("a", 1, "wait", ""), ("b", 4, "wait", "")], "x"))
    ]
    assert widths[1] == pytest.approx(4 * widths[0])


def test_plots_of_nothing_are_empty_plots() -> None:
    """No batch and no thread is no error."""
    assert waits_plot([], []).startswith("<svg") and lanes_plot([]).startswith("<svg")


def test_page_is_drawn_by_a_browser(measured: tuple[dict[str, Any], list[Lane]], tmp_path: Path) -> None:
    """Headless Chromium lays the page out, fetches nothing and complains of nothing; plots are where they should be."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("THE REPORT WAS NOT SHOWN TO A BROWSER: no Chromium or Chrome on this machine")
    pillow = pytest.importorskip("PIL.Image")
    write_html(tmp_path / "report.html", *measured)
    picture = tmp_path / "report.png"
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1100,2200", "--no-first-run"),
            *(f"--screenshot={picture}", (tmp_path / "report.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    with warnings.catch_warnings():
        image = pillow.open(picture).convert("RGB")
        colours = {colour: count for count, colour in image.getcolors(1 << 24)}
    for name, colour in {"decode": (0xE0, 0x7B, 0x2E), "wait": (0xC9, 0xD2, 0xDB), "batch": (0x7D, 0x8A, 0x97)}.items():
        assert colours.get(colour, 0) > 200, f"no {name} is drawn"

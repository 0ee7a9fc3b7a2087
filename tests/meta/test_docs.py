"""What the documentation shows works: code runs, links lead somewhere, commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
DOCS = REPO / "docs"
PAGES = sorted([*REPO.glob("*.md"), *DOCS.rglob("*.md")])
NOTES = sorted((DOCS / "decisions").glob("[0-9]*.md"))

_BLOCK = re.compile(r"(?P<before>[^\n]*)\n(?P<indent> *)```python\n(?P<code>.*?)\n *```", re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")


def name(path: Path) -> str:
    return str(path.relative_to(REPO))


def python_blocks(path: Path) -> list[str]:
    """Return the code of every ```python block that is not preceded by `<!-- not run: why -->`."""
    text = "\n\n" + path.read_text(encoding="utf-8")
    # A blank line between the remark and the block is allowed, so look at the last two lines before it.
    return [
        m["code"]
        for m in _BLOCK.finditer(text)
        if "<!-- not run" not in text[max(0, m.start() - 120) : m.start("code")]
    ]


WITH_CODE = [p for p in PAGES if python_blocks(p)]


@pytest.mark.global_rng  # models on the pages draw their weights
@pytest.mark.parametrize("path", WITH_CODE, ids=name)
def test_code_on_the_page_runs(path: Path, demo_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page run, one after the other, in a folder that holds the demo dataset as `my-dataset`."""
    (tmp_path / "my-dataset").symlink_to(demo_dataset, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "__docs__"}
    for code in python_blocks(path):
        exec(compile(code, name(path), "exec"), space)


def test_pages_with_code_are_found() -> None:
    """The blocks are really seen: the README and the quick start have some."""
    assert {"README.md", "docs/quickstart.md", "docs/how-to/resume.md"} <= {name(p) for p in WITH_CODE}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_to_files(path: Path) -> None:
    """Relative links point to files of the repository."""
    targets = [
        m["target"] for m in _LINK.finditer(re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL))
    ]
    broken = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert not broken, f"{name(path)} links to {broken}"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_on_the_page_exist(path: Path) -> None:
    """Every `trajload <command>` and `scripts/<name>` that a page shows is there."""
    from trajload.cli.app import COMMANDS, GROUPS

    text = path.read_text(encoding="utf-8")
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))
    unknown = set(re.findall(r"^\s*trajload ([\w-]+)", shell, flags=re.MULTILINE)) - {*COMMANDS, *GROUPS}
    scripts = {s for s in re.findall(r"scripts/([\w-]+)", text) if not (REPO / "scripts" / s).exists()}
    assert not unknown and not scripts, f"{name(path)}: {unknown or ''} {scripts or ''}"


@pytest.mark.parametrize("path", NOTES, ids=name)
def test_decision_note_has_its_parts(path: Path) -> None:
    """A note is titled with its number and says context, decision, what was rejected, and what follows."""
    text = path.read_text(encoding="utf-8")
    assert re.match(rf"# {path.name[:4]}: \S", text), f"{path.name} must begin with '# {path.name[:4]}: ...'"
    missing = [part for part in ("Context", "Decision", "Rejected", "Consequences") if f"**{part}.**" not in text]
    assert not missing, f"{path.name} lacks {missing}"


def test_documentation_of_the_site_is_complete() -> None:
    """Every page stands in the navigation of mkdocs.yml, decision notes apart, and every entry is a page."""
    nav = (REPO / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": (\S+\.md)$", nav, flags=re.MULTILINE))
    there = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md") if p not in NOTES}
    assert there - listed == set(), "pages that mkdocs.yml does not list"
    assert listed - there == set(), "entries of mkdocs.yml without a page"


def test_home_page_leads_to_every_page() -> None:
    """Who reads the documentation in the repository, without the site's navigation, finds every page from its index."""
    targets = {m["target"] for m in _LINK.finditer((DOCS / "index.md").read_text(encoding="utf-8"))}
    there = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md") if p not in NOTES}
    assert there - targets == {"index.md"}


def test_decision_notes_are_listed() -> None:
    """The index of the notes names each of them with its title, as `scripts/list-decisions` writes it."""
    command = [sys.executable, str(REPO / "scripts" / "list-decisions"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_no_page_mentions_an_absolute_path_of_this_machine() -> None:
    """Documentation is about the reader's machine."""
    home = os.path.dirname(str(REPO))
    assert home == "/" or not [name(p) for p in PAGES if home + "/" in p.read_text(encoding="utf-8")]

"""MkDocs hook: the page of decisions lists the notes that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Append a list of all decision notes to their index page."""
    if page.file.src_uri != "decisions/index.md":
        return markdown
    notes = sorted(Path(page.file.abs_src_path).parent.glob("[0-9]*.md"))
    titles = [(note.name, note.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")) for note in notes]
    return markdown + "\n## All notes\n\n" + "".join(f"- [{title}]({name})\n" for name, title in titles)

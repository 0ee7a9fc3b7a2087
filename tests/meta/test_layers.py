"""The layers of the library: a module imports only from lines above its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PACKAGE = REPO / "trajload"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("arguments", "checks", "errors", "foreign_names", "jit", "machine", "reprs", "rng", "stop", "types"),
    ("deltas", "window", "spec", "refs", "world"),
    ("storage",),
    ("manifest",),
    ("shards",),
    ("sources",),
    ("decode",),
    ("sampling",),
    ("align", "collate"),
    ("augment",),
    ("costs",),
    ("pipeline",),
    ("loader",),
    ("interop", "checkpoint", "runs"),
    ("view",),
    ("convert", "doctor", "bench"),
    ("demo",),
    ("cli",),
    ("__main__",),
)
"""From bottom to top. Names on one line do not import each other, except inside a package and among base modules."""

DOORS = {("trajload.loader", "trajload.interop.dataloader"), ("trajload.loader", "trajload.interop.rows")}
"""(from, to): imports upwards that are wanted, inside a method that users call: `Loader.as_dataloader`, `.as_map_dataset`."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
BASE = {*LAYERS[0], *LAYERS[1]}
ROOT = "trajload"
"""`import trajload` itself: only __version__, for the command line."""


def top(module: str) -> str:
    """Return 'sources' of 'trajload.sources.base', and 'trajload' of the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ROOT


def imported_modules(path: Path) -> list[tuple[int, str]]:
    """Return (line, module) of every import of trajload in a file, lazy ones included, type-only ones not."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    type_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for child in block.body
        for node in ast.walk(child)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in type_only:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == ROOT]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} uses a relative import"
            module = node.module or ""
            if module == ROOT:  # `from trajload import errors` names a module or a public name
                found += [(node.lineno, f"{ROOT}.{a.name}") for a in node.names if a.name in LEVEL]
            elif module.split(".")[0] == ROOT:
                found.append((node.lineno, module))
    return found


def is_allowed(importer: str, imported: str) -> bool:
    """Whether the top-level module `importer` may import `imported`."""
    if importer == imported:
        return True
    if imported == ROOT:
        return importer in ("cli", "__main__")
    if {importer, imported} <= BASE:
        return LEVEL[imported] <= LEVEL[importer]
    return LEVEL[imported] < LEVEL[importer]


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def name_of(path: Path) -> str:
    return ".".join(("trajload", *path.relative_to(PACKAGE).with_suffix("").parts))


def test_every_module_has_a_layer() -> None:
    """No module stands outside the table of layers."""
    assert {top(name_of(path)) for path in modules()} <= set(LEVEL)


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_module_imports_only_from_layers_above(path: Path) -> None:
    """Each import of trajload goes to a lower layer; the message names the line that does not."""
    importer = top(name_of(path))
    offending = [
        f"{path.relative_to(REPO)}:{line}: {importer} imports {module}"
        for line, module in imported_modules(path)
        if not is_allowed(importer, top(module)) and (name_of(path), module) not in DOORS
    ]
    assert not offending, "\n".join(offending)


def test_layer_rule_refuses_an_upward_import(tmp_path: Path) -> None:
    """The rule sees lazy imports, and leaves type-only ones alone."""
    file = tmp_path / "probe.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trajload.cli import main\n"
        "def f():\n    from trajload.loader import Loader\n"
    )
    assert imported_modules(file) == [(5, "trajload.loader")]
    assert not is_allowed("storage", "loader")
    assert is_allowed("loader", "storage")


TORCH_USERS = {"collate", "pipeline", "loader", "interop", "checkpoint", "runs", "demo"}
TORCH_FILES = {"trajload.decode.device_pixels"}
"""Frames of a video device leave it as tensors, or not at all. Imported only once such a device is asked for; that
importing `trajload.decode` brings no torch is tested in test_import_cost.py."""


@pytest.mark.parametrize(
    "path", [p for p in modules() if top(name_of(p)) not in TORCH_USERS and name_of(p) not in TORCH_FILES], ids=name_of
)
def test_torch_is_imported_only_by_layers_that_make_tensors(path: Path) -> None:
    """Storage, sources, decoding and sampling work without torch."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Import) and any(a.name.split(".")[0] == "torch" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch")
    ]
    assert not lines, f"{path.relative_to(REPO)} imports torch in lines {lines}"

"""What is installed elsewhere: the whole package, its type marker and its licence, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.multiproc
def test_wheel_ships_the_package_its_types_and_its_licence(tmp_path: Path) -> None:
    """Every module, `py.typed`, LICENSE and the console script are in the wheel; tests and docs are not."""
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=REPO, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
        scripts = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    modules = {str(p.relative_to(REPO)) for p in (REPO / "trajload").rglob("*.py")}
    assert modules <= set(names)
    assert "trajload/py.typed" in names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert {n.split("/")[0] for n in names if not n.startswith("trajload-")} == {"trajload"}
    assert "trajload = trajload.cli:main" in scripts
    assert "Requires-Python: >=3.10" in metadata
    for extra in ("lerobot", "s3", "hdf5", "zarr", "ray", "lightning", "trainers", "dev", "bench", "docs"):
        assert f"Provides-Extra: {extra}" in metadata

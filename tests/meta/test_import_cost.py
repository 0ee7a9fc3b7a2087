"""`import trajload` is cheap, and brings in nothing that is not used."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import pytest

MAX_MEDIAN_S = 0.150
HEAVY = ("torch", "av", "numba", "pyarrow", "PIL", "rich", "typer")

_CODE = """
import json, sys, time
begin = time.perf_counter()
import trajload
spent = time.perf_counter() - begin
print(json.dumps({"spent": spent, "modules": sorted({m.split(".")[0] for m in sys.modules})}))
"""


def fresh(code: str) -> str:
    """Return what `code` prints in a new interpreter that imports nothing by itself."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.multiproc
def test_import_takes_less_than_150_ms() -> None:
    """The median of several fresh interpreters; the best of three medians, since the machine is shared."""
    medians = []
    for _ in range(3):
        medians.append(statistics.median(json.loads(fresh(_CODE))["spent"] for _ in range(5)))
        if medians[-1] < MAX_MEDIAN_S:
            return
    pytest.fail(f"import trajload takes {min(medians) * 1000:.0f} ms, expected less than {MAX_MEDIAN_S * 1000:.0f} ms")


@pytest.mark.multiproc
def test_import_brings_no_heavy_module() -> None:
    """No torch, PyAV or numba until a name that needs it is used."""
    assert not set(HEAVY) & set(json.loads(fresh(_CODE))["modules"])


@pytest.mark.multiproc
@pytest.mark.parametrize(
    "module", ["trajload.spec", "trajload.sampling.sampler", "trajload.sources.open", "trajload.decode"]
)
def test_module_without_tensors_brings_no_torch(module: str) -> None:
    """Planning, sampling and opening work in processes that never load torch."""
    assert fresh(f"import sys, {module}; print('torch' in sys.modules)").strip() == "False"


@pytest.mark.multiproc
def test_help_brings_neither_torch_nor_av() -> None:
    """`trajload --help` answers at once."""
    code = (
        "import sys\nfrom trajload.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as done:\n    code = done.code\n"
        "print(code, [m for m in ('torch', 'av', 'numba', 'pyarrow') if m in sys.modules])"
    )
    assert fresh(code).strip().splitlines()[-1] == "0 []"

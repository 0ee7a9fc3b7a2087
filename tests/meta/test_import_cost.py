"""`import trajload` is cheap, and brings in nothing that is not used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_CODE = """
import json, sys
import trajload
print(json.dumps({"modules": sorted({m.split(".")[0] for m in sys.modules})}))
"""
_NOTHING = _CODE.replace("import trajload\n", "")


def fresh(code: str) -> str:
    """Return what `code` prints in a new interpreter that imports nothing by itself."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.multiproc
def test_import_brings_nothing_but_itself() -> None:
    """Not even NumPy until a name that needs it is used; how long that takes, `benchmarks/cold_start.py` tells."""
    loaded = set(json.loads(fresh(_CODE))["modules"])
    assert loaded - set(sys.stdlib_module_names) - set(json.loads(fresh(_NOTHING))["modules"]) == {"trajload"}


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

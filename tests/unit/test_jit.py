"""Kernels load from numba's cache without setting up its compiler."""

from __future__ import annotations

import subprocess
import sys

import numba
import pytest

from trajload.jit import KNOWN_VERSIONS

_FIRST = """
import sys
from trajload.decode import plan_kernel
{setup}
names = [n for n in sys.modules if n.startswith("numba.np.random.generator_methods")]
print(len(names), len(plan_kernel.plan_window.overloads))
"""


def run(setup: str = "") -> str:
    code = _FIRST.format(setup=setup)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.skipif(
    tuple(numba.version_info[:2]) not in KNOWN_VERSIONS, reason="a release of numba that loads as it likes to"
)
def test_compiled_kernels_load_without_the_compiler() -> None:
    """Once machine code is on disk, another process loads none of the compiler's tables; made anyway, they do no harm."""
    run()  # compiles, where nobody has
    assert run().split() == ["0", "1"]
    assert run("from numba.core.registry import cpu_target; cpu_target.target_context.refresh()").split() == ["1", "1"]

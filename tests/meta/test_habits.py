"""Rules that a reader relies on everywhere: short files, no globals, no stray prints, no global draws, no unpickling."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
MAX_LINES = 400

CLI = REPO / "trajload" / "cli"
LIBRARY = sorted((REPO / "trajload").rglob("*.py"))
TESTS = sorted((REPO / "tests").rglob("*.py"))
OTHERS = sorted(
    [*(REPO / "examples").rglob("*.py"), *(REPO / "benchmarks").rglob("*.py"), *(REPO / "scripts").iterdir()]
)


def name(path: Path) -> str:
    return str(path.relative_to(REPO))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file, parsed once for all rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def calls(path: Path) -> list[tuple[int, str]]:
    """Return (line, dotted name) of every call in a file."""
    return [(node.lineno, ast.unparse(node.func)) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", [*LIBRARY, *TESTS, *OTHERS], ids=name)
def test_file_is_at_most_400_lines(path: Path) -> None:
    """A file that grows beyond is two files."""
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_LINES, f"{name(path)} has {num_lines} lines"


@pytest.mark.parametrize("path", LIBRARY, ids=name)
def test_module_says_what_it_is_for(path: Path) -> None:
    """Every module opens with a docstring."""
    assert ast.get_docstring(tree_of(path)), f"{name(path)} has no docstring"


@pytest.mark.parametrize("path", LIBRARY, ids=name)
def test_module_has_no_global_statement(path: Path) -> None:
    """Nothing is kept in module variables that functions change."""
    lines = [node.lineno for node in ast.walk(tree_of(path)) if isinstance(node, ast.Global)]
    assert not lines, f"{name(path)} has global statements in lines {lines}"


@pytest.mark.parametrize("path", [p for p in LIBRARY if not p.is_relative_to(CLI)], ids=name)
def test_module_outside_the_command_line_prints_nothing(path: Path) -> None:
    """Output belongs to `trajload.cli`."""
    lines = [line for line, func in calls(path) if func in ("print", "sys.stdout.write", "sys.stderr.write", "pprint")]
    assert not lines, f"{name(path)} prints in lines {lines}"


# What draws from, or seeds, a generator that the whole process shares.
GLOBAL_DRAW = re.compile(
    r"^(random\.(?!Random$|SystemRandom$)\w+"
    r"|(np|numpy)\.random\.(?!Generator$|Philox$|PCG64$|SeedSequence$|BitGenerator$|default_rng$)\w+"
    r"|torch\.(rand|randn|randint|randperm|normal|bernoulli|multinomial|manual_seed|seed|rand_like|randn_like)"
    r"|torch\.random\.\w+)$"
)
UNSEEDED = ("np.random.default_rng", "numpy.random.default_rng")


def global_draws(source: str) -> list[tuple[int, str]]:
    """Return (line, call) of global draws: without a `generator=`, on a shared generator."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        func = ast.unparse(node.func)
        has_generator = any(keyword.arg == "generator" for keyword in node.keywords)
        if (GLOBAL_DRAW.match(func) and not has_generator) or (func in UNSEEDED and not node.args):
            found.append((node.lineno, func))
    return found


STATE_KEEPERS = {"trajload/checkpoint/streams.py"}
"""Reads and sets the states of the shared generators, so that those who draw from them go on exactly; draws nothing."""


@pytest.mark.parametrize("path", LIBRARY, ids=name)
def test_module_draws_from_no_global_generator(path: Path) -> None:
    """Every random value is a function of a key."""
    found = global_draws(path.read_text(encoding="utf-8"))
    if name(path) in STATE_KEEPERS:
        found = [
            (line, call)
            for line, call in found
            if not call.endswith(("getstate", "setstate", "get_state", "set_state"))
        ]
    assert not found, f"{name(path)} draws globally: {found}"


def test_global_draws_are_told_from_keyed_ones() -> None:
    """The rule refuses shared generators and leaves explicit ones alone."""
    assert global_draws(
        "import random\nrandom.random()\nnp.random.rand(3)\ntorch.randn(2)\nnp.random.default_rng()"
    ) == [
        (2, "random.random"),
        (3, "np.random.rand"),
        (4, "torch.randn"),
        (5, "np.random.default_rng"),
    ]
    assert global_draws("torch.randn(2, generator=g)\nrng.random()\nnp.random.Generator(np.random.Philox(key=1))") == []


UNSAFE = {"eval", "exec", "compile", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "torch.load"}

UNPICKLES = {"trajload/pipeline/wire.py"}
"""What a loader and its worker processes tell each other, over sockets and files without a name."""


@pytest.mark.parametrize("path", [p for p in LIBRARY if name(p) not in UNPICKLES], ids=name)
def test_module_neither_unpickles_nor_evaluates(path: Path) -> None:
    """Bytes from a dataset or a state are data: nothing in them is executed."""
    found = [(line, func) for line, func in calls(path) if func in UNSAFE and not _is_safe_torch_load(path, line)]
    assert not found, f"{name(path)}: {found}"
    text = path.read_text(encoding="utf-8")
    assert "allow_pickle=True" not in text, f"{name(path)} lets NumPy unpickle"


def _is_safe_torch_load(path: Path, line: int) -> bool:
    return "weights_only=True" in path.read_text(encoding="utf-8").splitlines()[line - 1]


ENVIRONMENT_READERS = {"trajload/world.py", "trajload/sources/index_cache.py", "trajload/checkpoint/trainee.py"}
"""world: RANK and WORLD_SIZE. index_cache: where a user's cache folder is. trainee sets what a launcher would."""


@pytest.mark.parametrize(
    "path", [p for p in LIBRARY if name(p) not in ENVIRONMENT_READERS and not p.is_relative_to(CLI)], ids=name
)
def test_module_does_not_read_the_environment(path: Path) -> None:
    """Behaviour comes from arguments; the few readers are listed above."""
    assert not re.search(r"\bos\.(environ|getenv)\b", path.read_text(encoding="utf-8")), f"{name(path)} reads it"


def test_project_names_no_host_of_a_package_registry() -> None:
    """Where packages come from is the user's setting, not ours."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True).stdout.split()
    hosts = re.compile(
        "|".join(["pypi" + r"\.org", "pythonhosted" + r"\.org", "download" + r"\.pytorch", "conda" + r"\.anaconda"])
    )
    offending = []
    for file in listed:
        path = REPO / file
        if path.suffix in (".md", ".toml", ".txt", ".py", ".yml", ".yaml", ".cfg", "") and path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            if hosts.search(text):
                offending.append(file)
    assert not offending

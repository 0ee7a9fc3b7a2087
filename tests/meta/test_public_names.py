"""What users type is pinned: a name that appears, vanishes or moves changes this file on purpose."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import trajload as tl
from trajload import errors

REPO = Path(__file__).resolve().parents[2]

PUBLIC = [
    "ActionNoise",
    "Batch",
    "Checkpointer",
    "ColorJitter",
    "Continuous",
    "CostTable",
    "Dataset",
    "Every",
    "FrameDrop",
    "GaussianBlur",
    "Image",
    "Interleaved",
    "Keep",
    "Loader",
    "Mixture",
    "Modality",
    "Normalizer",
    "RandomCrop",
    "RandomFlip",
    "Resize",
    "Signal",
    "Source",
    "StreamSpec",
    "Streams",
    "TrajloadError",
    "Weighted",
    "Window",
    "WindowRef",
    "World",
    "Writer",
    "__version__",
    "checkpoint",
    "errors",
    "open",
    "split",
    "verify",
]

LOADER_ARGUMENTS = [
    "dataset",
    "window",
    "global_batch_size",
    "seed",
    "order",
    "episodes",
    "streams",
    "rank",
    "world_size",
    "num_workers",
    "num_readers",
    "workers",
    "worker_timeout_s",
    "prefetch",
    "num_epochs",
    "drop_last",
    "on_error",
    "transforms",
    "load_weights",
    "pool_bytes",
    "decode",
    "device",
    "device_mesh",
    "check_ranks",
]

ERRORS = [
    "AlignError",
    "ArgumentError",
    "CheckpointAbortedError",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointSpaceError",
    "ConfigError",
    "DecodeError",
    "LoaderExhaustedError",
    "ManifestError",
    "MissingDependencyError",
    "ResumeError",
    "ShardCorruptError",
    "ShardError",
    "ShardNotFoundError",
    "SourceError",
    "StageFailedError",
    "TrajloadError",
    "WindowError",
    "WriterConflictError",
]


def test_public_names_are_these() -> None:
    """`trajload.__all__` holds the documented names, and nothing else."""
    assert sorted(tl.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_resolves(name: str) -> None:
    """Every public name can be had."""
    assert getattr(tl, name) is not None


def test_unknown_name_is_an_attribute_error_that_names_it() -> None:
    """A typing mistake gets Python's usual message."""
    with pytest.raises(AttributeError, match=r"module 'trajload' has no attribute 'Lodaer'"):
        tl.Lodaer  # noqa: B018


def test_loader_takes_these_arguments() -> None:
    """The constructor's arguments are public."""
    assert list(inspect.signature(tl.Loader).parameters) == LOADER_ARGUMENTS


@pytest.mark.parametrize(
    "name",
    [
        "batch_at",
        "state_dict",
        "load_state_dict",
        "seek",
        "stats",
        "close",
        "draws_at",
        "as_dataloader",
        "as_map_dataset",
        "check_ranks",
        "costs",
        "num_train_steps",
        "num_windows",
        "steps_per_epoch",
        "train_step",
    ],
)
def test_loader_has_member(name: str) -> None:
    """The members that the documentation promises."""
    assert hasattr(tl.Loader, name)


def error_classes() -> list[str]:
    found = vars(errors).values()
    return sorted(c.__name__ for c in found if isinstance(c, type) and issubclass(c, errors.TrajloadError))


def test_error_classes_are_these() -> None:
    """The exception tree is public: users catch its classes."""
    assert error_classes() == ERRORS


@pytest.mark.parametrize("name", ERRORS)
def test_error_class_is_documented(name: str) -> None:
    """Every class has a docstring, a line in the tree at the top of its module, and a place in the troubleshooting page."""
    assert inspect.getdoc(getattr(errors, name))
    assert re.search(rf"^\s+{name}\b", errors.__doc__ or "", re.MULTILINE), f"{name} is not in the tree of errors.py"
    assert name in (REPO / "docs" / "how-to" / "troubleshoot.md").read_text(encoding="utf-8")


def test_version_is_that_of_the_distribution() -> None:
    """`__version__` and the installed metadata agree."""
    from importlib.metadata import version

    assert version("trajload") == tl.__version__

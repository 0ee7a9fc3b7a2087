"""Transforms by name: what a saved configuration says makes the same transforms again."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.augment.contract import config_of
from trajload.augment.named import BUILT_IN, transforms_from_json
from trajload.errors import ConfigError

BUILT = [
    tl.RandomCrop((9, 8), ["a"], padding=1),
    tl.RandomFlip(0.3, ["a"], signs={"action": [1, -1]}),
    tl.Resize(7, ["a"], ),
    tl.ColorJitter(0.1, (0.5, 2.0), hue=0.2, per_frame=True),
    tl.GaussianBlur(p=0.5, per_stream=True),
    tl.FrameDrop(0.25, "mask"),
    tl.ActionNoise([0.1, 0.2]),
]  # fmt: skip


def test_every_provided_transform_is_listed() -> None:
    """Names, public names and this test's list agree."""
    assert sorted(BUILT_IN) == sorted([*(type(t).__name__ for t in BUILT), "Normalizer"])
    assert all(hasattr(tl, name) for name in BUILT_IN)


@pytest.mark.parametrize("transform", BUILT, ids=lambda t: type(t).__name__)
def test_configuration_makes_the_transform_again(dataset: tl.Dataset, transform: Any) -> None:
    """All arguments survive JSON."""
    assert transforms_from_json([config_of(transform)], dataset) == [transform]


def test_functions_are_imported_by_qualified_name(
    dataset: tl.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function, a function with arguments, and a dataclass of a user's module."""
    (tmp_path / "users_own_transforms.py").write_text(
        "import dataclasses\n"
        "def plain(window, generator, scale=1.0):\n    window['action'] *= scale\n    return window\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Scale:\n    scale: float\n    def __call__(self, window, generator):\n"
        "        return plain(window, generator, self.scale)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import users_own_transforms as own

    given = [own.plain, functools.partial(own.plain, scale=3.0), own.Scale(2.0)]
    made = transforms_from_json([config_of(t) for t in given], dataset)
    assert made[0] is own.plain and made[2] == own.Scale(2.0)
    assert made[1]({"action": np.ones(2)}, None)["action"].tolist() == [3, 3]  # type: ignore[arg-type]
    assert transforms_from_json(["users_own_transforms:plain"], dataset) == [own.plain]


def test_normalizer_is_made_of_the_dataset_s_statistics(dataset: tl.Dataset) -> None:
    """Its digest is checked where it is given."""
    made = tl.Normalizer.from_dataset(dataset, {"action": "mean_std"})
    again: Any = transforms_from_json([config_of(made)], dataset)[0]
    assert again.digest == made.digest
    with pytest.raises(ConfigError, match=r"made of other statistics: got digest .* expected 0000"):
        transforms_from_json([{**config_of(made), "digest": "0" * 64}], dataset)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"digest": "ab"}, r"transforms are \{'digest': 'ab'\}: expected a list.*only a digest"),
        ([3], r"transforms\[0\]=3 is unusable: expected an object with \"name\""),
        (["RandomCrap"], r"is named 'RandomCrap': expected one of 'ActionNoise'.*or 'module:function'"),
        ([{"name": "RandomCrop", "sice": 3}], r"\(RandomCrop\) does not take these arguments: .*'sice'"),
        ([{"name": "RandomCrop", "sice": 3}], r"Its arguments are 'size', 'streams', "),
        ([{"name": "no_such_module:f"}], r"cannot be imported: No module named 'no_such_module'.*PYTHONPATH"),
        ([{"name": "json:no_such"}], r"\(json:no_such\) cannot be imported: .*no_such"),
        ([{"name": "json:dumps", "indent": 3}], r"\(json:dumps\) does not take these arguments: unexpected 'indent'"),
        ([{"name": ":f"}], r"\(:f\) cannot be imported: Empty module name"),
        ([{"name": "json:dumps", "args": 3}], r"\(json:dumps\) does not take these arguments"),
        ([{"name": "__main__:f"}], r"was defined inside a script or function"),
        ([{"name": "m:f.<locals>.g"}], r"was defined inside a script or function"),
        ([{"name": "Normalizer", "streams": []}], r"\(Normalizer\) takes 'methods' and 'stats': got \['streams'\]"),
    ],
)
def test_unusable_description_is_named(dataset: tl.Dataset, values: Any, message: str) -> None:
    """Which entry, what it holds, what was expected."""
    with pytest.raises(ConfigError, match=message):
        transforms_from_json(values, dataset)

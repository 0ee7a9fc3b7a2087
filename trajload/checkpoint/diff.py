"""What differs between two checkpoints: by component, by tensor, by field of everything else. Files with one digest are equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trajload.checkpoint.reader import PartReader
from trajload.checkpoint.saved import Saved, component_names, read_saved
from trajload.checkpoint.sharded import pieces_of
from trajload.checkpoint.tensor_file import TensorFile
from trajload.checkpoint.tree import child_path

__all__ = ["Difference", "diff_parts"]

_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs."""

    component: str
    path: str
    """Of the tensor or field within the component; empty for the component as a whole."""
    kind: str
    """'only in a', 'only in b', 'class', 'shape', 'dtype', 'values', 'field', or 'form' where only what stands beside differs."""
    a: str
    b: str

    def __str__(self) -> str:
        where = f"{self.component}: {self.path}" if self.path else self.component
        told = " -> ".join(text for text in (self.a, self.b) if text)
        return f"{where}: {self.kind}" + (f": {told}" if told else "")

    def to_json(self) -> dict[str, str]:
        return {"component": self.component, "path": self.path, "kind": self.kind, "a": self.a, "b": self.b}


def diff_parts(a: PartReader, b: PartReader) -> list[Difference]:
    """Return how part `b` differs from part `a`, in the order of components and names. Empty where they are equal.

    Tensors are compared bit by bit, one at a time; for those of floats the largest difference is told. Nothing is loaded into
    any object, so checkpoints of any program can be compared.

    Raises:
        CheckpointCorruptError: A file that is read is damaged.
    """
    found: list[Difference] = []
    names_a, names_b = component_names(a), component_names(b)
    for name in sorted({*names_a, *names_b}):
        if name not in names_b or name not in names_a:
            found.append(Difference(name, "", "only in a" if name in names_a else "only in b", "", ""))
        elif any(_digest(a, file) != _digest(b, file) for file in (f"{name}.json", f"{name}.safetensors")):
            lines = list(_component(name, a, b))
            found += lines or [Difference(name, "", "form", "", "")]
    return [*found, *_sharded(a, b)]


def _sharded(a: PartReader, b: PartReader) -> Iterator[Difference]:
    """Compare the pieces of sharded tensors that both parts hold; where they are cut differently, only that is told."""
    one, other = pieces_of(a), pieces_of(b)
    for key in sorted({*one, *other}):
        component, _, path = key[0].partition("/")
        piece = f"piece of {list(key[2])} at {list(key[1])}"
        if key not in other:
            yield Difference(component, path, "only in a", piece, "")
        elif key not in one:
            yield Difference(component, path, "only in b", "", piece)
        elif one[key][0] != other[key][0]:
            yield Difference(component, path, "dtype", one[key][0], other[key][0])
        elif one[key] != other[key]:
            yield Difference(component, path, "values", piece, "")


def _digest(part: PartReader, file: str) -> str | None:
    return part.files[file].digest if file in part.files else None


def _component(name: str, a: PartReader, b: PartReader) -> Iterator[Difference]:
    one, other = read_saved(a, name), read_saved(b, name)
    for field in ("kind", "type"):
        if one.about[field] != other.about[field]:
            yield Difference(name, "", "class", str(one.about[field]), str(other.about[field]))
    yield from _tensors(name, (a, one), (b, other))
    yield from _fields(name, "parameters", one.about.get("parameters"), other.about.get("parameters"))
    yield from _fields(name, "", one.plain, other.plain)


def _tensors(name: str, a: tuple[PartReader, Saved], b: tuple[PartReader, Saved]) -> Iterator[Difference]:
    here, there = a[1].facts, b[1].facts
    both = []
    for key in [*here, *(key for key in there if key not in here)]:
        if key not in there or key not in here:
            kind, facts = ("only in a", here) if key in here else ("only in b", there)
            shown = str(facts[key])
            yield Difference(name, key, kind, *((shown, "") if kind == "only in a" else ("", shown)))
        elif here[key] != there[key]:
            kind = "shape" if here[key].shape != there[key].shape else "dtype"
            yield Difference(name, key, kind, str(here[key]), str(there[key]))
        else:
            both.append(key)
    if not both or _digest(a[0], f"{name}.safetensors") == _digest(b[0], f"{name}.safetensors"):
        return
    file = f"{name}.safetensors"
    with (
        a[0].guarded(),
        b[0].guarded(),
        TensorFile(a[0].path(file)) as old,
        TensorFile(b[0].path(file)) as new,
    ):
        for key in both:
            line = _values(old.read([key])[key], new.read([key])[key])
            if line:
                yield Difference(name, key, "values", "", line)


def _values(a: Tensor, b: Tensor) -> str | None:
    """Return how many elements differ and by how much, or None where all bits are equal."""
    if a.numel() == 0:
        return None
    flat_a, flat_b = (t.contiguous().as_strided((t.numel(),), (1,)) for t in (a, b))
    size = a.dtype.itemsize
    bytes_a, bytes_b = flat_a.view(torch.uint8).reshape(-1, size), flat_b.view(torch.uint8).reshape(-1, size)
    differ = (bytes_a != bytes_b).any(1)
    count = int(differ.sum())
    if count == 0:
        return None
    text = f"{count} of {a.numel()} elements"
    if a.dtype.is_floating_point or not (a.dtype.is_complex or a.dtype == torch.bool or size > 8):
        try:
            most = (flat_b[differ].double() - flat_a[differ].double()).abs().max().item()
        except RuntimeError:
            return text  # dtypes that torch cannot convert
        return f"{text}, by at most {most:.6g}"
    return text


def _fields(name: str, path: str, a: Any, b: Any) -> Iterator[Difference]:
    """Yield the differing leaves of two JSON forms; tensors have been compared by name."""
    if a == b and type(a) is type(b):
        return
    word_a, word_b = _word(a), _word(b)
    if word_a == word_b == "$tensor":
        return
    if word_a == word_b == "$ordered":
        yield from _fields(name, path, _items(a), _items(b))
    elif word_a == word_b and word_a in ("$tuple", "$deque", "$counter", "$defaultdict"):
        yield from _fields(name, path, a[word_a], b[word_b])
    elif word_a == word_b == "$map":
        pairs_a, pairs_b = ({_key(key): item for key, item in value["$map"]} for value in (a, b))
        yield from _keys(name, path, pairs_a, pairs_b)
    elif isinstance(a, dict) and isinstance(b, dict) and not word_a and not word_b:
        yield from _keys(name, path, a, b)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _fields(name, f"{path}[{i}]", one, other)
    else:
        yield Difference(name, path, "field", _said(a), _said(b))


def _items(value: Any) -> Any:
    """Return the items of an ordered dict; versions of modules, which stand beside them, follow from their classes."""
    inner = value["$ordered"]
    return inner[0] if isinstance(inner, list) else inner


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int)) else _said(key)


def _keys(name: str, path: str, a: dict[Any, Any], b: dict[Any, Any]) -> Iterator[Difference]:
    for key in [*a, *(key for key in b if key not in a)]:
        below = child_path(path, key).removeprefix(".")
        if key not in b or key not in a:
            if _word(a.get(key, b.get(key))) != "$tensor":  # told by name already
                kind = "only in a" if key in a else "only in b"
                yield Difference(name, below, kind, *((_said(a[key]), "") if key in a else ("", _said(b[key]))))
        else:
            yield from _fields(name, below, a[key], b[key])


def _word(value: Any) -> str:
    """Return the `$` word of a JSON form, '' for plain values."""
    word = next(iter(value), "") if isinstance(value, dict) and len(value) == 1 else ""
    return word if word.startswith("$") else ""


def _said(value: Any) -> str:
    text = repr(value[word]) if (word := _word(value)) else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"

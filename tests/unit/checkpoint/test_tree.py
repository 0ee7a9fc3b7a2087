"""Any tree of plain values comes back equal in type and bit, and what cannot be kept is refused by its path."""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trajload.checkpoint.in_place import assign
from trajload.checkpoint.tree import MAX_DEPTH, flatten
from trajload.checkpoint.tree_read import dump, parse, tensor_names, unflatten
from trajload.errors import CheckpointCorruptError, CheckpointError

Pair = namedtuple("Pair", "a b")


class Colour(Enum):
    RED = 1


class Level(IntEnum):
    HIGH = 3


def again(value: Any) -> Any:
    """Return a value after it was written and read."""
    tensors, plain = flatten(value)
    return unflatten(parse(dump(plain), "tree"), {name: tensor.clone() for name, tensor in tensors.items()})


any_float = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack(">d", bits.to_bytes(8, "big"))[0]) | st.floats()
keys = (
    st.text(max_size=5)
    | st.integers()
    | st.booleans()
    | st.none()
    | st.binary(max_size=3)
    | st.tuples(st.integers(), st.text(max_size=2))
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | any_float
    | st.text(alphabet=st.characters(), max_size=6)
    | st.text(alphabet=st.sampled_from('$\ud800\x00é.#"\\'), max_size=4)
    | st.binary(max_size=8)
    | st.builds(bytearray, st.binary(max_size=4))
    | st.complex_numbers()
    | st.sampled_from([torch.float32, torch.bfloat16, torch.device("cuda:1"), torch.device("cpu"), torch.Size([2, 0])])
)
dtypes = (
    hnp.integer_dtypes() | hnp.unsigned_integer_dtypes() | hnp.floating_dtypes(sizes=(16, 32, 64)) | hnp.boolean_dtypes()
    | hnp.complex_number_dtypes(sizes=(64, 128)) | hnp.unicode_string_dtypes(max_len=3) | hnp.byte_string_dtypes(max_len=3)
    | hnp.datetime64_dtypes()
)  # fmt: skip
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
leaves = scalars | arrays | arrays.map(lambda a: a.T) | arrays.filter(lambda a: a.size).map(lambda a: a.ravel()[0])
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict)
        | st.builds(deque, st.lists(inner, max_size=3), st.none() | st.integers(0, 4))
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees)
def test_trees_come_back_exactly(kept: Any, tree: Any) -> None:
    """Types, keys and their order, NaN payloads, lone surrogates, byte orders, memory orders: all as they were."""
    kept.assert_same(tree, again(tree))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees, trees)
def test_a_tree_restored_in_place_is_the_saved_one(kept: Any, live: Any, saved: Any) -> None:
    """Whatever was there before, what stands there now is what was saved."""
    kept.assert_same(saved, assign(again(live), again(saved)))


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers() | st.text(max_size=3) | st.tuples(st.integers())), st.dictionaries(keys, st.integers()))
def test_sets_and_counts_come_back_exactly(kept: Any, items: set[Any], counts: dict[Any, int]) -> None:
    """Sets, frozensets, Counters and defaultdicts keep their types."""
    made: Any = defaultdict(list, {key: [count] for key, count in counts.items()})
    for value in (items, frozenset(items), Counter(counts), made, defaultdict(None, counts)):
        kept.assert_same(value, again(value))
    assert again(made).default_factory is list


@pytest.mark.parametrize(
    "value",
    [math.inf, -math.inf, math.nan, -0.0, 5e-324, 2**63, -(2**63) - 1, 10**5000, 2**63 - 1, True, 1, 1.0, "$float", ""],
    ids=lambda value: repr(value)[:20] if not isinstance(value, int) or value < 2**65 else "huge",
)
def test_values_that_json_bends_come_back_exactly(kept: Any, value: Any) -> None:
    """Numbers that JSON cannot say, types it would mix up, and words that the format itself uses."""
    kept.assert_same([value, {"k": value}, {value: 1}], again([value, {"k": value}, {value: 1}]))


def test_int_keys_and_words_with_dollars_stay_what_they_are(kept: Any) -> None:
    """1 and "1" are different keys, and a dict that looks like the format's own words is a dict."""
    tree = {1: "int", "1": "str", True and (1, 2): {"$float": "inf"}, "$tensor": {"$tuple": [1]}}
    kept.assert_same(tree, again(tree))


def test_names_of_tensors_are_their_paths() -> None:
    """Other readers see where a tensor belongs; names that clash are told apart."""
    t = torch.zeros(1)
    tensors, plain = flatten({"a.b": t, "a": {"b": t}, "__metadata__": t, "\ud800": t, 3: [t]})
    assert list(tensors) == ["a.b", "a.b#2", "__metadata__#2", "\\ud800", "3.0"]
    assert tensor_names(plain) == list(tensors)
    assert list(flatten(t)[0]) == ["value"]


def test_versions_of_modules_come_back() -> None:
    """The `_metadata` of a state_dict, by which modules know how old a state is, is kept."""
    state = torch.nn.BatchNorm1d(2).state_dict()
    assert again(state)._metadata == state._metadata  # type: ignore[attr-defined]


def test_shared_tensors_are_one_again() -> None:
    """Two places of one tensor are one tensor after reading, since names of one tensor are read as one."""
    t = torch.arange(3)
    tensors, plain = flatten([t, t])
    one, other = unflatten(plain, dict.fromkeys(tensors, t))
    assert one is other


def test_long_bytes_stand_among_the_tensors(kept: Any) -> None:
    """A megabyte of bytes is not a megabyte and a third of JSON."""
    value = {"blob": bytes(range(256)) * 4096, "buffer": bytearray(5000)}
    tensors, plain = flatten(value)
    assert sorted(tensors) == ["blob", "buffer"] and len(dump(plain)) < 100
    kept.assert_same(value, again(value))


class _Thing:
    pass


REFUSED = {
    "enum": (Colour.RED, "save its value"),
    "int-enum": (Level.HIGH, r"save its value \(3\)"),
    "named-tuple": (Pair(1, 2), r"save tuple\(\.\.\.\) of it"),
    "path": (Path("x"), "which cannot be kept without pickling"),
    "object": (_Thing(), r"Component\(get, set\)"),
    "function": (len, "cannot be kept"),
    "class": (int, "cannot be kept"),
    "numpy-generator": (np.random.Generator(np.random.PCG64(1)), r"Streams\(name=generator\)"),
    "torch-generator": (torch.Generator(), r"Streams\(name=generator\)"),
    "module": (torch.nn.Identity(), "component of its own"),
    "object-array": (np.array([None]), "dtype object"),
    "record-array": (np.zeros(2, [("a", "i4")]), "Save its fields apart"),
    "long-double": (np.zeros(1, np.longdouble), "dtype"),
    "matrix": (np.ma.masked_array([1]), "MaskedArray"),
    "sparse": (torch.eye(2).to_sparse(), "sparse_coo tensor"),
    "lambda-default": (defaultdict(lambda: 3), "makes <function"),
    "tensor-key": ({torch.zeros(1): 1}, "a tensor as a key"),
}


@pytest.mark.parametrize("value, words", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_kept_is_refused_by_path(value: Any, words: str) -> None:
    """Nothing is pickled: the message says where the value stands and what to save instead."""
    with pytest.raises(CheckpointError, match=words) as caught:
        flatten({"agents": [{"odd key": value}]})
    assert str(caught.value).startswith("state.agents[0]['odd key']")


def test_a_tree_that_contains_itself_is_refused() -> None:
    """A cycle ends in an error, not in a hang; the same list twice is no cycle."""
    loop: list[Any] = []
    loop.append({"again": loop})
    with pytest.raises(CheckpointError, match=r"state\[0\]\.again contains itself"):
        flatten(loop)
    shared = [1]
    assert again([shared, shared]) == [[1], [1]]


def test_a_tree_deeper_than_json_reads_is_refused() -> None:
    """Depth has a limit that both sides of the format can do."""

    def nested(depth: int, kind: Any) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = kind(value)
        return value

    for kind in (lambda v: [v], lambda v: {1: v}, lambda v: (v,), lambda v: OrderedDict(a=v)):
        assert again(nested(MAX_DEPTH, kind)) == nested(MAX_DEPTH, kind)
        with pytest.raises(CheckpointError, match="nested deeper than"):
            flatten(nested(MAX_DEPTH + 1, kind))


@pytest.mark.parametrize(
    "text",
    [b"{", b"[NaN]", b"[Infinity]", b'{"a":1,"a":2}', b"\xff", b"[" * 100_000, b"[" + b"9" * 5000 + b"]"],
    ids=["cut", "nan", "infinity", "twice", "bytes", "deep", "long-number"],
)
def test_json_that_is_no_state_is_an_error(text: bytes) -> None:
    """Text that `dump` never writes is damage."""
    with pytest.raises(CheckpointCorruptError, match=r"what\.json cannot be read as JSON"):
        parse(text, "what.json")


@pytest.mark.parametrize(
    "plain, words",
    [
        ({"$class": "os.system"}, r"unknown kind '\$class'"),
        ({"$tensor": "absent"}, "refers to the tensor 'absent'"),
        ({"$int": "zz"}, r"damaged value of the kind '\$int'"),
        ({"$float": "3ff0000000000000"}, "finite number"),
        ({"$float": 3}, "damaged"),
        ({"$scalar": ["O", ""]}, "no dtype of numbers"),
        ({"$scalar": ["<f4", "AA=="]}, "damaged"),
        ({"$array": ["<f4", [3], "C", "t"]}, "damaged"),
        ({"$dtype": "load"}, "no dtype"),
        ({"$device": "nonsense"}, "damaged"),
        ({"$map": [[[1], 2]]}, "damaged"),
        ({"$defaultdict": ["eval", []]}, "damaged"),
        ({"$tuple": [1], "more": 2}, "unknown kind"),
        ({"$bytes": "*"}, "damaged"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_damaged_trees_are_errors(plain: Any, words: str) -> None:
    """A word that is unknown, or holds what it cannot mean, never becomes a value."""
    with pytest.raises(CheckpointCorruptError, match=words):
        unflatten(["ok", plain], {"t": torch.zeros(2)})

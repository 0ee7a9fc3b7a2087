"""The state of a loader: small, JSON-able, and picky."""

from __future__ import annotations

import json

import pytest

from trajload.errors import ConfigError, ResumeError
from trajload.pipeline.state import MAX_STATE_BYTES, check_state, differing_fields, make_state

CONFIG = {
    "order": "shuffled/1",
    "seed": 7,
    "global_batch_size": 32,
    "window": {"num_steps": 16, "stride": 1, "dilation": 1, "pad": "none"},
    "streams": {"cam": {"size": [64, 64], "align": "nearest"}},
}
MANIFESTS = [(0, "ab" * 32)]


def state(**changes: object) -> dict:
    values = {
        "config": CONFIG,
        "manifests": MANIFESTS,
        "train_step": 12,
        "pending": (12, 16),
        "quarantine": [],
        "topology": {"world_size": 4},
        **changes,
    }
    return make_state(**values)  # type: ignore[arg-type]


def test_state_through_json_gives_back_its_train_step() -> None:
    """A state survives JSON, and fits the loader it came from."""
    assert check_state(json.loads(json.dumps(state())), config=CONFIG, manifests=MANIFESTS) == 12


def test_state_of_a_loader_with_100_cameras_and_a_full_quarantine_stays_under_4_kib() -> None:
    """The bound holds for the largest configuration."""
    streams = {
        f"observation.images.camera_number_{i}": {"size": [224, 224], "align": "nearest", "kind": "Image"}
        for i in range(100)
    }
    quarantine = [[10**9 + i, 10**7 + i, "ShardCorruptError"] for i in range(64)]
    big = state(
        config={**CONFIG, "streams": streams}, quarantine=quarantine, train_step=10**12, pending=(10**12, 10**12 + 64)
    )
    assert len(json.dumps(big).encode()) < MAX_STATE_BYTES
    assert check_state(big, config={**CONFIG, "streams": streams}, manifests=MANIFESTS) == 10**12


def test_state_of_another_window_names_each_differing_field_with_both_values() -> None:
    """The error is a readable diff."""
    other = {**CONFIG, "seed": 8, "window": {**CONFIG["window"], "num_steps": 32}}  # type: ignore[dict-item]
    with pytest.raises(ResumeError) as caught:
        check_state(state(), config=other, manifests=MANIFESTS)
    text = str(caught.value)
    assert "seed: saved 7, here 8" in text
    assert "window.num_steps: saved 16, here 32" in text
    assert "stride" not in text


def test_state_of_another_dataset_names_both_digests() -> None:
    """Equal settings over other data are refused."""
    with pytest.raises(ResumeError, match=r"saved abababababab… .*here cdcdcdcdcdcd…"):
        check_state(state(), config=CONFIG, manifests=[(0, "cd" * 32)])


def test_allowed_field_may_differ_and_others_may_not() -> None:
    """`allow` lets through what it names, no more."""
    other = {**CONFIG, "streams": {"cam": {"size": [32, 32], "align": "nearest"}}}
    assert check_state(state(), config=other, manifests=MANIFESTS, allow=("streams",)) == 12
    with pytest.raises(ResumeError, match=r"seed: saved 7, here 9"):
        check_state(state(), config={**other, "seed": 9}, manifests=MANIFESTS, allow=("streams",))
    with pytest.raises(ConfigError, match=r"\['sead'\]"):
        check_state(state(), config=CONFIG, manifests=MANIFESTS, allow=("sead",))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: {**s, "format_version": 2}, r"version 2 .*expected version 1\. Upgrade"),
        (lambda s: {}, r"version None"),
        (lambda s: [], r"the state is a list"),
        (lambda s: {k: v for k, v in s.items() if k != "cursor"}, r"lacks 'cursor'"),
        (lambda s: {**s, "cursor": {"train_step": -1}}, r"cursor\.train_step is -1"),
        (lambda s: {**s, "config_digest": "00"}, r"config_digest"),
        (lambda s: {**s, "format_version": True}, r"version True cannot be loaded"),
        (lambda s: {**s, "cursor": None}, r"cursor\.train_step is None: expected an int of at least 0\. The state is"),
        (lambda s: {**s, "config": [1]}, r"config is \[1\]: expected an object of fields\. The state is damaged\."),
        (lambda s: {**s, "manifests": 5}, r"manifests is 5: expected a list of \[from_train_step, digest\]"),
        (lambda s: {**s, "manifests": [[0]]}, r"manifests is \[\[0\]\]: expected a list of"),
        (lambda s: {**s, "quarantine": None}, r"quarantine is None: expected a list of \[window_id, from_train_step"),
        (lambda s: {**s, "quarantine": [[1, -2, "x"]]}, r"quarantine is \[\[1, -2, 'x'\]\]: expected"),
        (lambda s: {**s, "quarantine": [["a", 1, "x"]]}, r"quarantine is \[\['a', 1, 'x'\]\]: expected"),
    ],
    ids=[
        "newer",
        "empty",
        "not-a-dict",
        "no-cursor",
        "negative",
        "edited",
        "bool-version",
        "null-cursor",
        "list-config",
        "number-manifests",
        "short-manifests",
        "null-quarantine",
        "negative-quarantine",
        "text-quarantine",
    ],
)
def test_damaged_state_is_refused_saying_how(damage, message) -> None:  # type: ignore[no-untyped-def]
    """Nothing but a whole state of this version is loaded."""
    with pytest.raises(ResumeError, match=message):
        check_state(damage(state()), config=CONFIG, manifests=MANIFESTS)


def test_differing_fields_of_equal_values_is_empty() -> None:
    """The diff is empty exactly for equal configurations."""
    assert differing_fields(CONFIG, json.loads(json.dumps(CONFIG))) == []
    assert differing_fields({"a": 1}, {"b": 1}) == ["a: saved 1, here absent", "b: saved absent, here 1"]


def test_objects_of_a_list_are_compared_one_by_one() -> None:
    """A list of the same length names the entry and its field; another length is told as a whole."""
    saved = {"transforms": [{"name": "A", "p": 1}, {"name": "B"}]}
    assert differing_fields(saved, {"transforms": [{"name": "A", "p": 2}, {"name": "B"}]}) == [
        "transforms[0].p: saved 1, here 2"
    ]
    assert differing_fields(saved, {"transforms": [{"name": "A", "p": 1}]})[0].startswith("transforms: saved [{'name'")


def test_field_that_only_the_state_has_may_be_allowed() -> None:
    """A run may go on without what it had, if that is named; a damaged state is still refused as such."""
    more = make_state(
        config={**CONFIG, "transforms": [{"name": "A"}]},
        manifests=MANIFESTS,
        train_step=3,
        pending=(3, 3),
        quarantine=[],
        topology={},
    )
    with pytest.raises(ResumeError, match=r"transforms: saved .* here absent"):
        check_state(more, config=CONFIG, manifests=MANIFESTS)
    assert check_state(more, config=CONFIG, manifests=MANIFESTS, allow=("transforms",)) == 3
    with pytest.raises(ResumeError, match=r"config is 3"):
        check_state({**more, "config": 3}, config=CONFIG, manifests=MANIFESTS)

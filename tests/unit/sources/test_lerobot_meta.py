"""LeRobot metadata: patterns that stay in the folder, rates as fractions, features as people write them."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from trajload.errors import ConfigError, SourceError
from trajload.sources.lerobot_episodes import read_episodes
from trajload.sources.lerobot_meta import Feature, PathTemplate, read_info, read_tasks

FIELDS = frozenset(["episode_index", "video_key"])


def test_template_fills_fields_with_their_width():
    """Plain fields with an integer width are what LeRobot writes."""
    template = PathTemplate("data_path", "d/{video_key}/e_{episode_index:06d}.parquet", FIELDS)
    assert template.fill(video_key="cam", episode_index=7) == "d/cam/e_000007.parquet"
    assert (template.top, template.suffix) == ("d", ".parquet")


@pytest.mark.parametrize(
    "text",
    [
        "d/{episode_index.__class__}",
        "d/{video_key[0]}",
        "d/{other}",
        "d/{episode_index!r}",
        "d/{",
        "d/{episode_index:>9999999d}",
    ],
)
def test_template_with_more_than_plain_fields_is_refused(text):
    """A pattern from a file never reaches str.format with attributes, conversions or huge widths."""
    with pytest.raises(ConfigError, match=r"data_path '.*' of meta/info\.json is unusable: expected only the fields"):
        PathTemplate("data_path", text, FIELDS)


@pytest.mark.parametrize("text", ["../{episode_index}", "/etc/{episode_index}", "a/../../{episode_index}"])
def test_template_that_leaves_the_folder_is_refused(text):
    """Metadata cannot name files outside the dataset."""
    with pytest.raises(ConfigError, match=r"leaves the dataset folder"):
        PathTemplate("data_path", text, FIELDS)


def test_hostile_camera_key_names_no_file_outside(v2_folder):
    """A camera named `../../x` does not leave the folder."""
    table, _ = read_episodes(v2_folder, read_info(v2_folder))
    with pytest.raises(
        ConfigError, match=r"'videos/chunk-000/\.\./\.\./x/episode_000001\.mp4' leaves the dataset folder"
    ):
        table.video_file(1, "../../x")


@pytest.mark.parametrize(
    ("value", "rate"),
    [
        (30, Fraction(30)),
        (20.0, Fraction(20)),
        (29.97, Fraction(2997, 100)),
        (29.97002997002997, Fraction(30000, 1001)),
        (12.5, Fraction(25, 2)),
    ],
)
def test_fps_becomes_an_exact_fraction(tmp_path, maker, value, rate):
    """Float rates of info.json are the fractions they were meant to be."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    maker.edit_info(root, fps=value)
    assert read_info(root).fps == rate


@pytest.mark.parametrize("value", [0, -5, "fast", None, True, float("inf")])
def test_unusable_fps_is_named(tmp_path, maker, value):
    """A rate that is none is refused with its value."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    maker.edit_info(root, fps=value)
    with pytest.raises(SourceError, match=r"fps=.* in meta/info\.json is unusable"):
        read_info(root)


@pytest.mark.parametrize("name", ["codebase_version", "fps", "features", "data_path"])
def test_missing_field_of_info_is_named(tmp_path, maker, name):
    """Each field that is needed is asked for by name."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    path = root / "meta" / "info.json"
    raw = json.loads(path.read_text())
    del raw[name]
    path.write_text(json.dumps(raw))
    with pytest.raises(SourceError, match=rf"meta/info\.json lacks '{name}'"):
        read_info(root)


@pytest.mark.parametrize(
    ("shape", "names", "expected"),
    [
        ((480, 640, 3), ["height", "width", "channels"], (480, 640, 3)),
        ((3, 720, 960), ["channel", "height", "width"], (720, 960, 3)),
        ((3, 720, 960), None, (720, 960, 3)),
        ((480, 640, 3), None, (480, 640, 3)),
        ((7,), None, None),
    ],
)
def test_picture_shape_understands_both_layouts(shape, names, expected):
    """HWC and CHW declarations give the same (H, W, C)."""
    assert Feature("cam", "video", shape, names).picture_shape() == expected


@pytest.mark.parametrize("names", [["a", "b"], [["a", "b"]], {"motors": ["a", "b"]}, {"axes": {"x": "a", "y": "b"}}])
def test_component_names_are_flattened(names):
    """Lists, nested lists and dicts of names all occur in real datasets."""
    assert Feature("action", "float32", (2,), names).component_names(2) == ("a", "b")


@pytest.mark.parametrize("names", [None, ["a"], {"motors": ["a", "b", "c"]}])
def test_component_names_of_another_count_are_dropped(names):
    """Names that do not fit the components say nothing."""
    assert Feature("action", "float32", (2,), names).component_names(2) is None


def test_tasks_of_both_versions_are_equal(v2_folder, v3_folder, maker):
    """jsonl and parquet give the same strings by index."""
    assert read_tasks(v2_folder, "v2.1") == read_tasks(v3_folder, "v3.0") == dict(enumerate(maker.TASKS))


def test_tasks_line_that_is_none_is_named(tmp_path):
    """A broken line is given with its number."""
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "tasks.jsonl").write_text('{"task_index": 0, "task": "a"}\n{"task": "b"}\n')
    with pytest.raises(SourceError, match=r"line 2 of 'meta/tasks\.jsonl' is no task"):
        read_tasks(tmp_path, "v2.1")


@pytest.mark.parametrize("line", ["{", '{"episode_index": 1}', "[]", '{"episode_index": "x", "length": 3}'])
def test_episodes_line_that_is_none_is_named(tmp_path, maker, line):
    """A broken line of episodes.jsonl is given with its number."""
    root = maker.make_v2(tmp_path / "d", [3, 3], camera=False)
    path = root / "meta" / "episodes.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(SourceError, match=r"line 3 of 'meta/episodes\.jsonl' is no episode"):
        read_episodes(root, read_info(root))


def test_episode_that_stands_twice_is_named(tmp_path, maker):
    """Two lines of one episode_index cannot both be it."""
    root = maker.make_v2(tmp_path / "d", [3, 4], camera=False)
    path = root / "meta" / "episodes.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    with pytest.raises(SourceError, match=r"episode_index 1 stands twice"):
        read_episodes(root, read_info(root))


def test_negative_length_is_named(tmp_path, maker):
    """A length below 0 is no length."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    (root / "meta" / "episodes.jsonl").write_text('{"episode_index": 5, "length": -2}\n')
    with pytest.raises(SourceError, match=r"episode_index 5 has length -2"):
        read_episodes(root, read_info(root))


def test_episodes_in_any_order_come_sorted_with_their_own_metadata(tmp_path, maker):
    """Lines need not be in order; each episode keeps its line."""
    root = maker.make_v2(tmp_path / "d", [3, 4, 5], camera=False)
    path = root / "meta" / "episodes.jsonl"
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")
    table, _ = read_episodes(root, read_info(root))
    assert table.index_E.tolist() == [0, 1, 2] and table.length_E.tolist() == [3, 4, 5]
    assert [table.metadata(i)["site"]["lab"] for i in range(3)] == [0, 1, 2]


def test_episode_table_absent_is_named(tmp_path, maker):
    """Both versions say where they keep their episodes."""
    two = maker.make_v2(tmp_path / "a", [3], camera=False)
    (two / "meta" / "episodes.jsonl").unlink()
    with pytest.raises(SourceError, match=r"'meta/episodes\.jsonl' does not exist, but LeRobot v2\.1 keeps"):
        read_episodes(two, read_info(two))
    three = maker.make_v3(tmp_path / "b", [3], camera=False)
    for path in Path(three, "meta", "episodes").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(SourceError, match=r"'meta/episodes' holds no parquet file"):
        read_episodes(three, read_info(three))

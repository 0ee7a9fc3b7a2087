"""`tl.open` tells layouts apart, and says what it looked for where it knows none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from trajload.errors import ConfigError, MissingDependencyError, SourceError
from trajload.sources.open import open as open_dataset


def test_open_lerobot_folders_are_told_by_their_codebase_version(
    v2_folder: Path, v3_folder: Path, index_cache_dir: Path
):
    """v2.1 and v3.0 folders open as what their info.json says."""
    assert open_dataset(v2_folder, cache_dir=index_cache_dir).kind == "lerobot-v2.1"
    assert open_dataset(str(v3_folder), cache_dir=index_cache_dir).kind == "lerobot-v3.0"


def test_open_home_relative_and_trailing_slash_paths_are_resolved(
    v2_folder: Path, index_cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    """`~`, relative paths, a trailing slash and file:// name the same dataset."""
    monkeypatch.setenv("HOME", str(v2_folder.parent))
    monkeypatch.chdir(v2_folder.parent)
    digests = {
        open_dataset(path, cache_dir=index_cache_dir).digest
        for path in ("~/cubes", "cubes/", "./cubes", f"file://{v2_folder}")
    }
    assert len(digests) == 1


def test_open_name_replaces_the_folder_name(v2_folder: Path, index_cache_dir: Path):
    """`name=` is what batches and errors call the dataset."""
    assert open_dataset(v2_folder, cache_dir=index_cache_dir).name == "cubes"
    assert open_dataset(v2_folder, name="left-arm", cache_dir=index_cache_dir).name == "left-arm"


def test_open_empty_folder_says_what_was_looked_for(tmp_path: Path):
    """An empty folder is named as such, with the layouts that are known."""
    with pytest.raises(ConfigError, match=r"is empty: looked for manifest\.json \(native\) and meta/info\.json"):
        open_dataset(tmp_path)


def test_open_unknown_folder_lists_what_was_found(tmp_path: Path):
    """Files that stand there are listed, tars with what to do."""
    (tmp_path / "a.tar").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"found a\.tar, notes\.txt\. Tar files without a manifest"):
        open_dataset(tmp_path)


def test_open_manifest_of_something_else_is_said_to_be_so(tmp_path: Path):
    """A manifest.json of another program is not taken for a dataset."""
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(ConfigError, match=r"found manifest\.json\. That manifest\.json is not trajload's\."):
        open_dataset(tmp_path)


def test_open_folder_above_or_below_a_dataset_points_at_it(v2_folder: Path):
    """The parent of a dataset, and its meta folder, name the dataset meant."""
    for wrong in (v2_folder.parent, v2_folder / "meta"):
        with pytest.raises(ConfigError, match=rf"Did you mean '{v2_folder}/?'\?"):
            open_dataset(wrong)


def test_open_absent_path_says_where_it_stops_existing(tmp_path: Path):
    """A typing error in the middle of a path is found."""
    with pytest.raises(ConfigError, match=rf"'{tmp_path}' exists and does not hold 'nope'"):
        open_dataset(tmp_path / "nope" / "deeper")


def test_open_single_tar_is_refused_with_a_hint(tmp_path: Path):
    """A tar is not a dataset by itself."""
    (tmp_path / "000000.tar").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"000000\.tar' is a file, expected a dataset folder\. A single tar"):
        open_dataset(tmp_path / "000000.tar")


def test_open_info_json_itself_points_at_its_folder(v2_folder: Path):
    """Naming meta/info.json instead of the folder names the folder."""
    with pytest.raises(ConfigError, match=rf"Did you mean '{v2_folder}'"):
        open_dataset(v2_folder / "meta" / "info.json")


@pytest.mark.parametrize("address", ["s3://bucket/x", "https://host/x", "hf://user/x"])
def test_open_remote_address_is_refused_by_its_scheme(address: str):
    """Remote addresses are no local folders and are said to be so."""
    with pytest.raises(ConfigError, match=address.split(":")[0] + r":// address: expected a local folder"):
        open_dataset(address)


@pytest.mark.parametrize("path", ["", b"bytes", None, 5])
def test_open_unusable_path_is_a_config_error(path: object):
    """An empty path, bytes or something that is no path are refused before anything is read."""
    with pytest.raises(ConfigError, match=r"is unusable: expected the path of a dataset folder"):
        open_dataset(path)  # type: ignore[arg-type]


def test_open_home_of_nobody_and_endless_names_are_refused():
    """What the system says about a path comes out as an error of ours."""
    with pytest.raises(ConfigError, match=r"path '~no-such-user-here/x' is unusable: .*Write the folder out"):
        open_dataset("~no-such-user-here/x")
    with pytest.raises(ConfigError, match=r"cannot be looked at: File name too long\."):
        open_dataset("x" * 5000)


@pytest.mark.parametrize("version", ["v1.6", "v2.2", "v4.0"])
def test_open_other_lerobot_version_is_refused_by_name(tmp_path: Path, maker, version: str):
    """A version that is not read in place is named, with those that are."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    maker.edit_info(root, codebase_version=version)
    with pytest.raises(
        SourceError, match=rf"version '{version}' is not read in place: expected one of v2\.0, v2\.1, v3\.0"
    ):
        open_dataset(root)


def test_open_lerobot_v1_folder_is_refused_by_name(tmp_path: Path):
    """LeRobot v1 kept its info in meta_data/: not supported in place yet."""
    (tmp_path / "meta_data").mkdir()
    (tmp_path / "meta_data" / "info.json").write_text(json.dumps({"codebase_version": "v1.6"}))
    with pytest.raises(SourceError, match=r"looks like a LeRobot v1 dataset, which is not supported in place yet"):
        open_dataset(tmp_path)


def test_open_lerobot_without_pyarrow_gives_the_install_command(v2_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Without pyarrow the error carries the pip command."""
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'trajload\[lerobot\]'"):
        open_dataset(v2_folder)


def test_open_unknown_missing_policy_lists_the_choices(v2_folder: Path):
    """`missing=` takes two words."""
    with pytest.raises(ConfigError, match=r"missing='ignore' is unknown: expected one of 'error', 'skip'"):
        open_dataset(v2_folder, missing="ignore")  # type: ignore[arg-type]

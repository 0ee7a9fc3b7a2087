"""Upload of an export, over loopback, to a server that answers as the hub does; and where exports and trials stand."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trajload.checkpoint import trial_folder, upload
from trajload.errors import CheckpointError, ConfigError


class Hub(BaseHTTPRequestHandler):
    """Takes small files in the commit itself, as the hub does."""

    commits: dict[str, dict[str, bytes]]
    made: list[dict[str, Any]]
    asked: list[str]
    goes_wrong: Callable[[int], bool]
    """Told the number of a request, which is then not answered."""

    def do_POST(self) -> None:
        chunks = []
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            chunks.append(self.rfile.read(int(self.headers["Content-Length"])))
        body = b"".join(chunks)
        self.asked.append(self.path)
        if self.goes_wrong(len(self.asked)):
            self.close_connection = True
            return None
        if self.path == "/api/repos/create":
            self.made.append(json.loads(body))
            return self._answer({"url": f"{self.server.address}/ada/policy"})  # type: ignore[attr-defined]
        if self.path.endswith("/preupload/main"):
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return self._answer({"files": files})
        if self.path.endswith("/commit/main"):
            rows = [json.loads(line)["value"] for line in body.splitlines()]
            self.commits[self.path] = {r["path"]: base64.b64decode(r["content"]) for r in rows if "path" in r}
            return self._answer({"commitUrl": f"{self.server.address}/ada/policy/commit/c0ffee", "commitOid": "c0ffee"})  # type: ignore[attr-defined]
        return self._answer({"error": self.path}, 404)

    def do_GET(self) -> None:
        self._answer({"id": "ada/policy", "sha": "c0ffee", "siblings": []})

    def _answer(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Any]:
    fresh = {"commits": {}, "made": [], "asked": [], "goes_wrong": staticmethod(lambda number: False)}
    handler = type("OneHub", (Hub,), fresh)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.address = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
    server.handler = handler  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    folder = tmp_path / "exported"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_upload_is_one_commit_of_all_files(hub: Any, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a private repository, which is made; the address of the commit comes back."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its log file stays open
    address = upload(exported, "ada/policy", endpoint=hub.address)
    assert address == f"{hub.address}/ada/policy/commit/c0ffee"
    assert list(hub.handler.commits.values()) == [{"config.json": b"{}", "model.safetensors": b"weights"}]
    assert hub.handler.made[0]["name"] == "policy" and hub.handler.made[0].get("private", True)


def test_upload_that_fails_says_so_and_leaves_the_folder(exported: Path, tmp_path: Path) -> None:
    """A name that is none, a folder that is no export, a hub that refuses the connection."""
    pytest.importorskip("huggingface_hub")
    with pytest.raises(ConfigError, match=r"repo='a/b/c' is no name of a repository"):
        upload(exported, "a/b/c", endpoint="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"is no export: expected config\.json"):
        upload(tmp_path, "ada/policy")
    with pytest.raises(CheckpointError, match=r"upload of .*exported' to 'ada/policy' failed.*The folder is whole"):
        upload(exported, "ada/policy", endpoint="http://127.0.0.1:9")
    assert (exported / "model.safetensors").read_bytes() == b"weights"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_upload_that_loses_a_reply_can_be_made_again(hub: Any, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how, the folder is as it was, and the second upload is one commit of all files."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    before = content(exported)
    for at in (1, 3):  # making the repository, and the commit; what comes between, the client repeats
        hub.handler.asked.clear(), hub.handler.commits.clear()
        hub.handler.goes_wrong = staticmethod(lambda number, at=at: number == at)
        with pytest.raises(CheckpointError, match=r"call trajload\.checkpoint\.upload\('.*exported', 'ada/policy'\)"):
            upload(exported, "ada/policy", endpoint=hub.address)
        assert content(exported) == before and hub.handler.commits == {}
        upload(exported, "ada/policy", endpoint=hub.address)
        assert list(hub.handler.commits.values()) == [before]
    assert hub.handler.asked[-1].endswith("/commit/main")


UPLOAD = "import sys; from trajload.checkpoint import upload; upload(sys.argv[1], 'ada/policy', endpoint=sys.argv[2])"


@pytest.mark.multiproc
def test_upload_that_is_killed_leaves_the_folder_as_it_was(hub: Any, exported: Path) -> None:
    """While the hub is asked to commit: it has all files or none, and nothing was changed here."""
    pytest.importorskip("huggingface_hub")
    before, started = content(exported), threading.Event()
    command = [sys.executable, "-c", UPLOAD, str(exported), hub.address]
    process = subprocess.Popen(command, env={**os.environ, "HF_HUB_DISABLE_XET": "1"}, stderr=subprocess.DEVNULL)

    def kill(number: int) -> bool:
        started.wait(60.0)
        if hub.handler.asked[-1].endswith("/commit/main"):
            process.kill()
            process.wait()
            return True
        return False

    hub.handler.goes_wrong = staticmethod(kill)
    started.set()
    assert process.wait() == -signal.SIGKILL
    assert content(exported) == before


def test_trials_have_folders_of_their_own() -> None:
    """By user, experiment and trial, on disks and in buckets; a name that would lead elsewhere is refused."""
    names = {"experiment": "pusht", "trial": "seed3", "user": "ada"}
    assert trial_folder("/runs", **names) == "/runs/checkpoints/ada/pusht/seed3"
    assert trial_folder("s3://bucket/runs/", **names) == "s3://bucket/runs/checkpoints/ada/pusht/seed3"
    assert trial_folder("/runs", experiment="e", trial="t").startswith("/runs/checkpoints/")
    for bad in ("..", "", "a/b", ".hidden", "a b", 3):
        for field in names:
            with pytest.raises(ConfigError, match=rf"{field}=.* is no folder name"):
                trial_folder("/runs", **{**names, field: bad})  # type: ignore[arg-type]

"""An S3 service on loopback (moto), and a proxy before it that loses replies, repeats requests, and reports conflicts."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

PATIENCE_S = 60.0


def moto_python() -> str:
    """Return a Python that has moto: TRAJLOAD_MOTO_PYTHON, or this one; skip where neither has it."""
    python = os.environ.get("TRAJLOAD_MOTO_PYTHON", sys.executable)
    probe = subprocess.run([python, "-c", "import moto.server, flask_cors"], capture_output=True, timeout=PATIENCE_S)
    if probe.returncode:
        pytest.skip("no S3 on loopback: pip install 'trajload[s3-tests]', or set TRAJLOAD_MOTO_PYTHON")
    return python


@contextlib.contextmanager
def moto_server() -> Iterator[int]:
    """Run the service; yields its port."""
    python, until = moto_python(), time.monotonic() + PATIENCE_S
    while (started := _start_moto(python, until)) is None:
        assert time.monotonic() < until, "the service does not start"
    process, port = started
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def _start_moto(python: str, until: float) -> tuple[subprocess.Popen[bytes], int] | None:
    """Return the service and its port once it answers; None where it has ended, as when another has taken the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return process, port
            except OSError:
                time.sleep(0.05)
    except BaseException:
        process.kill()
        raise
    process.kill()
    process.wait()
    return None


class Proxy(ThreadingHTTPServer):
    """Passes requests on. `trouble(method, path)` may answer 'lose' (work done, reply lost), 'refuse' (a conflict is
    reported, nothing done), 'repeat' (sent twice, second reply given) or None."""

    daemon_threads = True

    def __init__(self, target_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target_port = target_port
        self.trouble: Any = lambda method, path: None
        self.made: list[str] = []
        self.one_put: Any = threading.Lock()
        """moto looks whether an object exists and then makes it, two puts at once both find nothing; S3 does it in one step."""
        self.port = self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: connections are cut on purpose."""


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        what = self.server.trouble(self.command, self.path)
        if what is not None:
            self.server.made.append(what)
        if what == "refuse":
            self._answer(409, {}, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
            return
        for _ in range(2 if what == "repeat" else 1):
            target = http.client.HTTPConnection("127.0.0.1", self.server.target_port, timeout=PATIENCE_S)
            with self.server.one_put if self.command == "PUT" else contextlib.nullcontext():
                target.request(self.command, self.path, body=body, headers=dict(self.headers.items()))
                reply = target.getresponse()
                data = reply.read()
            target.close()
        if what == "lose":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(reply.status, dict(reply.getheaders()), data)

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        skipped = {"content-length", "connection", "transfer-encoding", "date", "server"}
        for name, value in headers.items():
            if name.lower() not in skipped:
                self.send_header(name, value)
        # A HEAD says the size of what it does not send.
        length = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def proxy(target_port: int) -> Iterator[Proxy]:
    """Run a proxy before a service."""
    server = Proxy(target_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def s3(port: int, bucket: str) -> Any:
    """Return obstore's client of a bucket, which is made."""
    from obstore.store import S3Store

    request = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    request.request("PUT", f"/{bucket}", headers={"Host": f"127.0.0.1:{port}"})
    assert request.getresponse().read() is not None
    request.close()
    return S3Store(
        bucket,
        endpoint=f"http://127.0.0.1:{port}",
        access_key_id="test",
        secret_access_key="test",
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )

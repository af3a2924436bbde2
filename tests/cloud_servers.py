"""Servers of the protocols of clouds, for tests: an S3 server as a subprocess, and a proxy in front of it that has faults."""

from __future__ import annotations

import http.client
import re
import ssl
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from obstore.store import S3Store

BUCKET = "model-bucket"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTKEYID", "AWS_SECRET_ACCESS_KEY": "sEcReT-of-the-tests", "AWS_DEFAULT_REGION": "us-east-1"}

_START_S_MAX = 60.0
NO_HEADERS: Mapping[str, str] = {}


class S3Server:
    """moto's S3 server, with one bucket."""

    def __init__(self, bucket: str = BUCKET) -> None:
        self._bucket = bucket
        self.host = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"Running on http://([\d.:]+)", line):
                self.host = found[1]
                break
        self._drain = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._drain.start()
        self._request("PUT", f"/{self._bucket}")
        self._store = S3Store(
            self._bucket,
            endpoint=f"http://{self.host}",
            client_options={"allow_http": True},
            access_key_id="a",
            secret_access_key="b",
            region="us-east-1",
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(_START_S_MAX)
        self._drain.join(_START_S_MAX)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def put(self, key: str, content: bytes | str) -> None:
        """Write an object."""
        self._request(
            "PUT", f"/{self._bucket}/{urllib.parse.quote(key)}", content.encode() if isinstance(content, str) else content
        )

    def delete(self, key: str) -> None:
        """Remove an object, or, of a key that ends in "/", all below it."""
        keys = [one["path"] for one in self._store.list(key).collect()] if key.endswith("/") else [key]
        for one in keys:
            self._request("DELETE", f"/{self._bucket}/{urllib.parse.quote(one)}")

    def publish(self, folder: str) -> None:
        """Let everybody read the objects of a folder."""
        for one in self._store.list(folder).collect():
            self._request("PUT", f"/{self._bucket}/{urllib.parse.quote(one['path'])}?acl", headers={"x-amz-acl": "public-read"})

    def _request(self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] = NO_HEADERS) -> None:
        connection = http.client.HTTPConnection(self.host, timeout=_START_S_MAX)
        # Not checked by moto, but a request without one is anonymous, and may not write.
        signed = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=b"
        connection.request(method, path, content, {"Authorization": signed, **headers})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status < 300, text


class Answer:
    """An answer on its way through the proxy, which a fault may change. `close_after`: bytes of the content after which the
    connection is closed. `signed_by`: the request's header Authorization."""

    def __init__(self, status: int, headers: dict[str, str], content: bytes, signed_by: str = "") -> None:
        self.status = status
        self.signed_by = signed_by
        self.headers = headers
        self.content = content
        self.close_after: int | None = None


Fault = Callable[[str, Answer], None]
"""Changes the answer to a request for a path (with its query)."""


def refuse(status: int, code: str) -> Fault:
    """All requests are refused with an S3 error, which repeats what the client has sent, as real ones do."""

    def fault(path: str, answer: Answer) -> None:
        answer.status = status
        answer.content = (
            f"<Error><Code>{code}</Code><AWSAccessKeyId>{KEYS['AWS_ACCESS_KEY_ID']}</AWSAccessKeyId></Error>".encode()
        )

    return fault


class FaultyProxy:
    """A proxy to a server. `fault` None: it has none. `hangs`: it takes requests and never answers. `requests` are the paths that
    were asked for, `at_once` the largest number of them at a time; `delay_s` is how long each takes at least."""

    def __init__(self, host: str, tls: ssl.SSLContext | None = None) -> None:
        self.fault: Fault | None = None
        self.requests: list[str] = []
        self.delay_s = 0.0
        self.at_once = 0
        self._under_way = 0
        self._lock = threading.Lock()
        self.hangs = threading.Event()
        self.going_on = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                proxy.requests.append(self.path)
                with proxy.counted():
                    self._answer()

            def _answer(self) -> None:
                proxy.going_on.wait(proxy.delay_s)
                if proxy.hangs.is_set():
                    proxy.going_on.wait(60)
                    self.close_connection = True
                    return
                connection = http.client.HTTPConnection(host, timeout=30)
                connection.request(self.command, self.path, headers=dict(self.headers))
                got = connection.getresponse()
                answer = Answer(got.status, dict(got.getheaders()), got.read(), self.headers.get("Authorization", ""))
                connection.close()
                length = len(answer.content) if self.command == "GET" else int(answer.headers.get("Content-Length", 0))
                if proxy.fault is not None:
                    proxy.fault(self.path, answer)
                    length = length if answer.close_after is not None else len(answer.content)
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(answer.content[: answer.close_after])
                self.close_connection = answer.close_after is not None

            do_GET = do_HEAD = _forward

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that has given up."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A request is under way."""
        with self._lock:
            self._under_way += 1
            self.at_once = max(self.at_once, self._under_way)
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.going_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_START_S_MAX)

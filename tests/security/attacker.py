"""Bytes in, bytes out, and a look at whether others are still served."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.gated import metrics
from tests.e2e.server import ServerProcess
from tests.leaks.holding import resident_bytes

_PATIENCE_S = 40.0
"""Longer than any time-out of the server for who sends nothing (GRPC_SETUP_S_MAX is 20)."""
_READ_BYTES = 65_536


class Answer(NamedTuple):
    """One HTTP response."""

    status: int
    head: bytes
    body: bytes

    @property
    def error(self) -> str:
        """The text of the error document that it must be."""
        return str(json.loads(self.body)["error"])


class Attacker:
    """A client without manners."""

    def __init__(self, server: ServerProcess, home: Path) -> None:
        """`home`: the folder that holds the repository."""
        self.server = server
        self.home = home

    def connect(self, address: str = "") -> socket.socket:
        """A connection to the HTTP port, or to this address."""
        host, port = (address or self.server.http).split(":")
        return socket.create_connection((host, int(port)), timeout=_PATIENCE_S)

    def exchange(self, request: bytes, address: str = "") -> list[Answer]:
        """Send it, say that nothing more comes, and read all answers until the server closes."""
        with self.connect(address) as connection:
            connection.sendall(request)
            with suppress(OSError):  # the server has refused it, and closed, already
                connection.shutdown(socket.SHUT_WR)
            received = b""
            while data := connection.recv(_READ_BYTES):
                received += data
        answers = []
        while received:
            head, _, received = received.partition(b"\r\n\r\n")
            length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
            answers.append(Answer(int(head.split()[1]), head, received[:length]))
            received = received[length:]
        return [answer for answer in answers if answer.status != 100]

    def ask(self, method: str, path: bytes | str, body: bytes = b"", *headers: str) -> Answer:
        """One request, one answer."""
        target = path.encode() if isinstance(path, str) else path
        lines = "".join(f"{header}\r\n" for header in headers).encode()
        request = b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n%b" % (
            method.encode(),
            target,
            len(body),
            lines,
            body,
        )
        [answer] = self.exchange(request)
        return answer

    def infer(self, document: dict[str, Any] | bytes, model: str = "affine") -> Answer:
        """An inference with this document."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.ask("POST", f"/v2/models/{model}/infer", body)

    def load(self, model: str, parameters: dict[str, Any]) -> Answer:
        """A load call."""
        return self.ask("POST", f"/v2/repository/models/{model}/load", json.dumps({"parameters": parameters}).encode())

    def flood(self, data: bytes, address: str) -> bytes:
        """Send it all, reading meanwhile, until the server closes the connection; what it said. Raises TimeoutError when it
        does not."""
        received = b""
        with self.connect(address) as connection:
            view = memoryview(data)
            try:
                for begin in range(0, len(view), _READ_BYTES):
                    connection.sendall(view[begin : begin + _READ_BYTES])
                while more := connection.recv(_READ_BYTES):
                    received += more
            except (BrokenPipeError, ConnectionResetError):
                pass  # closed while we were sending
        return received

    def farewell(self, data: bytes, address: str) -> bytes:
        """Send it, say that nothing more comes, and read until the server closes the connection; what it said."""
        received = b""
        with self.connect(address) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(_READ_BYTES):
                received += more
        return received

    def said_until(self, wanted: bytes, request: bytes) -> bytes:
        """Send it to the HTTP port, keep the connection open, and read until the server says `wanted` or closes."""
        received = b""
        with self.connect() as connection:
            connection.sendall(request)
            while wanted not in received and (more := connection.recv(_READ_BYTES)):
                received += more
        return received

    def resident_bytes(self) -> int:
        """Memory of the server."""
        return resident_bytes(self.server.process.pid)

    def check_served(self) -> None:
        """Others are answered rightly."""
        answer = self.infer({"inputs": [tensor([1.0, 2.0, 3.0])]})
        assert answer.status == 200, answer
        assert json.loads(answer.body)["outputs"][0]["data"] == [2.0, 4.0, 6.0]
        assert metrics(self.server)['nv_inference_pending_request_count{model="affine",version="1"}'] == 0


def tensor(data: Any, **changes: Any) -> dict[str, Any]:
    """The input of `affine`."""
    return {"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": data, **changes}

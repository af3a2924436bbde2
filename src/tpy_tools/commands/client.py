"""A small client of a running server, for the commands that ask one: HTTP, JSON and the binary tensor extension, nothing else."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from tpy.frontends.binary_tensor import write_binary
from tpy.messages import Tensor
from tpy_tools.load import AnswerPart, BrokenAnswer, read_http
from tpy_tools.load.asking import NoReply, ask, ask_for_pieces
from tpy_tools.load.calls import reported_error
from tpy_tools.load.core.http1 import EventSplitter

_HEADER = "Inference-Header-Content-Length"
_TIMEOUT_S = 60.0
HTTP_PORT = 8000
_BINARY_OUTPUT = {"binary_data": True}

Parameter = str | int | float | bool


class ClientError(Exception):
    """The server could not be asked, or answered with an error. `str()` is one line for the user; `status` 0: no answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Client:
    """Talks to one server. Each call is one HTTP request; raises ClientError. `start` is the command that starts a server,
    `headers` go with every request."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        start: str = "tpy serve DIRECTORY",
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._host = host
        self._port = port
        self._start = start
        self._tls = tls
        self._headers = dict(headers or {})
        self._timeout_s = timeout_s

    @property
    def host(self) -> str:
        """The server's name or address."""
        return self._host

    def get(self, path: str) -> object:
        """The document at `path`."""
        return self._document(path, self._ask("GET", path, b"", {}).body)

    def text(self, path: str) -> str:
        """The page at `path`."""
        return self._ask("GET", path, b"", {}).body.decode(errors="replace")

    def post(self, path: str, body: bytes) -> object:
        """The answer to a document."""
        return self._document(path, self._ask("POST", path, body, {}).body)

    def order(self, path: str, body: bytes) -> None:
        """The same where the answer has nothing to tell."""
        self._ask("POST", path, body, {})

    def stream(self, path: str, body: bytes) -> Iterator[Any]:
        """The documents of the events that answer a document, as they come."""
        splitter = EventSplitter()
        where = (self._host, self._port)
        answers = ask_for_pieces(where, "POST", path, body, headers=self._headers, context=self._tls, timeout_s=self._timeout_s)
        refused = b""
        with self._reported(), closing(answers):
            for answer in answers:
                if answer.status != HTTPStatus.OK:
                    refused += answer.body
                    if answer.final:
                        raise ClientError(f"HTTP {answer.status}: {reported_error(refused)}", answer.status)
                    continue
                for event in splitter.end() if answer.final else splitter.feed(answer.body):
                    document = self._document(path, event.partition(b"data:")[2])
                    if isinstance(document, dict) and isinstance(document.get("error"), str):
                        raise ClientError(document["error"])
                    yield document

    def infer(
        self,
        model: str,
        inputs: Sequence[Tensor],
        *,
        outputs: Mapping[str, Mapping[str, Parameter]] | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> list[Tensor]:
        """The outputs of one request; `outputs` maps the wanted ones to their parameters, None: all outputs."""
        blobs = [bytes(write_binary(tensor.array, tensor.datatype)) for tensor in inputs]
        head: dict[str, object] = {
            "inputs": [_described(tensor, len(blob)) for tensor, blob in zip(inputs, blobs, strict=True)],
            "parameters": {"binary_data_output": True, **(parameters or {})},
        }
        if outputs:
            head["outputs"] = [{"name": name, "parameters": {**_BINARY_OUTPUT, **extra}} for name, extra in outputs.items()]
        encoded = orjson.dumps(head)
        answer = self._ask("POST", f"{model_path(model)}/infer", encoded + b"".join(blobs), {_HEADER: str(len(encoded))})
        try:
            return read_http(answer)
        except BrokenAnswer as error:
            raise ClientError(str(error)) from error

    def _document(self, path: str, answer: bytes) -> object:
        try:
            return orjson.loads(answer)
        except orjson.JSONDecodeError:
            raise ClientError(
                f"{self._host}:{self._port}{path} did not answer with JSON: it is not the HTTP port of a model server"
            ) from None

    def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> AnswerPart:
        merged = {**self._headers, **headers}
        with self._reported():
            answer = ask(
                (self._host, self._port), method, path, body, headers=merged, context=self._tls, timeout_s=self._timeout_s
            )
        if answer.status != HTTPStatus.OK:
            raise ClientError(f"HTTP {answer.status}: {reported_error(answer.body)}", answer.status)
        return answer

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Reports that nobody answers as a ClientError."""
        try:
            yield
        except NoReply as error:
            where = f"{self._host}:{self._port}"
            raise ClientError(f"no server at {where} ({error}); start one with: {self._start}") from error


def client_of(
    url: str,
    *,
    headers: Sequence[str] = (),
    port: int = HTTP_PORT,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = _TIMEOUT_S,
    start: str = "tpy serve DIRECTORY",
) -> Client:
    """A client of the server at `url`: `http://HOST:PORT`, `https://...`, or `HOST`, on `port` if it does not name one. `headers`
    are `NAME: VALUE`; with `tls` connections are encrypted whatever the URL says. Raises ClientError for an invalid URL or
    header."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        given = parts.port
    except ValueError:
        given = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or given == -1:
        raise ClientError(f"'{url}' is not the URL of a server; expected http://HOST:PORT")
    pairs = [header.partition(":") for header in headers]
    for name, colon, _ in pairs:
        if not name.strip() or not colon:
            raise ClientError(f"a header is NAME: VALUE, got '{name}'")
    return Client(
        parts.hostname,
        port if given is None else given,
        tls=tls or (ssl.create_default_context() if parts.scheme == "https" else None),
        headers={name.strip(): value.strip() for name, _, value in pairs},
        timeout_s=timeout_s,
        start=start,
    )


def model_path(model: str) -> str:
    """The path of a model; `model` may be NAME/versions/N."""
    return f"/v2/models/{quote(model, safe='/')}"


def _described(tensor: Tensor, size: int) -> dict[str, object]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.value,
        "shape": list(tensor.array.shape),
        "parameters": {"binary_data_size": size},
    }

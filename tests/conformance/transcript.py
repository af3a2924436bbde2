"""One answer, as it is recorded and compared."""

from __future__ import annotations

import base64
import http.client
import json
import re
from typing import Any

import msgspec

from .cases import Case

_HEADERS = ("content-type", "inference-header-content-length", "accept-encoding", "allow")
_VOLATILE = frozenset({"ns", "last_inference"})
_MEASURED = "memory_usage"
"""Triton has it empty unless its backends are told to track memory."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Status, the headers that clients look at, and the body: JSON, or text, and the binary part in base64."""

    status: int
    headers: dict[str, str]
    json: Any = None
    text: str = ""
    binary: str = ""


def send(connection: http.client.HTTPConnection, case: Case) -> Answer:
    """Send the case's request on a kept-alive connection."""
    connection.request(case.method, case.path, case.body, dict(case.headers))
    response = connection.getresponse()
    body = response.read()
    headers = {name: value for name in _HEADERS if (value := response.headers.get(name)) is not None}
    length = int(headers.get("inference-header-content-length", len(body)))
    head, blob = body[:length], body[length:]
    binary = base64.b64encode(blob).decode()
    try:
        parsed = json.loads(head) if head else None
    except ValueError:
        return Answer(status=response.status, headers=headers, text=head.decode(errors="replace"), binary=binary)
    return Answer(status=response.status, headers=headers, json=stable(parsed), binary=binary)


HINT = re.compile(
    r"; raise max_batch_size in its config\.pbtxt to allow more$"
    r"|(; a|(?<=\.) A)llowed (inputs|outputs) are: .*$"
    r"|(; t|(?<=\.) T)aken for parameters: .*$"
    r"|; '[^']*' is not one of BOOL, UINT8, .*$"
    r"|; expected .*, got .*$"
    r"|; the reason: .*$"
)
"""Hints of tpy behind Triton's text: where a limit is raised, which names and datatypes there are, what was expected."""


def stable(value: Any) -> Any:
    """The value without what differs from run to run: times, paths, process-dependent text."""
    if isinstance(value, dict):
        return {key: "*" if key in _VOLATILE else [] if key == _MEASURED else stable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [stable(item) for item in value]
    if isinstance(value, str):
        value = HINT.sub("", value)
        return re.sub(r"/[^\s'\"(]*/([^/\s'\"(]+)", r"\1", value) if "model.py" in value else value
    return value

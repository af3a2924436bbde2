"""Record the generate transcripts: `python -m tests.conformance.generate_record HOST:PORT > transcripts/generate.json`.

The server serves the repository that `python -m tests.conformance.generate_record --build DIRECTORY` writes.
"""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from .cases import Case
from .generate_cases import CASES
from .generate_repository import build
from .transcript import stable


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """Status, content type, and what came: one JSON document, the events of a stream, or text that is neither."""

    status: int
    content_type: str = ""
    json: Any = None
    events: list[Any] | None = None
    text: str = ""


def exchange(address: str, case: Case) -> Exchange:
    """Send one request on a connection of its own."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(case.method, case.path, case.body, dict(case.headers))
        response = connection.getresponse()
        body = response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        # The real server hangs on a few requests: part of the record.
        return Exchange(status=0, text=type(error).__name__)
    finally:
        connection.close()
    kind = response.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return Exchange(status=response.status, content_type=kind, events=_events(body))
    try:
        parsed = json.loads(body) if body else None
    except ValueError:
        return Exchange(status=response.status, content_type=kind, text=body)
    return Exchange(status=response.status, content_type=kind, json=stable(parsed))


def _events(body: str) -> list[Any]:
    """The documents of a stream; text that is no event stays text."""
    pieces = body.split("\n\n")
    assert pieces.pop() == "", body
    return [stable(json.loads(piece.removeprefix("data: "))) if piece.startswith("data: ") else piece for piece in pieces]


def record(address: str) -> dict[str, Exchange]:
    """The answer to every case, by name."""
    return {case.name: exchange(address, case) for case in CASES}


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--build":
        build(Path(sys.argv[2]))
    elif len(sys.argv) == 2:
        print(msgspec.json.format(msgspec.json.encode(record(sys.argv[1])), indent=1).decode())
    else:
        raise SystemExit(__doc__)

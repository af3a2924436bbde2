"""Record which load calls a server takes: `python -m tests.conformance.override_record HOST:PORT > transcripts/overrides.json`.

The server runs in mode explicit and has one model `j`, with a version folder and a model.py that defines a TritonPythonModel.
"""

from __future__ import annotations

import http.client
import json
import sys
from typing import Any

from .override_cases import CASES, COMPARED


def _ask(address: str, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def record(address: str) -> dict[str, dict[str, Any] | None]:
    """The outcome of each override: of the configuration what is compared, None where it was refused."""
    taken: dict[str, dict[str, Any] | None] = {}
    for case in CASES:
        status, _ = _ask(address, "POST", "/v2/repository/models/j/load", json.dumps({"parameters": {"config": case}}))
        taken[case] = None
        if status == 200:
            _, config = _ask(address, "GET", "/v2/models/j/config")
            taken[case] = {key: config[key] for key in COMPARED if key in config}
    return taken


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(json.dumps(record(sys.argv[1]), indent=1))

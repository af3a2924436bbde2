"""Record the transcripts from a running server: `python -m tests.conformance.record HOST:PORT > transcripts/http.json`.

The server serves the repository that `python -m tests.conformance.record --build DIRECTORY` writes, in mode explicit.
"""

from __future__ import annotations

import http.client
import sys
from pathlib import Path

import msgspec

from .cases import CASES
from .repository import build
from .transcript import Answer, send


def record(address: str) -> dict[str, Answer]:
    """The answer to every case, by name."""
    answers = {}
    connection = http.client.HTTPConnection(address, timeout=30)
    for case in CASES:
        try:
            answers[case.name] = send(connection, case)
        except (OSError, http.client.HTTPException) as error:
            # The real server is known to hang or hang up on some malformed requests: part of the record.
            answers[case.name] = Answer(status=0, headers={}, text=type(error).__name__)
            connection.close()
    connection.close()
    return answers


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--build":
        build(Path(sys.argv[2]))
    elif len(sys.argv) == 2:
        answers = record(sys.argv[1])
        print(msgspec.json.format(msgspec.json.encode(answers), indent=1).decode())
    else:
        raise SystemExit(__doc__)

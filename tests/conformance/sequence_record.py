"""Record the sequence transcripts: `python -m tests.conformance.sequence_record HTTP GRPC > transcripts/sequences.json`.

HTTP and GRPC are the ports, HOST:PORT, of a server of the repository that `... sequence_record --build DIRECTORY` writes.
"""

from __future__ import annotations

import http.client
import sys
from pathlib import Path

import msgspec

from .grpc_record import record as record_streams
from .grpc_transcript import GrpcAnswer
from .sequence_cases import HTTP_CASES, STREAMS
from .sequence_repository import build
from .transcript import Answer, send


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to every case, by name."""

    http: dict[str, Answer]
    streams: dict[str, GrpcAnswer]


def record(http_address: str, grpc_address: str) -> Transcript:
    """Send all cases."""
    connection = http.client.HTTPConnection(http_address, timeout=30)
    answers = {case.name: send(connection, case) for case in HTTP_CASES}
    connection.close()
    return Transcript(http=answers, streams=record_streams(grpc_address, STREAMS))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--build", directory]:
            build(Path(directory))
        case [http_address, grpc_address]:
            print(msgspec.json.format(msgspec.json.encode(record(http_address, grpc_address)), indent=1).decode())
        case _:
            raise SystemExit(__doc__)

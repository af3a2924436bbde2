"""Record the gRPC transcript from a running server: `python -m tests.conformance.grpc_record HOST:PORT > transcripts/grpc.json`.

The server serves the repository that `python -m tests.conformance.record --build DIRECTORY` writes, in mode explicit.
"""

from __future__ import annotations

import sys

import msgspec

from .grpc_cases import CASES
from .grpc_transcript import GrpcAnswer, connect, send


def record(address: str) -> dict[str, GrpcAnswer]:
    """The answer to every case, by name."""
    with connect(address) as channel:
        return {case.name: send(channel, case) for case in CASES}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(msgspec.json.format(msgspec.json.encode(record(sys.argv[1])), indent=1).decode())

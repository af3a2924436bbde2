"""Record the gRPC transcripts from a running server:

    python -m tests.conformance.grpc_record HOST:PORT > transcripts/grpc.json
    python -m tests.conformance.grpc_record --decoupled HOST:PORT > transcripts/grpc_decoupled.json

For the first the server serves, in mode explicit, the repository of `python -m tests.conformance.record --build DIRECTORY`;
for the second the one of `python -m tests.conformance.generate_record --build DIRECTORY`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec

from . import grpc_decoupled_cases
from .grpc_cases import CASES, GrpcCase
from .grpc_transcript import GrpcAnswer, connect, send


def record(address: str, cases: Iterable[GrpcCase]) -> dict[str, GrpcAnswer]:
    """The answer to every case, by name."""
    with connect(address) as channel:
        return {case.name: send(channel, case) for case in cases}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--decoupled", address]:
            answers = record(address, grpc_decoupled_cases.CASES)
        case [address]:
            answers = record(address, CASES)
        case _:
            raise SystemExit(__doc__)
    print(msgspec.json.format(msgspec.json.encode(answers), indent=1).decode())

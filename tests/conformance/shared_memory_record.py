"""Record the transcripts of shared memory with clients from a running server:

    python -m tests.conformance.shared_memory_record http HOST:PORT > transcripts/shared_memory_http.json
    python -m tests.conformance.shared_memory_record grpc HOST:PORT > transcripts/shared_memory_grpc.json

The server serves, in mode explicit and with `--load-model` for each of `shared_memory_cases.MODELS`, the repository of
`python -m tests.conformance.record --build DIRECTORY`, and a Triton that knows it gets `--allow-client-shm=true`.
"""

from __future__ import annotations

import base64
import http.client
import sys

import msgspec

from . import grpc_transcript, transcript
from .shared_memory_cases import Segments, Written, http_cases, segments
from .shared_memory_grpc_cases import grpc_cases

_PREFIX = "PREFIX_"
_TIMEOUT_S = 30


def record_http(address: str) -> dict[str, Written]:
    """The answer to every request over HTTP, by name."""
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    answers: dict[str, Written] = {}
    with segments() as made:
        for case in http_cases(made):
            made.clear()
            try:
                answer: object = transcript.send(connection, case)
            except (OSError, http.client.HTTPException) as error:  # as in record.py
                answer = transcript.Answer(status=0, headers={}, text=type(error).__name__)
                connection.close()
            answers[case.name] = _written(made, answer)
    connection.close()
    return answers


def record_grpc(address: str) -> dict[str, Written]:
    """The answer to every call over gRPC, by name."""
    answers: dict[str, Written] = {}
    with segments() as made, grpc_transcript.connect(address) as channel:
        for case in grpc_cases(made):
            made.clear()
            answers[case.name] = _written(made, grpc_transcript.send(channel, case))
    return answers


def _written(made: Segments, answer: object) -> Written:
    shown = msgspec.json.encode(answer).replace(made.prefix.encode(), _PREFIX.encode())
    output = base64.b64encode(made.output().rstrip(b"\0")).decode()
    return Written(answer=msgspec.json.decode(shown), output=output)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["http", address]:
            found = record_http(address)
        case ["grpc", address]:
            found = record_grpc(address)
        case _:
            raise SystemExit(__doc__)
    print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())

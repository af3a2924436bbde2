"""The codec answers what a real Triton answered, text for text, except where a difference is meant and listed here."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from tests.conformance.transcript import HINT

from . import exchanges
from .exchanges import Exchange

DESCRIPTIONS, EXCHANGES = exchanges.load()

_SHORT = "Failed to parse 'data' field: shape does not match true shape"
_TWICE = "output 'OUT0' already exists in request"
_LENGTH = "Unable to parse Inference-Header-Content-Length"

NEWER_ERRORS = {
    "FP32 data [[]]": _SHORT,
    "FP32 3 elements in [1, 2]": _SHORT,
    "FP32 1 elements in []": _SHORT,
    "FP32 3 elements in [[], [[1]]]": _SHORT,
    "output twice": f"[request id: <id_unknown>] {_TWICE}",
    "output twice with id": f"[request id: 7] {_TWICE}",
    "header length 'abc'": f"{_LENGTH}, got: abc",
    "header length ''": f"{_LENGTH}, got:  ",
    "header length '99999999999'": f"{_LENGTH}, value is out of range [ -2147483648, 2147483647 ], got: 99999999999",
}
"""The recording is of Triton 2.51; newer ones answer this."""

OUR_ERRORS = {
    # Half a surrogate pair is not text; Triton takes the second half alone.
    'broken JSON {"a":"\\udc00"}': ("failed to parse the request JSON buffer: The surrogate pair in string is invalid. at 6"),
    # Triton reads as far as there are digits.
    "header length '1.5'": f"{_LENGTH}, got: 1.5",
    # Triton's count overflows.
    "binary shape huge": (
        "[request id: <id_unknown>] input byte size mismatch for input 'IN0' for model 'grid'. "
        "Expected 4835703278458516698824704, got 8"
    ),
    # These two end the process of Triton 2.51.
    "shape too large": _SHORT,
    "classification of text": "class result not available for output due to unsupported type 'BYTES'",
}
"""Differences on purpose; docs/reference/compatibility.md says so."""


def status_of(exchange: Exchange) -> int:
    """Triton's status, except that its JSON reader's internal errors are the caller's fault here."""
    if exchange.name in NEWER_ERRORS or exchange.name in OUR_ERRORS:
        return 400
    return 400 if exchange.status in (500, None) else exchange.status


@pytest.mark.parametrize("exchange", EXCHANGES, ids=[exchange.name for exchange in EXCHANGES])
def test_answers_as_recorded(exchange: Exchange) -> None:
    answer = exchanges.answer(exchange, DESCRIPTIONS[exchange.model])
    assert answer.status == status_of(exchange), answer.body
    meant = NEWER_ERRORS.get(exchange.name) or OUR_ERRORS.get(exchange.name) or exchange.error()
    if meant is not None:
        (said,) = json.loads(answer.body).items()
        assert (said[0], HINT.sub("", said[1])) == ("error", meant)
        return
    unsized = {name: value for name, value in exchange.answer_headers.items() if "length" not in name}
    assert {name: value for name, value in answer.headers.items() if "length" not in name} == unsized
    assert take_apart(answer.body, answer.headers) == take_apart(exchange.answer_bytes(), exchange.answer_headers)


def take_apart(body: bytes, headers: dict[str, str]) -> tuple[Any, bytes]:
    """The JSON document with its members in order, numbers as what they mean (`repr` tells 1 from 1.0 and equals NaN); blobs."""
    match headers.get("content-encoding"):
        case "gzip":
            body = gzip.decompress(body)
        case "deflate":
            body = zlib.decompress(body)
    length = int(headers.get("inference-header-content-length", len(body)))
    return repr(json.loads(body[:length])), body[length:]


def test_every_listed_difference_is_one() -> None:
    differences = {**NEWER_ERRORS, **OUR_ERRORS}
    by_name = {exchange.name: exchange for exchange in EXCHANGES}
    assert len(by_name) == len(EXCHANGES)
    assert differences.keys() <= by_name.keys()
    for name, text in differences.items():
        assert by_name[name].status is None or by_name[name].error() != text

"""The targets of the native codec."""

from __future__ import annotations

import contextlib
import re

from fuzz.chance import Chance
from fuzz.hot import documents, fields, frames, heads, messages, wire
from fuzz.target import Target
from tpy.errors import TpyError
from tpy.frontends.grpc.codec import Decoded
from tpy.frontends.http.codec import HttpOutputPlan
from tpy.frontends.http.parser import RequestParser
from tpy.hot import codec
from tpy.http2.header_blocks import HeaderReader, Headers
from tpy.messages import InferenceRequest


def _lenient(body: bytes, header_length: int) -> tuple[InferenceRequest, HttpOutputPlan]:
    """Wrong on purpose: zeros in front of a number are passed over."""
    return documents.specified(re.sub(rb"([\[, ])0([0-9])(?=[^\"]*\])", rb"\1 \2", body[:header_length]), header_length)


def _canary(chance: Chance) -> int:
    text = b'{"inputs":[{"name":"A","shape":[1],"datatype":"FP32","data":[%b]}]}' % chance.choice((b"1", b"01", b"0.5"))
    documents.compare(text, len(text), _lenient)
    return 1


def _without_the_rest(message: memoryview) -> Decoded | None:
    """Wrong on purpose: a message with bytes behind its end is read without them."""
    read = messages.native if codec.FORM == codec.NATIVE else messages.specified
    for rest in range(3):
        with contextlib.suppress(TpyError):
            found = read(message[: len(message) - rest])
            if found is not None:
                return found
    return None


def _model_infer_canary(chance: Chance) -> int:
    messages.compare(messages.message_of(chance) + chance.choice((b"", b"\x08", b"\x00\x00")), _without_the_rest)
    return 1


REQUESTS = Target(
    name="native_requests",
    invariant=documents.REQUESTS,
    run=documents.run_requests,
    smoke_examples=6000,
    attack=documents.attack,
)


class _ForgetfulReader(HeaderReader[Headers]):
    """Wrong on purpose: it loses the oldest entry of a table of several."""

    def decode(self, block: bytes) -> Headers:
        found = super().decode(block)
        if len(self.table.dynamic_entries) > 3:
            self.table.dynamic_entries.pop()
        return found


def _fields_canary(chance: Chance) -> int:
    return fields.run(chance, _ForgetfulReader)


class _LenientParser(RequestParser):
    """Wrong on purpose: a plus in front of a length is passed over, in a head that comes in one piece."""

    def feed(self, data: bytes | memoryview) -> None:
        super().feed(bytes(data).replace(b"Length: +", b"Length: "))


def _heads_canary(chance: Chance) -> int:
    length = chance.choice((b"1", b"+1", b"01"))
    heads.compare(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %b\r\n\r\nx" % length, 0, chance, _LenientParser)
    return 1


HEADS = Target(
    name="native_heads", invariant=heads.INVARIANT, run=heads.run, smoke_examples=4000, rules=heads.RULES, attack=heads.attack
)
RESPONSES = Target(name="native_responses", invariant=documents.RESPONSES, run=documents.run_responses, smoke_examples=4000)
MODEL_INFER_REQUESTS = Target(
    name="native_model_infer_requests",
    invariant=messages.REQUESTS,
    run=messages.run_requests,
    smoke_examples=4000,
    attack=messages.attack,
)
MODEL_INFER_WIRE = Target(
    name="native_model_infer_wire", invariant=wire.INVARIANT, run=wire.run, smoke_examples=6000, rules=wire.RULES
)
MODEL_INFER_RESPONSES = Target(
    name="native_model_infer_responses", invariant=messages.RESPONSES, run=messages.run_responses, smoke_examples=4000
)
EXECUTE = Target(name="native_execute", invariant=frames.EXECUTE, run=frames.run_execute, smoke_examples=3000)
RESULT = Target(name="native_result", invariant=frames.RESULT, run=frames.run_result, smoke_examples=3000)
MODEL_INFER_CANARY = Target(
    name="native_model_infer_canary",
    invariant="a codec that passes over bytes behind a raw tensor is found out",
    run=_model_infer_canary,
    smoke_examples=400,
    must_fail=True,
)
FIELDS = Target(
    name="native_fields",
    invariant=fields.INVARIANT,
    run=fields.run,
    smoke_examples=3000,
    rules=fields.RULES,
    attack=fields.attack,
)
FIELDS_CANARY = Target(
    name="native_fields_canary",
    invariant="a reader that loses an entry of its table is found out",
    run=_fields_canary,
    smoke_examples=200,
    must_fail=True,
)
HEADS_CANARY = Target(
    name="native_heads_canary",
    invariant="a codec that takes a plus in front of a length is found out",
    run=_heads_canary,
    smoke_examples=100,
    must_fail=True,
)
CANARY = Target(
    name="native_requests_canary",
    invariant="a codec that takes zeros in front of a number is found out",
    run=_canary,
    smoke_examples=200,
    must_fail=True,
)

"""Heads of HTTP/1.1 requests: what the native codec reads is what llhttp and Python read, whatever is in them."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.http.requests import Outcome, feed
from fuzz.target import Violation
from fuzz.tensors import spoiled
from tpy.frontends.http.parser import ParserPhase, RequestParser
from tpy.hot import codec

INVARIANT = (
    "a request is read as llhttp and Python read it, or left to them, whatever its method, target, fields and their spelling,"
    " with its body or in two pieces, and whatever bytes are wrong"
)
READ, LEFT = "read natively", "left to llhttp"
RULES = (READ, LEFT) if codec.FORM == codec.NATIVE else (LEFT,)

_BODY_BYTES_MAX = 200
_METHODS = (b"POST", b"POST", b"POST", b"GET", b"get", b"HEAD", b"PUT", b"CONNECT", b"POSTX", b"", b"PO ST", b"POST ")
_TARGETS_TEXT = (
    "/ /v2/models/m/infer /v2/models/m/versions/7/infer /v2/models/m/versions/x/infer /v2/models/a:b~c._-/infer"
    " //v2/models/m/infer /v2/models/m%2f/infer /a?b=c /a#b * http://h/v2/health/live h:80 /v2/models/ä/infer /a;b"
    " /infer /v2/models//infer"
)
_TARGETS = [target.encode() for target in _TARGETS_TEXT.split(" ")]
_VERSIONS = (b"HTTP/1.1",) * 12 + (b"HTTP/1.0", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 ", b"HTTP/1", b"")
_NAMES_TEXT = (
    "X x-request-id X-Request-ID traceparent Accept Content-Type content_type Inference-Header-Content-Length Authorization"
    " Cookie Connection Proxy-Connection Transfer-Encoding TE Trailer Upgrade Expect HTTP2-Settings Host host Content-Length"
    " content-length Keep-Alive X.y X! ä x\x00 Content-Length\x0b Accept-Encoding Content-Encoding X\x20Y"
)
_NAMES = [name.encode("latin-1") for name in _NAMES_TEXT.split(" ")]
_VALUES_TEXT = (
    "y|a, b|close|Close|keep-alive|KEEP-ALIVE|keep-alive, close|upgrade|chunked|Chunked|identity|gzip, chunked|100-continue|x"
    "|trailers|h2c|websocket|5|05|0|00|+5|-5|5 5|5,5|0x5|1e1|99999999999999999999|4294967296||ä|\x00|\x7f|\t|a\tb|a\nb|a\rb|\x0b5"
    "|5;|'\"\\"
)
_VALUES = [value.encode("latin-1") for value in _VALUES_TEXT.split("|")]
_GOING_ON = (
    (b"Expect", b"100-continue"),
    (b"TE", b"trailers"),
    (b"Upgrade", b"h2c"),
    (b"Transfer-Encoding", b"chunked"),
    (b"Proxy-Connection", b"close"),
)
_ENDS = (b"\r\n",) * 30 + (b"\n", b"\r", b"\r\r\n", b"\n\r", b"\r\n ", b"\r\n\t")


def request_of(chance: Chance) -> tuple[bytes, int]:
    """A request that is in the standard form, or nearly; and the size of its head."""
    fault = chance.choice((0.0, 0.0, 0.02, 0.1))

    def is_faulty() -> bool:
        return chance.random() < fault

    body = chance.randbytes(chance.choice((0, 1, 5, 50, _BODY_BYTES_MAX, _BODY_BYTES_MAX + is_faulty())))
    fields = [(chance.choice((b"Host", b"host")), b"h:80")]
    if body or chance.random() < 0.5:
        length = len(body) + (is_faulty() and chance.choice((-1, 1)))
        fields.append((chance.choice((b"Content-Length", b"content-length", b"CONTENT-LENGTH")), b"%d" % length))
    for number in range(chance.choice((0, 0, 1, 3, 70 if is_faulty() else 5))):
        name = chance.choice(_NAMES) if is_faulty() else chance.choice(_NAMES[:9])
        value = chance.choice(_VALUES) if is_faulty() else b"v%d" % number
        fields.append((name if is_faulty() else name + b"%d" % number, value))
    if chance.random() < 0.2:
        fields.append((b"Connection", chance.choice(_VALUES[2:8] if is_faulty() else _VALUES[2:6])))
    if chance.random() < 0.1:
        fields.append(chance.choice(_GOING_ON))
    if is_faulty():
        fields.pop(chance.randrange(len(fields)))
    chance.shuffle(fields)

    def end() -> bytes:
        return chance.choice(_ENDS) if is_faulty() else b"\r\n"

    method = chance.choice(_METHODS) if is_faulty() else chance.choice(_METHODS[:4])
    target = chance.choice(_TARGETS) if is_faulty() else chance.choice(_TARGETS[:5])
    version = chance.choice(_VERSIONS) if is_faulty() else b"HTTP/1.1"
    lines = [method, chance.choice((b"  ", b"\t", b"")) if is_faulty() else b" ", target, b" ", version, end()]
    for name, value in fields:
        colon = chance.choice((b" :", b":\t", b"", b"::", b":\r\n ")) if is_faulty() else b":"
        lines += (name, colon, chance.choice((b"", b" ", b"   ")), value, b" " if is_faulty() else b"", end())
    head = b"".join(lines) + end()
    more = chance.choice((b"\r\n", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"\x00")) if is_faulty() else b""
    return head + body + more, len(head)


def compare(data: bytes, head_size: int, chance: Chance, parser_of: type[RequestParser] = RequestParser) -> None:
    """Raise Violation where the two differ: llhttp reads a head that comes in several pieces."""
    if len(data) < 2:
        return
    expected = _read([data[:1], data[1:]], RequestParser)
    at = min(len(data), max(1, head_size + chance.choice((0, 0, 1, 3))))
    for pieces in ([data], [data[:at], data[at:]], [data[:at], data[at : at + 2], data[at + 2 :]]):
        found = _read([piece for piece in pieces if piece], parser_of)
        if found != expected:
            raise Violation(f"{data!r} in pieces of {[len(piece) for piece in pieces]}\n  read as {found}\n  llhttp: {expected}")


State = tuple[ParserPhase, int, int, bool]


def _read(pieces: list[bytes], parser_of: type[RequestParser]) -> tuple[Outcome, State, Outcome]:
    """All that the pieces came to, the state that they left, and what llhttp makes of another request behind them."""
    parser = parser_of(max_input_size=_BODY_BYTES_MAX)
    outcome = feed(pieces, parser)
    state = parser.phase, parser.begun, parser.body_received, parser.expects_continue
    return outcome, state, feed([b"G", b"ET /next HTTP/1.1\r\nHost: h\r\n\r\n"], parser)


def run(chance: Chance) -> int:
    """One request, and the same with bytes that are wrong."""
    data, head_size = request_of(chance)
    chance.took(LEFT if codec.read_head(data, _BODY_BYTES_MAX) is None else READ)
    compare(data, head_size, chance)
    for _ in chance.rounds((1, 3)):
        compare(bytes(spoiled(chance, data)), head_size, chance)
    return 3


def attack(data: bytes) -> int:
    """Any bytes."""
    chance = Chance()
    chance.seed(sum(data))
    compare(data, data.find(b"\r\n\r\n") + 4, chance)
    return 1

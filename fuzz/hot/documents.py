"""JSON requests and answers: the native codec and Python read and write the same, and refuse in the same words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.chance import Chance
from fuzz.target import Violation
from fuzz.tensors import description_of, random_tensor, same, spoiled
from tpy.errors import TpyError
from tpy.frontends.http.codec import BINARY_PLAN, JSON_PLAN, HttpOutputPlan, OutputChoice, encode_infer, parse_infer
from tpy.frontends.http.codec.parameters import BINARY, JSON
from tpy.frontends.http.codec.request import parse_in_python
from tpy.frontends.http.codec.response import encode_in_python
from tpy.frontends.shared_memory import NO_REGIONS
from tpy.messages import DataType, InferenceRequest, InferenceResponse, ModelDescription, Tensor

REQUESTS = (
    "a body is read as Python reads it, bit for bit, or refused in the same words, whatever the numbers, nesting, spaces, order"
    " and repetition of members, and whatever bytes are wrong"
)
RESPONSES = "an answer is the bytes that Python writes, or the same refusal, for any numbers, texts and shapes"

_INTEGERS_TEXT = (
    "0 1 7 16777217 9007199254740993 18446744073709551615 18446744073709551616 9223372036854775807 9223372036854775808 255 256"
    " -9223372036854775808 -9223372036854775809 127 128 -128 -129 65535 65536 4294967295 4294967296 -1 -0 99999999999999999999999"
)
_INTEGERS = _INTEGERS_TEXT.split()
_REAL_NUMBERS_TEXT = (
    "1e5 1E+5 1e-5 -1.5 0.1 3.4e38 3.5e38 3.4028235e38 1e39 1e308 1e309 1e400 5e-324 1e-400 123456789.123456789123456789 0.0 -0.0"
    " 0.30000000000000004 0e0 1e22 1e23 1e-22 1e-23 8.5e-45 1.17549435e-38"
)
_REAL_NUMBERS = _REAL_NUMBERS_TEXT.split()
_WRONG_TEXT = "01 -01 00 1. .5 +1 1e 1e+ true false null NaN Infinity -Infinity [] {}"
_WRONG = _WRONG_TEXT.split()
_STRINGS = ('"a"', '""', '"\\u00e4"', '"\u00e4"', '"a\\nb"', '"x,y]"', '"\x7f"', "'a'", '"', '"\u20ac\u20ac"')
_ESCAPES_TEXT = '\\n \\t \\r \\b \\f \\/ \\\\ \\" \\u0041 \\u00E4 \\u20ac \\ud83d\\ude00 \\u0000 \\u001f \\uffff'
_PIECES = ("", "a", " ", "x,y]", "\u00e4", "\u20ac", "\U0001f600", "\x7f", *_ESCAPES_TEXT.split(" "))
_WRONG_PIECES_TEXT = '\\ \\x \\u004 \\u00g0 \\ud800 \\udc00 \\ud83d\\u0041 \\ud83d\\n \\ude00\\ud83d \x01 \n " \\\u00e4'
_WRONG_PIECES = _WRONG_PIECES_TEXT.split(" ")
_PARAMETERS_TEXT = "binary_data_output sequence_id sequence_start sequence_end priority timeout own \u00e4 triton_x"
_PARAMETERS = _PARAMETERS_TEXT.split()
_WORDS = [kind.value for kind in DataType]
_SPACES = ("", "", "", " ", "\n\t", "\r ")
_MODEL: ModelDescription = description_of(
    [Tensor("A", DataType.FP32, np.zeros(2, np.float32)), Tensor("B", DataType.BYTES, np.array([b""], object))]
)

Parse = Callable[[bytes, int], tuple[InferenceRequest, HttpOutputPlan]]


def native(body: bytes, header_length: int) -> tuple[InferenceRequest, HttpOutputPlan]:
    """The request as the server reads it."""
    return parse_infer(body, header_length=header_length, description=_MODEL, version=None, received_ns=5)


def specified(body: bytes, header_length: int) -> tuple[InferenceRequest, HttpOutputPlan]:
    """The request as Python alone reads it."""
    return parse_in_python(body, header_length, _MODEL, None, 5, None, NO_REGIONS)


class _Writer:
    """Writes a body. `fault` is how often something in it is not in the standard form."""

    def __init__(self, chance: Chance, fault: float) -> None:
        self.chance = chance
        self.fault = fault
        self.blobs: list[bytes] = []

    def is_faulty(self) -> bool:
        return self.chance.random() < self.fault

    def space(self) -> str:
        return self.chance.choice(_SPACES)

    def joined(self, parts: list[str], brackets: str) -> str:
        """The parts in brackets."""
        text = f"{self.space()},{self.space()}".join(parts)
        if self.is_faulty():
            text = self.chance.choice((text + ",", text.replace(",", " ", 1), "," + text))
        return f"{brackets[0]}{self.space()}{text}{self.space()}{brackets[1]}"

    def members(self, members: list[tuple[str, str]]) -> str:
        """An object; a member may be missing, there twice, in another place, or unknown."""
        chance = self.chance
        if self.is_faulty():
            members.insert(chance.randrange(len(members) + 1), chance.choice(members))
        if self.is_faulty():
            members.pop(chance.randrange(len(members)))
        if self.is_faulty():
            members = chance.sample(members, len(members))
        if self.is_faulty():
            members.append(("unknown", chance.choice(("1", '"a"', "null", "{}", "[[]]"))))
        return self.joined([f'"{name}"{self.space()}:{self.space()}{value}' for name, value in members], "{}")

    def element(self, word: str) -> str:
        chance = self.chance
        if self.is_faulty():
            return chance.choice(_WRONG + _INTEGERS + _REAL_NUMBERS)
        if word == "BYTES":
            return chance.choice(_STRINGS) if self.is_faulty() else self.string()
        if word == "BOOL":
            return chance.choice(("true", "false"))
        if not word.startswith("FP"):
            return str(chance.randrange(100))
        some = (repr(chance.uniform(-1000, 1000)), chance.choice(_REAL_NUMBERS[:6]), str(chance.randrange(2**53)))
        return chance.choice((*some, _long_number(chance)))

    def string(self) -> str:
        """A text of many characters, written in any way."""
        pieces = [self.chance.choice(_PIECES) for _ in range(self.chance.choice((0, 1, 2, 5, 20)))]
        if self.is_faulty():
            pieces.append(self.chance.choice(_WRONG_PIECES))
        return f'"{"".join(self.chance.sample(pieces, len(pieces)))}"'

    def data(self, word: str, shape: list[int]) -> str:
        if len(shape) > 1 and self.chance.random() < 0.5:
            return self.joined([self.data(word, shape[1:]) for _ in range(shape[0])], "[]")
        count = int(np.prod(shape)) + self.is_faulty()
        return self.joined([self.element(word) for _ in range(count)], "[]")

    def input(self, index: int) -> str:
        chance = self.chance
        word = "FLOAT" if self.is_faulty() else chance.choice(_WORDS)
        sizes = (0, 1, 2) if self.is_faulty() else (1, 1, 2, 3)
        shape = [chance.choice(sizes) for _ in range(0 if self.is_faulty() else chance.choice((1, 1, 2, 2, 3)))]
        name = chance.choice(("I0", "\u00e4", "a\\u0020b")) if self.is_faulty() else f"I{index}"
        members = [("name", f'"{name}"'), ("shape", json.dumps(shape)), ("datatype", f'"{word}"')]
        if chance.random() < 0.4 or word in ("FP16", "BF16"):
            blob = self.blob(word, int(np.prod(shape, dtype=int)))
            self.blobs.append(blob)
            members.append(("parameters", self.members([("binary_data_size", str(len(blob)))])))
        else:
            members.append(("data", self.data(word, shape or [1])))
        return self.members(members)

    def blob(self, word: str, count: int) -> bytes:
        """`count` elements in their binary form."""
        chance = self.chance
        if word == "BYTES" and not self.is_faulty():
            texts = [_text(chance) for _ in range(count)]
            lengths = [max(0, len(text) + (self.is_faulty() and chance.choice((-1, 1, 2**31)))) for text in texts]
            return b"".join([length.to_bytes(4, "little") + text for length, text in zip(lengths, texts, strict=True)])
        if word == "BOOL" and not self.is_faulty():
            return bytes([chance.randrange(2) for _ in range(count)])
        size = DataType(word).itemsize if word in _WORDS else 4
        return chance.randbytes(count * size + self.is_faulty())

    def output(self, index: int) -> str:
        chance = self.chance
        members = [("name", '"X0"' if self.is_faulty() else f'"X{index}"')]
        if chance.random() < 0.5:
            value = chance.choice(("1", "null")) if self.is_faulty() else chance.choice(("true", "false"))
            members.append(("parameters", self.members([("classification" if self.is_faulty() else "binary_data", value)])))
        return self.members(members)

    def parameter(self, name: str) -> str:
        chance = self.chance
        if self.is_faulty():
            return chance.choice((*_WRONG, *_INTEGERS, *_REAL_NUMBERS, *_STRINGS, "[1]", '{"a":1}', '"}"', '"{["'))
        if name.startswith(("binary", "sequence_start", "sequence_end")):
            return chance.choice(("true", "false"))
        if name == "sequence_id" and chance.random() < 0.3:
            return self.string()
        if name == "own":
            return chance.choice((self.string(), "true", "1.5", str(chance.randrange(2**64)), "-7"))
        return str(chance.choice((0, 1, 2**32)))

    def body(self) -> tuple[bytes, int]:
        """A body, and the length of its JSON."""
        chance = self.chance
        members = [("inputs", self.joined([self.input(index) for index in range(chance.choice((1, 1, 2)))], "[]"))]
        if chance.random() < 0.3:
            members.append(("outputs", self.joined([self.output(index) for index in range(chance.choice((1, 2)))], "[]")))
        if chance.random() < 0.3:
            members.append(("id", chance.choice(("7", '"\\u00e4"', '"\u00e4"') if self.is_faulty() else ('""', '"7"'))))
        if chance.random() < 0.4:
            names = chance.sample(_PARAMETERS, chance.choice((0, 1, 1, 2, 3)))
            members.append(("parameters", self.members([(name, self.parameter(name)) for name in names] or [("own", "1")])))
        text = (self.members(members) + self.space()).encode()
        return text + b"".join(self.blobs), len(text)


def _long_number(chance: Chance) -> str:
    """A number of any length, near to what a double can hold, or not."""
    whole = str(chance.randrange(10 ** chance.choice((1, 16, 19, 20, 40))))
    fraction = str(chance.randrange(10 ** chance.choice((1, 16, 40)))).zfill(chance.choice((1, 22)))
    exponent = chance.randint(-23, 23) if chance.random() < 0.7 else chance.randint(-345, 345)
    return f"{chance.choice(('', '-'))}{whole}.{fraction}{chance.choice('eE')}{exponent}"


def body_of(chance: Chance) -> tuple[bytes, int]:
    """A body that is in the standard form, or nearly."""
    return _Writer(chance, chance.choice((0.0, 0.0, 0.02, 0.1))).body()


def compare(body: bytes, header_length: int, parse: Parse = native) -> None:
    """Raise Violation where the two differ."""
    found, expected = _outcome(parse, body, header_length), _outcome(specified, body, header_length)
    if isinstance(found, str) or isinstance(expected, str):
        if found != expected:
            raise Violation(f"{body!r}, {header_length}\n  read as {found}\n  Python: {expected}")
        return
    (request, plan), (wanted, wanted_plan) = found, expected
    fields = ("id", "requested_outputs", "sequence", "priority", "timeout_us", "residency", "model_name", "received_ns")
    if (
        any(getattr(request, field) != getattr(wanted, field) for field in fields)
        or dict(request.parameters) != dict(wanted.parameters)
        or (dict(plan.choices), plan.default) != (dict(wanted_plan.choices), wanted_plan.default)
        or len(request.inputs) != len(wanted.inputs)
        or not all(map(same, request.inputs, wanted.inputs))
        or any(one.array.dtype != other.array.dtype for one, other in zip(request.inputs, wanted.inputs, strict=True))
    ):
        raise Violation(f"{body!r}, {header_length}\n  read as {request} {plan}\n  Python: {wanted} {wanted_plan}")


def _outcome(parse: Parse, body: bytes, header_length: int) -> Any:
    try:
        return parse(body, header_length)
    except TpyError as error:
        return f"{type(error).__name__}: {error.message}"


def run_requests(chance: Chance, parse: Parse = native) -> int:
    """One body, and the same with bytes that are wrong."""
    body, length = body_of(chance)
    if length:
        compare(body, length, parse)
    for _ in chance.rounds((1, 3)):
        wrong = bytes(spoiled(chance, body))
        at = min(len(wrong), length)
        if at:
            compare(wrong, at, parse)
    return 3


def attack(data: bytes) -> int:
    """Any body."""
    if data:
        compare(data, len(data))
    return 1


_REALS = (
    0.0,
    -0.0,
    1.0,
    1e15,
    1e16,
    123456789012345680.0,
    1e-4,
    1e-5,
    9.99e-6,
    1e22,
    5e-324,
    1.7976931348623157e308,
    0.1,
    999999999999999.9,
)
_TEXTS = (b"", b"abc", b'"', b"\\", b"\x00", b"\x7f", b"\xff", "\u00e4".encode(), b"x" * 300)
_BYTES = (
    *(bytes([letter]) for letter in range(0x80)),
    *(letter.encode() for letter in "\u0080\u00e4\u07ff\u0800\u20ac\uffff\U0001f600\U0010ffff"),
)
_WRONG_BYTES = (b"\x80", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\xe2\x82")


def _text(chance: Chance) -> bytes:
    pieces = [chance.choice(_BYTES) for _ in range(chance.choice((0, 1, 3, 10, 50)))]
    if chance.random() < 0.1:
        pieces.append(chance.choice(_WRONG_BYTES))
    return b"".join(chance.sample(pieces, len(pieces)))


def _output_tensor(chance: Chance, name: str) -> Tensor:
    tensor = random_tensor(chance, name, text=chance.random() < 0.8)
    array = tensor.array
    if tensor.datatype in (DataType.FP32, DataType.FP64) and chance.random() < 0.7:
        with np.errstate(over="ignore"):
            array = np.array([chance.choice(_REALS) for _ in range(array.size)], array.dtype).reshape(array.shape)
    elif tensor.datatype is DataType.BYTES and chance.random() < 0.5:
        texts = [chance.choice(_TEXTS) if chance.random() < 0.3 else _text(chance) for _ in range(array.size)]
        array = np.array([*texts, None], object)[:-1].reshape(array.shape)
    if chance.random() < 0.1 and array.size:
        array = np.resize(array, chance.choice((64, 65, 200)))  # Python writes short and long ones in two ways
    elif chance.random() < 0.2 and array.ndim > 1:
        array = array.T
    elif chance.random() < 0.1 and array.ndim:
        array = array[::-1]
    return Tensor(name, tensor.datatype, array)


def random_response(chance: Chance) -> InferenceResponse:
    """An answer with any numbers, texts and shapes."""
    names = ("OUT", "b", "\u00e4", 'q"', "\\", "c" * 40)
    outputs = tuple(_output_tensor(chance, chance.choice(names)) for _ in range(chance.choice((0, 1, 1, 2, 3))))
    return InferenceResponse(
        model_name=chance.choice(("m", "model", "\u00e4", "a/b")),
        model_version=chance.choice((1, 2, 2**62, 2**63 - 1, 2**63)),
        id=chance.choice(("", "", "1", '"', "\u00e4", "x" * 5000)),
        outputs=outputs,
        parameters={"p": 1} if chance.random() < 0.1 else {},
        final=chance.random() < 0.5,
    )


_CHOICES = (JSON, BINARY, BINARY, BINARY, OutputChoice(classification=1))


def run_responses(chance: Chance) -> int:
    """One answer."""
    response = random_response(chance)
    description = description_of(list(response.outputs))
    named = HttpOutputPlan(
        choices={output.name: chance.choice(_CHOICES) for output in response.outputs if chance.random() < 0.9},
        default=chance.choice((JSON, BINARY)),
    )
    plan = chance.choice((JSON_PLAN, BINARY_PLAN, named))
    found, expected = (_written(encode, response, plan, description) for encode in (encode_infer, encode_in_python))
    if found != expected:
        raise Violation(f"{response}\n  written as {found!r}\n  Python: {expected!r}")
    return 1


def _written(encode: Any, response: InferenceResponse, plan: HttpOutputPlan, description: ModelDescription) -> Any:
    try:
        encoded = encode(response, plan, description)
    except TpyError as error:
        return f"{type(error).__name__}: {error.message}"
    return b"".join(map(bytes, encoded.parts)), encoded.json_length, encoded.content_type, encoded.content_length

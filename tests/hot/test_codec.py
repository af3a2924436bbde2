"""The native codec: which form runs, and what its standard form leaves to Python. That both forms agree is fuzzed (fuzz/hot)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz.chance import Chance
from fuzz.hot import documents, frames, messages, wire
from tpy.frontends.grpc.codec.wire import REQUEST_CLASS, RESPONSE_CLASS
from tpy.frontends.http.codec import OutputChoice
from tpy.frontends.http.codec.parameters import BINARY, JSON
from tpy.hot import build, codec
from tpy.messages import DataType, Tensor
from tpy_data.backends.python.protocol.messages import standard_result
from tpy_data.backends.python.worker.wire.core.frames import FrameKind, ReceivedFrame

native = pytest.mark.skipif(codec.FORM != codec.NATIVE, reason=f"the codec's form is {codec.FORM}")

TYPES = {kind.value.encode(): (kind, kind.number) for kind in DataType if kind is not DataType.INVALID}


def read(text: str) -> object:
    body = text.encode()
    return codec.read_infer(body, len(body), TYPES, Tensor)


def request(data: str, *, datatype: str = "FP32", shape: str = "[2]", more: str = "") -> str:
    return f'{{"inputs":[{{"name":"A","shape":{shape},"datatype":"{datatype}","data":{data}}}]{more}}}'


def written_infer(
    outputs: tuple[Tensor, ...],
    *,
    version: Any = 1,
    choices: dict[str, OutputChoice] | None = None,
    default: OutputChoice = JSON,
    elements_max: int = 10,
    bytes_max: int = 10,
) -> tuple[bytes, int | None] | None:
    return codec.write_infer("", "m", version, outputs, choices or {}, default, JSON, BINARY, elements_max, bytes_max)


def written_json(tensor: Tensor) -> bytes | None:
    written = written_infer((tensor,))
    return None if written is None else written[0]


def form_of(**environment: str) -> str:
    """The form that a new interpreter with these variables has."""
    command = [sys.executable, "-c", "from tpy.hot.codec import FORM; print(FORM)"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_the_codec_is_native_where_it_can_be_built() -> None:
    if os.environ.get(codec.SWITCH) == "0" or build.compiler() is None:
        pytest.skip("switched off, or no C++ compiler")
    assert codec.FORM == codec.NATIVE, "build it: python -m tpy.hot.build"


def test_a_variable_switches_it_off() -> None:
    assert form_of(**{codec.SWITCH: "0"}) == f"Python: {codec.SWITCH}=0"


@native
def test_a_build_of_another_source_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "source_hash", lambda: "another")
    assert codec.load() == "Python: the native codec was built from another source"


def test_without_a_compiler_the_build_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.NotBuilt, match="no C\\+\\+ compiler"):
        build.build(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_is_named_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "broken-compiler"
    script.write_text("#!/bin/sh\necho out of order >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(build.NotBuilt, match="broken-compiler failed: out of order"):
        build.build(tmp_path)


@native
@pytest.mark.parametrize(
    ("text", "elements"),
    [
        (request("[1,2.5]"), [1.0, 2.5]),
        (request(" [ [ 1 ] , [ -2e3 ] ] ", shape="[2,1]"), [[1.0], [-2000.0]]),
        (request('["a","\u00e4"]', datatype="BYTES"), [b"a", "\u00e4".encode()]),
        (request(r'["a\n\"b\"","\u00e4\ud83d\ude00/\\"]', datatype="BYTES"), [b'a\n"b"', "\u00e4\U0001f600/\\".encode()]),
        (request("[true,false]", datatype="BOOL"), [True, False]),
        (request("[18446744073709551615,0]", datatype="UINT64"), None),
        (request("[9223372036854775807,-9223372036854775807]", datatype="INT64"), [2**63 - 1, -(2**63) + 1]),
    ],
)
def test_the_standard_form_is_read(text: str, elements: list[object] | None) -> None:
    found = read(text)
    if elements is None:
        assert found is None  # 20 digits are left to Python
    else:
        assert isinstance(found, tuple)
        assert found[1][0].array.tolist() == elements


@native
@pytest.mark.parametrize(
    "text",
    [
        request("[01,2]"),
        request("[1 2]"),
        request("[1,,2]"),
        request("[1,2,]"),
        request("[1,2,3]"),
        request("[1]"),
        request("[1.,2]"),
        request("[.5,2]"),
        request("[-0,2]"),
        request("[1e400,2]"),
        request("[3.5e38,2]"),
        request("[NaN,2]"),
        request("[1,2]", shape="[2.0]"),
        request("[1,2]", shape="[02]"),
        request("[1,2]", shape="[-2]"),
        request("[1,2]", shape="[4294967298]"),
        request("[256,2]", datatype="UINT8"),
        request("[-129,2]", datatype="INT8"),
        request("[1.0,2]", datatype="INT32"),
        request("[1,2]", datatype="FP16"),
        request("[1,2]", datatype="BYTES"),
        request(r'["a","half of a pair: \ud83d"]', datatype="BYTES"),
        request(r'["a","\x"]', datatype="BYTES"),
        request(r'["a","\u00g0"]', datatype="BYTES"),
        request('["a","\\', datatype="BYTES"),
        request("[1,2]", more=',"id":"a","id":"b"'),
        request("[1,2]", more=',"priority":1'),
        request("[1,2]") + "x",
        request("[1,2]")[:-1],
        request("[" * 40 + "1,2" + "]" * 40),
        "[]",
        "{}",
        "",
        "null",
    ],
)
def test_all_else_is_left_to_python(text: str) -> None:
    assert read(text) is None


@native
def test_text_that_is_no_utf8_is_left_to_python() -> None:
    body = request('["a","\u00e4"]', datatype="BYTES").encode().replace("\u00e4".encode(), b"\xc3(")
    assert codec.read_infer(body, len(body), TYPES, Tensor) is None
    name = request("[1,2]").encode().replace(b'"A"', b'"\xff"')
    assert codec.read_infer(name, len(name), TYPES, Tensor) is None


@native
def test_nothing_is_allocated_for_a_shape_that_the_data_do_not_fill() -> None:
    assert read(request("[1]", shape="[2000000000]")) is None


@native
def test_texts_are_written_with_escapes_and_those_that_are_no_utf8_are_left_to_python() -> None:
    texts = np.array([b'two\nlines, a "word"', "\u00e4\U0001f600".encode(), b"\x01\\"], object)
    written = written_json(Tensor("A", DataType.BYTES, texts))
    assert written is not None
    assert r'["two\nlines, a \"word\"","äU","\u0001\\"]'.replace("U", "\U0001f600").encode() in written
    assert written_json(Tensor("A", DataType.BYTES, np.array([b"\xed\xa0\x80"], object))) is None


@native
def test_small_blobs_are_written_behind_the_json_and_large_ones_left_to_python() -> None:
    texts = Tensor("A", DataType.BYTES, np.array([b"\xff", b""], object))
    number = Tensor("B", DataType.BOOL, np.array([True]))
    written = written_infer((texts, number), default=BINARY)
    assert written is not None
    body, length = written
    assert [each["parameters"]["binary_data_size"] for each in json.loads(body[:length])["outputs"]] == [9, 1]
    assert body[length:] == b"\x01\x00\x00\x00\xff\x00\x00\x00\x00\x01"
    assert written_infer((texts, number), default=BINARY, bytes_max=9) is None
    assert written_infer((), default=BINARY) == (b'{"model_name":"m","model_version":"1","outputs":[]}', None)


@native
def test_each_output_is_written_as_it_was_asked_for() -> None:
    numbers = tuple(Tensor(name, DataType.INT8, np.array([7], np.int8)) for name in "ABC")
    written = written_infer(numbers, choices={"B": BINARY, "C": JSON}, default=JSON)
    assert written is not None
    body, length = written
    assert [("data" in each, "parameters" in each) for each in json.loads(body[:length])["outputs"]] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert body[length:] == b"\x07"
    assert written_infer(numbers, choices={"B": OutputChoice(classification=1)}, default=JSON) is None


@native
@pytest.mark.parametrize("datatype", [DataType.INT16, DataType.FP32, DataType.FP64])
def test_numbers_that_begin_anywhere_are_written_as_blobs_and_to_workers(datatype: DataType) -> None:
    """As those of a request's blob do. They went to workers, and back to clients, by the slow way."""
    memory = np.arange(1 + 2 * datatype.itemsize, dtype=np.uint8)
    tensor = Tensor("A", datatype, memory[1:].view(datatype.numpy))
    assert not tensor.array.flags.aligned
    written = written_infer((tensor,), default=BINARY, bytes_max=16)
    assert written is not None
    assert written[0][written[1] :] == memory[1:].tobytes()
    assert written_json(tensor) is None, "their values are not read by the native codec"
    frame = frames.standard_frame(1, [[frames.Request(id="", inputs={"A": tensor})]])
    assert frame is not None
    assert memory[1:].tobytes() in bytes(frame)
    answer = codec.write_model_infer("", "m", 1, (tensor,), 1000, b"")
    assert answer is not None
    assert memory[1:].tobytes() in answer


@native
@pytest.mark.parametrize(("datatype", "blob"), [("BYTES", b"\x01\x00\x00\x00a\x00\x00\x00\x00"), ("BOOL", b"\x01\x00")])
def test_blobs_of_texts_and_of_bits_are_read(datatype: str, blob: bytes) -> None:
    text = f'{{"inputs":[{{"name":"A","shape":[2],"datatype":"{datatype}","parameters":{{"binary_data_size":{len(blob)}}}}}]}}'
    found = codec.read_infer(text.encode() + blob, len(text), TYPES, Tensor)
    assert found is not None
    assert found[1][0].array.tolist() == ([b"a", b""] if datatype == "BYTES" else [True, False])
    assert codec.read_infer(text.encode() + b"\x02" + blob[1:], len(text), TYPES, Tensor) is None


@native
@pytest.mark.parametrize(
    ("datatype", "count", "element"), [("BYTES", 1_048_577, bytes(4)), ("BYTES", 20_000, bytes(4)), ("BOOL", 70_000, b"\1")]
)
def test_many_elements_that_are_read_one_by_one_are_left_to_python(datatype: str, count: int, element: bytes) -> None:
    size = count * len(element)
    text = f'{{"inputs":[{{"name":"A","shape":[{count}],"datatype":"{datatype}","parameters":{{"binary_data_size":{size}}}}}]}}'
    assert codec.read_infer(text.encode() + element * count, len(text), TYPES, Tensor) is None


@native
def test_long_texts_are_left_to_python_which_writes_them_in_pieces() -> None:
    long = (Tensor("A", DataType.BYTES, np.array([b"x" * 70_000], object)),)
    many = (Tensor("A", DataType.BYTES, np.array([b"x" * 60_000] * 20, object)),)
    assert written_infer(long, elements_max=16_384) is None
    assert written_infer(many, elements_max=16_384) is None
    assert written_infer((Tensor("A", DataType.FP32, np.zeros(257, np.float32)),), elements_max=16_384) is None
    assert written_infer((Tensor("A", DataType.BYTES, np.full(257, b"", object)),), elements_max=16_384)


@native
@pytest.mark.parametrize("timeout_us", [2**63 - 1, 2**63, 2**64 - 1, -1])
def test_any_timeout_is_written_or_left_to_python(timeout_us: int) -> None:
    """One of 2**63 raised after the batch was opened, and stopped the instance for good."""
    found = frames.standard_frame(1, [[frames.Request(id="", inputs={}, timeout_us=timeout_us)]])
    assert (found is None) == (not 0 <= timeout_us < 2**63)


@native
def test_what_no_caller_gives_is_left_to_python_too() -> None:
    assert written_infer((), version=2**63) is None
    assert written_infer((), version="1") is None
    assert codec.write_batches(1, 2, 3, 1, [[object()]], 10) is None


@native
def test_a_batch_of_many_tensors_or_long_ids_is_left_to_python_which_writes_it_in_a_thread() -> None:
    tensor = Tensor("A", DataType.FP32, np.zeros(1, np.float32))
    many = [frames.Request(id="", inputs={"A": tensor}) for _ in range(65)]
    long = [frames.Request(id="x" * 40_000, inputs={"A": tensor}) for _ in range(3)]
    assert frames.standard_frame(1, [many[:64]]) is not None
    assert frames.standard_frame(1, [many]) is None
    assert frames.standard_frame(1, [long]) is None


@native
@pytest.mark.parametrize("datatype", [DataType.INT16, DataType.FP32, DataType.FP64])
def test_results_at_addresses_that_their_type_does_not_have_are_left_to_python(datatype: DataType) -> None:
    """They were said to be aligned, which NumPy and models rely on."""
    size = 2 * datatype.itemsize
    header = memoryview(b'[[1,2,3],[[-1,"","",[["A",%d,[2],0,0,%d]]]]]' % (datatype.number, size))
    memory = memoryview(bytearray(size + 1))
    for at, is_read in ((0, True), (1, False)):
        message = ReceivedFrame(FrameKind.RESULT, 1, header, memory[at : at + size])
        assert (standard_result(message, 0) is not None) == is_read


@native
def test_views_of_a_body_keep_it_alive_and_are_read_only() -> None:
    head = b'{"inputs":[{"name":"A","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}'
    body = head + np.array([1, 2], np.float32).tobytes()
    found = codec.read_infer(body, len(head), TYPES, Tensor)
    assert found is not None
    (tensor,) = found[1]
    del body, found
    assert tensor.array.tolist() == [1.0, 2.0]
    assert not tensor.array.flags.writeable


def model_infer(**fields: Any) -> memoryview:
    """A message with one input of two numbers, and these fields beside it."""
    message: Any = REQUEST_CLASS(model_name="m", raw_input_contents=[np.array([1, 2], np.float32).tobytes()])
    message.inputs.add(name="A", datatype="FP32", shape=[1, 2])
    for name, value in fields.items():
        setattr(message, name, value)
    return memoryview(message.SerializeToString())


@native
def test_the_messages_that_clients_send_are_read_natively() -> None:
    found = codec.read_model_infer(model_infer(model_version="3", id="7"), TYPES, Tensor)
    assert found is not None
    model, version, identifier, (tensor,), requested, parameters = found
    assert (model, version, identifier, requested, parameters) == ("m", "3", "7", (), b"")
    assert tensor.array.tolist() == [[1.0, 2.0]]
    assert tensor.array.flags.aligned
    assert not tensor.array.flags.writeable


@native
def test_parameters_are_left_to_python_and_all_else_is_read() -> None:
    given: Any = REQUEST_CLASS()
    given.parameters["sequence_id"].int64_param = 7
    given.parameters["sequence_start"].bool_param = True
    fields = given.SerializeToString()
    found = codec.read_model_infer(memoryview(fields + bytes(model_infer())), TYPES, Tensor)
    assert found is not None
    assert found[5] == fields
    document = read(request("[1,2]", more=r', "parameters" : {"own":"}\"{" , "sequence_id":7}'))
    assert isinstance(document, tuple)
    assert document[3:] == (False, rb'{"own":"}\"{" , "sequence_id":7}')
    assert read(request("[1,2]", more=',"parameters":{"own":[]}')) is None
    assert read(request("[1,2]", more=',"parameters":{"own":"}')) is None


@native
def test_strings_of_a_message_are_read_natively() -> None:
    message: Any = REQUEST_CLASS(model_name="m", raw_input_contents=[b"\2\0\0\0ab\0\0\0\0"])
    message.inputs.add(name="A", datatype="BYTES", shape=[2])
    found = codec.read_model_infer(memoryview(message.SerializeToString()), TYPES, Tensor)
    assert found is not None
    assert found[3][0].array.tolist() == [b"ab", b""]


@native
@pytest.mark.parametrize("message", [b"", b"\x0a", b"\x0a\xff", b"\x0a\x01m", b"\x0a\x01m\x2a\xff\xff\xff\xff\x0f", b"\x08\x01"])
def test_messages_that_are_cut_off_are_left_to_python(message: bytes) -> None:
    assert codec.read_model_infer(memoryview(message), TYPES, Tensor) is None


@native
def test_answers_of_models_are_written_natively_up_to_a_size() -> None:
    outputs = (Tensor("A", DataType.FP32, np.zeros((2, 3), np.float32)), Tensor("B", DataType.BYTES, np.array([b"x"], object)))
    written = codec.write_model_infer("7", "m", 1, outputs, 1000, b"")
    assert written is not None
    message: Any = RESPONSE_CLASS.FromString(written)
    assert [list(output.shape) for output in message.outputs] == [[2, 3], [1]]
    assert list(message.raw_output_contents) == [bytes(24), b"\1\0\0\0x"]
    assert codec.write_model_infer("7", "m", 1, outputs, len(written), b"") == written
    assert codec.write_model_infer("7", "m", 1, outputs, len(written) - 1, b"") is None


@pytest.mark.parametrize("seed", range(150))
def test_both_forms_agree(seed: int) -> None:
    assert documents.run_requests(Chance(seed)) == 3  # bodies
    assert documents.run_responses(Chance(seed)) == 1
    assert frames.run_execute(Chance(seed)) in (1, 2)
    assert frames.run_result(Chance(seed)) == 3
    assert messages.run_requests(Chance(seed)) == 3
    assert wire.run(Chance(seed)) == 1
    assert messages.run_responses(Chance(seed)) == 1

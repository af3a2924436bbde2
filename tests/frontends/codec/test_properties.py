"""Properties: what is written is read back, and nothing that arrives raises anything but a TpyError."""

from __future__ import annotations

import contextlib
import gzip
import json
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tpy.errors import InvalidArgument, TpyError, Unsupported
from tpy.frontends.http.codec import (
    BINARY_PLAN,
    JSON_PLAN,
    HttpOutputPlan,
    choose_encoding,
    compress,
    decompress,
    encode_infer,
    parse_header_length,
    parse_infer,
)
from tpy.frontends.http.codec.json_errors import first_error
from tpy.messages import DataType, InferenceResponse, ModelDescription, Tensor, TensorDescription
from tpy.messages.datatypes import BY_WORD

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)
TEXTS = st.text('aé😀"\\\\\n\x00 /', max_size=8).map(str.encode)
JSON_TYPES = [kind for kind in BY_WORD.values() if kind not in (DataType.FP16, DataType.BF16)]


def description(*datatypes: DataType) -> ModelDescription:
    inputs = tuple(TensorDescription(name=kind.value, datatype=kind, shape=(-1,)) for kind in datatypes)
    by_name = {tensor.name: tensor for tensor in inputs}
    return ModelDescription(
        name="m",
        version=1,
        platform="python",
        max_batch_size=0,
        decoupled=False,
        inputs=inputs,
        outputs=inputs,
        input_by_name=by_name,
        output_by_name=by_name,
    )


ANY = description(*BY_WORD.values())


@st.composite
def tensors(draw: st.DrawFn, kind: DataType, *, text: bool = False) -> Tensor:
    """A tensor of any shape and any values; BYTES are UTF-8 when `text`."""
    shape = draw(SHAPES)
    if kind is DataType.BYTES:
        count = int(np.prod(shape))
        flat = np.empty(count, dtype=object)
        flat[:] = draw(st.lists(TEXTS if text else st.binary(max_size=20), min_size=count, max_size=count))
        return Tensor(kind.value, kind, flat.reshape(shape))
    if kind is DataType.BF16:
        floats = draw(hnp.arrays(np.float32, shape, elements=st.floats(-(2.0**100), 2.0**100, width=32)))
        return Tensor(kind.value, kind, floats.astype(ml_dtypes.bfloat16))
    return Tensor(kind.value, kind, draw(hnp.arrays(kind.numpy, shape)))


def written(items: list[Tensor], plan: HttpOutputPlan) -> tuple[dict[str, Any], bytes, int | None]:
    """The JSON part, the whole body and the header length of a response with `items`."""
    encoded = encode_infer(InferenceResponse(model_name="m", model_version=1, outputs=tuple(items)), plan, ANY)
    body = b"".join(encoded.parts)
    assert encoded.content_length == len(body)
    return json.loads(body[: encoded.json_length]), body, encoded.json_length


def read(body: bytes, header_length: int | None) -> tuple[Tensor, ...]:
    request, _ = parse_infer(body, header_length=header_length, description=ANY, version=None, received_ns=0)
    return request.inputs


def as_request(head: dict[str, Any], blobs: bytes) -> tuple[bytes, int]:
    text = json.dumps({"inputs": head["outputs"]}).encode()
    return text + blobs, len(text)


def assert_same(left: Tensor, right: Tensor) -> None:
    assert (left.name, left.datatype, left.array.shape) == (right.name, right.datatype, right.array.shape)
    assert left.array.dtype == right.array.dtype
    if left.datatype is DataType.BYTES:
        assert left.array.tolist() == right.array.tolist()
    else:  # as bytes: NaN and -0.0 must arrive as they were
        assert left.array.tobytes() == right.array.tobytes()


@given(st.lists(st.sampled_from(list(BY_WORD.values())), unique=True, max_size=4).flatmap(
    lambda kinds: st.tuples(*[tensors(kind) for kind in kinds])))  # fmt: skip
def test_binary_round_trip(items: tuple[Tensor, ...]) -> None:
    head, body, length = written(list(items), BINARY_PLAN)
    request, header_length = as_request(head, body[length:] if length is not None else b"")
    for sent, received in zip(items, read(request, header_length), strict=True):
        assert_same(sent, received)


@given(st.sampled_from(JSON_TYPES).flatmap(lambda kind: tensors(kind, text=True)))
def test_json_round_trip(item: Tensor) -> None:
    head, _, length = written([item], JSON_PLAN)
    assert length is None
    request, _ = as_request(head, b"")
    (received,) = read(request, None)
    floats = item.datatype in (DataType.FP32, DataType.FP64)
    if floats:  # JSON keeps that it is NaN, not which one
        assert_same(without_nan(item), without_nan(received))
    else:
        assert_same(item, received)


def without_nan(item: Tensor) -> Tensor:
    cleaned = np.where(np.isnan(item.array), item.array.dtype.type(7), item.array)
    return Tensor(item.name, item.datatype, cleaned)


@given(st.sampled_from(JSON_TYPES).flatmap(lambda kind: tensors(kind, text=True)))
def test_nested_data_reads_as_flat(item: Tensor) -> None:
    head, _, _ = written([item], JSON_PLAN)
    entry = head["outputs"][0]
    nested = np.array([*entry["data"], None], dtype=object)[:-1].reshape(item.array.shape).tolist()
    entry["data"] = nested
    flat_request, _ = as_request(written([item], JSON_PLAN)[0], b"")
    request, _ = as_request(head, b"")
    if item.array.size:
        assert_same(*read(flat_request, None), *read(request, None))


@given(st.integers(-(2**70), 2**70), st.sampled_from([kind for kind in JSON_TYPES if "INT" in kind.value]))
def test_integers_are_read_exactly_or_refused(value: int, kind: DataType) -> None:
    body = json.dumps({"inputs": [{"name": "x", "datatype": kind.value, "shape": [1], "data": [value]}]}).encode()
    limits = np.iinfo(kind.numpy)
    if limits.min <= value <= limits.max:
        assert read(body, None)[0].array.tolist() == [value]
    else:
        with pytest.raises(InvalidArgument, match="Unable to parse 'data'"):
            read(body, None)


WORDS = st.sampled_from(["inputs", "outputs", "name", "shape", "datatype", "data", "parameters", "id", "binary_data_size", "FP32",
    "BYTES", "UINT8", "classification", "binary_data", "sequence_id", "timeout", "priority"])  # fmt: skip
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=5),
    max_leaves=20,
)
INPUTS = st.fixed_dictionaries(
    {"name": WORDS | JSON_VALUES, "datatype": st.sampled_from([*BY_WORD, "nothing"]) | JSON_VALUES},
    optional={
        "shape": st.lists(st.integers(-1, 4) | st.integers(0, 2**65), max_size=40) | JSON_VALUES,
        "data": st.lists(JSON_VALUES, max_size=5) | JSON_VALUES,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 40) | JSON_VALUES}),
    },
)
REQUESTS = st.fixed_dictionaries(
    {"inputs": st.lists(INPUTS, max_size=3) | JSON_VALUES},
    optional={"outputs": st.lists(JSON_VALUES, max_size=3) | JSON_VALUES, "parameters": JSON_VALUES, "id": JSON_VALUES},
)


def parse_anything(body: bytes, header_length: int | None, model: ModelDescription = ANY) -> None:
    """Whatever is accepted is whole: arrays of the right type that fit the shape; whatever is refused is a caller's error."""
    try:
        request, plan = parse_infer(body, header_length=header_length, description=model, version=None, received_ns=0)
    except (InvalidArgument, Unsupported):
        return
    for tensor in request.inputs:
        assert tensor.array.dtype == tensor.datatype.numpy
        assert tensor.array.nbytes <= 16 * len(body)
    outputs = tuple(tensor for tensor in request.inputs)
    response = InferenceResponse(model_name="m", model_version=1, id=request.id, outputs=outputs)
    with contextlib.suppress(InvalidArgument):
        encode_infer(response, plan, model)


@given(REQUESTS, st.binary(max_size=30), st.booleans())
def test_any_document_is_read_or_refused(document: Any, blobs: bytes, mixed: bool) -> None:
    text = json.dumps(document).encode()
    parse_anything(text + blobs if mixed else text, len(text) if mixed else None)


@given(st.binary(max_size=200), st.integers(0, 200) | st.none(), st.sampled_from(list(BY_WORD.values())))
def test_any_bytes_are_read_or_refused(body: bytes, length: int | None, kind: DataType) -> None:
    parse_anything(body, None if length is None else min(length, len(body)), description(kind))


@given(REQUESTS.map(json.dumps), st.data())
def test_any_broken_document_is_refused(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    at = data.draw(st.integers(0, len(whole) - 1))
    parse_anything(whole[:at] + data.draw(st.binary(max_size=2)) + whole[at + data.draw(st.integers(0, 2)) :], None)


@given(st.text(alphabet=' {}[]:,"\\unltrfase0123456789.eE+-NaInfity\x00', max_size=30))
def test_error_scanner_agrees_with_the_parser(text: str) -> None:
    document = text.encode()
    try:
        orjson.loads(document)
    except orjson.JSONDecodeError:
        return
    assert first_error(document) is None


@given(st.binary(max_size=60), st.integers(0, 100))
def test_any_header_length(value: bytes, body_length: int) -> None:
    with contextlib.suppress(InvalidArgument):
        length = parse_header_length(value, body_length)
        assert length is not None
        assert 0 <= length <= body_length


@given(st.binary(max_size=3000), st.sampled_from(["gzip", "deflate"]))
def test_compression_round_trip(body: bytes, encoding: Any) -> None:
    packed = compress([body[:5], memoryview(body)[5:]], encoding)
    assert decompress(packed, encoding, len(body)) == body


@given(st.binary(max_size=300), st.sampled_from(["gzip", "deflate", "identity", "br", ""]))
def test_any_compressed_bytes(body: bytes, encoding: str) -> None:
    for candidate in (body, gzip.compress(b"abc") + body, gzip.compress(body)[:-3]):
        with contextlib.suppress(TpyError):
            assert len(decompress(candidate, encoding, 1000)) <= 1000


@given(st.text(alphabet="gzipdeflatntyq=;,. 0159*xé", max_size=40))
def test_any_accepted_encoding(header: str) -> None:
    assert choose_encoding(header) in ("identity", "gzip", "deflate")

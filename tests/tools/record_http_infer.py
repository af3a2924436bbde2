"""Records how a real Triton answers inference requests over HTTP, well-formed and malformed.

    python tests/tools/record_http_infer.py repository DIRECTORY     write the model repository that the requests are for
    python tests/tools/record_http_infer.py record URL FILE          send every request to a server of it, write the exchanges

The recorded file is tests/frontends/codec/recorded/infer.json; test_recorded.py replays it against the codec. The models are
Python ones, so that any Triton with the python backend will do.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import struct
import sys
import time
import urllib.parse
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ECHO = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = [pb_utils.Tensor("OUT" + tensor.name()[2:], tensor.as_numpy()) for tensor in request.inputs()]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""

DATATYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"]

LABELS = ["cat", "dog", "bird"]

MODELS: dict[str, dict[str, Any]] = {
    "echo": {"max_batch_size": 8, "inputs": [["IN0", "FP32", [-1]]]},
    "typed": {"max_batch_size": 0, "inputs": [[f"IN_{kind}", kind, [-1]] for kind in DATATYPES], "optional": True},
    "fixed": {"max_batch_size": 0, "inputs": [["IN0", "FP32", [2, 2]]]},
    "grid": {"max_batch_size": 0, "inputs": [["IN0", "FP32", [-1, -1]]]},
    "text": {"max_batch_size": 0, "inputs": [["IN0", "BYTES", [1]]]},
    "texts": {"max_batch_size": 4, "inputs": [["IN0", "BYTES", [-1]]]},
    "classes": {"max_batch_size": 4, "inputs": [["IN0", "FP32", [5]], ["IN1", "INT32", [5]]], "labels": LABELS},
}
"""The models: each echoes input IN<x> as output OUT<x>. Written into the recording, so that the replay can describe them."""


def write_repository(root: Path) -> None:
    for name, model in MODELS.items():
        folder = root / name / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.py").write_text(ECHO)
        lines = [f'name: "{name}"', 'backend: "python"', f"max_batch_size: {model['max_batch_size']}"]
        labels = 'label_filename: "labels.txt"' if "labels" in model else ""
        optional = "optional: true" if model.get("optional") else ""
        for tensor, kind, dims in model["inputs"]:
            config_type = "TYPE_STRING" if kind == "BYTES" else f"TYPE_{kind}"
            lines.append(f'input {{ name: "{tensor}" data_type: {config_type} dims: {dims} {optional} }}')
            lines.append(f'output {{ name: "OUT{tensor[2:]}" data_type: {config_type} dims: {dims} {labels} }}')
        (root / name / "config.pbtxt").write_text("\n".join(lines) + "\n")
        if labels:
            (root / name / "labels.txt").write_text("\n".join(model["labels"]) + "\n")


Case = tuple[str, str, dict[str, str], bytes]
"""Name, model, headers, body."""


def fp32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def strings(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def echo_input(**changes: Any) -> dict[str, Any]:
    """A right input of model `echo`; a change to None leaves the member out."""
    members = {"name": "IN0", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 0.1], **changes}
    return {key: value for key, value in members.items() if value is not None}


def typed_input(kind: str, data: Any, shape: list[int] | None = None) -> dict[str, Any]:
    return {"inputs": [{"name": f"IN_{kind}", "datatype": kind, "shape": shape or [len(data)], "data": data}]}


def json_cases() -> Iterator[Case]:
    """Requests that are JSON only, by the model they go to."""
    for name, model, body in [*broken_json(), *members(), *parameters(), *outputs(), *data(), *good()]:
        yield name, model, {}, body if isinstance(body, bytes) else json.dumps(body).encode()


def broken_json() -> Iterator[tuple[str, str, Any]]:
    documents = [
        b" ", b"{", b"[", b"x", b"nul", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}', b'{"a" 1}', b"{1:2}", b'{"a":}',
        b'{"inputs":[1,]}', b'{"inputs":[1 2]}', b'{"inputs":[,]}', b'{"inputs":[1', b'{"a":1 "b":2}', b'{"a":1}x', b'{"a":1}{}',
        b'{"a":"x', b'{"a":"\\x"}', b'{"a":"\\u12g4"}', b'{"a":"\\ud800"}', b'{"a":"\\ud800\\u0041"}', b'{"a":"\x01"}',
        b'{"a":01}', b'{"a":1.}', b'{"a":1e}', b'{"a":1e+}', b'{"a":-}', b'{"a":+1}', b'{"a":1e400}', b'{"a":tru}', b'{"a":fals}',
        b'{"a":.5}', b"{'a':1}", b'{"a":1]', b'{"a":[1}', b'{"a":[1:2]}', b'{"a":Inf', b'{"a":undefined}', b'{"a":"\\udc00"}',
        b'{"inputs":[}', b'{"inputs":[[', b'{"a":{}', b'{"a":"b":1}', b'{,"a":1}', b'{"a":1,,"b":2}', b"]", b"}", b'{"a":nan}',
    ]  # fmt: skip
    for document in documents:
        yield f"broken JSON {document.decode()}", "echo", document


def members() -> Iterator[tuple[str, str, Any]]:
    good = echo_input()
    yield "body is an array", "echo", []
    yield "body is a number", "echo", 5
    yield "no inputs", "echo", {"id": "1"}
    yield "inputs null", "echo", {"inputs": None}
    yield "inputs an object", "echo", {"inputs": {}}
    yield "input is a number", "echo", {"inputs": [1]}
    yield "input is empty", "echo", {"inputs": [{}]}
    yield "id is a number", "echo", {"id": 5, "inputs": [good]}
    yield "id is null", "echo", {"id": None, "inputs": [good]}
    for member in ("name", "datatype", "shape", "data"):
        yield f"input without {member}", "echo", {"inputs": [echo_input(**{member: None})]}
        yield f"input {member} of wrong type", "echo", {"inputs": [echo_input(**{member: True})]}
    yield "shape of floats", "echo", {"inputs": [echo_input(shape=[1.0, 2])]}
    yield "shape of strings", "echo", {"inputs": [echo_input(shape=["1", "2"])]}
    yield "shape negative", "echo", {"inputs": [echo_input(shape=[-1, 2])]}
    yield "shape with true", "echo", {"inputs": [echo_input(shape=[True, 2])]}
    yield "datatype unknown", "echo", {"inputs": [echo_input(datatype="FLOAT")]}
    yield "datatype of the configuration", "echo", {"inputs": [echo_input(datatype="TYPE_FP32")]}
    yield "datatype lower case", "echo", {"inputs": [echo_input(datatype="fp32")]}
    yield "input twice", "echo", {"inputs": [good, good]}
    yield "input twice with id", "echo", {"id": "abc", "inputs": [good, good]}
    yield "data and binary size", "echo", {"inputs": [echo_input(parameters={"binary_data_size": 8})]}
    both = {"binary_data_size": 8, "shared_memory_region": "r"}
    yield "data, binary and region", "echo", {"inputs": [echo_input(parameters=both)]}
    yield "binary and region", "echo", {"inputs": [echo_input(data=None, parameters=both)]}
    yield "data and region", "echo", {"inputs": [echo_input(parameters={"shared_memory_region": "r"})]}
    yield "parameters of input not an object", "echo", {"inputs": [echo_input(data=None, parameters=5)]}
    yield "binary size without header", "echo", {"inputs": [echo_input(data=None, parameters={"binary_data_size": 8})]}
    yield "binary size a string", "echo", {"inputs": [echo_input(data=None, parameters={"binary_data_size": "8"})]}
    yield "binary size negative", "echo", {"inputs": [echo_input(data=None, parameters={"binary_data_size": -8})]}
    yield "unknown members are ignored", "echo", {"inputs": [echo_input(extra=[{}])], "more": {"a": None}}
    yield "unknown input parameters are ignored", "echo", {"inputs": [echo_input(parameters={"a": None, "b": [1]})]}


def parameters() -> Iterator[tuple[str, str, Any]]:
    values: dict[str, list[Any]] = {
        "sequence_id": [5, "five", -1, 1.5, True, None, 2**64, "x" * 129],
        "sequence_start": [True, 1, "true"],
        "sequence_end": [False, 0, None],
        "priority": [1, -1, 1.5, "1", True],
        "timeout": [1000000, -5, 0.5, "1"],
        "binary_data_output": [False, 1, "true", None],
        "triton_anything": [1],
        "own": [1, True, 1.5, "s", None, [1], {"a": 1}, 2**63, -(2**63)],
    }
    for key, choices in values.items():
        for value in choices:
            body = {"inputs": [echo_input()], "parameters": {key: value}}
            yield f"parameter {key} = {json.dumps(value)}", "echo", body
    yield "parameters an array", "echo", {"inputs": [echo_input()], "parameters": []}
    yield "parameters null", "echo", {"inputs": [echo_input()], "parameters": None}
    yield "parameters empty", "echo", {"inputs": [echo_input()], "parameters": {}}


def outputs() -> Iterator[tuple[str, str, Any]]:
    def asked(*items: Any) -> dict[str, Any]:
        return {"inputs": [echo_input()], "outputs": list(items)}

    yield "outputs null", "echo", {"inputs": [echo_input()], "outputs": None}
    yield "outputs an object", "echo", {"inputs": [echo_input()], "outputs": {}}
    yield "outputs empty", "echo", asked()
    yield "output a string", "echo", asked("OUT0")
    yield "output without name", "echo", asked({})
    yield "output name a number", "echo", asked({"name": 5})
    yield "output twice", "echo", asked({"name": "OUT0"}, {"name": "OUT0"})
    yield "output twice with id", "echo", {"id": "7", **asked({"name": "OUT0"}, {"name": "OUT0"})}
    for key, value in (
        ("classification", -1), ("classification", "2"), ("classification", 1.5), ("classification", True), ("classification", 0),
        ("binary_data", 1), ("binary_data", "true"), ("binary_data", None),
    ):  # fmt: skip
        yield f"output {key} = {json.dumps(value)}", "echo", asked({"name": "OUT0", "parameters": {key: value}})
    for extra in ({"classification": 1}, {"binary_data": True}, {"binary_data": 3}):
        chosen = {"shared_memory_region": "r", "shared_memory_byte_size": 8, **extra}
        yield f"output region and {json.dumps(extra)}", "echo", asked({"name": "OUT0", "parameters": chosen})
    yield "output parameters not an object", "echo", asked({"name": "OUT0", "parameters": 1})


def data() -> Iterator[tuple[str, str, Any]]:
    wrong: list[list[Any]] = [["a"], [None], [True], [[]], [{}], [1, "a"]]
    for value in wrong:
        yield f"FP32 data {json.dumps(value)}", "echo", {"inputs": [echo_input(shape=[1, len(value)], data=value)]}
    for kind in DATATYPES:
        for element in (1, -1, 1.5, True, "a", None):
            yield f"{kind} data {json.dumps(element)}", "typed", typed_input(kind, [element])
    yield "BF16 data", "typed", typed_input("BF16", [1])
    yield "INT64 data 2**63", "typed", typed_input("INT64", [2**63])
    yield "UINT64 data 2**64", "typed", typed_input("UINT64", [2**64])
    yield "UINT64 data 2**64 - 1", "typed", typed_input("UINT64", [2**64 - 1])
    yield "INT64 data -2**63", "typed", typed_input("INT64", [-(2**63)])
    yield "UINT8 data -0", "typed", b'{"inputs":[{"name":"IN_UINT8","datatype":"UINT8","shape":[1],"data":[-0]}]}'
    for count, values in (
        (3, [1, 2]),
        (1, [1, 2]),
        (2, [[1], [2, 3]]),
        (1, []),
        (2, ["a", 1, 2]),
        (1, [1, "a"]),
        (3, [[], [[1]]]),
    ):
        label = f"{count} elements in {json.dumps(values)}"
        yield f"FP32 {label}", "typed", typed_input("FP32", values, [count])
        yield f"BYTES {label}", "typed", typed_input("BYTES", values, [count])
    yield "BYTES too many", "typed", typed_input("BYTES", ["a", "b", "c"], [2])
    yield "BYTES too few", "typed", {"id": "q", **typed_input("BYTES", ["a"], [2])}
    yield "unevenly nested", "typed", typed_input("FP32", [1, [2, [3]], [[4]]], [4])
    yield "nested", "typed", typed_input("INT32", [[1, 2], [3, 4]], [4])
    yield "no elements", "typed", typed_input("FP32", [], [0])
    yield "no elements wanted, some given", "typed", typed_input("FP32", [1, "a"], [0])
    yield "shape too large", "grid", {"inputs": [echo_input(shape=[2**31, 2**31])]}


def good() -> Iterator[tuple[str, str, Any]]:
    yield "one request", "echo", {"id": "r1", "inputs": [echo_input()], "outputs": [{"name": "OUT0"}]}
    yield "batch of two", "echo", {"inputs": [echo_input(shape=[2, 2], data=[[1, 2], [3, 4]])]}
    yield (
        "NaN and infinities",
        "echo",
        b'{"inputs":[{"name":"IN0","datatype":"FP32","shape":[1,3],"data":[NaN,Infinity,-Infinity]}]}',
    )
    yield "digits of FP32", "echo", {"inputs": [echo_input(shape=[1, 4], data=[0.1, 1e-7, 16777217, 3.4e38])]}
    yield "digits of FP64", "typed", typed_input("FP64", [0.1, 1e-300, 1e300, 123456789.125])
    yield "text", "typed", typed_input("BYTES", ["", 'a"b\\c\n', "grüße 😀", "\u0001"])
    yield (
        "text escapes",
        "typed",
        b'{"inputs":[{"name":"IN_BYTES","datatype":"BYTES","shape":[1],"data":["\\u00e9\\ud83d\\ude00\\/"]}]}',
    )
    listed = [{"name": "OUT0", "parameters": {"binary_data": True}}]
    yield "binary output", "echo", {"inputs": [echo_input()], "outputs": listed}
    wanted = {"binary_data_output": True}
    yield "all outputs binary", "echo", {"inputs": [echo_input()], "parameters": wanted}
    yield "all binary, one listed", "echo", {"inputs": [echo_input()], "parameters": wanted, "outputs": [{"name": "OUT0"}]}
    yield "binary output without elements", "echo", {
        "inputs": [echo_input(shape=[1, 0], data=[])], "outputs": listed,
    }  # fmt: skip
    yield "FP16 as JSON", "typed", typed_input("FP16", [1.0])
    floats = {"name": "IN0", "datatype": "FP32", "shape": [2, 5], "data": [0.1, 3.0, -2.0, 0.5, 1e6, 5.0, 4.0, 3.0, 2.0, 1.0]}
    integers = {"name": "IN1", "datatype": "INT32", "shape": [2, 5], "data": [3, 9, -7, 1, 5, 1, 2, 3, 4, 5]}
    for count in (1, 3, 9):
        asked = [{"name": name, "parameters": {"classification": count}} for name in ("OUT0", "OUT1")]
        yield f"classification of {count}", "classes", {"inputs": [floats, integers], "outputs": asked}
    asked_binary = [{"name": "OUT0", "parameters": {"classification": 2, "binary_data": True}}, {"name": "OUT1"}]
    yield "classification, binary", "classes", {"inputs": [floats, integers], "outputs": asked_binary}
    text_output = [{"name": "OUT_BYTES", "parameters": {"classification": 1}}]
    yield "classification of text", "typed", {**typed_input("BYTES", ["a"]), "outputs": text_output}


def binary_cases() -> Iterator[Case]:
    def mixed(name: str, model: str, document: Any, *blobs: bytes, length: str | None = None) -> Case:
        head = json.dumps(document).encode()
        return name, model, {"Inference-Header-Content-Length": length or str(len(head))}, head + b"".join(blobs)

    def blob_input(size: Any, shape: list[int], kind: str = "FP32", name: str = "IN0") -> dict[str, Any]:
        return {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": size}}

    one = {"id": "b", "inputs": [blob_input(8, [1, 2])]}
    both = [{"name": "OUT0", "parameters": {"binary_data": True}}]
    yield mixed("binary in, JSON out", "echo", one, fp32(1, 2))
    yield mixed("binary both ways", "echo", {**one, "outputs": both}, fp32(1, 2))
    yield mixed("binary too short", "echo", one, fp32(1))
    yield mixed("binary too long", "echo", one, fp32(1, 2, 3))
    yield mixed("binary missing", "echo", one)
    yield mixed("binary of another size than the shape", "echo", {"inputs": [blob_input(4, [1, 2])]}, fp32(1))
    yield mixed("the same with id", "echo", {"id": "b", "inputs": [blob_input(12, [1, 2])]}, fp32(1, 2, 3))
    yield mixed("binary size 0", "echo", {"inputs": [blob_input(0, [1, 2])]})
    yield mixed("binary size 0 for shape 0", "echo", {"inputs": [blob_input(0, [1, 0])]})
    yield mixed("binary unknown datatype", "echo", {"inputs": [blob_input(8, [1, 2], "FLOAT")]}, fp32(1, 2))
    yield mixed("binary size a float", "echo", {"inputs": [blob_input(8.0, [1, 2])]}, fp32(1, 2))
    yield mixed("binary shape huge", "grid", {"inputs": [blob_input(8, [2**40, 2**40])]}, fp32(1, 2))
    words = {"inputs": [blob_input(14, [3], "BYTES", "IN_BYTES")], "outputs": [{"name": "OUT_BYTES"}]}
    yield mixed("binary BYTES", "typed", words, strings(b"a", b"", b"c"))
    words_binary = {**words, "outputs": [{"name": "OUT_BYTES", "parameters": {"binary_data": True}}]}
    yield mixed("binary BYTES both ways", "typed", words_binary, strings(b"\xff", b"", b"c"))
    for label, blob in (
        ("too few", strings(b"a", b"b")), ("too many", strings(b"a", b"b", b"c", b"d")), ("none", b""),
        ("cut in a length", strings(b"a", b"b") + b"\x01\x00"), ("cut in an element", strings(b"a", b"b") + b"\x05\x00\x00\x00a"),
        ("huge element", strings(b"a", b"b") + b"\xff\xff\xff\xffa"),
    ):  # fmt: skip
        yield mixed(f"binary BYTES {label}", "typed", {"inputs": [blob_input(len(blob), [3], "BYTES", "IN_BYTES")]}, blob)
    two = {"inputs": [blob_input(4, [1], "FP32", "IN_FP32"), blob_input(2, [2], "BOOL", "IN_BOOL")]}
    yield mixed("two blobs", "typed", two, fp32(0.1), b"\x01\x00")
    half = {"inputs": [blob_input(4, [2], "FP16", "IN_FP16")], "parameters": {"binary_data_output": True}}
    yield mixed("binary FP16", "typed", half, b"\x00\x3c\x00\xc0")
    yield mixed("binary FP16, JSON out", "typed", {"inputs": half["inputs"]}, b"\x00\x3c\x00\xc0")
    shared = {
        "inputs": [blob_input(4, [1], "FP32", "IN_FP32"), {"name": "IN_INT32", "datatype": "INT32", "shape": [1], "data": [7]}]
    }
    yield mixed("a blob and JSON data", "typed", shared, fp32(2))
    for length in ("-1", "9999", "abc", "", "99999999999", " 5", "1.5"):
        yield mixed(f"header length {length!r}", "echo", one, fp32(1, 2), length=length or " ")
    yield mixed("header length cuts the JSON", "echo", one, fp32(1, 2), length="20")


def raw_cases() -> Iterator[Case]:
    raw = {"Inference-Header-Content-Length": "0"}
    yield "raw", "echo", raw, fp32(1, 2, 3)
    yield "raw of a broken size", "echo", raw, b"abcde"
    yield "raw of a fixed shape", "fixed", raw, fp32(1, 2, 3, 4)
    yield "raw too short", "fixed", raw, fp32(1, 2, 3)
    yield "raw of two variable dims", "grid", raw, fp32(1, 2, 3)
    yield "raw text", "text", raw, b"hello \xff"
    yield "raw texts", "texts", raw, b"hello"
    yield "raw for several inputs", "classes", raw, fp32(1, 2, 3, 4, 5)
    yield "empty body", "echo", {}, b""
    yield "empty body, fixed shape", "fixed", {}, b""
    yield "empty body, text", "text", {}, b""


def compressed_cases() -> Iterator[Case]:
    body = json.dumps({"inputs": [echo_input()]}).encode()
    yield "gzip", "echo", {"Content-Encoding": "gzip"}, gzip.compress(body, mtime=0)
    yield "deflate", "echo", {"Content-Encoding": "deflate"}, zlib.compress(body)
    yield "zlib called gzip", "echo", {"Content-Encoding": "gzip"}, zlib.compress(body)
    yield "identity", "echo", {"Content-Encoding": "identity"}, body
    yield "brotli", "echo", {"Content-Encoding": "br"}, body
    yield "gzip without body", "echo", {"Content-Encoding": "gzip"}, b""
    for accept in (
        "gzip", "deflate", "identity", "br", "gzip, deflate", "deflate, gzip", "gzip;q=0.5, deflate;q=0.6", "gzip;q=0", "*",
        "gzip;q=0.1, identity;q=0.2", "identity, gzip", "gzip;q=x", "br;q=1, gzip;q=0.2",
    ):  # fmt: skip
        yield f"accept {accept}", "echo", {"Accept-Encoding": accept}, body


def all_cases() -> list[Case]:
    return [*json_cases(), *binary_cases(), *raw_cases(), *compressed_cases()]


def as_text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def exchange(address: str, model: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """The answer to one request; without a status when the server died of it."""
    connection = http.client.HTTPConnection(address, timeout=20)
    kept = ("content-type", "content-encoding", "inference-header-content-length", "accept-encoding")
    try:
        connection.request("POST", f"/v2/models/{model}/infer", body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return {
            "status": answer.status,
            "answer_headers": {key.lower(): value for key, value in answer.getheaders() if key.lower() in kept},
            "answer": as_text(answer.read()),
        }
    except (http.client.HTTPException, OSError):
        return {"status": None, "answer_headers": {}, "answer": ""}
    finally:
        connection.close()


def wait_ready(address: str) -> None:
    """Wait for the server to be ready again: some requests end the process, and whoever started it starts it again."""
    for _ in range(100):
        connection = http.client.HTTPConnection(address, timeout=20)
        try:
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except (http.client.HTTPException, OSError):
            pass
        finally:
            connection.close()
        time.sleep(1)
    sys.exit(f"no server at {address}")


def record(url: str, target: Path) -> None:
    address = urllib.parse.urlsplit(url).netloc
    exchanges = []
    for name, model, headers, body in all_cases():
        wait_ready(address)
        answer = exchange(address, model, headers, body)
        exchanges.append({"name": name, "model": model, "headers": headers, "body": as_text(body), **answer})
    target.write_text(json.dumps({"models": MODELS, "exchanges": exchanges}, indent=1, ensure_ascii=True) + "\n")
    print(f"{len(exchanges)} exchanges recorded")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["repository", directory]:
            write_repository(Path(directory))
        case ["record", base_url, file]:
            record(base_url, Path(file))
        case _:
            sys.exit(__doc__)

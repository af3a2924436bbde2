"""The requests of the transcripts, in the order in which they are sent: one long session with an explicit-mode server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from .repository import ALL_TYPES, BROKEN, MODELS


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request. `name` is unique."""

    name: str
    method: str = "POST"
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _infer(name: str, model: str, body: object, **headers: str) -> Case:
    raw = body if isinstance(body, bytes) else _json(body)
    return Case(
        name=name, path=f"/v2/models/{model}/infer", body=raw, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


def _input(name: str, datatype: str, shape: list[Any], data: object = None, **more: Any) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape, **more}
    if data is not None:
        tensor["data"] = data
    return tensor


def _one(datatype: str, shape: list[Any], data: object = None, **more: Any) -> dict[str, Any]:
    return {"inputs": [_input("INPUT0", datatype, shape, data, **more)]}


def _binary(head: dict[str, Any], *blobs: bytes) -> tuple[bytes, dict[str, str]]:
    encoded = _json(head)
    return encoded + b"".join(blobs), {"Inference_Header_Content_Length": str(len(encoded))}


def _binary_infer(name: str, model: str, head: dict[str, Any], *blobs: bytes) -> Case:
    body, headers = _binary(head, *blobs)
    return _infer(name, model, body, **headers)


FOUR = [1, 2, 3, 4]
FP32_FOUR = np.array(FOUR, np.float32).tobytes()


TRACE_UPDATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("trace_level", ("OFF",)),
    ("trace_level", ()),
    ("trace_level", ("MAX",)),
    ("trace_level", ("TIMESTAMPS",)),
    ("trace_level", ("OFF", "TENSORS")),
    ("trace_rate", ("1000",)),
    ("trace_rate", ("x",)),
    ("trace_count", ("-1",)),
    ("log_frequency", ("0",)),
    ("trace_file", ("",)),
    ("trace_mode", ("triton",)),
    ("nosuch", ("1",)),
)
"""Settings and values that change nothing, or are refused."""


def _lifecycle() -> Iterator[Case]:
    yield Case(name="index before any load", path="/v2/repository/index")
    yield Case(name="ready before any load", method="GET", path="/v2/health/ready")
    yield Case(name="infer on a model that is not loaded", path="/v2/models/ident/infer", body=_json(_one("FP32", [1, 4], FOUR)))
    for name in MODELS:
        yield Case(name=f"load {name}", path=f"/v2/repository/models/{name}/load")
    for name in BROKEN:
        yield Case(name=f"load {name}", path=f"/v2/repository/models/{name}/load")
    yield Case(name="load no_versions", path="/v2/repository/models/no_versions/load")
    yield Case(name="load unknown", path="/v2/repository/models/nosuch/load")
    yield Case(name="load with unknown parameter", path="/v2/repository/models/ident/load", body=_json({"parameters": {"x": 1}}))
    yield Case(
        name="load with file but no config",
        path="/v2/repository/models/ident/load",
        body=_json({"parameters": {"file:1/model.py": base64.b64encode(b"x").decode()}}),
    )
    yield Case(
        name="load with broken config override",
        path="/v2/repository/models/ident/load",
        body=_json({"parameters": {"config": "{"}}),
    )
    yield Case(
        name="load with unknown field in config override",
        path="/v2/repository/models/ident/load",
        body=_json({"parameters": {"config": '{"nosuch": 1}'}}),
    )
    yield Case(name="load with repository name", path="/v2/repository/r/models/ident/load")
    yield Case(name="unload unknown", path="/v2/repository/models/nosuch/unload")
    yield Case(name="load with body that is not JSON", path="/v2/repository/models/ident/load", body=b"{")


def _server() -> Iterator[Case]:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2", "/v2/", "/v2/health", "/nosuch", "/v2/models/ident/ready"):
        yield Case(name=f"GET {path}", method="GET", path=path)
    yield Case(name="POST /v2", path="/v2")
    yield Case(name="GET infer", method="GET", path="/v2/models/ident/infer")
    yield Case(name="GET index", method="GET", path="/v2/repository/index")
    yield Case(name="PUT index", method="PUT", path="/v2/repository/index")
    yield Case(name="version ready", method="GET", path="/v2/models/ident/versions/1/ready")
    yield Case(name="version not a number", method="GET", path="/v2/models/ident/versions/x/ready")
    yield Case(name="stats of one", method="GET", path="/v2/models/nobatch/stats")
    yield Case(name="stats of unknown", method="GET", path="/v2/models/nosuch/stats")
    yield Case(name="stats of unknown version", method="GET", path="/v2/models/ident/versions/9/stats")
    yield Case(name="metadata of unknown", method="GET", path="/v2/models/nosuch")
    yield Case(name="metadata of unknown version", method="GET", path="/v2/models/ident/versions/9")
    yield Case(name="config of unknown", method="GET", path="/v2/models/nosuch/config")
    for name in MODELS:
        yield Case(name=f"metadata {name}", method="GET", path=f"/v2/models/{name}")
        yield Case(name=f"config {name}", method="GET", path=f"/v2/models/{name}/config")
    yield Case(name="metadata rich version 3", method="GET", path="/v2/models/rich/versions/3")
    yield Case(name="metadata rich version 2", method="GET", path="/v2/models/rich/versions/2")
    yield Case(name="logging settings", method="GET", path="/v2/logging")
    yield Case(name="set log verbose", path="/v2/logging", body=_json({"log_verbose_level": 0, "log_info": True}))
    yield Case(name="set log file", path="/v2/logging", body=_json({"log_file": "x"}))
    yield Case(name="set log format wrong", path="/v2/logging", body=_json({"log_format": "x"}))
    yield Case(name="set unknown log setting", path="/v2/logging", body=_json({"nosuch": 1}))


def _answers() -> Iterator[Case]:
    yield _infer("identity JSON", "ident", {**_one("FP32", [1, 4], FOUR), "id": "7"})
    yield _infer("identity nested data", "ident", _one("FP32", [2, 2], [[1, 2], [3, 4]]))
    yield _infer("identity float digits", "ident", _one("FP32", [1, 3], [0.1, 1e-7, 123456789.0]))
    yield _infer("identity of version 1", "ident/versions/1", _one("FP32", [1, 2], [1, 2]))
    yield _infer("empty second dimension", "ident", _one("FP32", [1, 0], []))
    yield _infer("outputs listed", "addsub", {**_pair(), "outputs": [{"name": "OUTPUT1"}]})
    yield _infer("outputs in other order", "addsub", {**_pair(), "outputs": [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]})
    yield _infer("outputs empty list", "addsub", {**_pair(), "outputs": []})
    yield _infer("unknown members are ignored", "ident", {**_one("FP32", [1, 2], [1, 2]), "nosuch": {"a": 1}})
    yield _binary_infer("binary in, JSON out", "ident", _one("FP32", [1, 4], parameters={"binary_data_size": 16}), FP32_FOUR)
    yield _binary_infer(
        "binary in and out",
        "ident",
        {**_one("FP32", [1, 4], parameters={"binary_data_size": 16}), "parameters": {"binary_data_output": True}},
        FP32_FOUR,
    )
    yield _infer(
        "JSON in, binary out",
        "ident",
        {**_one("FP32", [1, 4], FOUR), "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]},
    )
    yield _infer("raw binary request", "nobatch", np.arange(8, dtype=np.float32).tobytes(), Inference_Header_Content_Length="0")
    yield _infer("raw binary request of variable size", "ident", FP32_FOUR, Inference_Header_Content_Length="0")
    yield _infer("raw request to two inputs", "addsub", FP32_FOUR, Inference_Header_Content_Length="0")
    yield _infer("classification with labels", "labels", {**_one("FP32", [1, 4], [0.1, 0.7, 0.2, 0.05]), "outputs": [_top(2)]})
    yield _infer("classification of a batch", "labels", {**_one("FP32", [2, 4], [4, 3, 2, 1, 1, 2, 3, 4]), "outputs": [_top(3)]})
    yield _infer("classification more than classes", "labels", {**_one("FP32", [1, 4], FOUR), "outputs": [_top(9)]})
    yield _infer("classification without labels", "fixed", {**_one("FP32", [1, 2, 4], [*FOUR, *FOUR]), "outputs": [_top(2)]})
    yield _infer("BYTES", "text", _one("BYTES", [3], ["a", "", "äöü"]))
    yield _infer("BYTES batch", "textbatch", _one("BYTES", [2, 2], [["a", "b"], ["c", "d"]]))
    yield _infer("reshape", "reshape", _one("FP32", [2, 4], [*FOUR, *FOUR]))
    yield _infer("reshape to scalar", "scalar", _one("INT32", [3, 1], [1, 2, 3]))
    yield _infer("optional given", "optional", {"inputs": [_input("A", "INT32", [1, 1], [1]), _input("B", "INT32", [1, 1], [1])]})
    yield _infer("optional left out", "optional", {"inputs": [_input("A", "INT32", [1, 1], [1])]})
    yield _infer("optional: required one missing", "optional", {"inputs": [_input("B", "INT32", [1, 1], [1])]})
    for datatype in ALL_TYPES:
        if datatype != "FP16":
            yield _type_case(datatype)
    half = np.array([1.5, -2], np.float16).tobytes()
    yield _binary_infer(
        "type FP16 binary",
        "types",
        {
            "inputs": [_input("INPUT_FP16", "FP16", [2], parameters={"binary_data_size": 4})],
            "outputs": [{"name": "OUTPUT_FP16", "parameters": {"binary_data": True}}],
        },
        half,
    )
    yield _binary_infer(
        "type FP16 out as JSON",
        "types",
        {"inputs": [_input("INPUT_FP16", "FP16", [2], parameters={"binary_data_size": 4})], "outputs": [{"name": "OUTPUT_FP16"}]},
        half,
    )
    seen = _one("INT32", [1], [1])
    yield _infer("no parameters", "parameters", seen)
    yield _infer(
        "parameters", "parameters", {**seen, "id": "x", "parameters": {"a": 1, "b": "t", "c": True, "d": 1.5, "timeout": 5000000}}
    )
    yield _infer(
        "priority and sequence", "parameters", {**seen, "parameters": {"priority": 1, "sequence_id": 9, "sequence_start": True}}
    )
    yield _infer("sequence id text", "parameters", {**seen, "parameters": {"sequence_id": "s", "sequence_end": True}})


def _type_case(datatype: str) -> Case:
    word = "BYTES" if datatype == "STRING" else datatype
    data: dict[str, list[object]] = {"BOOL": [True, False], "STRING": ["x", "y"], "FP32": [0.5, -1], "FP64": [0.1, -2.5]}
    tensor = _input(f"INPUT_{datatype}", word, [2], data.get(datatype, [1, 100]))
    return _infer(f"type {datatype}", "types", {"inputs": [tensor], "outputs": [{"name": f"OUTPUT_{datatype}"}]})


def _pair() -> dict[str, Any]:
    return {"inputs": [_input("INPUT0", "INT32", [1, 4], FOUR), _input("INPUT1", "INT32", [1, 4], [10, 20, 30, 40])]}


def _top(count: int) -> dict[str, Any]:
    return {"name": "OUTPUT0", "parameters": {"classification": count}}


def _refusals() -> Iterator[Case]:
    ok = _one("FP32", [1, 4], FOUR)
    yield _infer("unknown model", "nosuch", ok)
    yield _infer("unknown version", "ident/versions/9", ok)
    yield _infer("not JSON", "ident", b"{")
    yield _infer("not an object", "ident", b"[]")
    yield _infer("empty body", "ident", b"")
    yield _infer("no inputs", "ident", {})
    yield _infer("inputs not a list", "ident", {"inputs": 3})
    yield _infer("inputs empty", "ident", {"inputs": []})
    yield _infer("id not a string", "ident", {**ok, "id": 3})
    yield _infer("input without name", "ident", {"inputs": [{"datatype": "FP32", "shape": [1, 4], "data": FOUR}]})
    yield _infer("input without datatype", "ident", {"inputs": [{"name": "INPUT0", "shape": [1, 4], "data": FOUR}]})
    yield _infer("input without shape", "ident", {"inputs": [{"name": "INPUT0", "datatype": "FP32", "data": FOUR}]})
    yield _infer("unknown datatype", "ident", _one("FP31", [1, 4], FOUR))
    yield _infer("shape with text", "ident", _one("FP32", [1, "4"], FOUR))
    yield _infer("shape negative", "ident", _one("FP32", [1, -4], FOUR))
    yield _infer("data of text", "ident", _one("FP32", [1, 2], ["a", "b"]))
    yield _infer("data of float in int", "fixed", _one("INT32", [1, 2, 4], [1.5] * 8))
    yield _infer("data too few", "ident", _one("FP32", [1, 4], [1, 2]))
    yield _infer("data too many", "ident", _one("FP32", [1, 2], FOUR))
    yield _infer("no data", "ident", _one("FP32", [1, 4]))
    yield _infer("FP16 as JSON", "types", {"inputs": [_input("INPUT_FP16", "FP16", [2], [1, 2])]})
    yield _infer("wrong datatype", "ident", _one("INT32", [1, 4], FOUR))
    yield _infer("batch too large", "ident", _one("FP32", [9, 1], list(range(9))))
    yield _infer("batch zero", "ident", _one("FP32", [0, 2], []))
    yield _infer("wrong shape", "fixed", _one("FP32", [1, 4, 2], [0] * 8))
    yield _infer("missing batch dimension", "fixed", _one("FP32", [2, 4], [0] * 8))
    yield _infer("wrong shape without batching", "nobatch", _one("FP32", [2, 3], [0] * 6))
    yield _infer("empty shape", "ident", _one("FP32", [], [1]))
    yield _infer("empty shape without batching", "nobatch", _one("FP32", [], [1]))
    yield _infer("unknown input", "ident", {"inputs": [_input("NOSUCH", "FP32", [1, 4], FOUR)]})
    yield _infer("one input too many", "ident", {"inputs": [*ok["inputs"], _input("X", "FP32", [1, 4], FOUR)]})
    yield _infer("one input missing", "addsub", {"inputs": [_input("INPUT0", "INT32", [1, 4], FOUR)]})
    yield _infer("input given twice", "ident", {"inputs": [*ok["inputs"], *ok["inputs"]]})
    yield _infer("batch sizes differ", "addsub", _uneven())
    yield _infer("unknown output", "ident", {**ok, "outputs": [{"name": "NOSUCH"}]})
    yield _infer("unknown output with id", "ident", {**ok, "id": "me", "outputs": [{"name": "NOSUCH"}]})
    yield _infer("wrong shape with id", "fixed", {**_one("FP32", [1, 4, 2], [0] * 8), "id": "me"})
    yield _infer("reserved parameter", "ident", {**ok, "parameters": {"triton_x": 1}})
    yield _infer("parameter null", "ident", {**ok, "parameters": {"x": None}})
    yield _infer("parameter list", "ident", {**ok, "parameters": {"x": [1]}})
    yield _infer("priority negative", "ident", {**ok, "parameters": {"priority": -1}})
    yield _infer("timeout text", "ident", {**ok, "parameters": {"timeout": "x"}})
    size = {"binary_data_size": 16}
    yield _binary_infer("binary too short", "ident", _one("FP32", [1, 4], parameters=size), FP32_FOUR[:8])
    yield _binary_infer("binary too long", "ident", _one("FP32", [1, 4], parameters=size), FP32_FOUR + b"1234")
    yield _binary_infer("binary size not the shape's", "ident", _one("FP32", [1, 3], parameters=size), FP32_FOUR)
    yield _infer("binary size without header", "ident", _one("FP32", [1, 4], parameters=size))
    yield _infer("header length too large", "ident", ok, Inference_Header_Content_Length="99999")
    yield _infer("data and binary size", "ident", _one("FP32", [1, 4], FOUR, parameters=size))
    yield _binary_infer("BYTES with wrong count", "text", _one("BYTES", [2], parameters={"binary_data_size": 5}), b"\1\0\0\0a")
    yield _binary_infer("BYTES cut in length", "text", _one("BYTES", [1], parameters={"binary_data_size": 3}), b"\1\0\0")
    yield _binary_infer("BYTES cut in data", "text", _one("BYTES", [1], parameters={"binary_data_size": 6}), b"\4\0\0\0ab")
    yield _infer("classification not a number", "labels", {**_one("FP32", [1, 4], FOUR), "outputs": [_bad_top()]})
    yield _infer("encoding unknown", "ident", ok, Content_Encoding="br")
    for what, name in ((1, "exception"), (2, "error INVALID_ARG"), (3, "plain error"), (4, "wrong count")):
        yield _infer(f"model: {name}", "failing", _one("INT32", [1, 4], [what] * 4))
    for what, name in ((5, "error NOT_FOUND"), (6, "error UNAVAILABLE"), (7, "TritonModelException"), (0, "fine")):
        yield _infer(f"model: {name}", "failing", _one("INT32", [1, 4], [what] * 4))


def _bad_top() -> dict[str, Any]:
    return {"name": "OUTPUT0", "parameters": {"classification": "x"}}


def _uneven() -> dict[str, Any]:
    return {"inputs": [_input("INPUT0", "INT32", [1, 4], FOUR), _input("INPUT1", "INT32", [2, 4], FOUR * 2)]}


def _end() -> Iterator[Case]:
    yield Case(name="stats of failing", method="GET", path="/v2/models/failing/stats")
    yield Case(name="stats of labels", method="GET", path="/v2/models/labels/stats")
    yield Case(name="index", path="/v2/repository/index")
    yield Case(name="index of ready ones", path="/v2/repository/index", body=_json({"ready": True}))
    yield Case(name="index with wrong ready", path="/v2/repository/index", body=_json({"ready": "x"}))
    yield Case(name="unload fixed", path="/v2/repository/models/fixed/unload")
    yield Case(name="load fixed again", path="/v2/repository/models/fixed/load")
    yield Case(
        name="load fixed with config override",
        path="/v2/repository/models/fixed/load",
        body=_json({"parameters": {"config": json.dumps(_override())}}),
    )
    yield Case(name="config fixed after override", method="GET", path="/v2/models/fixed/config")
    yield Case(name="load fixed plainly", path="/v2/repository/models/fixed/load")
    yield Case(name="config fixed after plain load", method="GET", path="/v2/models/fixed/config")


def _override() -> dict[str, Any]:
    return {
        "backend": "python",
        "maxBatchSize": 3,
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": ["2", 4]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [2, 4]}],
        "instance_group": [{"kind": "KIND_CPU"}],
    }


def _trace_updates() -> Iterator[Case]:
    for setting, values in TRACE_UPDATES:
        value = values if setting == "trace_level" else values[0]
        body = _json({setting: value})
        yield Case(name=f"trace update: {setting} {','.join(values)}", path="/v2/trace/setting", body=body)
    yield Case(name="trace update: nothing", path="/v2/models/ident/trace/setting", body=b"{}")
    yield Case(name="trace update: to the defaults", path="/v2/trace/setting", body=_json({"trace_rate": None}))
    yield Case(name="trace update: level that is no array", path="/v2/trace/setting", body=_json({"trace_level": "OFF"}))
    yield Case(name="trace update: rate that is a number", path="/v2/trace/setting", body=_json({"trace_rate": 1000}))


def _regions() -> Iterator[Case]:
    for kind in ("system", "cuda"):
        for region in ("", "/region/nosuch"):
            path = f"/v2/{kind}sharedmemory{region}"
            yield Case(name=f"status of {kind} regions{region}", method="GET", path=f"{path}/status")
            yield Case(name=f"unregister {kind} regions{region}", path=f"{path}/unregister")


CASES: tuple[Case, ...] = (
    *_lifecycle(),
    *_server(),
    *_answers(),
    *_refusals(),
    *_end(),
    *_trace_updates(),
    *_regions(),
)

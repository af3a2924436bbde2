"""The gRPC calls of the transcripts, in the order in which they are sent: one long session with an explicit-mode server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from .cases import FOUR, FP32_FOUR, TRACE_UPDATES
from .repository import ALL_TYPES, BROKEN, MODELS


class GrpcCase(msgspec.Struct, frozen=True, kw_only=True):
    """One call of GRPCInferenceService. `messages` are serialised requests: one, but for ModelStreamInfer. `name` is unique."""

    name: str
    method: str
    messages: tuple[bytes, ...]
    metadata: tuple[tuple[str, str], ...] = ()


Values = Mapping[str, Any]
NO_VALUES: Values = MappingProxyType({})
INT_FOUR = np.array(FOUR, np.int32).tobytes()


def _call(name: str, request: Message) -> GrpcCase:
    method = type(request).DESCRIPTOR.name.removesuffix("Request")
    return GrpcCase(name=name, method=method, messages=(request.SerializeToString(),))


def _tensor(name: str, datatype: str, shape: Sequence[int], **contents: Sequence[Any]) -> pb.ModelInferRequest.InferInputTensor:
    tensor = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
        tensor.contents.SetInParent()
    return tensor


def _request(
    model: str,
    *inputs: pb.ModelInferRequest.InferInputTensor,
    raw: Sequence[bytes] = (),
    outputs: Sequence[str | tuple[str, Values]] = (),
    parameters: Values = NO_VALUES,
    **members: Any,
) -> pb.ModelInferRequest:
    """Parameters are `{name: {field: value}}`."""
    request = pb.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw, **members)
    _set(request.parameters, parameters)
    for output in outputs:
        name, own = (output, {}) if isinstance(output, str) else output
        _set(request.outputs.add(name=name).parameters, own)
    return request


def _set(parameters: Any, values: Values) -> None:
    for name, value in values.items():
        parameters[name].SetInParent()
        for field, content in value.items():
            setattr(parameters[name], field, content)


IN = _tensor("INPUT0", "FP32", [1, 4])


def _ok(**more: Any) -> pb.ModelInferRequest:
    return _request("ident", IN, raw=[FP32_FOUR], **more)


def _lifecycle() -> Iterator[GrpcCase]:
    def load(name: str, **more: Any) -> GrpcCase:
        return _call(f"load {name}", pb.RepositoryModelLoadRequest(model_name=name, **more))

    def odd(name: str, model: str, parameters: Values) -> GrpcCase:
        request = pb.RepositoryModelLoadRequest(model_name=model)
        _set(request.parameters, parameters)
        return _call(name, request)

    yield _call("index before any load", pb.RepositoryIndexRequest())
    yield _call("ready before any load", pb.ServerReadyRequest())
    yield _call("infer on a model that is not loaded", _ok())
    for name in (*MODELS, *BROKEN, "no_versions", "nosuch"):
        yield load(name)
    yield odd("load with unknown parameter", "ident", {"x": {"string_param": "1"}})
    yield odd("load with file but no config", "ident", {"file:1/model.py": {"bytes_param": b"x"}})
    yield odd("load with file of text", "ident", {"file:1/model.py": {"string_param": "x"}})
    yield odd("load with config that is no text", "ident", {"config": {"int64_param": 1}})
    yield odd("load with broken config override", "ident", {"config": {"string_param": "{"}})
    yield odd("load with unknown field in config override", "ident", {"config": {"string_param": '{"nosuch": 1}'}})
    yield load("with repository name", repository_name="r")
    yield _call("unload unknown", pb.RepositoryModelUnloadRequest(model_name="nosuch"))
    request = pb.RepositoryModelUnloadRequest(model_name="nosuch")
    request.parameters["unload_dependents"].string_param = "x"
    yield _call("unload with dependents of text", request)
    yield _call("unload with repository name", pb.RepositoryModelUnloadRequest(model_name="ident", repository_name="r"))


def _server() -> Iterator[GrpcCase]:
    yield _call("server live", pb.ServerLiveRequest())
    yield _call("server ready", pb.ServerReadyRequest())
    yield _call("server metadata", pb.ServerMetadataRequest())
    for version in ("", "1", "9", "0", "-1", "x", " 1", "1x", "99999999999999999999"):
        yield _call(f"ready of version '{version}'", pb.ModelReadyRequest(name="ident", version=version))
        yield _call(f"metadata of version '{version}'", pb.ModelMetadataRequest(name="ident", version=version))
        yield _call(f"stats of version '{version}'", pb.ModelStatisticsRequest(name="nobatch", version=version))
    yield _call("ready of unknown", pb.ModelReadyRequest(name="nosuch"))
    yield _call("metadata of unknown", pb.ModelMetadataRequest(name="nosuch"))
    yield _call("metadata of no name", pb.ModelMetadataRequest())
    yield _call("config of unknown", pb.ModelConfigRequest(name="nosuch"))
    yield _call("stats of unknown", pb.ModelStatisticsRequest(name="nosuch"))
    for name in MODELS:
        yield _call(f"metadata {name}", pb.ModelMetadataRequest(name=name))
        yield _call(f"config {name}", pb.ModelConfigRequest(name=name))
    yield _call("metadata rich version 3", pb.ModelMetadataRequest(name="rich", version="3"))
    yield _call("metadata rich version 2", pb.ModelMetadataRequest(name="rich", version="2"))
    yield from _settings()


def _settings() -> Iterator[GrpcCase]:
    def log(name: str, setting: str, **value: Any) -> GrpcCase:
        request = pb.LogSettingsRequest()
        _set(request.settings, {setting: value})
        return _call(name, request)

    yield _call("logging settings", pb.LogSettingsRequest())
    yield log("set log verbose", "log_verbose_level", uint32_param=0)
    yield log("set log verbose to text", "log_verbose_level", string_param="x")
    yield log("set log info to a number", "log_info", uint32_param=1)
    yield log("set log info to nothing", "log_info")
    yield log("set log file", "log_file", string_param="x")
    yield log("set log format wrong", "log_format", string_param="x")
    yield log("set log format to a number", "log_format", uint32_param=1)
    yield log("set unknown log setting", "nosuch", uint32_param=1)
    yield _call("trace settings", pb.TraceSettingRequest())
    yield _call("trace settings of a model", pb.TraceSettingRequest(model_name="ident"))
    yield _call("trace settings of unknown", pb.TraceSettingRequest(model_name="nosuch"))


def _answers() -> Iterator[GrpcCase]:
    yield _call("identity", _ok(id="7"))
    yield _call("identity of version 1", _ok(model_version="1"))
    yield _call("empty second dimension", _request("ident", _tensor("INPUT0", "FP32", [1, 0]), raw=[b""]))
    yield _call("more raw contents than inputs", _request("ident", IN, raw=[FP32_FOUR, b"x"]))
    pair = [_tensor("INPUT0", "INT32", [1, 4]), _tensor("INPUT1", "INT32", [1, 4])]
    yield _call("outputs listed", _request("addsub", *pair, raw=[INT_FOUR] * 2, outputs=["OUTPUT1"]))
    yield _call("outputs in other order", _request("addsub", *pair, raw=[INT_FOUR] * 2, outputs=["OUTPUT1", "OUTPUT0"]))
    yield _call("parameters of outputs that mean nothing", _ok(outputs=[("OUTPUT0", {"x": {"int64_param": 1}})]))
    labels = _tensor("INPUT0", "FP32", [2, 4], fp32_contents=[4, 3, 2, 1, 1, 2, 3, 4])
    for count in (1, 3, 9):
        yield _call(f"classification {count}", _request("labels", labels, outputs=[_top(int64_param=count)]))
    yield _call("BYTES", _request("text", _tensor("INPUT0", "BYTES", [3], bytes_contents=[b"a", b"", "ä".encode()])))
    yield _call("BYTES raw", _request("text", _tensor("INPUT0", "BYTES", [2]), raw=[b"\1\0\0\0a\0\0\0\0"]))
    yield _call("reshape", _request("reshape", _tensor("INPUT0", "FP32", [1, 4]), raw=[FP32_FOUR]))
    yield _call("reshape to scalar", _request("scalar", _tensor("INPUT0", "INT32", [3, 1], int_contents=[1, 2, 3])))
    yield _call("optional left out", _request("optional", _tensor("A", "INT32", [1, 1], int_contents=[1])))
    for datatype in ALL_TYPES:
        yield from _type_cases(datatype)
    seen = _tensor("INPUT0", "INT32", [1], int_contents=[1])
    free = {"a": {"int64_param": 1}, "b": {"string_param": "t"}, "c": {"bool_param": True}, "d": {"double_param": 1.5}}
    yield _call("no parameters", _request("parameters", seen))
    yield _call("parameters", _request("parameters", seen, id="x", parameters={**free, "timeout": {"int64_param": 5_000_000}}))
    sequence = {"priority": {"int64_param": 1}, "sequence_id": {"int64_param": 9}, "sequence_start": {"bool_param": True}}
    yield _call("priority and sequence", _request("parameters", seen, parameters=sequence))
    text = {"sequence_id": {"string_param": "s"}, "sequence_end": {"bool_param": True}}
    yield _call("sequence id text", _request("parameters", seen, parameters=text))


def _type_cases(datatype: str) -> Iterator[GrpcCase]:
    word = "BYTES" if datatype == "STRING" else datatype
    name, output = f"INPUT_{datatype}", [f"OUTPUT_{datatype}"]
    raw = b"\1\0\0\0x\0\0\0\0" if word == "BYTES" else np.array([1, 0]).astype(_NUMPY.get(word, word.lower())).tobytes()
    yield _call(f"type {datatype} raw", _request("types", _tensor(name, word, [2]), raw=[raw], outputs=output))
    if word in _FIELDS:
        field, values = _FIELDS[word]
        yield _call(f"type {datatype} typed", _request("types", _tensor(name, word, [2], **{field: values}), outputs=output))


_NUMPY = {"FP16": "float16", "FP32": "float32", "FP64": "float64"}
_FIELDS: dict[str, tuple[str, list[Any]]] = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [1, 300]),
    "INT16": ("int_contents", [1, -70000]),
    "INT32": ("int_contents", [1, -100]),
    "INT64": ("int64_contents", [1, -(2**60)]),
    "UINT8": ("uint_contents", [1, 300]),
    "UINT16": ("uint_contents", [1, 70000]),
    "UINT32": ("uint_contents", [1, 2**32 - 1]),
    "UINT64": ("uint64_contents", [1, 2**64 - 1]),
    "FP32": ("fp32_contents", [0.5, -1]),
    "FP64": ("fp64_contents", [0.1, -2.5]),
    "BYTES": ("bytes_contents", [b"x", b"\xff"]),
}


def _top(**value: Any) -> tuple[str, Values]:
    return "OUTPUT0", {"classification": value}


def _refusals() -> Iterator[GrpcCase]:
    yield _call("unknown model", _request("nosuch", IN, raw=[FP32_FOUR]))
    for version in ("9", "x", "-1", "99999999999999999999"):
        yield _call(f"infer of version '{version}'", _ok(model_version=version))
    yield GrpcCase(name="no request at all", method="ModelInfer", messages=(b"\xff\xff\xff",))
    yield GrpcCase(name="no control request at all", method="ModelMetadata", messages=(b"\xff\xff\xff",))
    yield _call("no inputs", _request("ident"))
    yield _call("no data", _request("ident", IN))
    yield _call("no data for the second input", _request("addsub", *_two([1, 4], [1, 4]), raw=[INT_FOUR]))
    both = _tensor("INPUT0", "FP32", [1, 4], fp32_contents=FOUR)
    yield _call("raw and typed contents", _request("ident", both, raw=[FP32_FOUR]))
    for name, tensor in {
        "contents of another type": _tensor("INPUT0", "FP32", [1, 4], int_contents=FOUR),
        "contents of two types": _tensor("INPUT0", "FP32", [1, 4], fp32_contents=FOUR, int64_contents=[1]),
        "contents for FP16": _tensor("INPUT0", "FP16", [1, 4], fp32_contents=FOUR),
        "contents too few": _tensor("INPUT0", "FP32", [1, 4], fp32_contents=[1, 2]),
        "contents too many": _tensor("INPUT0", "FP32", [1, 2], fp32_contents=FOUR),
        "contents empty": _tensor("INPUT0", "FP32", [1, 4], fp32_contents=[]),
        "contents for unknown datatype": _tensor("INPUT0", "FP31", [1, 4], fp32_contents=FOUR),
    }.items():
        yield _call(name, _request("ident", tensor))
    for name, tensor in {
        "unknown datatype": _tensor("INPUT0", "FP31", [1, 4]),
        "unknown datatype of unknown input": _tensor("NOSUCH", "FP31", [1, 4]),
        "wrong datatype": _tensor("INPUT0", "INT32", [1, 4]),
        "shape negative": _tensor("INPUT0", "FP32", [1, -4]),
        "shape too large": _tensor("INPUT0", "FP32", [1, 2**62, 2**62]),
        "size not the shape's": _tensor("INPUT0", "FP32", [1, 3]),
        "batch zero": _tensor("INPUT0", "FP32", [0, 2]),
        "unknown input": _tensor("NOSUCH", "FP32", [1, 4]),
    }.items():
        yield _call(name, _request("ident", tensor, raw=[b"" if name == "batch zero" else FP32_FOUR]))
    yield _call("empty shape", _request("ident", _tensor("INPUT0", "FP32", []), raw=[bytes(4)]))
    yield _call("batch too large", _request("ident", _tensor("INPUT0", "FP32", [9, 1]), raw=[bytes(36)]))
    yield _call("wrong shape", _request("fixed", _tensor("INPUT0", "FP32", [1, 4, 2]), raw=[bytes(32)], id="me"))
    yield _call("missing batch dimension", _request("fixed", _tensor("INPUT0", "FP32", [2, 4]), raw=[bytes(32)]))
    yield _call("one input too many", _request("ident", IN, _tensor("X", "FP32", [1, 4]), raw=[FP32_FOUR] * 2))
    yield _call("one input missing", _request("addsub", _tensor("INPUT0", "INT32", [1, 4]), raw=[INT_FOUR]))
    yield _call("input given twice", _request("ident", IN, IN, raw=[FP32_FOUR] * 2))
    yield _call("batch sizes differ", _request("addsub", *_two([1, 4], [2, 4]), raw=[INT_FOUR, INT_FOUR * 2]))
    yield _call("unknown output", _ok(outputs=["NOSUCH"], id="me"))
    for name, blob, count in (
        ("wrong count", b"\1\0\0\0a", 2),
        ("too many", b"\1\0\0\0a\1\0\0\0b", 1),
        ("cut in length", b"\1\0\0", 1),
        ("cut in data", b"\4\0\0\0ab", 1),
    ):
        yield _call(f"BYTES {name}", _request("text", _tensor("INPUT0", "BYTES", [count]), raw=[blob]))
    for count in (1, 3):
        tensor = _tensor("INPUT0", "BYTES", [count], bytes_contents=[b"a", b"b"])
        yield _call(f"BYTES contents for {count}", _request("text", tensor))
    for value in ({"string_param": "x"}, {"int64_param": 0}, {"int64_param": -1}, {"uint64_param": 1}):
        yield _call(f"classification {value}", _ok(outputs=[_top(**value)]))
    yield from _parameter_refusals()
    for what in range(8):
        tensor = _tensor("INPUT0", "INT32", [1, 4], int_contents=[what] * 4)
        yield _call(f"model: act {what}", _request("failing", tensor))


def _parameter_refusals() -> Iterator[GrpcCase]:
    values: tuple[Values, ...] = (
        {"bool_param": True},
        {"int64_param": -1},
        {"string_param": "x"},
        {"double_param": 1.5},
        {"uint64_param": 2},
        {},
    )
    for key in ("sequence_id", "sequence_start", "priority", "timeout", "free", "triton_x", "triton_enable_empty_final_response"):
        for value in values:
            yield _call(f"parameter {key} {value}", _ok(parameters={key: value}))


def _two(first: Sequence[int], second: Sequence[int]) -> list[pb.ModelInferRequest.InferInputTensor]:
    return [_tensor("INPUT0", "INT32", first), _tensor("INPUT1", "INT32", second)]


def _streams() -> Iterator[GrpcCase]:
    def stream(name: str, *requests: pb.ModelInferRequest, metadata: tuple[tuple[str, str], ...] = ()) -> GrpcCase:
        messages = tuple(request.SerializeToString() for request in requests)
        return GrpcCase(name=f"stream: {name}", method="ModelStreamInfer", messages=messages, metadata=metadata)

    def failing(what: int, **more: Any) -> pb.ModelInferRequest:
        return _request("failing", _tensor("INPUT0", "INT32", [1, 4], int_contents=[what] * 4), **more)

    unknown = _request("nosuch", IN, raw=[FP32_FOUR], id="unknown")
    yield stream("nothing")
    yield stream("two requests", _ok(id="a"), _ok(id="b"))
    empty_final = {"triton_enable_empty_final_response": {"bool_param": True}}
    yield stream("empty final is only for decoupled models", _ok(parameters=empty_final))
    yield stream(
        "refusals in their order",
        _ok(id="first"),
        unknown,
        _ok(model_version="9"),
        _ok(model_version="x", id="version"),
        _request("ident", IN, id="no data"),
        _request("ident", IN, raw=[FP32_FOUR[:8]], id="size"),
        _ok(id="reserved", parameters={"triton_x": {"bool_param": True}}),
        _ok(id="last"),
    )
    for what in range(1, 8):
        yield stream(f"model: act {what}", failing(what, id="f"), failing(0, id="fine"))
    wanted = (("triton_grpc_error", "true"),)
    yield stream("status wanted, all fine", _ok(id="a"), metadata=wanted)
    yield stream("status wanted, model says no", failing(2, id="f"), metadata=wanted)
    yield stream("status wanted, model raises", failing(1, id="f"), metadata=wanted)
    yield stream("status wanted with another word", failing(2, id="f"), metadata=(("triton_grpc_error", "1"),))


def _end() -> Iterator[GrpcCase]:
    yield _call("stats of labels", pb.ModelStatisticsRequest(name="labels"))
    yield _call("index", pb.RepositoryIndexRequest())
    yield _call("index of ready ones", pb.RepositoryIndexRequest(ready=True))
    yield _call("index of a repository", pb.RepositoryIndexRequest(repository_name="r"))
    yield _call("unload fixed", pb.RepositoryModelUnloadRequest(model_name="fixed"))
    yield _call("load fixed again", pb.RepositoryModelLoadRequest(model_name="fixed"))
    request = pb.RepositoryModelLoadRequest(model_name="fixed")
    request.parameters["config"].string_param = json.dumps(
        {
            "backend": "python",
            "maxBatchSize": 3,
            "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": ["2", 4]}],
            "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [2, 4]}],
            "instance_group": [{"kind": "KIND_CPU"}],
        }
    )
    yield _call("load fixed with config override", request)
    yield _call("config fixed after override", pb.ModelConfigRequest(name="fixed"))


def _trace_updates() -> Iterator[GrpcCase]:
    for setting, values in TRACE_UPDATES:
        update = pb.TraceSettingRequest()
        update.settings[setting].value.extend(values)
        yield _call(f"trace update: {setting} {','.join(values)}", update)
    update = pb.TraceSettingRequest()
    update.settings["trace_rate"].value.extend(["1", "2"])
    yield _call("trace update: two rates", update)


def _regions() -> Iterator[GrpcCase]:
    for kind in ("System", "Cuda"):
        for region in ("", "nosuch"):
            for verb in ("Status", "Unregister"):
                yield _call(f"{kind} region '{region}': {verb}", getattr(pb, f"{kind}SharedMemory{verb}Request")(name=region))


CASES: tuple[GrpcCase, ...] = (
    *_lifecycle(),
    *_server(),
    *_answers(),
    *_refusals(),
    *_streams(),
    *_end(),
    *_trace_updates(),
    *_regions(),
)

"""The options of `tpy perf` as a load, its levels and rules; input data from a folder, as perf_analyzer has it (a file for
each input) or images or texts, each a request."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import numpy as np
import orjson

from tpy.cli.parsing import UsageError
from tpy.limits.loading import LOAD_FILES_MAX
from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import BY_WORD
from tpy_tools.commands.infer_request import picture_of
from tpy_tools.commands.perf.options import PerfOptions
from tpy_tools.commands.perf.profile import values_of
from tpy_tools.commands.server_address import port_of_server
from tpy_tools.load import PlannedCall, RawTemplate, Rules, Target, Template, Tls, Workload, encode_grpc, encode_http
from tpy_tools.load.calls import Parameter, model_path
from tpy_tools.load.checking import Expected
from tpy_tools.load.core.http1 import encode_request
from tpy_tools.load.data import DataError, DataOptions, Entry, Streams, generated, read_files, read_tensor
from tpy_tools.load.exchange import SequenceSettings
from tpy_tools.load.links import tls_context
from tpy_tools.load.server import ModelFacts, TensorFacts
from tpy_tools.load.shared_memory import SharedTensors

_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp"})


def _read_folder(folder: Path, model: ModelFacts, options: DataOptions) -> Streams:
    """The requests of a folder. Raises DataError."""
    needed = [tensor for tensor in model.inputs if tensor.name not in model.optional]
    if needed and all((folder / tensor.name).is_file() for tensor in needed):
        tensors = tuple(_of_file(folder / tensor.name, tensor, options) for tensor in needed)
        return ((Entry(inputs=tuple(_repeated(each, model, options) for each in tensors)),),)
    if len(needed) != 1:
        raise DataError(f"{folder}: expected a file for each of the inputs: {', '.join(tensor.name for tensor in needed)}")
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))[:LOAD_FILES_MAX]
    if not files:
        raise DataError(f"{folder}: there are no files")
    entries = [Entry(inputs=(_repeated(_of_sample(path, needed[0], options), model, options),)) for path in files]
    return (tuple(entries),)


def _of_file(path: Path, tensor: TensorFacts, options: DataOptions) -> Tensor:
    """The raw elements of an input; texts: one in each line."""
    if tensor.datatype == "BYTES":
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: expected texts in UTF-8: {error}") from None
        return read_tensor(str(path), lines, tensor, options)
    datatype = BY_WORD[tensor.datatype]
    content = path.read_bytes()
    if len(content) % datatype.itemsize:
        raise DataError(f"{path}: expected a multiple of {datatype.itemsize} bytes for {tensor.datatype}, got {len(content)}")
    return read_tensor(str(path), np.frombuffer(content, datatype.numpy), tensor, options)


def _of_sample(path: Path, tensor: TensorFacts, options: DataOptions) -> Tensor:
    """A file as the only input: a picture as numbers, else its content."""
    if tensor.datatype == "BYTES":
        array = np.empty(1, dtype=object)
        array[0] = path.read_bytes()
        shape = tuple(1 if size < 0 else size for size in tensor.shape)
        if any(size != 1 for size in shape):
            raise DataError(f"{path}: the input {tensor.name} takes {list(tensor.shape)} texts, a file is one")
        return Tensor(tensor.name, DataType.BYTES, array.reshape(shape))
    if path.suffix.lower() not in _PICTURES:
        return _of_file(path, tensor, options)
    try:
        array, _ = picture_of(tensor.name, options.shapes.get(tensor.name, tensor.shape), BY_WORD[tensor.datatype], path)
    except OSError as error:
        raise DataError(f"{path}: not a picture: {error}") from None
    return read_tensor(str(path), array, tensor, options)


def _repeated(tensor: Tensor, model: ModelFacts, options: DataOptions) -> Tensor:
    """The tensor as a batch of equal ones."""
    if not model.max_batch_size:
        return tensor
    return Tensor(tensor.name, tensor.datatype, np.stack([tensor.array] * options.batch))


_SEQUENCE_LENGTH = 20
_TRUE = frozenset({"true", "1", "on", "yes"})


def target_of(options: PerfOptions) -> Target:
    """The server. Raises UsageError."""
    protocol = options.protocol.lower()
    if options.streaming and protocol == "http" and options.service_kind == "triton":
        raise UsageError("--streaming is ModelStreamInfer: it needs -i grpc, or --service-kind generate or openai")
    if protocol == "grpc" and options.service_kind != "triton":
        raise UsageError(f"--service-kind {options.service_kind} is an API of HTTP")
    url = options.url or "localhost"
    parts = urlsplit(url if "://" in url else f"//{url}")
    try:
        port = parts.port or port_of_server(protocol, os.environ)
    except ValueError:
        port = 0
    if not parts.hostname or not port:
        raise UsageError(f"-u: expected HOST:PORT, got {options.url!r}")
    encrypted = options.tls or options.tls_grpc.lower() in _TRUE or parts.scheme == "https"
    if protocol == "grpc":
        protocol = "grpc-stream" if options.streaming else "grpc"
    elif options.streaming:
        protocol = "sse"
    return Target(
        host=parts.hostname,
        port=port,
        protocol=protocol,
        metadata=_metadata(options) if protocol.startswith("grpc") else (),
        tls=tls_of(options) if encrypted else None,
        counts_tokens=options.service_kind == "openai",
    )


def tls_of(options: PerfOptions) -> Tls:
    """The files of --ssl, which can be used. Raises UsageError."""
    tls = Tls(
        ca_file=options.ca_file,
        certificate_file=options.certificate_file,
        key_file=options.key_file,
        verify=bool(options.verify),
        verify_host=bool(options.verify_host),
        certificate_type=options.certificate_type,
        key_type=options.key_type,
    )
    for file in (options.ca_file, options.certificate_file, options.key_file):
        if file and not Path(file).is_file():
            raise UsageError(f"the files of --ssl cannot be used: there is no file {file}")
    try:
        tls_context(tls, [])
    except (OSError, ValueError) as error:
        raise UsageError(f"the files of --ssl cannot be used: {error}") from None
    return tls


def _metadata(options: PerfOptions) -> tuple[tuple[str, str], ...]:
    encoding = () if options.compression == "none" else (("grpc-encoding", options.compression),)
    return (*encoding, *headers_of(options).items())


def headers_of(options: PerfOptions) -> dict[str, str]:
    """The headers of -H. Raises UsageError."""
    found = {}
    for text in options.headers:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or "\n" in text or "\r" in text:
            raise UsageError(f"-H: expected NAME:VALUE, got {text!r}")
        found[name.strip()] = value.strip()
    return found


def rules_of(options: PerfOptions) -> Rules:
    """The course of each measurement."""
    return Rules(
        window_s=options.measurement_interval / 1e3,
        window_requests=options.measurement_request_count if options.measurement_mode == "count_windows" else 0,
        windows_max=options.max_trials,
        stable_percent=options.stability_percentage,
        percentile=options.percentile,
        latency_max_ns=options.latency_threshold * 1e6,
        requests=options.request_count or None,
        warmup_s=options.warmup_s,
        warmup_requests=options.warmup_request_count,
        workers=options.processes,
        seed=options.seed,
        records=options.profile_file is not None,
    )


def load_of(options: PerfOptions, target: Target, model: ModelFacts, shared: SharedTensors | None) -> Workload:
    """The requests. Raises UsageError and DataError."""
    if options.batch > max(1, model.max_batch_size):
        raise UsageError(f"-b {options.batch}: {model.name} takes at most {max(1, model.max_batch_size)} inferences in a request")
    streams = _streams(options, model)
    headers = {} if target.protocol.startswith("grpc") else headers_of(options)
    parameters = dict(map(_parameter, options.parameters))
    if target.protocol == "grpc-stream":
        parameters.setdefault("triton_enable_empty_final_response", True)
    encoded: list[list[Template]] = []
    for stream in streams:
        made: list[Template] = []
        for entry in stream:
            call = PlannedCall(
                model=model.name,
                version=options.model_version,
                inputs=entry.inputs,
                outputs=tuple(tensor.name for tensor in model.outputs),
                parameters=parameters,
                binary_inputs=options.input_tensor_format == "binary",
                binary_outputs=options.output_tensor_format == "binary",
                input_regions=shared.inputs(entry.inputs) if shared else {},
                output_regions=shared.outputs if shared else {},
            )
            grpc = target.protocol.startswith("grpc")
            made.append(encode_grpc(call, options.compression) if grpc else encode_http(call, target.authority, headers))
        encoded.append(made)
    known = any(entry.expected is not None for stream in streams for entry in stream)
    if known and shared is not None:
        raise UsageError("validation_data cannot be compared with outputs in shared memory")
    expected = [[None if entry.expected is None else Expected.of(entry.expected) for entry in stream] for stream in streams]
    return Workload(
        target=target,
        model=model.name,
        version=options.model_version,
        streams=encoded,
        expected=expected if known else None,
        batch=options.batch,
        sequences=_sequences(options, generated_data=_is_generated(options)) if model.sequences else None,
        sequences_running=options.num_of_sequences,
    )


def _is_generated(options: PerfOptions) -> bool:
    return (options.input_data or ("random",)) in {("random",), ("zero",)}


def _streams(options: PerfOptions, model: ModelFacts) -> Streams:
    made = DataOptions(
        shapes=dict(_shape(text, model) for text in options.shapes),
        batch=options.batch if model.max_batch_size else 1,
        string_length=options.string_length,
        string_data=options.string_data,
        seed=options.seed,
    )
    if _is_generated(options):
        return generated(model, made, zero=options.input_data == ("zero",))
    paths = [Path(text) for text in options.input_data]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise UsageError(f"--input-data: expected zero, random, JSON files or a folder; no such file: {missing[0]}")
    if paths[0].is_dir():
        if len(paths) > 1:
            raise UsageError("--input-data: expected one folder, or JSON files")
        return _read_folder(paths[0], model, made)
    return read_files(paths, model, made)


def raw_load(options: PerfOptions, target: Target) -> Workload:
    """The requests of the generate extension and of OpenAI's API: documents of a JSON file, or for OpenAI's API prompts of random
    words. Raises UsageError."""
    if options.service_kind == "openai":
        path = "/" + options.endpoint.lstrip("/")
    else:
        path = f"{model_path(options.model, options.model_version)}/{'generate_stream' if options.streaming else 'generate'}"
    headers = {"Content-Type": "application/json", **headers_of(options)}
    templates: list[Template] = []
    for payload in _raw_payloads(options):
        if options.service_kind == "openai":
            payload = {"model": options.model, **payload}
            if options.streaming:  # the numbers of tokens come last
                payload = {"stream_options": {"include_usage": True}, **payload, "stream": True}
        body = orjson.dumps(payload)
        templates.append(RawTemplate(content=encode_request("POST", path, target.authority, headers, body)))
    return Workload(target=target, model=options.model, version=options.model_version, streams=[templates])


def inputs_of(options: PerfOptions, model: ModelFacts | None) -> list[Mapping[str, object]]:
    """The data of each request, in order, for --profile-export-file."""
    if model is not None:
        return [values_of(entry.inputs) for stream in _streams(options, model) for entry in stream]
    return [{"payload": orjson.dumps(payload).decode()} for payload in _raw_payloads(options)]


_PROMPTS = 64
"""Different ones, so that a cache of prefixes does not answer for the model."""
_WORDS = (
    "the",
    "of",
    "a",
    "to",
    "in",
    "is",
    "server",
    "model",
    "token",
    "time",
    "first",
    "queue",
    "batch",
    "answers",
    "which",
    "long",
)


def _raw_payloads(options: PerfOptions) -> list[Mapping[str, object]]:
    """The documents of the files, or else made of prompts. Raises UsageError."""
    paths = [Path(text) for text in options.input_data]
    if paths and all(path.is_file() for path in paths):
        return [payload for path in paths for payload in _payloads(path)]
    make = _OF_PROMPT.get(options.endpoint.strip("/").removeprefix("v1/")) if options.service_kind == "openai" else None
    if make is None or options.input_data not in ((), ("random",)):
        raise UsageError(
            f'--service-kind {options.service_kind} needs --input-data FILE.json: {{"data": [{{"payload": [{{...}}]}}]}}'
        )
    if options.string_data is not None:
        return [make(options.string_data)]
    chance = Random(options.seed)
    return [make(_prompt(chance, options.string_length)) for _ in range(_PROMPTS)]


def _prompt(chance: Random, length: int) -> str:
    """Random words of `length` characters in all."""
    words: list[str] = []
    while sum(map(len, words)) + len(words) <= length:
        words.append(chance.choice(_WORDS))
    return " ".join(words)[:length]


_OF_PROMPT: Mapping[str, Callable[[str], Mapping[str, object]]] = {
    "chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    "completions": lambda text: {"prompt": text},
    "embeddings": lambda text: {"input": text},
}


def _payloads(path: Path) -> list[Mapping[str, object]]:
    try:
        document = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list) or not data:
        raise UsageError(f'{path}: expected an object with a list "data" that is not empty')
    found: list[Mapping[str, object]] = []
    for at, entry in enumerate(data):
        payload = entry.get("payload", entry) if isinstance(entry, dict) else entry
        for each in payload if isinstance(payload, list) else [payload]:
            if not isinstance(each, dict):
                raise UsageError(f"{path}: data[{at}]: expected an object, got {type(each).__name__}")
            found.append(each)
    return found


def _shape(text: str, model: ModelFacts) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition(":")
    parts = sizes.split(",")
    if not name or not all(part.isdecimal() for part in parts):
        raise UsageError(
            f"--shape: expected NAME:SIZES such as {model.inputs[0].name if model.inputs else 'X'}:3,224, got {text!r}"
        )
    if name not in {tensor.name for tensor in model.inputs}:
        raise UsageError(f"--shape: {model.name} has no input {name!r}; it has {', '.join(each.name for each in model.inputs)}")
    return name, tuple(int(part) for part in parts)


def _parameter(text: str) -> tuple[str, Parameter]:
    name, _, rest = text.partition(":")
    value, _, kind = rest.rpartition(":")
    try:
        match kind.lower():
            case "int" | "uint":
                return name, int(value)
            case "float" | "double":
                return name, float(value)
            case "bool":
                return name, value.lower() in _TRUE
            case "string" if name:
                return name, value
    except ValueError:
        pass
    raise UsageError(f"--request-parameter: expected NAME:VALUE:TYPE with the type int, float, bool or string, got {text!r}")


def _sequences(options: PerfOptions, *, generated_data: bool) -> SequenceSettings:
    start, _, end = options.sequence_id_range.partition(":")
    if not start.isdecimal() or (end and not end.isdecimal()) or int(start) < 1 or (end and int(end) <= int(start)):
        raise UsageError(
            f"--sequence-id-range: expected START or START:END, the start at least 1, got {options.sequence_id_range!r}"
        )
    length = options.sequence_length or (_SEQUENCE_LENGTH if generated_data else 0)
    return SequenceSettings(
        length=length,
        variation=options.sequence_length_variation,
        first_id=int(start),
        ids_end=int(end) if end else 2**63 - 1,
    )


def members_of(options: PerfOptions, model: ModelFacts) -> Sequence[str]:
    """The models behind this one: the members of an ensemble, and the models named."""
    named = [text.partition(":")[0].strip() for text in options.bls_composing_models.split(",") if text.strip()]
    return tuple(dict.fromkeys((*model.members, *named)))

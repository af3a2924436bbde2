"""Single requests in the form of perf_analyzer's --profile-export-file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from tpy import __version__
from tpy.messages import DataType, Tensor
from tpy_tools.commands.perf.results import Run, level_value
from tpy_tools.load import AnswerPart, BrokenAnswer, Level, read_grpc, read_http
from tpy_tools.load.records import NO_BODY, Body, Record, RecordBatch

_OK = 200


def render_profile(run: Run, inputs: Sequence[Mapping[str, object]]) -> str:
    """The document. `inputs` are the data of each call, in order."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    experiments = []
    for result in run.results:
        requests = [_request(run, batch, record, inputs, offset_ns) for batch in result.records for record in batch.records]
        requests.sort(key=lambda request: int(str(request["timestamp"])))
        experiments.append(
            {
                "experiment": {"mode": _mode(result.level), "value": level_value(result.level)},
                "requests": requests,
                "window_boundaries": [at_ns + offset_ns for at_ns in result.boundaries_ns],
            }
        )
    document = {
        "experiments": experiments,
        "version": f"tpy {__version__}",
        "service_kind": run.service_kind,
        "endpoint": run.endpoint,
    }
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY).decode() + "\n"


def left_out(run: Run) -> int:
    """The number of requests that are not recorded."""
    return sum(batch.left_out for result in run.results for batch in result.records)


def values_of(tensors: Sequence[Tensor]) -> dict[str, object]:
    """Tensors as perf_analyzer writes them: a list of the elements, or the element where there is one."""
    return {tensor.name: _values(tensor) for tensor in tensors}


def _mode(level: Level) -> str:
    if level.concurrency:
        return "concurrency"
    return "custom_intervals" if level.intervals_ns is not None else "request_rate"


def _request(
    run: Run, batch: RecordBatch, record: Record, inputs: Sequence[Mapping[str, object]], offset_ns: int
) -> dict[str, object]:
    found: dict[str, object] = {"timestamp": record.sent_ns + offset_ns}
    if record.sequence:
        found["sequence_id"] = record.sequence
    found["request_inputs"] = inputs[record.call]
    found["response_timestamps"] = [response.at_ns + offset_ns for response in record.responses]
    found["response_outputs"] = [
        {} if response.body == NO_BODY else _outputs(run, batch.bodies[response.body]) for response in record.responses
    ]
    return found


def _outputs(run: Run, body: Body) -> Mapping[str, object]:
    if run.service_kind != "triton":
        return {"response": body.content.decode(errors="replace")}
    try:
        if run.target.protocol.startswith("grpc"):
            return values_of(read_grpc(body.content, streamed=run.target.protocol == "grpc-stream"))
        headers = {} if body.json_bytes < 0 else {"inference-header-content-length": str(body.json_bytes)}
        return values_of(read_http(AnswerPart(_OK, body.content, True, headers)))
    except BrokenAnswer as error:
        return {"error": str(error)}


def _values(tensor: Tensor) -> object:
    flat: np.ndarray[Any, Any] = tensor.array.reshape(-1)
    if tensor.datatype is DataType.BYTES:
        found: list[object] = [bytes(each).decode(errors="replace") for each in flat]
    else:
        found = flat.astype(np.float32).tolist() if flat.dtype.itemsize == 2 and flat.dtype.kind not in "iu" else flat.tolist()
    return found[0] if len(found) == 1 else found

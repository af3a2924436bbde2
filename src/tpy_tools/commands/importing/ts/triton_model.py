"""The model of the Python backend that runs a TorchServe handler.

Inputs are `body`, one request in each row, and `headers`, a JSON object with the headers of each (optional). Outputs are
`response`, `status` and `response_headers`. What goes wrong in a handler is an error of its requests; what it answers itself, by
`set_response_status` or PredictionException, is a response with that status.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import triton_python_backend_utils as pb_utils

from .context import Context, RequestProcessor
from .entry_point import find_entry_point, manifest_model
from .metrics.metrics_store import MetricsStore
from .requests import UnsupportedOutputError, UnusableBodyError, content_of, inputs_of
from .utils.util import PredictionException, get_yaml_config


class _Answer(NamedTuple):
    response: bytes
    status: int
    headers: str


class TritonPythonModel:
    """Runs one handler."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the handler of the archive."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a TorchServe handler needs a separate process: leave out isolation=thread")
        folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "archive")
        logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)  # as TorchServe's workers do
        sys.dont_write_bytecode = True  # what appears in a model repository looks like a change of the model
        sys.path.insert(0, folder)
        os.chdir(folder)  # where TorchServe's workers are
        manifest = _manifest(folder)
        model = manifest_model(manifest)
        config = json.loads(args["model_config"])
        parameters = config.get("parameters", {})
        config_file = model.get("configFile")
        self._context = Context(
            args["model_name"],
            folder,
            manifest,
            int(config.get("max_batch_size", 1)),
            int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else None,
            metrics=MetricsStore(args["model_name"], _new_family),
            model_yaml_config=_config_of(folder, config_file) if config_file else {},
        )
        handler = _parameter(parameters, "TORCHSERVE_HANDLER") or model.get("handler", "")
        self._only_successes = _parameter(parameters, "TORCHSERVE_ANSWERS") == "successes"
        self._handle, initialize = find_entry_point(handler, _parameter(parameters, "TORCHSERVE_ENVELOPE"))
        initialize(self._context)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Handle the rows of all requests as one batch."""
        rows: list[dict[str, Any]] = []
        processors: list[RequestProcessor] = []
        ids: dict[int, str] = {}
        places: list[slice | Exception] = []
        for request in requests:
            begin = len(rows)
            try:
                for inputs, headers in _inputs(request):
                    ids[len(rows)] = request.request_id() or f"{id(request):x}-{len(rows)}"
                    rows.append(inputs)
                    processors.append(RequestProcessor(headers))
                places.append(slice(begin, len(rows)))
            except UnusableBodyError as error:
                del rows[begin:], processors[begin:]
                places.append(error)
        answers = self._answers(rows, processors, ids) if rows else []
        responses = [_response(place, answers) for place in places]
        if self._only_successes and isinstance(answers, list):
            for at, place in enumerate(places):
                if isinstance(place, slice) and (failed := [each for each in answers[place] if each.status >= _ERROR]):
                    responses[at] = pb_utils.InferenceResponse(error=_failure(failed[0].response.decode("utf-8", "replace")))
        return responses

    def _answers(
        self, rows: list[dict[str, Any]], processors: list[RequestProcessor], ids: dict[int, str]
    ) -> list[_Answer] | pb_utils.TritonError:
        """The answers of the handler, one for each row; an error where it fails."""
        context, metrics = self._context, self._context.metrics
        context.request_processor, context.request_ids = processors, ids
        context.stopping_criteria = None
        assert metrics is not None
        metrics.set_request_ids(ids)
        begun = time.perf_counter()
        try:
            outputs = self._handle(rows, context)
        except PredictionException as error:
            self._log_failure("answered with an error")
            if self._only_successes:
                return _failure(error.message)
            text = {"code": error.error_code, "type": "InternalServerException", "message": error.message}
            answer = _Answer(json.dumps(text, indent=2).encode() + b"\n", error.error_code, _JSON_HEADERS)
            return [answer] * len(rows)
        except MemoryError:
            self._log_failure("ran out of memory")
            return _failure("Out of resources")
        except Exception as error:
            self._log_failure("failed")
            return _failure("Out of resources" if "CUDA" in str(error) else "Prediction failed")
        if not isinstance(outputs, list):
            pb_utils.Logger.log_error(f"the handler returned {type(outputs)}, expected a list")
            return _failure("Invalid model predict output")
        if len(outputs) != len(rows):
            pb_utils.Logger.log_error(f"the handler returned {len(outputs)} outputs for {len(rows)} requests")
            return _failure("number of batch response mismatched")
        metrics.add_time("PredictionTime", round((time.perf_counter() - begun) * 1000, 2))
        try:
            return [_answer(*each) for each in zip(outputs, processors)]  # noqa: B905
        except UnsupportedOutputError:
            self._log_failure("returned what cannot be sent")
            return _failure("Unsupported model output data type.")

    def _log_failure(self, what: str) -> None:
        pb_utils.Logger.log_error(f"the handler {what} (model '{self._context.model_name}'):\n{traceback.format_exc()}")


_ERROR = 400
"""The lowest status of an error."""

_JSON_HEADERS = '{"content-type": "application/json"}'


def _manifest(folder: str) -> Any:
    """That of the archive in this folder; an archive of a workflow has its functions."""
    names = (os.path.join(folder, each, "MANIFEST.json") for each in ("MAR-INF", "WAR-INF"))
    return json.loads(_text(next(each for each in names if os.path.exists(each))))


def _config_of(folder: str, file: str) -> Any:
    """The model-config.yaml of the archive in this folder: in JSON beside the folder, if JSON has all its values."""
    try:
        return json.loads(_text(os.path.join(os.path.dirname(folder), "model-config.json")))
    except FileNotFoundError:
        return get_yaml_config(os.path.join(folder, file))


def _new_family(name: str, text: str, kind: int) -> pb_utils.MetricFamily:
    family = pb_utils.MetricFamily  # Triton has it once a model is loaded
    return family(name, text, (family.COUNTER, family.GAUGE, family.HISTOGRAM)[kind])


def _inputs(request: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The inputs and headers of each row. Raises UnusableBodyError."""
    body = pb_utils.get_input_tensor_by_name(request, "body")
    assert body is not None
    bodies = body.as_numpy().ravel()
    tensor = pb_utils.get_input_tensor_by_name(request, "headers")
    texts = [b""] * len(bodies) if tensor is None else tensor.as_numpy().ravel()
    if len(texts) != len(bodies):
        raise UnusableBodyError("'headers' has not as many rows as 'body'")
    return [inputs_of(body, _headers(text)) for body, text in zip(bodies, texts)]  # noqa: B905


def _headers(text: bytes) -> dict[str, str]:
    try:
        headers = json.loads(text) if text else {}
    except ValueError:
        headers = None
    if not isinstance(headers, dict) or not all(isinstance(each, str) for each in headers.values()):
        raise UnusableBodyError("'headers': expected a JSON object of texts")
    return headers


def _answer(output: Any, processor: RequestProcessor) -> _Answer:
    content, kind = content_of(output)
    headers = processor.get_response_headers()
    if kind and "content-type" not in headers:
        headers = {**headers, "content-type": kind}
    text = _JSON_HEADERS if headers == {"content-type": "application/json"} else json.dumps(headers)
    return _Answer(content, processor.get_response_status_code(), text)


def _failure(message: str) -> pb_utils.TritonError:
    return pb_utils.TritonError(message, pb_utils.TritonError.UNAVAILABLE)


def _response(place: slice | Exception, answers: list[_Answer] | pb_utils.TritonError) -> Any:
    if isinstance(place, Exception):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(place), pb_utils.TritonError.INVALID_ARG))
    if not isinstance(answers, list):
        return pb_utils.InferenceResponse(error=answers)
    own = answers[place]
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("response", _column([each.response for each in own])),
            pb_utils.Tensor("status", np.array([[each.status] for each in own], np.int32)),
            pb_utils.Tensor("response_headers", _column([each.headers.encode() for each in own])),
        ]
    )


def _column(values: list[bytes]) -> np.ndarray[Any, Any]:
    array = np.empty((len(values), 1), object)
    array[:, 0] = values
    return array


def _parameter(parameters: Any, name: str) -> str:
    return str(parameters.get(name, {}).get("string_value", ""))


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()

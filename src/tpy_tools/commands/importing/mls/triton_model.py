"""The model of the Python backend that runs a model of MLServer: the folder `folder` beside this package, with its
model-settings.json."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Hashable, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from . import batches, metrics, runtimes
from .errors import MLServerError
from .model import MLModel
from .settings import ModelParameters, ModelSettings
from .tensors import arrays_of, request_of
from .types import InferenceRequest, InferenceResponse
from .utils import generate_uuid

SETTINGS = "model-settings.json"

_RUNTIMES = {
    "mlserver_xgboost.XGBoostModel": runtimes.XGBoostModel,
    "mlserver_lightgbm.LightGBMModel": runtimes.LightGBMModel,
}


class TritonPythonModel:
    """Runs one model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("an MLServer model needs a separate process: leave out isolation=thread")
        folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "folder")
        logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
        sys.dont_write_bytecode = True  # what appears in a model repository looks like a change of the model
        sys.path.insert(0, folder)
        os.chdir(folder)
        config = json.loads(args["model_config"])
        self._datatypes = {each["name"]: each["data_type"].removeprefix("TYPE_") for each in config["input"]}
        self._datatypes = {name: _WORDS.get(word, word) for name, word in self._datatypes.items()}
        self._outputs = frozenset(each["name"] for each in config["output"])
        self._batches = config.get("max_batch_size", 0) > 0
        settings = read_settings(folder, args["model_name"])
        metrics.set_context(settings.name, settings.version or "", _new_histogram)
        # One loop for `load`, `predict` and `unload`: what a model ties to it stays usable.
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._model = find_class(str(settings.implementation), folder)(settings)
        if not self._run(self._model.load()):
            raise RuntimeError(f"load() of {settings.implementation} did not return True: the model is not ready")
        self._model.ready = True

    def _run(self, awaitable: Awaitable[Any]) -> Any:
        return self._loop.run_until_complete(awaitable)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer the requests of a batch, with one call of `predict` for all requests that can be combined."""
        kinds: dict[Hashable, list[int]] = {}
        given = [self._given(request) for request in requests]
        for at, request in enumerate(given):
            kinds.setdefault(batches.kind_of(request) if self._batches else at, []).append(at)
        responses: list[Any] = [None] * len(requests)
        for places in kinds.values():
            for at, response in zip(places, self._answers([given[place] for place in places])):  # noqa: B905
                responses[at] = response
        return responses

    def _given(self, request: Any) -> InferenceRequest:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        wanted = frozenset(request.requested_output_names())
        return request_of(
            inputs,
            self._datatypes,
            request_id=request.request_id() or generate_uuid(),
            parameters=request.parameters(),
            outputs=[] if wanted == self._outputs else sorted(wanted),  # all are those of a request that names none, too
        )

    def _answers(self, requests: list[InferenceRequest]) -> list[Any]:
        """The responses, or the error of all."""
        try:
            if len(requests) == 1:
                return [_sent(self._run(self._model.predict(requests[0])))]
            response = self._run(self._model.predict(batches.merged(requests)))
            return [_sent(part) for part in batches.parts_of(response, requests)]
        except MLServerError as error:
            failure = _error(error, error.status_code)
        except Exception as error:
            pb_utils.Logger.log_error(f"predict failed (model '{self._model.name}'):\n{traceback.format_exc()}")
            failure = _error(error, 500)
        return [pb_utils.InferenceResponse(error=failure) for _ in requests]

    def finalize(self) -> None:
        """Unload the model."""
        self._run(self._model.unload())
        self._loop.close()


_WORDS = {"STRING": "BYTES"}
"""Datatypes that a configuration spells in another way."""

_CODES = {
    400: "INVALID_ARG",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    500: "INTERNAL",
    501: "UNSUPPORTED",
    503: "UNAVAILABLE",
}


def _error(error: Exception, status: int) -> Any:
    """An error of Triton, which has the class for it once a model is loaded."""
    code = _CODES.get(status, _CODES[400 if status in range(400, 500) else 500])
    return pb_utils.TritonError(_text(error), getattr(pb_utils.TritonError, code))


def _text(error: Exception) -> str:
    """The message that a client gets: as from MLServer's workers, with the name of the class."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__name__}: {error}"


def _sent(response: InferenceResponse) -> Any:
    outputs = [pb_utils.Tensor(name, array) for name, array in arrays_of(response).items()]
    said = {} if response.parameters is None else response.parameters.model_dump()
    own = {name: value for name, value in said.items() if isinstance(value, (str, bool, int))}
    # Responses of Triton before 24.11 have no parameters; the signature of its class, which is compiled, is in the docstring.
    signature = pb_utils.InferenceResponse.__init__.__doc__
    if own and (signature is None or "parameters" in signature):
        return pb_utils.InferenceResponse(outputs, parameters=own)
    return pb_utils.InferenceResponse(outputs)


def read_settings(folder: str, name: str) -> ModelSettings:
    """The settings in the folder, with what MLServer adds to them."""
    settings = ModelSettings.parse_file(os.path.join(folder, SETTINGS))
    settings.name = name
    if settings.parameters is None:
        settings.parameters = ModelParameters()
    if not settings.parameters.uri:
        settings.parameters.uri = folder
    return settings


def find_class(implementation: str, folder: str) -> type[MLModel]:
    """The class of a name. Raises ValueError."""
    if implementation in _RUNTIMES:
        return _RUNTIMES[implementation]
    module, _, name = implementation.rpartition(".")
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    if loaded is not None and not str(getattr(loaded, "__file__", "")).startswith(folder):
        del sys.modules[top]  # the worker has a module of this name, too
    found = getattr(importlib.import_module(module), name, None)
    if not isinstance(found, type):
        raise ValueError(f"implementation: module {module} has no class {name}")
    return found


def _new_histogram(name: str, text: str, labels: dict[str, str], buckets: Sequence[float]) -> tuple[Any, Any]:
    """A metric and its family, without which it ends."""
    kind = pb_utils.MetricFamily  # Triton has it once a model is loaded
    family = kind(name, text, kind.HISTOGRAM)
    return family.Metric(labels, list(buckets)), family

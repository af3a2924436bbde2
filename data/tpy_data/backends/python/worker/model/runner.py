"""One instance of a model: initialize, execute, finalize, with every way that model code can go wrong turned into text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ..pb_utils.auto_complete import ModelConfig
from ..pb_utils.failures import ModelFailure, describe
from ..pb_utils.request import Answerable, InferenceRequest, is_rescheduled
from ..pb_utils.response import InferenceResponse
from ..wire.core.batch import Layout, Segment
from .failure_log import InstanceFailureLog
from .loader import ModelSource, load_class
from .messages import Read, answer_of, requests_of

RunCoroutine = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end."""


class InstanceLost(Exception):
    """The instance can run nothing any more; the worker ends with this as the reason."""


RequestT = TypeVar("RequestT", bound=Answerable)
ResponseT = TypeVar("ResponseT")


class Runner(Protocol[RequestT, ResponseT]):
    """Runs what a worker is there for: a model of `model.py` (`ModelRunner`), or another backend's (`hosting`). Used by one
    thread, but for `is_ready` and `report`."""

    phases_ns: tuple[int, int]
    """The times at which the last batch was handed to the model, and came back from it, where the caller does not know best; else
    zeros."""

    @property
    def has_readiness_check(self) -> bool: ...

    @property
    def limits(self) -> tuple[int, int] | None:
        """Of an engine, the sequences and tokens that it has room for."""
        ...

    def is_ready(self, run_coroutine: RunCoroutine) -> bool: ...

    def requests_of(
        self, entries: Sequence[Any], data: memoryview, segment: Segment | None, outputs: frozenset[str], read: Read
    ) -> list[RequestT]: ...

    def answer_of(self, response: ResponseT, wanted: Sequence[str] | None, layout: Layout) -> list[Any]: ...

    def execute(self, requests: list[RequestT]) -> Sequence[ResponseT | None]: ...

    def start(self, requests: list[RequestT]) -> list[int]: ...

    def report(self, error: BaseException, request_ids: Sequence[str]) -> None: ...

    def failed(self, failure: ModelFailure, requests: Sequence[RequestT]) -> str: ...

    def finalize(self) -> None: ...


class ModelRunner:
    """An initialised model (a `Runner`). Used by one thread.

    Raises ModelFailure when the model cannot be imported or initialised.
    """

    requests_of = staticmethod(requests_of)
    answer_of = staticmethod(answer_of)

    def __init__(
        self,
        source: ModelSource,
        name: str,
        arguments: Mapping[str, str],
        run_coroutine: RunCoroutine,
        *,
        iterative: bool,
    ) -> None:
        """`iterative`: the model may give requests back."""
        self.limits = None
        self.phases_ns = 0, 0
        self._name = name
        self._iterative = iterative
        self._path = source.path
        self._run_coroutine = run_coroutine
        self._failures = InstanceFailureLog(arguments.get("model_name", name))
        step = "import of the model"
        try:
            model_class = load_class(source)
            step = "initialize"
            self._model = model_class()
            if hasattr(self._model, "initialize"):
                self._model.initialize(dict(arguments))
        except ModelFailure as failure:
            self._failures.report(step, failure)
            raise
        except BaseException as error:
            self._failures.report(step, error)
            raise ModelFailure(describe(error, sys._getframe())) from error

    @property
    def model(self) -> object:
        """The TritonPythonModel."""
        return self._model

    @property
    def has_readiness_check(self) -> bool:
        """True if the model has an is_ready."""
        return hasattr(self._model, "is_ready")

    def is_ready(self, run_coroutine: RunCoroutine) -> bool:
        """The result of the model's is_ready; in a separate thread, beside `execute`. Raises ModelFailure when it fails."""
        try:
            ready = self._model.is_ready()
            if isinstance(ready, Coroutine):
                ready = run_coroutine(ready)
        except BaseException as error:
            raise ModelFailure(describe(error, sys._getframe())) from error
        if not isinstance(ready, bool):
            raise ModelFailure("is_ready() must return a boolean value")
        return ready

    def execute(self, requests: list[InferenceRequest]) -> Sequence[InferenceResponse | None]:
        """One response per request, in order; None for one that is rescheduled, or answered through its sender. Raises
        ModelFailure when the whole batch failed."""
        try:
            return self._execute(requests)
        except ModelFailure as failure:
            raise ModelFailure(self.failed(failure, requests)) from failure

    def report(self, error: BaseException, request_ids: Sequence[str]) -> None:
        """Log that `execute` failed for these requests."""
        self._failures.report("execute", error, request_ids)

    def failed(self, failure: ModelFailure, requests: Sequence[InferenceRequest]) -> str:
        """The error for a batch's requests. It is logged as well."""
        self.report(failure, [request.request_id() for request in requests])
        return f"Failed to process the request(s) for model '{self._name}', message: {failure}"

    def start(self, requests: list[InferenceRequest]) -> list[int]:
        """Hand requests to a decoupled model, which answers through their senders. Returns which of them it gives back, to be
        executed again. Raises ModelFailure when all have failed."""
        try:
            self._start(requests)
            given_back = [index for index, request in enumerate(requests) if is_rescheduled(request)]
            for index in given_back:
                self._check_release(requests[index])
            return given_back
        except ModelFailure as failure:
            raise ModelFailure(self.failed(failure, requests)) from failure

    def finalize(self) -> None:
        """Finalize the model; errors are logged."""
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except BaseException as error:
            self._failures.report("finalize", error)

    def _check_release(self, request: InferenceRequest) -> None:
        if is_rescheduled(request) and not self._iterative:
            raise ModelFailure(
                "a request was rescheduled, but the model's configuration has no sequence_batching.iterative_sequence"
            )

    def _start(self, requests: list[InferenceRequest]) -> None:
        if not hasattr(self._model, "execute"):
            raise ModelFailure(f"Python model {self._path} does not implement `execute` method.")
        try:
            returned = self._model.execute(requests)
        except ModelFailure:
            raise
        except BaseException as error:
            raise ModelFailure(describe(error, sys._getframe())) from error
        if isinstance(returned, Coroutine):
            self._run_coroutine(returned)
        elif returned is not None:
            raise ModelFailure(
                f"Python model '{self._name}' is using the decoupled mode and the execute function must return None."
            )

    def _execute(self, requests: list[InferenceRequest]) -> Sequence[InferenceResponse | None]:
        if not hasattr(self._model, "execute"):
            raise ModelFailure(f"Python model {self._path} does not implement `execute` method.")
        count = len(requests)
        try:
            responses = self._model.execute(requests)
            if isinstance(responses, Coroutine):
                responses = self._run_coroutine(responses)
        except ModelFailure:
            raise
        except BaseException as error:
            # KeyboardInterrupt and SystemExit too: model code does not get to end the worker by raising.
            raise ModelFailure(describe(error, sys._getframe())) from error
        if responses is None:
            responses = [None] * count
        if not isinstance(responses, list):
            raise ModelFailure(f"Expected a list in the execute return, found type '{type(responses)}'.")
        if len(responses) != count:
            raise ModelFailure(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{count}, and InferenceResponse(s) size is:{len(responses)}\n"
            )
        for request, response in zip(requests, responses, strict=True):
            if response is None:
                self._check_release(request)
                continue
            if is_rescheduled(request):
                raise ModelFailure(
                    "Expected a None object in the execute function return list for reschduled request, found type "
                    f"'{type(response)}'."
                )
            if not isinstance(response, InferenceResponse):
                raise ModelFailure(
                    f"Expected an 'InferenceResponse' object in the execute function return list, found type '{type(response)}'."
                )
        return responses


def auto_complete(source: ModelSource, name: str, config: str) -> dict[str, Any] | None:
    """The configuration (JSON) completed by the model's auto_complete_config; None when it has no such function.

    Raises ModelFailure.
    """
    failures, step = InstanceFailureLog(name), "import of the model"
    try:
        model_class = load_class(source)
        complete = getattr(model_class, "auto_complete_config", None)
        if complete is None:
            return None
        step = "auto_complete_config"
        completed = complete(ModelConfig(config))
    except ModelFailure as failure:
        failures.report(step, failure)
        raise
    except BaseException as error:
        failures.report(step, error)
        raise ModelFailure(describe(error, sys._getframe())) from error
    if not isinstance(completed, ModelConfig):
        raise ModelFailure(f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object.")
    return completed.as_dict()

"""An instance whose model runs in the server's process, in its instance's thread (TPY_PYTHON_ISOLATION "thread").

What this gives up: the model can crash, block (by holding the interpreter lock) or bloat the server; modules that two such models
import by the same name are one; `async def execute` is refused, because the server has another event loop; inputs are read-only
views of the server's memory.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from tpy.backend import AnswerLater, ExecutionBatch, ExecutionRequest, ExecutionResult
from tpy.errors import Internal, Unsupported
from tpy.process_output import LogLine
from tpy_data.backends.python.instance.start import InstanceStart
from tpy_data.backends.python.instance.thread_calls import ThreadCalls, as_models_tensor, as_tensor
from tpy_data.backends.python.protocol import translation
from tpy_data.backends.python.protocol.late_answer import LateAnswer
from tpy_data.backends.python.protocol.metric_table import DirectMetrics, MetricTable
from tpy_data.backends.python.worker.model.runner import ModelRunner
from tpy_data.backends.python.worker.pb_utils import context, tensor
from tpy_data.backends.python.worker.pb_utils.context import FINALIZING, SERVING, MissingInputs
from tpy_data.backends.python.worker.pb_utils.failures import ModelFailure, unsendable
from tpy_data.backends.python.worker.pb_utils.request import (
    NOT_TRACED,
    InferenceRequest,
    InferenceTrace,
    answer_through,
    cancellation_of,
    is_rescheduled,
    received,
    single_answers,
    watch,
)
from tpy_data.backends.python.worker.pb_utils.response import (
    DROPPED,
    InferenceResponse,
    SingleAnswer,
    StreamedAnswer,
    settle,
    settle_failed,
)
from tpy_data.backends.states import ImplicitState

_ASYNC = "async execute needs a separate process; remove parameter TPY_PYTHON_ISOLATION"


class ThreadInstance:
    """One instance in the server's process (a `ModelInstance`)."""

    def __init__(self, start: InstanceStart, log: LogLine, *, state: ImplicitState | None) -> None:
        """Raises Internal with the model's failure, Unsupported for an async execute."""
        self._metrics = MetricTable(start.name, start.metrics)
        self._calls = None if start.server is None else ThreadCalls(start.name, start.server)
        missing = MissingInputs(start.arguments.get("model_config", "{}"), log)
        self._context = context.RunnerContext(start.directory, log, DirectMetrics(self._metrics), self._calls, missing)
        self._package = start.source.package
        self._outputs = frozenset(start.output_names)
        self._log = log
        self._state = state
        self._decoupled = start.decoupled
        self._sinks_opened = False
        self._checking = threading.Lock()
        self._check: Future[bool] | None = None
        context.set_for_thread(self._context)
        context.set_for_package(self._package, self._context)
        try:
            self._runner = ModelRunner(start.source, start.name, start.arguments, _refuse_coroutine, iterative=start.iterative)
            if inspect.iscoroutinefunction(getattr(self._runner.model, "execute", None)):
                raise Unsupported(f"'{start.name}': {_ASYNC}")
        except BaseException as error:
            self._metrics.close()
            if isinstance(error, ModelFailure):
                raise Internal(str(error)) from error
            raise
        finally:
            context.set_for_thread(None)
        if self._calls is not None:
            self._calls.phase = SERVING

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """Run the batch here. Raises Internal, with Triton's text, when the model failed the batch as a whole."""
        state, calls = self._state, self._calls
        seen = batch if state is None else ExecutionBatch(state.requests(batch.requests), batch.times)
        if calls is not None:
            calls.begin_batch(batch.requests)
        try:
            results = self._execute(seen)
        finally:
            if calls is not None:
                calls.end_batch()
        return results if state is None else state.keep(batch.requests, results)

    def _execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        if self._decoupled:
            return self._start(batch)
        context.set_for_thread(self._context)
        requests = [self._request(request) for request in batch.requests]
        batch.times.inputs_ready()
        self._sinks_opened = False
        try:
            responses = self._runner.execute(requests)
            if self._sinks_opened or None in responses:
                return self._settled(batch, requests, responses)
        except ModelFailure as failure:
            if not self._sinks_opened:
                raise _logged(failure) from failure
            responses = settle_failed(single_answers(requests), str(failure))
        finally:
            context.set_for_thread(None)
        batch.times.outputs_begin()
        return [_result_of(response, request) for response, request in zip(responses, batch.requests, strict=True)]  # type: ignore[arg-type]  # no None

    def _settled(
        self, batch: ExecutionBatch, requests: list[InferenceRequest], responses: Sequence[InferenceResponse | None]
    ) -> Sequence[ExecutionResult]:
        """With answers that were sent, come later, or are given back. Raises ModelFailure."""
        sinks = single_answers(requests)
        try:
            settled = settle(responses, sinks)
        except ModelFailure as failure:
            raise ModelFailure(self._runner.failed(failure, requests)) from failure
        results: list[ExecutionResult] = []
        for answer, sink, seen, request in zip(settled, sinks, requests, batch.requests, strict=True):
            if is_rescheduled(seen):
                results.append(ExecutionResult(reschedule=True))
                if sink is not None:
                    sink.close()
            elif isinstance(answer, SingleAnswer):
                results.append(_sent_or_later(answer, request))
            else:
                results.append(_result_of(answer, request))
        return results

    def _open_sink(self, seen: InferenceRequest) -> SingleAnswer:
        self._sinks_opened = True
        return SingleAnswer(cancellation_of(seen))

    def _start(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        context.set_for_thread(self._context)
        sinks = [_streamed_answer(request) for request in batch.requests]
        requests = []
        for request, sink in zip(batch.requests, sinks, strict=True):
            seen = self._request(request)
            answer_through(seen, sink)
            requests.append(seen)
        batch.times.inputs_ready()
        try:
            given_back = self._runner.start(requests)
        except ModelFailure as failure:
            for sink in sinks:
                sink.close()
            raise _logged(failure) from failure
        finally:
            context.set_for_thread(None)
        if not given_back:
            return ()
        for index in given_back:
            sinks[index].close()
        return [ExecutionResult(reschedule=index in given_back) for index in range(len(sinks))]

    @property
    def has_readiness_check(self) -> bool:
        """True if the model has an is_ready."""
        return self._runner.has_readiness_check

    def check_ready(self, timeout_s: float) -> bool:
        """As `tpy.backend.ChecksReadiness`. While an earlier call still runs in the model, waits for what that one says."""
        with self._checking:
            running = self._check
            check = self._check = Future() if running is None else running
        if running is not None:
            try:
                return running.result(timeout_s)
            except TimeoutError:
                return False
        ready = False
        context.set_for_thread(self._context)
        try:
            ready = self._runner.is_ready(_refuse_async_readiness)
        except ModelFailure as failure:
            self._log("warning", f"is_ready: {failure}")
        finally:
            context.set_for_thread(None)
            self._check = None
            check.set_result(ready)
        return ready

    def close(self) -> None:
        """Finalize the model."""
        if self._calls is not None:
            self._calls.phase = FINALIZING
            self._calls.close()
        context.set_for_thread(self._context)
        try:
            self._runner.finalize()
        finally:
            context.set_for_thread(None)
            self._metrics.close()

    def _request(self, request: ExecutionRequest) -> InferenceRequest:
        correlation_id, flags = translation.correlation_and_flags(request.sequence)
        wanted = request.requested_outputs
        seen = received(
            request.id,
            correlation_id,
            flags,
            request.timeout_us,
            translation.parameters_text(request.parameters) or "{}",
            frozenset(wanted) if wanted else self._outputs,
            [as_models_tensor(name, given) for name, given in request.inputs.items()],
            NOT_TRACED if request.record is None else InferenceTrace(request.record.context, request.record.number()),
        )
        watch(seen, request.is_cancelled, self._open_sink)
        return seen


def _logged(failure: ModelFailure) -> Internal:
    """The error of a batch; the runner has logged it."""
    error = Internal(str(failure))
    error.is_logged = True
    return error


def _sent_or_later(sink: SingleAnswer, request: ExecutionRequest) -> ExecutionResult:
    late = LateAnswer()
    sent = sink.go_late(lambda response: late.send(_result_of(response, request)))
    return AnswerLater(begin=late.begin) if sent is None else _result_of(sent, request)


def _streamed_answer(request: ExecutionRequest) -> StreamedAnswer:
    sender = request.sender
    if sender is None:
        raise Internal("a request of a decoupled model has no sender")

    def deliver(response: InferenceResponse | None, final: bool) -> None:
        sender.send(None if response is None else _result_of(response, request), final=final)

    def dropped() -> None:
        with contextlib.suppress(ValueError):
            sender.send(ExecutionResult(error=Internal(DROPPED)), final=True, wait=False)

    return StreamedAnswer(deliver, is_cancelled=request.is_cancelled, dropped=dropped)


def _result_of(response: InferenceResponse, request: ExecutionRequest) -> ExecutionResult:
    error = response.error()
    if error is not None:
        return ExecutionResult(error=translation.error_of(int(error.code()), error.message()))
    wanted = request.requested_outputs
    try:
        outputs = [
            as_tensor(*tensor.storage_of(output)) for output in response.output_tensors() if not wanted or output.name() in wanted
        ]
    except Exception as unsent:
        return ExecutionResult(error=Internal(unsendable(unsent)))
    parameters = response.parameters()
    return translation.result(outputs, {} if parameters == "{}" else translation.parameters_of(parameters))


def _refuse_async_readiness(coroutine: Coroutine[Any, Any, Any]) -> Any:
    coroutine.close()
    raise ModelFailure("an async is_ready needs a separate process; remove parameter TPY_PYTHON_ISOLATION")


def _refuse_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    coroutine.close()
    raise ModelFailure(_ASYNC)

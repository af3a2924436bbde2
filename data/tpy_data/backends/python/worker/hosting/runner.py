"""HostedRunner: an instance of another backend, run by a worker in place of a `model.py`."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tpy.backend import (
    AnswerLater,
    Backend,
    ChecksReadiness,
    ExecutionBatch,
    ExecutionResult,
    InstanceFailure,
    LimitedInstance,
    LoadedModel,
    ModelContext,
    ModelInstance,
    PhaseTimes,
    WatchedInstance,
    flaw_of,
    state_specs,
)
from tpy.backend.instances import HostedSteps, StepHost
from tpy.errors import Internal, TpyError
from tpy.limits import READINESS_CHECK_S_MAX
from tpy_data.backends.creation import create_backend
from tpy_data.exception_text import exception_text

from ..model.failure_log import InstanceFailureLog
from ..model.messages import Read
from ..model.runner import InstanceLost, RunCoroutine
from ..pb_utils import context
from ..pb_utils.failures import ModelFailure
from ..pb_utils.request import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, streamed_answer
from ..pb_utils.response import InferenceResponse
from ..wire.core.batch import Segment
from .calls import HostedCalls
from .metrics import HostedMetrics
from .order import HostedContext, HostingAnswer, HostingOrder, decode_order, pack, unpack
from .requests import HostedRequest, HostedSender, answer_of, code_of, failed, new_states, requests_of

ENDED_BY_INSTANCE = 70
"""The exit status of a worker whose instance has come to its end by itself (EX_SOFTWARE)."""

REPORT_S_MAX = 1.0
"""The seconds for which such a worker tries to tell the server the reason, while another of its threads may be sending."""


def describe(text: str) -> str:
    """The answer to an order without a placement, packed. Raises ModelFailure."""
    order = unpack(text, decode_order)
    try:
        backend = create_backend(order.origin, order.backend_settings())
        try:
            config = None if order.context is None else backend.auto_complete(_model_context(order, order.context))
            return pack(HostingAnswer(capabilities=backend.capabilities, config=config))
        finally:
            backend.close()
    except TpyError as error:
        raise ModelFailure(error.message, code_of(error)) from error
    except BaseException as error:
        InstanceFailureLog(order.backend).report("auto_complete", error)
        raise ModelFailure(exception_text(error)) from error


class HostedRunner:
    """The backend, a loaded model and one instance (a `Runner`)."""

    answer_of = staticmethod(answer_of)

    def __init__(self, text: str, report_failure: Callable[[str], None], host: StepHost) -> None:
        """`report_failure` tells the server why this process ends. Raises ModelFailure with the reason when the instance cannot
        be made."""
        order = unpack(text, decode_order)
        hosted, placement = order.context, order.placement
        if hosted is None or placement is None:
            raise ModelFailure("an order for an instance without a model or a placement")
        self._name = placement.name
        self._failures = InstanceFailureLog(hosted.name)
        self._states = state_specs(hosted.config)
        self._batches = hosted.config.max_batch_size > 0
        self.phases_ns = 0, 0
        self._open = contextlib.ExitStack()
        self._closing = threading.Event()
        try:
            with contextlib.ExitStack() as opened:
                backend: Backend = create_backend(order.origin, order.backend_settings())
                opened.callback(backend.close)
                model: LoadedModel = backend.load(_model_context(order, hosted))
                opened.callback(model.unload)
                self._instance: ModelInstance = model.create_instance(placement)
                opened.callback(self._instance.close)
                self._open = opened.pop_all()
        except TpyError as error:
            raise ModelFailure(error.message, code_of(error)) from error
        except BaseException as error:
            self._failures.report("load", error)
            raise ModelFailure(exception_text(error)) from error
        if isinstance(self._instance, HostedSteps):
            self._instance.step_in(host)
        if isinstance(self._instance, WatchedInstance) and (end := self._instance.end_fileno()) >= 0:
            threading.Thread(target=_end_with, args=(self._instance, end, self._closing, report_failure), daemon=True).start()

    @property
    def limits(self) -> tuple[int, int] | None:
        """As `Runner`."""
        if not isinstance(self._instance, LimitedInstance) or self._instance.engine_limits is None:
            return None
        return self._instance.engine_limits.sequences, self._instance.engine_limits.tokens

    @property
    def has_readiness_check(self) -> bool:
        """As `Runner`."""
        return isinstance(self._instance, ChecksReadiness) and self._instance.has_readiness_check

    def is_ready(self, run_coroutine: RunCoroutine) -> bool:
        """As `Runner`: how long it may take is seen by the server."""
        assert isinstance(self._instance, ChecksReadiness)
        return self._instance.check_ready(READINESS_CHECK_S_MAX)

    def requests_of(
        self, entries: Sequence[Any], data: memoryview, segment: Segment | None, outputs: frozenset[str], read: Read
    ) -> list[HostedRequest]:
        """As `Runner`."""
        return requests_of(entries, data, segment, self._states, read, batches=self._batches)

    def execute(self, requests: list[HostedRequest]) -> Sequence[ExecutionResult | InferenceResponse | None]:
        """As `Runner`. Raises InstanceLost as well."""
        try:
            results = self._execute(requests)
        except TpyError as error:
            raise ModelFailure(error.message, code_of(error)) from None
        return [
            result
            if type(result) is ExecutionResult and request.state is None and not result.reschedule
            else self._response(request, result)
            for request, result in zip(requests, results, strict=True)
        ]

    def start(self, requests: list[HostedRequest]) -> list[int]:
        """As `Runner`. Raises InstanceLost as well."""
        senders = [_sender_of(request) for request in requests]
        for request, sender in zip(requests, senders, strict=True):
            request.sender = sender
        given_back = []
        try:
            for index, result in enumerate(self._execute(requests, may_be_none=True)):
                if result.error is not None:
                    senders[index].fail(result.error)
                elif result.reschedule:
                    given_back.append(index)
        except TpyError as error:
            for sender in senders:
                sender.fail(error)
        return given_back

    def report(self, error: BaseException, request_ids: Sequence[str]) -> None:
        """As `Runner`."""
        self._failures.report("execute", error, request_ids)

    def failed(self, failure: ModelFailure, requests: Sequence[HostedRequest]) -> str:
        """As `Runner`."""
        self.report(failure, [request.id for request in requests])
        return str(failure)

    def finalize(self) -> None:
        """Close the instance, unload the model, close the backend; errors are logged."""
        self._closing.set()
        try:
            self._open.close()
        except BaseException as error:
            self._failures.report("close", error)

    def _execute(self, requests: Sequence[HostedRequest], *, may_be_none: bool = False) -> Sequence[ExecutionResult]:
        """One result for each request, without flaws. Raises TpyError, InstanceLost, or ModelFailure with the text for all
        requests."""
        batch = ExecutionBatch(requests, PhaseTimes())
        times = batch.times
        times.start_ns = time.monotonic_ns()
        try:
            results = self._instance.execute(batch)
            times.end_ns = time.monotonic_ns()
            if may_be_none and not results:
                return ()
            flaw = f"{len(results)} results for {len(requests)} requests" if len(results) != len(requests) else None
            for result in results:
                flaw = flaw or flaw_of(result)
        except InstanceFailure as failure:
            raise InstanceLost(str(failure)) from failure
        except TpyError:
            raise
        except BaseException as error:
            self.report(error, [request.id for request in requests])
            raise ModelFailure(_failed_to_process(self._name, error)) from error
        finally:
            self.phases_ns = times.input_end_ns or times.start_ns, times.output_start_ns or times.end_ns
        if flaw is not None:
            raise Internal(f"instance '{self._name}' gave {flaw}")
        return results

    def _response(self, request: HostedRequest, result: ExecutionResult) -> ExecutionResult | InferenceResponse | None:
        if isinstance(result, AnswerLater):
            sender = HostedSender(request.get_response_sender())
            result.begin(sender)
            return None
        if result.reschedule:
            request.set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        if result.error is not None:
            return result
        try:
            states = new_states(request, self._states, result, batches=self._batches)
        except Internal as error:
            return failed(error)
        return ExecutionResult([*result.outputs, *states], parameters=result.parameters)


def _sender_of(request: HostedRequest) -> HostedSender:
    sink = streamed_answer(request)
    return (
        HostedSender(request.get_response_sender()) if sink is None else HostedSender(request.get_response_sender(), sink.is_full)
    )


def _model_context(order: HostingOrder, hosted: HostedContext) -> ModelContext:
    known = context.current()
    assert known is not None
    assert known.metrics is not None
    return ModelContext(
        name=hosted.name,
        version=hosted.version,
        generation=hosted.generation,
        config=hosted.config,
        model_directory=Path(hosted.model_directory),
        version_directory=Path(hosted.version_directory),
        server_id=hosted.server_id,
        placements=() if order.placement is None else (order.placement,),
        log=known.log,
        metrics=HostedMetrics(known.metrics),
        server=None if known.calls is None else HostedCalls(known.calls),
    )


def _end_with(instance: WatchedInstance, end: int, closing: threading.Event, report_failure: Callable[[str], None]) -> None:
    """End the worker when its instance has ended by itself: the server then makes another one. Requests that the instance has not
    answered get its reason."""
    select.select([end], [], [])
    if not closing.is_set():
        reason = instance.end_reason
        sys.stderr.write(f"{reason}\n")
        sys.stderr.flush()
        report = threading.Thread(target=report_failure, args=(reason,), daemon=True)
        report.start()
        report.join(REPORT_S_MAX)
        os._exit(ENDED_BY_INSTANCE)


def _failed_to_process(instance: str, error: BaseException) -> str:
    return f"Failed to process the request(s) for model '{instance}', message: {exception_text(error)}"

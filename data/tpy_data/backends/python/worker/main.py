"""The worker: loads the model, then executes one batch after the other until the server says to finalize or is gone."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn

from .link.calls import CallClient
from .link.connection import TEXT_BYTES_MAX, ServerConnection, decode, encode
from .link.metrics import MetricClient
from .link.readiness import ReadinessAnswers
from .link.responses import Flow, WorkerResponses
from .model import loader, runner
from .model.coroutines import Coroutines
from .model.messages import RESCHEDULED, answer_of, failed_batch, no_memory, sendable
from .pb_utils import context
from .pb_utils.context import FINALIZING, SERVING, MissingInputs
from .pb_utils.failures import ErrorCode, ModelFailure, TritonModelException
from .pb_utils.request import Answerable, answer_through, cancellation_of, is_rescheduled, single_answers, watch
from .pb_utils.response import SingleAnswer, StreamedAnswer, settle, settle_failed
from .wire.core.batch import Layout, NoMemory, Segment
from .wire.core.frames import FrameKind, ReceivedFrame
from .wire.endpoint import Closed, Endpoint, Foreign

FORKED = (
    "a process that the model had forked came back from the model's code and was ended: it has no part in the server's requests. "
    "End such processes with os._exit().\n"
)

LOG_TEXT_MAX = 64 * 1024
"""Characters of one log message; longer ones are cut."""

_AT_ONCE = int(socket.MSG_DONTWAIT)

_LateAnswer = tuple[int, Any, SingleAnswer]
"""Number, wanted outputs and response sink of a request whose answer comes after its batch."""


class _Order:
    """Batches to execute, as they were received; `number` is that of the first."""

    __slots__ = ("_data", "_segment", "batches", "number")

    def __init__(self, number: int, batches: list[list[Any]], data: memoryview, segment: Segment | None) -> None:
        self.number = number
        self.batches = batches
        self._data: memoryview | None = data
        self._segment = segment

    def take(self, index: int) -> tuple[list[Any], memoryview, Segment | None]:
        """The entries of a batch, and what their tensors are in. After the last, nothing of that is kept here."""
        data, segment = self._data, self._segment
        assert data is not None
        if index == len(self.batches) - 1:
            self._data = self._segment = None
        return self.batches[index], data, segment


class InstanceWorker:
    """One model instance behind a connection. Used by the main thread."""

    def __init__(self, connection: ServerConnection, tokens: socket.socket) -> None:
        self._connection = connection
        self._tokens = tokens
        self._calls = CallClient(connection)
        self._responses = WorkerResponses(connection)
        self._coroutines = Coroutines(decoupled=False)
        self._runner: runner.Runner[Any, Any] | None = None
        self._outputs: frozenset[str] = frozenset()
        self._decoupled = False
        self._inbox: deque[_Order | None] = deque()
        """Batches, and None for the end."""
        self._load_order: ReceivedFrame | None = None
        self._batch = 0
        """The number of the batch that is executed; 0 for none."""
        self._sinks_opened = False
        self._starting: tuple[Sequence[Any], Sequence[StreamedAnswer]] = (), ()
        """The requests that `execute` of a decoupled model is called with, and their response sinks."""
        connection.handlers[FrameKind.LOAD] = self._take_load
        connection.handlers[FrameKind.EXECUTE] = self._take_batches
        connection.handlers[FrameKind.FINALIZE] = self._take_finalize
        connection.on_loss.append(self._wake)

    def run(self) -> None:
        """Serve until FINALIZE. Raises Closed when the server is gone, Foreign in a process that the model has forked."""
        self._connection.wait(lambda: self._load_order is not None)
        assert self._load_order is not None
        self._load(decode(self._load_order.header))
        while (order := self._next_order()) is not None:
            self._execute(order)
        self._finalize()

    def lose_connection(self) -> None:
        """In a process that was forked: it can neither send nor take anything in this one's place, nor keep the server from
        seeing this one's end. The endpoint still knows whose it is."""
        self._connection.close()
        self._tokens.close()

    # In the thread that reads

    def _take_load(self, message: ReceivedFrame) -> None:
        self._load_order = message

    def _take_batches(self, message: ReceivedFrame) -> None:
        batches = decode(message.header)
        if self._decoupled:
            for requests in batches:
                for entry in requests:
                    self._responses.open(entry[7])
        self._inbox.append(_Order(message.stream, batches, message.data, message.segment))
        if self._coroutines.arrived is not None:
            self._coroutines.wake()

    def _take_finalize(self, message: ReceivedFrame) -> None:
        self._inbox.append(None)
        self._wake()

    def _wake(self) -> None:
        self._coroutines.wake()

    # In the main thread

    def _next_order(self) -> _Order | None:
        inbox = self._inbox
        if not inbox:
            if self._coroutines.goes_on:
                self._connection.start_reader()
                self._coroutines.wait(lambda: bool(inbox or self._connection.lost))
            self._connection.wait(inbox.__len__)
        return inbox.popleft()

    def _log(self, level: str, message: str) -> None:
        with contextlib.suppress(TritonModelException):  # the server is gone
            self._connection.notify({"type": "log", "level": level, "message": sendable(message[:LOG_TEXT_MAX])})

    def _load(self, order: dict[str, Any]) -> None:
        source = loader.ModelSource(**order["source"])
        self._connection.devices.load(order["sharing"])
        if order["bin"]:
            os.environ["PATH"] = order["bin"] + os.pathsep + os.environ.get("PATH", os.defpath)
        completes = order["mode"] == "auto_complete"
        metrics = MetricClient(self._connection, order["name"])
        missing = MissingInputs(order["arguments"].get("model_config", "{}"), self._log)
        calls = None if completes else self._calls
        context.set_for_process(context.RunnerContext(order["directory"], self._log, metrics, calls, missing))
        self._outputs = frozenset(order["outputs"])
        self._decoupled = order["decoupled"]
        self._coroutines = Coroutines(decoupled=self._decoupled)
        try:
            if completes:
                said = encode(self._completed(source, order))
            else:
                model = self._runner = self._make_runner(source, order)
                self._calls.phase = SERVING
                if model.has_readiness_check:
                    ReadinessAnswers(self._connection, model, self._coroutines.run_beside)
                said = encode({"is_ready": model.has_readiness_check, "limits": model.limits})
        except ModelFailure as failure:
            self._fail(str(failure), failure.code)
        except (TypeError, ValueError) as error:
            # What auto_complete_config left in the configuration cannot be written as JSON.
            self._fail(f"auto_complete_config made a configuration that is not JSON: {error}")
        self._connection.send(FrameKind.READY, 0, said)

    def _completed(self, source: loader.ModelSource, order: dict[str, Any]) -> Any:
        """The answer to an order to complete a configuration. Raises ModelFailure."""
        if order["hosting"]:
            return _hosting(source).describe(order["hosting"])
        return runner.auto_complete(source, order["name"], order["config"])

    def _make_runner(self, source: loader.ModelSource, order: dict[str, Any]) -> runner.Runner[Any, Any]:
        """Raises ModelFailure."""
        if order["hosting"]:
            hosted: runner.Runner[Any, Any] = _hosting(source).HostedRunner(
                order["hosting"], self._report_failure, self._connection
            )
            return hosted
        run_coroutine = self._start_coroutine if self._decoupled else self._coroutines.run
        return runner.ModelRunner(source, order["name"], order["arguments"], run_coroutine, iterative=order["iterative"])

    def _fail(self, text: str, code: int = ErrorCode.INTERNAL) -> NoReturn:
        self._report_failure(text, code)
        raise SystemExit(0) from None

    def _report_failure(self, text: str, code: int = ErrorCode.INTERNAL) -> None:
        """The reason of this process's end, which the requests get that have no answer. In any thread."""
        self._connection.send(FrameKind.FAILED, 0, encode([int(code), sendable(text[: TEXT_BYTES_MAX // 8])]))

    def _start_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        assert self._runner is not None
        self._coroutines.start(coroutine, *self._starting, self._runner.report)

    def _execute(self, order: _Order) -> None:
        """All batches but the first wait for a token: the server takes tokens back for batches that it no longer wants
        executed."""
        number = order.number
        count = len(order.batches)
        for index, entries in enumerate(order.batches):
            if index and not self._take_token():
                if self._decoupled:
                    self._responses.end([entry[7] for rest in order.batches[index:] for entry in rest])
                self._connection.send(FrameKind.NOT_STARTED, number, encode(count - index))
                return
            self._batch = self._calls.batch = number
            assert self._runner is not None
            try:
                received = [self._runner.requests_of(*order.take(index), self._outputs, self._connection.read)]
            except TritonModelException as error:
                self._refuse(number, entries, sendable(str(error)))
            except NoMemory as error:
                self._refuse(number, entries, no_memory(f"the inputs cannot be taken: {error}"))
            else:
                execute = self._execute_decoupled if self._decoupled else self._execute_batch
                execute(number, entries, received.pop())  # which alone holds them, and lets go before it answers
            number += 1

    def _refuse(self, number: int, entries: list[Any], failure: str | dict[str, Any]) -> None:
        """The tensors of a batch cannot be used here."""
        now_ns = time.monotonic_ns()
        self._responses.end([entry[7] for entry in entries])
        self._send_result(number, failure, Layout(), now_ns, now_ns)

    def _take_token(self) -> bool:
        try:
            return bool(self._tokens.recv(1, _AT_ONCE))
        except BlockingIOError:
            return False

    def _execute_batch(self, number: int, entries: list[Any], requests: list[Answerable]) -> None:
        for index, request in enumerate(requests):
            watch(request, _Cancellation(self, number, index), self._open_sink)
            del request  # its tensors go when the model and the list let go
        wanted = [entry[5] for entry in entries]
        layout = self._connection.layout()
        late: list[_LateAnswer] = []
        infer_ns = time.monotonic_ns()
        self._sinks_opened = False
        model = self._runner
        assert model is not None
        try:
            responses = model.execute(requests)
            infer_ns, output_ns = self._phases(infer_ns)
            if self._sinks_opened or None in responses:
                answers: Any = self._settled(requests, responses, wanted, layout, late)
            else:
                answers = [model.answer_of(response, names, layout) for response, names in zip(responses, wanted, strict=False)]
            responses = ()
        except runner.InstanceLost as lost:
            self._fail(str(lost))
        except ModelFailure as failure:
            output_ns = time.monotonic_ns()
            answers = failed_batch(failure)
            layout.forget()
            layout = self._connection.layout()
            late.clear()
            if self._sinks_opened:
                settled = settle_failed(single_answers(requests), sendable(str(failure)))
                answers = [answer_of(response, names, layout) for response, names in zip(settled, wanted, strict=True)]
                settled.clear()
        del requests
        self._send_result(number, answers, layout, infer_ns, output_ns)
        for late_number, names, sink in late:
            self._responses.go_late(late_number, names, sink)

    def _phases(self, start_ns: int) -> tuple[int, int]:
        """The times at which the model began with the batch that it is through with, and ended."""
        assert self._runner is not None
        infer_ns, output_ns = self._runner.phases_ns
        return infer_ns or start_ns, output_ns or time.monotonic_ns()

    def _open_sink(self, request: Answerable) -> SingleAnswer:
        self._sinks_opened = True
        return SingleAnswer(cancellation_of(request))

    def _settled(
        self,
        requests: list[Answerable],
        responses: Sequence[Any],
        wanted: list[Any],
        layout: Layout,
        late: list[_LateAnswer],
    ) -> list[Any]:
        """As `answer_of`, or what comes later (then it is in `late`, too) or again. Raises ModelFailure."""
        self._connection.require_own()
        model = self._runner
        assert model is not None
        sinks = single_answers(requests)
        rescheduled = [is_rescheduled(request) for request in requests]
        try:
            settled = settle(responses, sinks)
        except ModelFailure as failure:
            raise ModelFailure(model.failed(failure, requests)) from failure
        answers: list[Any] = []
        for answer, names, again in zip(settled, wanted, rescheduled, strict=True):
            if again:
                answers.append(RESCHEDULED)
            elif not isinstance(answer, SingleAnswer):
                answers.append(model.answer_of(answer, names, layout))
            elif (sent := answer.answered()) is not None:
                answers.append(answer_of(sent, names, layout))
            else:
                number, flow = self._responses.open_late()
                cancellation = answer.is_cancelled
                if isinstance(cancellation, _Cancellation):
                    cancellation.flow = flow
                answers.append(number)
                late.append((number, names, answer))
        for sink, again in zip(sinks, rescheduled, strict=True):
            if sink is not None and again:
                sink.close()
        return answers

    def _execute_decoupled(self, number: int, entries: list[Any], requests: list[Answerable]) -> None:
        numbers = [entry[7] for entry in entries]
        sinks = [self._responses.streamed_answer(entry[7], entry[5]) for entry in entries]
        for request, sink in zip(requests, sinks, strict=True):
            answer_through(request, sink)
            del request, sink
        self._starting = requests, sinks
        answers: Any = [None] * len(numbers)
        infer_ns = time.monotonic_ns()
        try:
            assert self._runner is not None
            for index in self._runner.start(requests):
                sinks[index].close()
                if self._responses.rest(numbers[index]):
                    answers[index] = RESCHEDULED
        except runner.InstanceLost as lost:
            self._fail(str(lost))
        except ModelFailure as failure:
            answers = sendable(str(failure))[: TEXT_BYTES_MAX // 8]
            for each in sinks:
                each.close()
            self._responses.end(numbers)
        self._starting = (), ()
        output_ns = time.monotonic_ns()
        sinks.clear()
        del requests  # not cleared: it may be a coroutine's now
        self._send_result(number, answers, Layout(), infer_ns, output_ns)

    def _send_result(self, number: int, answers: Any, layout: Layout, infer_ns: int, output_ns: int) -> None:
        """With the times at which the batch was handed to the model, and came back from it."""
        self._connection.require_own()  # before anything is written into memory that the server sees
        self._batch = self._calls.batch = 0
        text = encode(answers)
        if len(text) > TEXT_BYTES_MAX:
            text = encode(f"answers with {len(text)} bytes of error texts, parameters and names are too long to be sent")
            layout.forget()
            layout = Layout()
        head = f"[[{infer_ns},{output_ns},{time.monotonic_ns()}],"
        try:
            self._connection.send(FrameKind.RESULT, number, f"{head}{text}]", layout)
        except OSError as error:
            layout.forget()
            text = encode(no_memory(f"no shared memory for {layout.segment_bytes} bytes of outputs: {error}"))
            self._connection.send(FrameKind.RESULT, number, f"{head}{text}]")

    def query_cancelled(self, batch: int, index: int) -> bool:
        """Asks the server if request `index` of a batch was cancelled. Any thread; False when the batch is over."""
        self._connection.require_own()
        if batch != self._batch:
            return False  # of an answer that comes later, its flow tells
        return bool(self._connection.ask({"type": "cancelled", "batch": batch, "index": index}))

    def is_ended(self, flow: Flow) -> bool:
        """Returns True when nobody waits for an answer that comes later."""
        return self._responses.is_ended(flow)

    def _finalize(self) -> None:
        self._calls.phase = FINALIZING
        if self._decoupled:
            self._coroutines.close()
        if self._runner is not None:
            self._runner.finalize()
        if not self._decoupled:
            self._coroutines.close()
        self._connection.send(FrameKind.FINALIZED, 0, "{}")


class _Cancellation:
    """`is_cancelled` of a request of a model that answers once. Once true, always true."""

    __slots__ = ("_batch", "_index", "_known", "_worker", "flow")

    def __init__(self, worker: InstanceWorker, batch: int, index: int) -> None:
        self._worker = worker
        self._batch = batch
        self._index = index
        self._known = False
        self.flow: Flow | None = None
        """Of an answer that comes later."""

    def __call__(self) -> bool:
        if not self._known:
            flow = self.flow
            self._known = self._worker.query_cancelled(self._batch, self._index) if flow is None else self._worker.is_ended(flow)
        return self._known


def _hosting(source: loader.ModelSource) -> Any:
    """The module that hosts other backends: with the server's packages, which no other worker needs. Raises ModelFailure in an
    environment where they cannot be imported."""
    sys.path.extend(entry for entry in source.search_path if entry not in sys.path)
    try:
        from .hosting import runner as hosting
    except (ImportError, SyntaxError) as error:
        raise ModelFailure(
            f"{sys.executable} (Python {sys.version.partition(' ')[0]}) cannot run backends of this server: {error}. It needs "
            "Python 3.11 or newer, numpy, msgspec, ml_dtypes and protobuf",
            ErrorCode.UNAVAILABLE,
        ) from error
    return hosting


def serve(server: socket.socket, tokens: socket.socket) -> None:
    """Be a worker until the server says stop or is gone."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper: this is a fresh process
    try:
        worker = InstanceWorker(ServerConnection(Endpoint(server, writable=True, process=os.getpid())), tokens)
        os.register_at_fork(after_in_child=worker.lose_connection)
        worker.run()
    except Foreign:
        sys.stderr.write(FORKED)
        sys.stderr.flush()
        os._exit(1)  # what stands in atexit is the parent's affair
    except Closed:
        sys.exit(1)

"""The worker's loop: load the model, then one batch after the other until the server says to finalize or is gone."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from . import context, loader, runner
from .call_line import CallLine
from .channel import Channel, Closed, Foreign
from .core.batch import Array, Layout
from .core.frames import HEADER_BYTES_MAX, Frame, Kind, ProtocolViolation
from .failures import ModelFailure
from .late_sender import LateSender
from .messages import RESCHEDULED, answer_of, requests_of, speakable
from .metric_line import MetricLine
from .model_calls import FINALIZING, SERVING
from .readiness import ReadinessAnswers
from .request import InferenceRequest, cancellation_of, is_rescheduled, single_answers, watch
from .response import InferenceResponse
from .segments import Borrower, Lender
from .side_line import SideLine
from .single_answer import SingleAnswer, settle, settle_failed
from .streaming import StreamingWorker

FORKED = (
    "a process that the model had forked came back from the model's code and was ended: it has no part in the server's requests. "
    "End such processes with os._exit().\n"
)

LOG_TEXT_MAX = 64 * 1024
"""Characters of one log message; longer ones are cut."""

_AT_ONCE = int(socket.MSG_DONTWAIT)

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decoder = json.JSONDecoder()


def _decode(header: memoryview) -> Any:
    return _decoder.decode(str(header, "utf-8"))


class LogPipe:
    """Logger's lines to the server: one JSON object per line. Any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def log(self, level: str, message: str) -> None:
        """Write one line; lost when the server is gone."""
        line = (_encode({"level": level, "message": speakable(message[:LOG_TEXT_MAX])}) + "\n").encode()
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                pass


class Worker:
    """One model instance behind a channel."""

    def __init__(self, channel: Channel, log: LogPipe, side: SideLine, tokens: socket.socket) -> None:
        self._channel = channel
        self._side = side
        self._calls = CallLine(side)
        self._executed = 0
        self._log = log
        self._lender = Lender()
        self._borrower = Borrower(writable=True)
        self._runner: runner.ModelRunner | None = None
        self._outputs: frozenset[str] = frozenset()
        self._streaming: StreamingWorker | None = None
        self._loop: Any = None
        self._speaking = threading.Lock()
        self._batch = 0
        self._late = LateSender(side)
        self._ways_opened = False
        self._tokens = tokens

    def run(self) -> None:
        """Serve until FINALIZE. Raises Closed when the server is gone, Foreign in a process that the model has forked."""
        self._load(_decode(self._expect(Kind.LOAD).header))
        if self._streaming is not None and self._runner is not None:
            self._streaming.serve(self._runner)
            self._streaming.stop()
            self._finalize()
            return
        while True:
            frame = self._channel.receive() if self._loop is None else self._receive_beside_tasks()
            if frame.kind is Kind.EXECUTE:
                self._execute(frame)
            elif frame.kind is Kind.RUN:
                self._execute_run(frame)
            elif frame.kind is Kind.FINALIZE:
                self._finalize()
                return
            else:
                raise ProtocolViolation(f"unexpected {frame.kind.name}")

    def lose_lines(self) -> None:
        """In a process that was forked: it can neither say nor take anything in this one's place, nor keep the server from seeing
        this one's end. Who asks the channel whose it is, still hears that."""
        self._channel.close()
        self._side.close()
        self._calls.close()
        self._tokens.close()

    def _expect(self, kind: Kind) -> Frame:
        frame = self._channel.receive()
        if frame.kind is not kind:
            raise ProtocolViolation(f"{frame.kind.name} instead of {kind.name}")
        return frame

    def _say(self, kind: Kind, message: object, number: int = 0) -> None:
        self._channel.send(kind, _encode(message).encode(), [], 0, -1, number)

    def _load(self, order: dict[str, Any]) -> None:
        source = loader.ModelSource(**order["source"])
        if order["bin"]:
            os.environ["PATH"] = order["bin"] + os.pathsep + os.environ.get("PATH", os.defpath)
        metrics = MetricLine(self._side, order["name"])
        calls = None if order["mode"] == "auto_complete" else self._calls
        context.set_for_process(context.ModelContext(order["directory"], self._log.log, metrics, calls))
        self._outputs = frozenset(order["outputs"])
        try:
            if order["mode"] == "auto_complete":
                self._say(Kind.READY, runner.auto_complete(source, order["name"], order["config"]))
            else:
                if order["decoupled"]:
                    self._streaming = StreamingWorker(self._channel, self._outputs, self._calls)
                run_coroutine = self._run_coroutine if self._streaming is None else self._streaming.run_coroutine
                self._runner = runner.ModelRunner(
                    source, order["name"], order["arguments"], run_coroutine, iterative=order["iterative"]
                )
                self._calls.phase = SERVING
                if self._runner.has_readiness_check:
                    self._side.listen("is_ready", ReadinessAnswers(self._side, self._runner, self._streaming).handle)
                self._say(Kind.READY, {"is_ready": self._runner.has_readiness_check})
        except ModelFailure as failure:
            self._say(Kind.FAILED, speakable(str(failure)))
            raise SystemExit(0) from None
        except (TypeError, ValueError) as error:
            # What auto_complete_config left in the configuration cannot be written as JSON.
            self._say(Kind.FAILED, f"auto_complete_config made a configuration that is not JSON: {error}")
            raise SystemExit(0) from None

    def _execute(self, frame: Frame) -> None:
        frame.require_number(self._executed + 1)
        order = _decode(frame.header)
        self._execute_batch(order["q"], frame.data, self._segment(order), Kind.RESULT)

    def _execute_run(self, frame: Frame) -> None:
        """Each request is a batch of its own. None but the first is begun without its token: the server takes tokens back for
        those that it does not want to be executed any more."""
        frame.require_number(self._executed + 1)
        order = _decode(frame.header)
        segment, queue = self._segment(order), order["q"]
        last = len(queue) - 1
        for index, entry in enumerate(queue):
            if index and not self._take_token():
                self._say(Kind.NOT_BEGUN, len(queue) - index, self._executed + 1)
                return
            self._execute_batch([entry], frame.data, segment, Kind.RESULT if index == last else Kind.PART)

    def _take_token(self) -> bool:
        try:
            return bool(self._tokens.recv(1, _AT_ONCE))
        except BlockingIOError:
            return False

    def _segment(self, order: dict[str, Any]) -> Array | None:
        if order["d"]:
            self._borrower.drop(order["d"])
        if order["r"]:
            self._lender.take_back(order["r"])
        if order["s"] is None:
            return None
        number, size, is_new = order["s"]
        return self._borrower.borrow(number, size, self._channel.take_file() if is_new else None)

    def _execute_batch(self, queue: list[Any], data: memoryview, segment: Array | None, kind: Kind) -> None:
        requests = self._requests(queue, data, segment)
        del segment
        wanted = [entry[5] for entry in queue]
        layout = Layout()
        infer_ns = time.monotonic_ns()
        self._ways_opened = False
        try:
            assert self._runner is not None
            self._executed += 1
            self._calls.batch = self._executed
            responses = self._runner.execute(requests)
            output_ns = time.monotonic_ns()
            if self._ways_opened or None in responses:
                answers: Any = self._answers(requests, responses, wanted, layout)
            else:
                answers = [answer_of(response, names, layout) for response, names in zip(responses, wanted, strict=False)]  # type: ignore[arg-type]  # no None
            responses = ()
        except ModelFailure as failure:
            output_ns = time.monotonic_ns()
            answers = speakable(str(failure))
            layout = Layout()
            if self._ways_opened:
                settled = settle_failed(single_answers(requests), answers)
                answers = [answer_of(response, names, layout) for response, names in zip(settled, wanted, strict=True)]
                settled.clear()
        self._calls.batch = 0
        del requests
        self._send_result(kind, answers, layout, infer_ns, output_ns)

    def _requests(self, queue: list[Any], data: memoryview, segment: Array | None) -> list[InferenceRequest]:
        self._batch += 1
        requests = requests_of(queue, data, segment, self._outputs)
        for index, request in enumerate(requests):
            watch(request, _Cancellation(self, self._batch, index), self._open_way)
        return requests

    def _open_way(self, request: InferenceRequest) -> SingleAnswer:
        self._ways_opened = True
        return SingleAnswer(cancellation_of(request))

    def _answers(
        self,
        requests: list[InferenceRequest],
        responses: Sequence[InferenceResponse | None],
        wanted: list[Any],
        layout: Layout,
    ) -> list[Any]:
        """As `answer_of`, or what comes later or again. Raises ModelFailure."""
        self._channel.require_own()
        ways = single_answers(requests)
        rescheduled = [is_rescheduled(request) for request in requests]
        try:
            settled = settle(responses, ways)
        except ModelFailure as failure:
            raise ModelFailure("" if self._runner is None else self._runner.failed(failure, requests)) from failure
        answers: list[Any] = []
        for answer, names, again in zip(settled, wanted, rescheduled, strict=True):
            if again:
                answers.append(RESCHEDULED)
            elif isinstance(answer, SingleAnswer):
                answers.append(self._late.answer_or_number(answer, names, layout))
            else:
                answers.append(answer_of(answer, names, layout))
        for way, again in zip(ways, rescheduled, strict=True):
            if way is not None and again:
                way.close()
        return answers

    def _send_result(self, kind: Kind, answers: Any, layout: Layout, infer_ns: int, output_ns: int) -> None:
        """With the times at which the batch was handed to the model, and came back from it."""
        self._channel.require_own()  # before anything is written into memory that the server sees
        text = _encode(answers)
        if len(text) > HEADER_BYTES_MAX // 2:
            text = _encode(f"answers with {len(text)} bytes of error texts, parameters and names are too long to be sent")
            layout = Layout()
        loan = None
        if layout.segment_bytes:
            try:
                loan = self._lender.lend(layout.placed, layout.segment_bytes)
            except OSError as error:
                text = _encode(f"no shared memory for {layout.segment_bytes} bytes of outputs: {error}")
                layout = Layout()
        layout.placed.clear()
        segment = None if loan is None else [loan.number, loan.size, loan.descriptor >= 0]
        released, dropped = self._borrower.take_released(), self._lender.take_dropped()
        when = f'"t":[{infer_ns},{output_ns},{time.monotonic_ns()}]'
        if segment is None and not released and not dropped:
            header = f'{{"s":null,"r":[],"d":[],{when},"a":{text}}}'
        else:
            header = f'{_encode({"s": segment, "r": released, "d": dropped})[:-1]},{when},"a":{text}}}'
        with self._speaking:
            self._batch += 1
            file = -1 if loan is None else loan.descriptor
            self._channel.send(kind, header.encode(), layout.data, layout.data_bytes, file, self._executed)
        if loan is not None:
            loan.sent()

    def ask_cancelled(self, batch: int, index: int) -> bool:
        """Whether request `index` of a batch was cancelled. Any thread; False when the batch is over."""
        self._channel.require_own()
        with self._speaking:
            if batch != self._batch:
                return False  # of an answer that comes later, the side line tells
            self._say(Kind.IS_CANCELLED, index, self._executed)
            frame = self._expect(Kind.CANCELLED)
            frame.require_number(self._executed)
            return bool(_decode(frame.header))

    def _finalize(self) -> None:
        self._calls.phase = FINALIZING
        if self._runner is not None:
            self._runner.finalize()
        if self._loop is not None and not self._loop.is_closed():
            self._end_tasks()
            self._loop.close()
        self._say(Kind.FINALIZED, None)

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        # One loop for the worker's life: what a model ties to its loop (connections, locks) outlives the batch.
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(coroutine)

    def _receive_beside_tasks(self) -> Frame:
        """The next frame. While it is not there, what coroutines of the model have left behind goes on."""
        frame = self._channel.receive_at_once()
        if frame is not None or self._loop.is_closed():
            return frame or self._channel.receive()
        arrival = self._loop.create_task(self._arrival())
        while not arrival.done():
            try:
                self._loop.run_until_complete(arrival)
            except (SystemExit, KeyboardInterrupt, RuntimeError):
                # Model code does not get to end the worker by raising, nor by stopping the loop.
                if self._loop.is_closed():
                    return self._channel.receive()
        arrived: Frame = arrival.result()
        return arrived

    async def _arrival(self) -> Frame:
        loop, descriptor = self._loop, self._channel.fileno()
        while True:
            readable = loop.create_future()
            loop.add_reader(descriptor, _resolve, readable)
            try:
                await readable
            finally:
                loop.remove_reader(descriptor)
            frame = self._channel.receive_at_once()
            if frame is not None:
                return frame

    def _end_tasks(self) -> None:
        """Cancel what is left on the loop, as asyncio.run does."""
        import asyncio

        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())


def _resolve(readable: Any) -> None:
    if not readable.done():
        readable.set_result(None)


class _Cancellation:
    """A request's way to ask whether it was cancelled. Once true, always true: `known`."""

    __slots__ = ("_batch", "_index", "_worker", "known")

    def __init__(self, worker: Worker, batch: int, index: int) -> None:
        self._worker = worker
        self._batch = batch
        self._index = index
        self.known = False

    def __call__(self) -> bool:
        if not self.known:
            self.known = self._worker.ask_cancelled(self._batch, self._index)
        return self.known


def serve(channel: Channel, log_descriptor: int, side: socket.socket, tokens: socket.socket) -> None:
    """Be a worker until the server says stop or is gone."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper: this is a fresh process
    try:
        worker = Worker(channel, LogPipe(log_descriptor), SideLine(side), tokens)
        os.register_at_fork(after_in_child=worker.lose_lines)
        worker.run()
    except Foreign:
        sys.stderr.write(FORKED)
        sys.stderr.flush()
        os._exit(1)  # what stands in atexit is the parent's affair
    except Closed:
        sys.exit(1)

"""Load: threads that ask a running server without pause, over HTTP and gRPC, and check every answer."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import re
import socket
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from tests.e2e.server import ServerProcess
from tpy._proto import message_class

from .ledger import Ledger
from .models import FACTOR

PATIENCE_S = 20.0
"""Longer than any answer may take here: a request that waits as long is lost."""

_PAUSE_S = 0.02
"""Before a connection is opened again that could not be had."""

_SERVICE = "/inference.GRPCInferenceService/"
_TRANSPORT = re.compile(
    r"(?i)socket closed|connection reset|recvmsg|goaway|stream removed|broken pipe|"
    r"transport|endpoint|rst_stream|ping|too_many_pings|http2"
)
_UNCONNECTED = re.compile(r"(?i)failed to connect|connection refused")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, and how its answers are to be judged."""

    model: str
    values: Sequence[float]
    right: Callable[[list[list[float]]], bool]
    parameters: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    last: bool = True
    """True if the next request does not depend on this one."""


Asks = Generator[Ask, bool, None]
"""Requests one after the other; it is told whether the last one was answered."""


def scaled(model: str, thread: int, factors: Callable[[float], bool]) -> Asks:
    """Three numbers that come back multiplied by a factor that is allowed."""
    for number in itertools.count(1):
        values = [float(number % 1000), -thread - 1.0, 0.5]

        def right(answers: list[list[float]], values: list[float] = values) -> bool:
            [answer] = answers
            factor = answer[2] / values[2]
            return factors(factor) and answer == [value * factor for value in values]

        yield Ask(model, values, right)


def copied(model: str, thread: int) -> Asks:
    """Three numbers that come back as they are, with an id that nobody else has."""
    for number in itertools.count(1):
        values = [float(thread), float(number % 1_000_000), 0.25]
        yield Ask(model, values, lambda answers, values=values: answers == [values], id=f"{thread}-{number}")


def counted(thread: int) -> Asks:
    """A number of responses: 0, 1, 2 and so on."""
    chance = random.Random(thread)
    while True:
        count = chance.randrange(8)
        expected = [[float(number)] for number in range(count)]
        yield Ask("count", [float(count)], lambda answers, expected=expected: answers == expected)


def summed(thread: int) -> Asks:
    """Sequences of five requests, each answered with the sum so far. One that was interrupted is left alone."""
    for turn in itertools.count():
        total = 0.0
        for step in range(5):
            value = float(thread + step)
            total += value
            parameters = {"sequence_id": thread * 1_000_000 + turn + 1, "sequence_start": step == 0, "sequence_end": step == 4}
            went_well = yield Ask("sum", [value], lambda answers, total=total: answers == [[total]], parameters, last=step == 4)
            if not went_well:
                break


def usual(thread: int, factors: Callable[[float], bool] = FACTOR.__eq__) -> list[Asks]:
    """One kind of asking for every model that both protocols can ask."""
    return [
        scaled("affine", thread, factors),
        copied("copy", thread + 1),
        scaled("chain", thread + 2, factors),
        summed(thread + 3),
    ]


class HttpAsker:
    """One keep-alive connection after the other."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        self._address = address
        self._ledger = ledger
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, ask: Ask) -> bool | None:
        """Returns True if it was answered; None when there was no connection to send it on."""
        shape = [1, len(ask.values)]
        document = {
            "inputs": [{"name": "INPUT", "shape": shape, "datatype": "FP32", "data": ask.values}],
            "parameters": ask.parameters,
            "id": ask.id,
        }
        try:
            connection = self._connected()
        except OSError:
            return None
        self._ledger.send()
        try:
            connection.request("POST", f"/v2/models/{ask.model}/infer", json.dumps(document).encode())
            response = connection.getresponse()
            body = response.read()
        except TimeoutError:
            self.close()
            self._ledger.give_up(f"HTTP {ask}")
            return False
        except (OSError, http.client.HTTPException):
            self.close()
            self._ledger.end(ask.model)
            return False
        if response.will_close:
            self.close()
        return _judge(self._ledger, ask, response.status, body)

    def close(self) -> None:
        """Leave."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            connection = http.client.HTTPConnection(self._address, timeout=PATIENCE_S)
            connection.connect()
            assert connection.sock is not None
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection = connection
        return self._connection


def _judge(ledger: Ledger, ask: Ask, status: int, body: bytes) -> bool:
    document = json.loads(body)
    if status != 200:
        ledger.refuse(ask.model, document["error"])
        return False
    return _weigh(ledger, ask, [document["outputs"][0]["data"]])


def _weigh(ledger: Ledger, ask: Ask, answers: list[list[float]]) -> bool:
    if not ask.right(answers):
        ledger.mistake(f"{ask}: {answers}")
        return False
    ledger.answer(ask.model)
    return True


class GrpcAsker:
    """One channel: unary calls, and for `count` a stream for each request."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        self._ledger = ledger
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), ("grpc.max_reconnect_backoff_ms", 200)]
        self._channel = grpc.insecure_channel(address, options=options)
        decode = message_class("inference.ModelInferResponse").FromString
        self._unary = self._channel.unary_unary(f"{_SERVICE}ModelInfer", response_deserializer=decode)
        decode_stream = message_class("inference.ModelStreamInferResponse").FromString
        self._stream = self._channel.stream_stream(f"{_SERVICE}ModelStreamInfer", response_deserializer=decode_stream)

    def ask(self, ask: Ask) -> bool | None:
        """Returns True if it was answered."""
        self._ledger.send()
        try:
            if ask.model != "count":
                return _weigh(self._ledger, ask, [_numbers(self._unary(_message(ask), timeout=PATIENCE_S))])
            return self._follow(ask)
        except grpc.RpcError as error:
            return self._note(ask, error)

    def close(self) -> None:
        """Leave."""
        self._channel.close()

    def _follow(self, ask: Ask) -> bool:
        answers = []
        for response in self._stream(iter([_message(ask)]), timeout=PATIENCE_S):
            if response.error_message:
                self._ledger.refuse(ask.model, response.error_message)
                return False
            if response.infer_response.outputs:
                answers.append(_numbers(response.infer_response))
        return _weigh(self._ledger, ask, answers)

    def _note(self, ask: Ask, error: Any) -> bool | None:
        text, code = error.details() or "", error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._ledger.give_up(f"gRPC {ask}")
        elif code is grpc.StatusCode.UNAVAILABLE and _UNCONNECTED.search(text):
            self._ledger.take_back()
            return None
        elif code is grpc.StatusCode.UNAVAILABLE and _TRANSPORT.search(text):
            self._ledger.end(ask.model)
        else:
            self._ledger.refuse(ask.model, text)
        return False


def _message(ask: Ask) -> bytes:
    request = message_class("inference.ModelInferRequest")(model_name=ask.model, id=ask.id)
    shape = [len(ask.values)] if ask.model == "count" else [1, len(ask.values)]
    request.inputs.add(name="INPUT", datatype="FP32", shape=shape)
    request.raw_input_contents.append(np.array(ask.values, np.float32).tobytes())
    for name, value in ask.parameters.items():
        if isinstance(value, bool):
            request.parameters[name].bool_param = value
        else:
            request.parameters[name].int64_param = value
    encoded: bytes = request.SerializeToString()
    return encoded


def _numbers(response: Any) -> list[float]:
    return [float(number) for number in np.frombuffer(response.raw_output_contents[0], np.float32)]


class Load:
    """The threads that ask. Each alternates between the kinds of request that it was given, and waits `pause_s` after each."""

    def __init__(self, server: ServerProcess, ledger: Ledger, pause_s: float = 0.0) -> None:
        self._server = server
        self.ledger = ledger
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def over_http(self, asks: list[Asks]) -> None:
        """One more connection."""
        self._start(HttpAsker(self._server.http, self.ledger), asks)

    def over_grpc(self, asks: list[Asks]) -> None:
        """One more channel."""
        self._start(GrpcAsker(self._server.grpc, self.ledger), asks)

    def stop(self) -> None:
        """Wait until every request that was sent has come to its end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)
            assert not thread.is_alive()

    def _start(self, asker: HttpAsker | GrpcAsker, asks: list[Asks]) -> None:
        thread = threading.Thread(target=self._run, args=(asker, asks), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, asker: HttpAsker | GrpcAsker, asks: list[Asks]) -> None:
        upcoming = [next(kind) for kind in asks]
        begun = [False for _ in asks]
        try:
            while not self._stop.is_set() or any(begun):
                for place, kind in enumerate(asks):
                    if self._stop.is_set() and not begun[place]:
                        continue
                    ask = upcoming[place]
                    answered = asker.ask(ask)
                    begun[place] = bool(answered) and not ask.last
                    if answered is None:
                        self._stop.wait(_PAUSE_S)
                        continue
                    upcoming[place] = kind.send(answered)
                    if self._pause_s:
                        self._stop.wait(self._pause_s)
        except BaseException as error:
            self.ledger.mistake(f"the load itself failed: {error!r}")
            raise
        finally:
            asker.close()


@contextmanager
def loading(server: ServerProcess, factors: Callable[[float], bool] = FACTOR.__eq__, *, pause_s: float = 0.0) -> Iterator[Load]:
    """The usual load on all models: two HTTP connections and two gRPC channels; it has begun to be answered. Leaving it waits for
    the last answers."""
    load = Load(server, Ledger(), pause_s)
    for thread in (100, 200):
        load.over_http(usual(thread, factors))
    for thread in (300, 400):
        load.over_grpc([*usual(thread, factors), counted(thread)])
    try:
        load.ledger.wait_answered(5, "affine", "copy", "chain", "sum", "count")
        yield load
    finally:
        load.stop()

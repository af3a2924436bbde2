"""A worker that lies: messages that no worker sends, on a connection to an instance that has batches, calls and questions
open."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np

from fuzz.chance import Chance
from fuzz.target import Violation
from fuzz.tensors import spoiled
from tpy.backend import ExecutionBatch, InstanceFailure, Outcome, PhaseTimes
from tpy.messages import DataType, Tensor
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.testing.requests import RecordingSender, SampleRequest
from tpy_data.backends.python.environment.interpreters import Interpreter
from tpy_data.backends.python.environment.process import Tokens, WorkerProcess
from tpy_data.backends.python.environment.threads import ReaderThread
from tpy_data.backends.python.instance.loading import StartedWorker
from tpy_data.backends.python.instance.process_instance import ProcessInstance
from tpy_data.backends.python.instance.questions import Questions
from tpy_data.backends.python.instance.start import WorkerStart
from tpy_data.backends.python.protocol.call_server import CallServer
from tpy_data.backends.python.protocol.connection import WorkerConnection
from tpy_data.backends.python.settings import read_settings
from tpy_data.backends.python.worker.model.loader import ModelSource
from tpy_data.backends.python.worker.wire.core.frames import FrameKind, encode

LIES = (
    "whatever a worker sends, each batch that it was given has one outcome or fails with it, each open request of a decoupled"
    " model ends once, and nothing is raised in the thread that reads"
)

_ANSWER = [-1, "", "", [["OUT", 11, [2], 0, 0, 8]]]
_WORDS: tuple[Any, ...] = (None, True, False, -1, 0, 1, 2, 7, 2**40, -(2**70), 0.5, "", "x", [], {}, [[]], _ANSWER, "\ud800")


class _Listener:
    """Keeps what it is told, and which batches have an end."""

    def __init__(self) -> None:
        self.said: list[Outcome | InstanceFailure] = []
        self.ended: list[ExecutionBatch] = []

    def completed(self, batch: ExecutionBatch, outcome: Outcome, following: ExecutionBatch | None) -> None:
        self.said.append(outcome)
        self.ended.append(batch)

    def failed(self, failure: InstanceFailure, held: Sequence[ExecutionBatch]) -> None:
        self.said.append(failure)
        self.ended.extend(held)

    def settled(self) -> None:
        pass


class _Server:
    """Answers no call."""

    def infer(self, request: object, sink: object, *, streams: bool, waiting: object = None) -> Any:
        return SimpleNamespace(cancel=lambda: None, taken=lambda count: None)

    def is_model_ready(self, name: str, version: int | None, answer: Any) -> None:
        answer(True)

    def unload_model(self, name: str, done: Any, *, unload_dependents: bool) -> None:
        done(None)

    def load_model(self, request: object, done: Any) -> None:
        done(None)


def run(chance: Chance) -> int:
    """Some sound messages, then some that are not, in any order."""
    ours, theirs = socket.socketpair()
    tokens, reader = Tokens(), ReaderThread()
    process: Any = SimpleNamespace(
        name="m",
        pid=1,
        socket=ours,
        tokens=tokens,
        spawner=SimpleNamespace(reader=reader),
        wait_exited=lambda _: False,
        seen_end=lambda _: "",
        end=lambda _: "was ended",
        watch=lambda: SimpleNamespace(fileno=lambda: -1, close=lambda: None),
    )
    connection = WorkerConnection(cast(WorkerProcess, process))
    is_decoupled = chance.random() < 0.5
    try:
        instance = _serve(connection, theirs, is_decoupled=is_decoupled)
        reader.discard(connection)  # this thread reads
        return _lie(chance, connection, instance, theirs, is_decoupled=is_decoupled)
    finally:
        connection.give_up()
        reader.close()
        tokens.close()
        theirs.close()


def _serve(connection: WorkerConnection, theirs: socket.socket, *, is_decoupled: bool) -> ProcessInstance:
    log = lambda level, text: None  # noqa: E731  # a LogLine
    server: Any = _Server()
    questions = Questions(connection, CustomMetrics(), log)
    calls = questions.calls = CallServer(connection, server, questions.waiting)
    connection.on_loss.extend((calls.cancel_all, questions.close))
    connection.handlers[FrameKind.HELLO] = connection.handlers[FrameKind.READY] = lambda message, on_loop: True
    connection.send(FrameKind.LOAD, 0, b"{}")
    theirs.sendall(b"".join([*encode(FrameKind.HELLO, 0, b"{}", [], 0), *encode(FrameKind.READY, 0, b"{}", [], 0)]))
    connection.read()
    loaded = msgspec.Raw(b'{"is_ready":true}')
    worker: Any = SimpleNamespace(connection=connection, questions=questions, calls=calls, loaded=loaded)
    start = WorkerStart(
        name="m",
        source=ModelSource("", "", "", ()),
        directory="",
        mode="instance",
        interpreter=Interpreter(executable=""),
        decoupled=is_decoupled,
    )
    return ProcessInstance(cast(StartedWorker, worker), start, read_settings({}), log)


def _lie(
    chance: Chance, connection: WorkerConnection, instance: ProcessInstance, theirs: socket.socket, *, is_decoupled: bool
) -> int:
    theirs.setblocking(False)
    listener = _Listener()
    senders: list[RecordingSender] = []
    begun: list[ExecutionBatch] = []
    revoked: list[ExecutionBatch] = []
    number = steps = unsaid = 0
    for _ in chance.rounds((10, 25)):
        steps += 1
        if not instance.is_busy:
            batches = []
            for _ in range(chance.choice((1, 2, 5))):
                sender = RecordingSender() if is_decoupled else None
                if sender is not None:
                    senders.append(sender)
                array = np.ones(2, np.float32)
                sample = SampleRequest(inputs={"IN": Tensor("IN", DataType.FP32, array)}, sender=sender)
                batches.append(ExecutionBatch([sample], PhaseTimes()))
            begun.extend(batches[: instance.begin(batches, listener)])
        elif chance.random() < 0.1:
            now_revoked = instance.revoke()
            if now_revoked:
                chance.took("revoked")
            revoked.extend(now_revoked)
            unsaid += len(now_revoked)
        message = _message(chance, number + 1, is_decoupled=is_decoupled, unsaid=unsaid)
        if chance.random() < 0.03:
            message = spoiled(chance, message)
            chance.took("garbage")
        try:
            theirs.sendall(message)
        except OSError:
            break
        over = len(listener.said)
        connection.read()
        number += len(listener.said) - over
        if unsaid and not instance.is_busy and not connection.is_lost():
            chance.took("not started")
            number, unsaid = number + unsaid, 0
        if len(listener.said) > over:
            chance.took("outcome")
        if connection.is_lost():
            chance.took("lost")
            break
    connection.lose(OSError("the test is over"))
    failures = [said for said in listener.said if isinstance(said, InstanceFailure)]
    if len(failures) > 1 or listener.ended != [batch for batch in begun if batch not in revoked]:
        raise Violation(f"{len(begun)} batches, {len(revoked)} of them revoked, had these outcomes: {listener.said}")
    if instance.is_busy:
        raise Violation("a batch is held although the worker is lost")
    for sender in senders:
        if sum(final for _, final in sender.sent) > 1:
            raise Violation(f"a request ended more than once: {sender.sent}")
    return steps


def _message(chance: Chance, due: int, *, is_decoupled: bool, unsaid: int) -> bytes:
    """A sound one of any kind that a worker sends while it serves, or one with a word changed."""
    kind, stream, header = chance.choice(_sound(due, is_decoupled=is_decoupled, unsaid=unsaid))
    if chance.random() < 0.2:
        chance.took("lie")
        match chance.randrange(4):
            case 0:
                stream = chance.choice((0, 1, due + 1, 2**63))
            case 1:
                kind = chance.choice(list(FrameKind))
            case _:
                header = _changed(chance, header)
    else:
        chance.took("sound")
    text = json.dumps(header).encode()
    return b"".join(encode(kind, stream, text, [b"\0" * 16], 16))


def _sound(due: int, *, is_decoupled: bool, unsaid: int) -> list[tuple[FrameKind, int, Any]]:
    answers = [None] if is_decoupled else [_ANSWER]
    return [
        *[(FrameKind.NOT_STARTED, due, unsaid)] * (3 if unsaid else 0),
        *[(FrameKind.RESULT, due, [[1, 2, 3], answers])] * 4,
        (FrameKind.RESPONSE, due, [1, True, _ANSWER]),
        (FrameKind.RESPONSE, due, [1, False, _ANSWER]),
        (FrameKind.CALL, due, [0, True, ["m", -1, "", 0, 0, 0, "", [], []]]),
        (FrameKind.CALL_PROGRESS, 0, [[[due, 0]], [due]]),
        (FrameKind.QUERY, 3, {"type": "cancelled", "batch": due, "index": 0}),
        (FrameKind.QUERY, 3, {"type": "family", "name": "f", "description": "", "kind": 0}),
        (FrameKind.QUERY, 3, {"type": "model_ready", "model": "m", "version": None}),
        (FrameKind.NOTIFICATION, 0, {"type": "log", "level": "info", "message": "x"}),
        (FrameKind.NOTIFICATION, 9, {"type": "ready", "ready": True, "error": ""}),
        (FrameKind.NOTIFICATION, 0, {"type": "change", "metric": 4, "operation": "set", "value": 1}),
    ]


def _changed(chance: Chance, header: Any) -> Any:
    if isinstance(header, list) and header and chance.random() < 0.8:
        index = chance.randrange(len(header))
        return [*header[:index], _changed(chance, header[index]), *header[index + 1 :]]
    if isinstance(header, dict) and header and chance.random() < 0.9:
        key = chance.choice(list(header))
        return {**header, key: _changed(chance, header[key])}
    return chance.choice(_WORDS)

"""The legal messages, beside the diagram in the documentation; and the window of a decoupled request, seen by both ends at
once."""

from __future__ import annotations

from collections import deque

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy_data.backends.python.worker.wire.core.frames import FrameKind, ProtocolViolation
from tpy_data.backends.python.worker.wire.core.session import WorkerSession
from tpy_data.backends.python.worker.wire.core.windows import BYTES_MAX, RESPONSES_MAX, Receipts, Window

SESSION = (
    "a session goes from loading over serving to its end as the picture says; whatever else is sent breaks it off for good, and"
    " raises nothing but ProtocolViolation"
)
WINDOW = (
    "both ends know the same of a window but for what is under way: no more is sent than it holds (one response always may be),"
    " what was taken is told in time that a sender that waits goes on, and in the end nothing is left"
)


_BESIDE = {FrameKind.QUERY, FrameKind.REPLY, FrameKind.NOTIFICATION}
_SERVED = _BESIDE | {
    FrameKind.RESPONSE,
    FrameKind.PROGRESS,
    FrameKind.CALL,
    FrameKind.ANSWER,
    FrameKind.CALL_PROGRESS,
    FrameKind.READY_CHECK,
}


class NaiveSession:
    """The picture, step by step."""

    def __init__(self) -> None:
        self.broken = False
        self.said: list[FrameKind] = []

    def allowed(self) -> set[FrameKind]:
        """The messages that may be sent next."""
        if self.broken:
            return set()
        steps = {FrameKind.LOAD, FrameKind.HELLO, FrameKind.READY, FrameKind.FAILED, FrameKind.FINALIZE, FrameKind.FINALIZED}
        match [kind for kind in self.said if kind in steps]:
            case []:
                return {FrameKind.LOAD}
            case [FrameKind.LOAD]:
                return {FrameKind.HELLO}
            case [_, FrameKind.HELLO]:
                return {FrameKind.READY, FrameKind.FAILED} | _BESIDE
            case [_, _, FrameKind.READY]:
                return {
                    FrameKind.EXECUTE,
                    FrameKind.RESULT,
                    FrameKind.NOT_STARTED,
                    FrameKind.FINALIZE,
                    FrameKind.FAILED,
                } | _SERVED
            case [_, _, FrameKind.READY, FrameKind.FINALIZE]:
                return {FrameKind.FINALIZED} | _SERVED
        return set()


_ENDS = frozenset({FrameKind.FINALIZE, FrameKind.FAILED})


def run_session(chance: Chance, session_of: type[WorkerSession] = WorkerSession) -> int:
    """Words that may be sent, mostly."""
    session, naive = session_of(), NaiveSession()
    kinds = list(FrameKind)
    steps = 0
    for _ in chance.rounds((50, 60)):
        steps += 1
        allowed = naive.allowed()
        legal = [kind for kind in kinds if kind in allowed and (kind not in _ENDS or chance.random() < 0.1)]
        kind = chance.choice(legal) if legal and chance.random() < 0.985 else chance.choice(kinds)
        if chance.random() < 0.002:
            session.break_off()
            naive.broken = True
            chance.took("break off")
            continue
        if session.may(kind) is not (kind in allowed):
            raise Violation(f"whether {kind.name} may be sent after {[each.name for each in naive.said]}")
        try:
            session.apply(kind)
        except ProtocolViolation:
            if kind in allowed:
                raise Violation(f"{kind.name} after {[each.name for each in naive.said]} was refused") from None
            naive.broken = True
            chance.took("violation")
            continue
        if kind not in allowed:
            raise Violation(f"{kind.name} after {[each.name for each in naive.said]} was taken")
        naive.said.append(kind)
        chance.took(kind.name)
    return steps


def run_window(chance: Chance, window_of: type[Window] = Window) -> int:
    """A sender, a receiver, and what is under way between them in both directions."""
    sender = window_of()
    receiver = Receipts()
    under_way: deque[int] = deque()
    arrived: deque[int] = deque()
    told: deque[int] = deque()
    outstanding: deque[int] = deque()
    sizes = chance.choice(((0, 10), (BYTES_MAX // 3, 5), (BYTES_MAX * 2, 1), (BYTES_MAX // 2, BYTES_MAX)))
    steps = 0
    for _ in chance.rounds((50, 200)):
        steps += 1
        match chance.choice("ssssrrtth"):
            case "s":
                full = len(outstanding) >= RESPONSES_MAX or (bool(outstanding) and sum(outstanding) >= BYTES_MAX)
                if sender.is_full is not full:
                    raise Violation(f"full: {sender.is_full}, but {len(outstanding)} of {sum(outstanding)} bytes are out")
                size = chance.choice(sizes)
                try:
                    sender.sent(size)
                except ProtocolViolation:
                    if not full:
                        raise Violation("a response within the window was refused") from None
                    chance.took("full")
                    continue
                if full:
                    raise Violation("a response beyond the window was sent")
                outstanding.append(size)
                under_way.append(size)
                chance.took("send")
            case "r" if under_way:
                size = under_way.popleft()
                receiver.window.sent(size)
                arrived.append(size)
                chance.took("arrive")
            case "t" if arrived:
                _take(chance, receiver, arrived, told)
            case "h" if told:
                _hear(chance, sender, outstanding, told)
            case "h":
                _lie(chance, sender, len(outstanding))
    while under_way:
        receiver.window.sent(under_way[0])
        arrived.append(under_way.popleft())
    while arrived:
        _take(chance, receiver, arrived, told)
    while told:
        _hear(chance, sender, outstanding, told)
    if sender.is_full or len(receiver.window):
        raise Violation(f"all were taken, but the sender waits with {len(outstanding)} out, {len(receiver.window)} are held")
    return steps


def _take(chance: Chance, receiver: Receipts, arrived: deque[int], told: deque[int]) -> None:
    count = chance.randint(1, len(arrived))
    for _ in range(count):
        arrived.popleft()
    if number := receiver.taken(count):
        told.append(number)
        chance.took("tell")
    chance.took("take")


def _hear(chance: Chance, sender: Window, outstanding: deque[int], told: deque[int]) -> None:
    count = told.popleft()
    size = sum(outstanding.popleft() for _ in range(count))
    if sender.taken(count) != size or len(sender) != len(outstanding):
        raise Violation(f"{count} were taken, of {size} bytes; {len(sender)} are out, expected {len(outstanding)}")
    chance.took("hear")


def _lie(chance: Chance, sender: Window, outstanding: int) -> None:
    for count in (-1, outstanding + 1):
        try:
            sender.taken(count)
        except ProtocolViolation:
            continue
        raise Violation(f"{count} of {outstanding} were believed to be taken")
    chance.took("lie")

"""The server's end of the talk with one worker: messages that the session allows, with deadlines, and the reason when it ends."""

from __future__ import annotations

import time

import msgspec

from tpy.errors import Internal
from tpy.units import NS_PER_S
from tpy_data.backends.python.process import LIVENESS_CHECK_S, EndWatch, WorkerProcess
from tpy_data.backends.python.side_line import SideLine
from tpy_data.backends.python.worker.channel import Channel, Closed, Stalled, Unread, wait_readable
from tpy_data.backends.python.worker.core.batch import Layout
from tpy_data.backends.python.worker.core.frames import Frame, Kind, ProtocolViolation
from tpy_data.backends.python.worker.core.session import Session, State
from tpy_data.backends.python.worker.segments import Loan

LOST = (Closed, ProtocolViolation, msgspec.DecodeError)
"""What says that the worker is dead or not to be trusted."""


EXIT_GRACE_S = 5
"""Between the end of finalize and of the process: interpreters run exit handlers and wait for threads of the model."""


def unhealthy(name: str) -> str:
    """What clients read when a worker died."""
    return f"Stub process '{name}' is not healthy."


def overdue(name: str, limit_s: float | None) -> str:
    """What clients read when a worker was ended because of its model's `execute`."""
    return f"{unhealthy(name)} It was ended: execute did not return within {limit_s or 0:g} s"


class Conversation:
    """Owns a worker process, its channel and its side line. Used by one thread; ends with exactly one of `stop` and `give_up`."""

    def __init__(self, name: str, process: WorkerProcess, side: SideLine, *, streaming: bool = False) -> None:
        self.name = name
        self.side = side
        self._process = process
        self._channel = Channel(process.socket)
        self._session = Session(streaming=streaming)
        self._said = Kind.LOAD
        """Last."""
        self.tokens = process.tokens

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def state(self) -> State:
        """Where the talk is."""
        return self._session.state

    def say(self, kind: Kind, header: bytes, layout: Layout | None = None, loan: Loan | None = None, *, number: int = 0) -> None:
        """Send. Raises Closed."""
        self._session.apply(kind)
        self._said = kind
        try:
            if layout is None:
                self._channel.send(kind, header, [], 0, -1, number)
            else:
                file = -1 if loan is None else loan.descriptor
                self._channel.send(kind, header, layout.data, layout.data_bytes, file, number)
        finally:
            if loan is not None:
                loan.sent()

    def hear(self) -> Frame:
        """The next message, however long it takes. Raises Closed or ProtocolViolation."""
        while True:
            try:
                frame = self._channel.receive()
            except Stalled:
                if self._process.wait_exited(0):
                    raise Closed("the process is gone") from None
                continue
            self._session.apply(frame.kind)
            return frame

    def say_at_once(self, kind: Kind, header: bytes, layout: Layout, number: int) -> memoryview:
        """Send what can be sent without waiting; what is left, for `say_rest`. Raises Closed."""
        self._session.apply(kind)
        self._said = kind
        return self._channel.send_at_once(kind, header, layout.data, layout.data_bytes, number)

    def say_rest(self, rest: memoryview) -> None:
        """Send what is left of a message. Raises Closed."""
        self._channel.send_rest(rest)

    def hear_at_once(self) -> Frame | None:
        """The next message if it has arrived, and one read brings all of it that is missing. Raises Closed or
        ProtocolViolation."""
        frame = self._channel.receive_at_once()
        if frame is not None:
            self._session.apply(frame.kind)
        return frame

    def hear_within(self, timeout_s: float) -> Frame:
        """The next message. Raises TimeoutError as well."""
        frame = self.hear_buffered()  # came together with the one before: the socket will not say that it is there
        if frame is not None:
            return frame
        deadline_ns = time.monotonic_ns() + round(timeout_s * NS_PER_S)
        while True:
            left_s = (deadline_ns - time.monotonic_ns()) / NS_PER_S
            if wait_readable(self._channel, min(LIVENESS_CHECK_S, max(left_s, 0))):
                return self.hear()
            if left_s <= 0:
                raise TimeoutError
            if self._process.wait_exited(0):
                raise Closed("the process is gone")

    def hear_buffered(self) -> Frame | None:
        """The next message if it has arrived together with the one before. Raises ProtocolViolation."""
        frame = self._channel.buffered()
        if frame is not None:
            self._session.apply(frame.kind)
        return frame

    def fileno(self) -> int:
        """For polling."""
        return self._channel.fileno()

    def require_alive(self) -> None:
        """Raises Closed when the process is gone."""
        if self._process.wait_exited(0):
            raise Closed("the process is gone")

    def is_unread_order(self, lost: BaseException) -> bool:
        """Whether the worker, which was lost by this error, never had the whole of the batch or run that it was given last: then
        nothing of that was executed."""
        return isinstance(lost, Unread) and self._said in (Kind.EXECUTE, Kind.RUN)

    def watch(self) -> EndWatch:
        """A new watch for the end of the worker."""
        return self._process.watch()

    def cut(self) -> None:
        """Have every other thread that says or hears something get Closed."""
        self._channel.shut_down()

    def take_file(self) -> int:
        """The file that came with the message just heard. Raises ProtocolViolation when none did."""
        return self._channel.take_file()

    def stop(self, finalize_timeout_s: float) -> str:
        """Have an idle worker finalize, within `finalize_timeout_s`, and end it. Returns how it ended, in words."""
        try:
            self.say(Kind.FINALIZE, b"{}")
            self.hear_within(finalize_timeout_s)
        except TimeoutError:
            return f"did not finalize within {finalize_timeout_s:g} s and {self.give_up()}"
        except LOST:
            return self.give_up()
        return self.finish()

    def finish(self) -> str:
        """End a worker that has finalized. Returns how it ended, in words."""
        self._channel.close()
        self.side.close()
        return self._process.end(EXIT_GRACE_S)

    def give_up(self) -> str:
        """End the worker at once. Returns how it ended, in words."""
        self._session.break_off()
        self._channel.close()
        self.side.close()
        return self._process.end(0)

    def give_up_starting(self) -> Internal:
        """End a worker that did not come up; the error to raise."""
        was_up = self.state is not State.STARTING
        how = self.give_up()
        what = f"It {how} while loading the model" if was_up else f"Its interpreter {how} before it was up"
        last = self._process.last_error_line
        return Internal(f"{unhealthy(self.name)} {what}{': ' + last if last else ''}")

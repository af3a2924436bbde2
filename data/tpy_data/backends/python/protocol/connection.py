"""Connection: the server's end of the one connection to a worker.

Who reads: the Trio thread, which watches the socket and hands each message to its handler; before the model is loaded and from
its finalization on, the thread that does this (`drive`); where there is no loop, a thread of the backend (`ReaderThread`). What
would hold up the loop is left to a thread of the connection's own (`later`), and nothing more is read until that is done.

Who writes: any thread, and none waits. What a worker does not take at once is written by another thread as soon as it does.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from tpy.backend import Demand, LoopCalls
from tpy.devices import NO_DEVICES, Devices
from tpy.errors import Internal
from tpy.limits import WORKER_MESSAGES_AT_ONCE_MAX, WORKER_MESSAGES_UNREAD_MAX, WORKER_SEEN_END_S
from tpy.units import NS_PER_S
from tpy_data.backends.python.environment.process import LIVENESS_CHECK_S, EndWatch, WorkerProcess
from tpy_data.backends.python.environment.threads import JobThread
from tpy_data.backends.python.protocol.device_tensors import DeviceTensors
from tpy_data.backends.python.protocol.small import HEADER_BYTES_MAX
from tpy_data.backends.python.worker.wire.core.batch import Layout
from tpy_data.backends.python.worker.wire.core.frames import FrameKind, ProtocolViolation, ReceivedFrame
from tpy_data.backends.python.worker.wire.core.session import WHILE_SERVING, SessionState, WorkerSession
from tpy_data.backends.python.worker.wire.endpoint import NO_TENSORS, Closed, Endpoint, Unread
from tpy_data.backends.python.worker.wire.segments import Loan

EXIT_GRACE_S = 5
"""Between the end of finalize and of the process: interpreters run exit handlers and wait for threads of the model."""

READS_MAX = 128
"""Of `WORKER_MESSAGES_AT_ONCE_MAX` messages each, by a thread that takes what has come: more than a socket's buffer holds."""

Handler = Callable[[ReceivedFrame, bool], bool]
"""Takes a message. With True, on the Trio thread: then False says that it takes longer, and that nothing was done."""

_Unsent = tuple[FrameKind, int, bytes, Layout, Loan | None]


def _nothing() -> None:
    pass


def unhealthy(name: str) -> str:
    """The text that clients read when a worker died."""
    return f"Stub process '{name}' is not healthy."


class WorkerConnection:
    """Owns a worker process and the connection to it. Ends with `finish` or `give_up`."""

    def __init__(self, process: WorkerProcess, devices: Devices = NO_DEVICES) -> None:
        self.name = process.name
        self.pid = process.pid
        self.tokens = process.tokens
        self.handlers: dict[FrameKind, Handler] = {}
        self.on_loss: list[Callable[[], None]] = []
        """Called once, in the thread that reads, when nothing can be sent or received any more."""
        self.after_read: Callable[[], None] = _nothing
        """Called when what one read brought was handled, or the worker was lost, in the thread that did."""
        self.lost: Exception | None = None
        """The reason for that; None as long as all is well."""
        self.is_unread = False
        """True when the worker, which is lost, never had the whole of the batches that it was sent last."""
        self._process = process
        self._endpoint = Endpoint(process.socket, writable=False, on_loop=True)
        self.devices = DeviceTensors(self._endpoint, devices)
        self._session = WorkerSession()
        self._loop: LoopCalls | None = None
        self._reading = threading.Lock()
        self._is_paused = False
        """Nothing is read: the helper is at work on a message."""
        self._writing = threading.Lock()
        self._no_thread: Exception | None = None
        """The error of a thread that was needed and could not be started."""
        self._rest: memoryview | None = None
        """Of a message that the worker has not taken in one piece."""
        self._unsent: deque[_Unsent] = deque()
        self._last = FrameKind.LOAD
        """Sent last."""
        self.helper = JobThread(f"{self.name} helper")
        """Does what would hold up the loop (`later`)."""
        self._writer = JobThread(f"{self.name} writer")

    def is_lost(self) -> bool:
        """Returns True when nothing can be sent or received any more."""
        return self.lost is not None

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        return self._session.state

    def fileno(self) -> int:
        """-1 when it is closed."""
        return self._endpoint.fileno()

    def end_watch(self) -> EndWatch:
        """A new watch for the end of the worker."""
        return self._process.watch()

    # Sending

    def lend(self, layout: Layout) -> Loan | None:
        """The shared memory of a message, written. Raises OSError when memory runs out, TpyError when a tensor of a client's
        region cannot be read."""
        return self._endpoint.lend(layout)

    def give_memory_back(self) -> None:
        """Give the system the shared memory that is kept for later messages, and tell the worker what it may give. Any thread."""
        self._endpoint.give_memory_back()
        if self._endpoint.has_note:
            self.send(FrameKind.PROGRESS, 0, b"[[],[]]")  # of no request: it carries the note

    def send(self, kind: FrameKind, stream: int, header: bytes, layout: Layout = NO_TENSORS, loan: Loan | None = None) -> None:
        """Send a message; never waits. Nothing happens when the worker is lost or has finalized."""
        with self._writing:
            if self.is_lost() or not self._session.may(kind):
                if loan is not None:
                    loan.sent()
                return
            self._session.apply(kind)
            self._last = kind
            if self._rest is not None:
                self._unsent.append((kind, stream, header, layout, loan))
                return
            try:
                self._rest = self._endpoint.write(kind, stream, header, layout, loan, wait=False)
            except Closed:
                self.is_unread = kind is FrameKind.EXECUTE  # the reader sees the end, after what came before
                return
            if self._rest is not None:
                self._start_writer()

    def send_frame(self, frame: bytes) -> bool:
        """Send a whole frame of kind EXECUTE; never waits. False, and nothing is done, when something else has to go first, or
        with it: then `send` is to be used."""
        with self._writing:
            # EXECUTE may be sent while the model serves only, and then changes no state.
            if self._session.state is not SessionState.SERVING or self._rest is not None or self._endpoint.has_note:
                return False
            self._last = FrameKind.EXECUTE
            try:
                self._rest = self._endpoint.send_frame(frame)
            except Closed:
                self.is_unread = True
                return True
            if self._rest is not None:
                self._start_writer()
            return True

    def _start_writer(self) -> None:
        """Have another thread write what the worker has not taken."""
        self._run(self._writer, self._write_rest)

    def later(self, job: Callable[[], None]) -> None:
        """Do this in a thread, after what was left to it before. When none can be started, the worker is lost: whoever reads sees
        its end."""
        self._run(self.helper, partial(self._guard, job))

    def _run(self, thread: JobThread, job: Callable[[], None]) -> None:
        try:
            thread.run(job)
        except (RuntimeError, MemoryError) as error:  # what Python raises without memory for a stack
            self._no_thread = error
            self._endpoint.shut_down()

    def _guard(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self.lose(error)

    def _write_rest(self) -> None:
        poller = select.poll()
        poller.register(self.fileno(), select.POLLOUT)
        while True:
            poller.poll(LIVENESS_CHECK_S * 1000)
            with self._writing:
                if self._rest is None or self.is_lost():
                    return
                try:
                    self._rest = self._endpoint.send_rest(self._rest) or None
                    while self._rest is None and self._unsent:
                        self._rest = self._endpoint.write(*self._unsent.popleft(), wait=False)
                except Closed:
                    self.is_unread = self._last is FrameKind.EXECUTE
                    self._rest = None
                if self._rest is None:
                    return

    # Reading

    def watch(self, server: object) -> None:
        """Have the loop of `server` read from now on; a thread, if `server` has no loop."""
        if isinstance(server, LoopCalls):
            self._loop = server
        self._watch()

    def _watch(self) -> None:
        if self.is_lost():
            return
        if self._loop is not None:
            try:
                descriptor = os.dup(self.fileno())
            except OSError:
                descriptor = -1  # too many are open, or it is closed
            if descriptor >= 0:
                if self._loop.watch(descriptor, self):
                    return
                os.close(descriptor)
            self._loop = None
        self._process.spawner.reader.add(self)

    def ready(self) -> Demand:
        """As `DescriptorReader`, on the Trio thread; or in the backend's."""
        if not self._reading.acquire(blocking=False):
            return Demand.CONTINUE
        try:
            again = not self._is_over() and self._read(on_loop=self._loop is not None)
            stop = not again and self._is_over()
        finally:
            self._reading.release()
        self.after_read()
        if stop:
            return Demand.PAUSE
        return Demand.CONTINUE if again else Demand.READ

    def unwatched(self) -> None:
        """As `DescriptorReader`: the loop reads no longer."""
        with self._reading:
            if not self._is_over():
                self._loop = None
                self._process.spawner.reader.add(self)
        self.later(self.read)  # what was received already, which the socket does not show

    def read(self) -> None:
        """Take what has come, in the calling thread."""
        self._take_arrived()

    def _take_arrived(self) -> bool:
        """As `read`; True if there may be more, of a worker that sends faster than it is read."""
        more = True
        for _ in range(READS_MAX):
            with self._reading:
                more = not self._is_over() and self._read(on_loop=False)
            if not more:
                break
        self.after_read()
        return more

    def _is_over(self) -> bool:
        """Returns True when nothing is to be read, for now or for good."""
        return self._is_paused or self.lost is not None or self._session.state is SessionState.ENDED

    def drive(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Read in the calling thread until `done()` is true, or the worker is lost. False when it takes longer."""
        deadline_ns = time.monotonic_ns() + round(timeout_s * NS_PER_S)
        while True:
            if self._is_paused:
                self.helper.wait_idle()
            more = self._take_arrived()
            if done() or self.is_lost():
                return True
            left_s = (deadline_ns - time.monotonic_ns()) / NS_PER_S
            if left_s <= 0:
                return False
            if more:
                continue
            poller = select.poll()
            poller.register(self.fileno(), select.POLLIN)
            if not poller.poll(min(LIVENESS_CHECK_S, left_s) * 1000):
                self.require_alive()

    def require_alive(self) -> None:
        """Look whether the process is gone, which the socket does not show while a process that the model forked has it too."""
        if not self.is_lost() and self._process.wait_exited(0):
            self.read()
            self.lose(Closed("the process is gone"))

    def _read(self, *, on_loop: bool, was_received: bool = False) -> bool:
        """Take what one read brings, or only what `was_received` already, up to a number of messages. Whether there may be more
        of it."""
        endpoint, handlers, session = self._endpoint, self.handlers, self._session
        try:
            if len(self._unsent) > WORKER_MESSAGES_UNREAD_MAX:  # one that asks, and reads no replies
                raise ProtocolViolation(f"{len(self._unsent)} messages wait for it to read them, and it goes on sending")
            for count in range(WORKER_MESSAGES_AT_ONCE_MAX):
                if count and not endpoint.decoder.pending:
                    return False
                message = endpoint.receive_at_once(only_buffered=count > 0 or was_received)
                if message is None:
                    return False
                kind = message.kind
                if session.state is not SessionState.SERVING or kind not in WHILE_SERVING:  # else it changes nothing
                    session.apply(kind)
                handler = handlers.get(kind)
                if handler is None:
                    raise ProtocolViolation(f"unexpected {kind.name}")
                is_small = not on_loop or len(message.header) <= HEADER_BYTES_MAX
                if not is_small or not handler(message, on_loop):
                    self.helper.run(partial(self._guard, partial(self._take_later, handler, message)))
                    self._is_paused = True
                    return False
                if session.state is SessionState.ENDED:  # what comes behind that is nobody's
                    return False
        except Exception as error:  # whatever it is, it is the worker's end, not the loop's
            self._lose(error)
            return False
        return True

    def _take_later(self, handler: Handler, message: ReceivedFrame) -> None:
        """In the helper's thread: take what would hold up the loop, and what was received with it, which the socket does not
        show; then have the loop read again."""
        handler(message, False)
        with self._reading:
            self._is_paused = False
            while not self._is_over() and self._read(on_loop=False, was_received=True):
                pass
        self.after_read()
        self._watch()

    # The end

    def lose(self, error: Exception) -> None:
        """The worker is dead, or not to be trusted, or hangs: nothing is sent or received any more."""
        with self._reading:
            self._lose(error)
        self.after_read()

    def _lose(self, error: Exception) -> None:
        with self._writing:
            if self.is_lost():
                return
            self.is_unread = self.is_unread or (isinstance(error, Unread) and self._last is FrameKind.EXECUTE)
            error.__traceback__ = error.__context__ = None  # their frames hold what is shared with the worker
            self.lost = error if self._no_thread is None else self._no_thread
            self._session.break_off()
            self._rest = None
            for unsent in self._unsent:
                if unsent[4] is not None:
                    unsent[4].sent()
            self._unsent.clear()
        self._endpoint.shut_down()  # watchers and writers see it
        for lose in self.on_loss:
            lose()

    def how_lost(self) -> str:
        """A sentence for clients about why the worker was lost, with a blank before it; "" while it is not known."""
        if isinstance(self.lost, ProtocolViolation):
            return " It sent what no worker sends, and was ended"
        how = self._process.seen_end(WORKER_SEEN_END_S)
        return f" It {how}" if how else ""

    def finish(self) -> str:
        """End a worker that has finalized. Returns how it ended, in words."""
        return self._end(EXIT_GRACE_S)

    def give_up(self) -> str:
        """End the worker at once. Returns how it ended, in words."""
        return self._end(0)

    def _end(self, grace_s: float) -> str:
        self.lose(Closed("it was closed"))
        self.helper.close()
        self._writer.close()
        self._process.spawner.reader.discard(self)
        self._endpoint.close()
        self._endpoint.let_go()
        return self._process.end(grace_s)

    def give_up_starting(self, *, was_up: bool) -> Internal:
        """End a worker that did not load its model; the error to raise."""
        how = self.give_up()
        what = f"It {how} while loading the model" if was_up else f"Its interpreter {how} before it was up"
        last = self._process.last_error_line
        return Internal(f"{unhealthy(self.name)} {what}{': ' + last if last else ''}")

"""The log's line for each request, with --log-verbose=1: model, version, id, status and times."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tpy.clock import Clock
from tpy.echo import echo, request_prefix
from tpy.errors import TpyError
from tpy.messages import InferenceRequest, InferenceResponse
from tpy.services import ResponseSink
from tpy.units import NS_PER_US
from tpy_data.engine.requests.handle import EngineHandle, Execution, WaitingRequest

log = logging.getLogger(__name__)

_TEXT = "%(prefix)smodel: %(model)s, version: %(version)s, responses: %(responses)s, total: %(total_us)s us"


Submit = Callable[[InferenceRequest, ResponseSink], EngineHandle]


class LoggedRequest:
    """Stands between a request and its sink, and between the caller and the request's handle, to log how the request ended."""

    def __init__(self, request: InferenceRequest, sink: ResponseSink, clock: Clock) -> None:
        self._request = request
        self._sink = sink
        self._clock = clock
        self._begun_ns = clock.now_ns()
        self._version = request.model_version
        self._responses = 0
        self.handle: EngineHandle | None = None
        self._over = False

    def submit(self, submit: Submit) -> EngineHandle:
        """Submit the request in this way; its handle."""
        try:
            self.handle = submit(self._request, self)
        except TpyError as refusal:
            self._end(refusal.reason())
            raise
        return self

    def deliver(self, response: InferenceResponse) -> None:
        """See ResponseSink."""
        self._version = response.model_version
        if response.outputs:
            self._responses += 1
        if response.final:
            self._end("OK" if response.error is None else response.error.reason())
        self._sink.deliver(response)

    def cancel(self) -> None:
        """See EngineHandle."""
        if self.handle is not None:
            self.handle.cancel()
        self._end("cancelled")

    def pause(self) -> None:
        """See EngineHandle."""
        if self.handle is not None:
            self.handle.pause()

    def resume(self) -> None:
        """See EngineHandle."""
        if self.handle is not None:
            self.handle.resume()

    def waiting(self) -> Iterable[WaitingRequest]:
        """See EngineHandle."""
        return () if self.handle is None else self.handle.waiting()

    def recall(self) -> None:
        """See EngineHandle."""
        if self.handle is not None:
            self.handle.recall()

    def times(self, now_ns: int) -> Execution | None:
        """See EngineHandle."""
        return None if self.handle is None else self.handle.times(now_ns)

    def _end(self, status: str) -> None:
        if self._over:
            return
        self._over = True
        now_ns = self._clock.now_ns()
        text = _TEXT
        values: dict[str, object] = {
            "prefix": request_prefix(self._request.id),
            "model": echo(self._request.model_name),
            "version": -1 if self._version is None else self._version,
            "status": status,
            "responses": self._responses,
            "total_us": (now_ns - self._begun_ns) // NS_PER_US,
        }
        execution = self.times(now_ns)
        if execution is not None:
            start_ns, *compute_ns = execution
            values["queue_us"] = (start_ns - self._begun_ns) // NS_PER_US
            text += ", queue: %(queue_us)s us"
            for part, part_ns in zip(("input", "infer", "output"), compute_ns, strict=True):
                values[f"compute_{part}_us"] = part_ns // NS_PER_US
                text += f", compute {part}: %(compute_{part}_us)s us"
        log.debug(text + ", status: %(status)s", values)

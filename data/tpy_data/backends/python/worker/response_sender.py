"""pb_utils.InferenceResponseSender, and the way back of one request of a decoupled model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from .failures import TritonModelException
from .response import InferenceResponse

RESPONSE_COMPLETE_FINAL = 1

DROPPED = "the model dropped the response sender of a request without sending TRITONSERVER_RESPONSE_COMPLETE_FINAL"
"""What the caller of such a request reads."""

Deliver = Callable[[InferenceResponse | None, bool], None]
"""Sends a response, or None with the final flag alone. Blocks while the caller takes none."""


class WayBack:
    """Belongs to the request and to its senders. When the last of them is gone without the final flag, `dropped` is called, by
    the garbage collector in any thread: it must not wait for anything."""

    __slots__ = ("_deliver", "_dropped", "_ended", "_lock", "is_cancelled")

    def __init__(self, deliver: Deliver, *, is_cancelled: Callable[[], bool], dropped: Callable[[], None]) -> None:
        self.is_cancelled = is_cancelled
        self._deliver = deliver
        self._dropped = dropped
        self._ended = False
        self._lock = threading.Lock()

    def send(self, response: InferenceResponse | None, *, final: bool) -> None:
        """Raises TritonModelException after the final flag."""
        with self._lock:
            if self._ended:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            self._ended = final
        try:
            self._deliver(response, final)
        except BaseException:
            if final:
                self._ended = False  # nothing was sent: the request still has to end somehow
            raise

    def close(self) -> None:
        """The request was ended by other means."""
        with self._lock:
            self._ended = True

    @property
    def ended(self) -> bool:
        """Whether nothing more can be sent."""
        return self._ended

    def __del__(self) -> None:
        if not self._ended:
            self._dropped()


class Way(Protocol):
    """Where a sender's responses go: a WayBack or, of a model that answers once, a SingleAnswer."""

    @property
    def is_cancelled(self) -> Callable[[], bool]: ...

    def send(self, response: InferenceResponse | None, *, final: bool) -> None:
        """Raises TritonModelException when there may be no further response."""
        ...


class InferenceResponseSender:
    """Sends the responses of one request. Any thread, also after `execute` has returned. From `get_response_sender`."""

    __slots__ = ("_way_back",)

    def __init__(self, way_back: Way) -> None:
        self._way_back = way_back

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response; with TRITONSERVER_RESPONSE_COMPLETE_FINAL in `flags` it is the last one, and may be left out.

        Waits while the caller takes no responses; when the caller is gone it returns at once.
        """
        if flags not in (0, RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException("Inference Response object must be provided when the response flags is set to zero.")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send: response must be a pb_utils.InferenceResponse, got {type(response).__name__}")
        self._way_back.send(response, final=flags == RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for responses any more."""
        return self._way_back.is_cancelled()

"""RepeatedHead: what a connection's last request line and headers came to, for the next request that begins with the same bytes.

Clients send the same head with each request of a kind. Such a request needs no parsing: the same bytes mean the same.
"""

from __future__ import annotations

from tpy.frontends.http.message import HttpRequest

_END = b"\r\n\r\n"
_HEAD_BYTES_MAX = 1024
"""The bytes of its last request that a silent connection may hold."""


class RepeatedHead:
    """One connection's. `remember` requests that were taken as they came, `again` for what comes next."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[bytes, int, HttpRequest] | None = None
        """The head, the size of the whole request, and the request that it began."""

    def remember(self, request: HttpRequest, data: bytes | memoryview) -> None:
        """`data` is all that came in one piece, from before the beginning of `request` to behind its end."""
        self._last = None
        size = len(data) - len(request.body)
        if size > _HEAD_BYTES_MAX or not request.keep_alive or request.refusal is not None:
            return
        head = bytes(data[:size])
        # Else there is more than the head and the body in it: chunks, or empty lines in front or behind.
        if head.find(_END) + len(_END) == size:
            self._last = head, len(data), _with_body(request, b"")

    def again(self, data: bytes | memoryview) -> HttpRequest | None:
        """The request in `data`, when that is one with the same head, whole and nothing else."""
        if self._last is None:
            return None
        head, size, request = self._last
        if len(data) != size or data[: len(head)] != head:
            return None
        return _with_body(request, bytes(data[len(head) :]))


def _with_body(request: HttpRequest, body: bytes) -> HttpRequest:
    """A new one that shares the parts of the head, which nobody changes."""
    return HttpRequest(
        method=request.method,
        target=request.target,
        path=request.path,
        version=request.version,
        headers=request.headers,
        fields=request.fields,
        keep_alive=request.keep_alive,
        body=body,
        inference=request.inference,
    )

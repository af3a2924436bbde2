"""Events of a connection: the peer's actions, as far as the calls are concerned."""

from __future__ import annotations

import msgspec

from tpy.frontends.grpc.transport.core.request_head import RequestHead
from tpy.http2.codes import Http2Code


class RequestBegan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The headers of a new stream have arrived."""

    stream_id: int
    head: RequestHead


class DataArrived(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Bytes of a request, without padding; with `ended` the last ones (possibly none). Once they are used or copied, say so with
    `Http2Server.credit`."""

    stream_id: int
    data: memoryview
    ended: bool


class StreamEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The stream is no more: reset by the peer (`by_peer`), or by us because the peer broke a rule. Nothing can be sent on it."""

    stream_id: int
    code: Http2Code | int
    by_peer: bool


class ConnectionEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The peer broke a rule of the connection. A GOAWAY has been queued; all streams are no more."""

    code: Http2Code
    text: str


Event = RequestBegan | DataArrived | StreamEnded | ConnectionEnded

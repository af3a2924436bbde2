"""Traced requests as callers see them, beside the trace files."""

from __future__ import annotations

import msgspec


class Moment(msgspec.Struct, frozen=True, gc=False):
    """A moment of a request, with Triton's name for it, on the server's monotonic clock."""

    name: str
    ns: int


class TracedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A request, or a step or call that belongs to the part with the id `parent_id`; 0: to none. `status` is "OK" or the error's
    code, `error` its message."""

    id: int
    parent_id: int
    model_name: str
    model_version: int
    request_id: str
    protocol: str
    status: str
    error: str
    timestamps: tuple[Moment, ...]


class TracedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A traced request that is over. Numbers count from 1 since the start of the server. The first of the `parts` is the request
    itself; `left_out` says how many there were beyond TRACE_PARTS_RECENT_MAX."""

    number: int
    parts: tuple[TracedPart, ...]
    left_out: int = 0

"""The timeouts of requests as deadlines, for models that enforce them."""

from __future__ import annotations

import msgspec

from tpy.messages import InferenceRequest
from tpy.units import NS_PER_US


def with_deadline(request: InferenceRequest, now_ns: int) -> InferenceRequest:
    """The request with its timeout, counted from `now_ns`, as its deadline: the earlier one where it has both."""
    if request.timeout_us <= 0:
        return request
    timeout_at_ns = now_ns + request.timeout_us * NS_PER_US
    if request.deadline_ns is not None and request.deadline_ns <= timeout_at_ns:
        return request
    return msgspec.structs.replace(request, deadline_ns=timeout_at_ns)

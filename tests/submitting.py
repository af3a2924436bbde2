"""Submitting a request as frontends do."""

from __future__ import annotations

from tpy.messages import InferenceRequest
from tpy.services import InferenceService, RequestHandle, ResponseSink


def submit_to(inference: InferenceService, request: InferenceRequest, sink: ResponseSink) -> RequestHandle:
    """Submit it to the copy that answers to its model's name now."""
    return inference.resolve(request.model_name, request.model_version).submit(request, sink)

"""Writes an inference response (triton.md 1.7 and 1.8) and error bodies."""

from __future__ import annotations

import msgspec

from tpy.errors import TpyError, Unsupported
from tpy.frontends.http.codec.plan import OutputPlan
from tpy.messages import InferenceResponse, ModelDescription


class EncodedInfer(msgspec.Struct, frozen=True, kw_only=True):
    """A response body in pieces: JSON first, then the blobs in the order of the outputs, views over the output arrays.

    `json_length` is for the header `Inference-Header-Content-Length`; None when the body is JSON only (no such header).
    `content_length` is the sum of the pieces in bytes.
    """

    parts: list[bytes | memoryview]
    json_length: int | None
    content_type: str
    content_length: int


def encode_infer(response: InferenceResponse, plan: OutputPlan, description: ModelDescription) -> EncodedInfer:
    """The body for `response`. Raises its `error` when it has one, InvalidArgument for FP16 and BF16 outputs as JSON."""
    raise Unsupported("not there yet")


def encode_error(error: TpyError) -> bytes:
    """`{"error": "<message>"}`."""
    raise Unsupported("not there yet")

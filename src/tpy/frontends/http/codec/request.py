"""Reads an inference request: JSON, JSON with blobs behind it, or one raw blob (triton.md 1.6 and 1.8)."""

from __future__ import annotations

from collections.abc import Mapping

from tpy.errors import Unsupported
from tpy.frontends.http.codec.plan import OutputPlan
from tpy.messages import InferenceRequest, ModelDescription, ParameterValue


def parse_header_length(value: bytes | None, body_length: int) -> int | None:
    """The number in `Inference-Header-Content-Length`, None without the header. Raises InvalidArgument (texts 16, 17)."""
    raise Unsupported("not there yet")


def parse_infer(
    body: bytes | bytearray | memoryview,
    *,
    header_length: int | None,
    description: ModelDescription,
    version: int | None,
    received_ns: int,
    forwarded: Mapping[str, ParameterValue] | None = None,
) -> tuple[InferenceRequest, OutputPlan]:
    """The request in `body` and how to answer it.

    `body` is decompressed and belongs to the request from now on: binary tensors are views over it. `header_length` is what
    `parse_header_length` gave: None means JSON only, 0 a raw binary request, else the length of the JSON part in bytes.
    `version` is the one of the URL. `forwarded` are parameters made from headers; they join the caller's own.

    Raises InvalidArgument, or Unsupported for shared memory; nothing else, whatever the bytes.
    """
    raise Unsupported("not there yet")

"""ModelInferRequest and ModelInferResponse to and from the server's messages. No calls, no statuses, no clock.

parse_now, parse_request -> decode_request            bytes of a request -> InferenceRequest, and how to answer it
encode_response, encode_stream_response, ...          InferenceResponse -> pieces of one message
"""

from tpy.frontends.grpc.codec.parameters import NO_PLAN, GrpcOutputPlan
from tpy.frontends.grpc.codec.request import (
    Decoded,
    Standard,
    decode_request,
    is_heavy,
    parse_version,
    read_standard,
    standard_request,
)
from tpy.frontends.grpc.codec.response import (
    encode_empty_final,
    encode_response,
    encode_standard,
    encode_stream_error,
    encode_stream_response,
    is_large,
)
from tpy.frontends.grpc.codec.wire import ParsedRequest, parse_now, parse_request

__all__ = [
    "NO_PLAN",
    "Decoded",
    "GrpcOutputPlan",
    "ParsedRequest",
    "Standard",
    "decode_request",
    "encode_empty_final",
    "encode_response",
    "encode_standard",
    "encode_stream_error",
    "encode_stream_response",
    "is_heavy",
    "is_large",
    "parse_now",
    "parse_request",
    "parse_version",
    "read_standard",
    "standard_request",
]

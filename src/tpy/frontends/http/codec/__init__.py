"""The HTTP bodies of inference: bytes to messages and back. Pure functions: no socket, no clock, no log.

Start at `parse_infer` (request.py) and `encode_infer` (response.py). Everything that a request can get wrong before the engine
looks at it is decided here and raised as TpyError with Triton's text; what needs the model's state is the engine's. The bodies of
`generate` are not exported here, as few servers are asked for it (generate.py).
"""

from tpy.frontends.http.codec.compression import Encoding, choose_encoding, compress, decompress
from tpy.frontends.http.codec.document import is_heavy
from tpy.frontends.http.codec.parameters import BINARY_PLAN, JSON_PLAN, HttpOutputPlan, OutputChoice
from tpy.frontends.http.codec.request import parse_header_length, parse_infer
from tpy.frontends.http.codec.response import (
    BINARY_TYPE,
    HTTP_STATUS,
    EncodedInfer,
    encode_error,
    encode_infer,
    encode_standard,
    is_large,
)

__all__ = [
    "BINARY_PLAN",
    "BINARY_TYPE",
    "HTTP_STATUS",
    "JSON_PLAN",
    "EncodedInfer",
    "Encoding",
    "HttpOutputPlan",
    "OutputChoice",
    "choose_encoding",
    "compress",
    "decompress",
    "encode_error",
    "encode_infer",
    "encode_standard",
    "is_heavy",
    "is_large",
    "parse_header_length",
    "parse_infer",
]

"""Codecs: messages as Python's values, and back. They are found by content type, by the type of a value or by a type hint."""

from .base import InputCodec, InputCodecLike, RequestCodec, RequestCodecLike, register_input_codec, register_request_codec
from .base64 import Base64Codec
from .datetime import DatetimeCodec
from .decorator import decode_args
from .errors import CodecError
from .numpy import NumpyCodec, NumpyRequestCodec
from .pandas import PandasCodec
from .string import StringCodec, StringRequestCodec
from .utils import (
    DecodedParameterName,
    decode_inference_request,
    decode_request_input,
    encode_inference_response,
    encode_response_output,
    get_decoded,
    get_decoded_or_raw,
    has_decoded,
)

__all__ = [
    "Base64Codec",
    "CodecError",
    "DatetimeCodec",
    "DecodedParameterName",
    "InputCodec",
    "InputCodecLike",
    "NumpyCodec",
    "NumpyRequestCodec",
    "PandasCodec",
    "RequestCodec",
    "RequestCodecLike",
    "StringCodec",
    "StringRequestCodec",
    "decode_args",
    "decode_inference_request",
    "decode_request_input",
    "encode_inference_response",
    "encode_response_output",
    "get_decoded",
    "get_decoded_or_raw",
    "has_decoded",
    "register_input_codec",
    "register_request_codec",
]

"""Where tpy means to answer differently from Triton 2.51 over gRPC; load calls deviate as in deviations.py."""

from __future__ import annotations

import msgspec

from .deviations import POLL

_NOT_FOUND = r"Request for unknown model: 'ident' version {} is not found"


class GrpcDeviation(msgspec.Struct, frozen=True):
    """What tpy answers instead: the status, and a regular expression that its text matches."""

    status: str
    details: str


GRPC_DEVIATIONS: dict[str, GrpcDeviation] = {
    "load nosuch": GrpcDeviation("INTERNAL", POLL + r"no model repository has a directory 'nosuch': .*"),
    # Named for what is wrong with it, as in Triton; over HTTP Triton has another text.
    "load with unknown parameter": GrpcDeviation("INVALID_ARGUMENT", r"unrecognized load parameter 'x'\."),
    # The readiness of Triton 2.73.
    "ready of version '9'": GrpcDeviation("NOT_FOUND", _NOT_FOUND.format(9)),
    "ready of version '0'": GrpcDeviation("NOT_FOUND", _NOT_FOUND.format(0)),
    "ready of unknown": GrpcDeviation("NOT_FOUND", r"Request for unknown model: 'nosuch' is not found"),
    # One answer for both protocols.
    "set log format wrong": GrpcDeviation("UNAVAILABLE", r"invalid argument for --log_format, got: x"),
    # Two faults: Triton names the shape, tpy the size.
    "shape too large": GrpcDeviation("INVALID_ARGUMENT", r".* input byte size mismatch for input 'INPUT0' .* got 16"),
}

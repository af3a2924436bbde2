"""Intended deviations from Triton 2.51 over gRPC; load calls deviate as in deviations.py."""

from __future__ import annotations

import msgspec

from .deviations import POLL


class GrpcDeviation(msgspec.Struct, frozen=True):
    """The response of tpy instead: the status, and a regular expression that its text matches."""

    status: str
    details: str


GRPC_DEVIATIONS: dict[str, GrpcDeviation] = {
    "load nosuch": GrpcDeviation("INTERNAL", POLL + r"model not found in any model repository: .*"),
    # Named for what is wrong with it, as in Triton; over HTTP Triton has another text.
    "load with unknown parameter": GrpcDeviation("INVALID_ARGUMENT", r"unrecognized load parameter 'x'\."),
    # One answer for both protocols.
    "set log format wrong": GrpcDeviation("UNAVAILABLE", r"invalid argument for --log_format, got: x"),
    # Two faults: Triton names the shape, tpy the size.
    "shape too large": GrpcDeviation("INVALID_ARGUMENT", r".* input byte size mismatch for input 'INPUT0' .* got 16"),
}

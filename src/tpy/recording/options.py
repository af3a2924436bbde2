"""Checks of what a recording is asked to be."""

from __future__ import annotations

from tpy.errors import InvalidArgument
from tpy.limits import (
    RECORDING_BYTES_MAX,
    RECORDING_PATTERNS_MAX,
    RECORDING_REQUESTS_MAX,
    RECORDING_SECONDS_MAX,
)
from tpy.messages import RecordingOptions

_SAMPLE_MAX = 2**31 - 1


def require_sound(options: RecordingOptions) -> None:
    """Raise InvalidArgument for a recording that cannot be made."""
    if not options.models or "" in options.models:
        raise InvalidArgument("a recording needs models: names, or patterns such as *")
    if len(options.models) > RECORDING_PATTERNS_MAX:
        raise InvalidArgument(f"a recording has at most {RECORDING_PATTERNS_MAX} patterns of models, got {len(options.models)}")
    for name, value, maximum in (
        ("sample", options.sample, _SAMPLE_MAX),
        ("max_bytes", options.bytes_max, RECORDING_BYTES_MAX),
        ("max_requests", options.requests_max, RECORDING_REQUESTS_MAX),
        ("max_seconds", options.seconds_max, RECORDING_SECONDS_MAX),
    ):
        if not 1 <= value <= maximum:
            raise InvalidArgument(f"{name}: expected 1 to {maximum}, got {value}")

"""Load generators: closed loops that keep a number of connections busy for some seconds. Each is its own process."""

from __future__ import annotations

import msgspec


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of a load generator.

    `answered` requests in `seconds`; latencies of single requests; `cpu_s` of the generator itself.
    """

    answered: int
    seconds: float
    latency_p50_ms: float
    latency_p99_ms: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        """Requests per second."""
        return self.answered / self.seconds


class LoadFailed(Exception):
    """A run that cannot be counted: the generator failed, or requests did."""

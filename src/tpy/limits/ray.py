"""Bounds of `tpy.ray`."""

from __future__ import annotations

from typing import Final

RAY_METRICS_PERIOD_S: Final = 5.0
"""Between two looks at a replica's metrics: half the period in which Ray's agents report theirs."""

RAY_STREAM_MESSAGES_MAX: Final = 16
"""Messages of one gRPC stream that are on their way between Ray's loop and the server's thread, in each direction."""

RAY_OFFLINE_REQUESTS_MAX: Final = 8
"""Requests that a worker of `tpy.ray.predict` has under way: enough for a model's instances, with batches that wait."""

RAY_MEMBER_TIMEOUT_S: Final = 10.0
"""The time for which the application of a model may let a question about it wait, as one without a replica does."""

RAY_CHANGES_PAUSE_S: Final = 0.2
"""Between two attempts to reach the actor that keeps the changes of an application."""

RAY_CHANGES_ATTEMPTS_MAX: Final = 150
"""Half a minute of them: Serve notices that an actor is gone with its health check and starts another one."""

RAY_CLUSTER_TIMEOUT_S: Final = 5.0
"""The time in which a cluster takes a connection; Ray itself tries for minutes."""

"""Counts by the servers themselves."""

from __future__ import annotations

import contextlib
import http.client
import json

from benchmarks.servers.process import HOST, Server

_TIMEOUT_S = 60


def answered(server: Server, model: str) -> int:
    """The number of requests that the model has answered well since it was loaded: exact, also where a load generator leaves out
    those before and after what it measures."""
    connection = http.client.HTTPConnection(HOST, server.ports.http, timeout=_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("GET", f"/v2/models/{model}/stats")
        statistics = json.loads(connection.getresponse().read())
    count: int = statistics["model_stats"][0]["inference_stats"]["success"]["count"]
    return count

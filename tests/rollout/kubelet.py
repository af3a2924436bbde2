"""Two pods, and what Kubernetes does with them: probes by their periods, one more pod at a time, SIGTERM, the grace period."""

from __future__ import annotations

import http.client
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.e2e.server import ServerProcess, tracebacks
from tests.e2e.waiting import wait_until

from .balancers import CHECK_MS, Place

EXIT_DELAY_S = 1
"""More than two checks of HAProxy, as 10 s are more than the usual 2 to 3 periods of 2 s."""

GRACE_S = 20.0
PERIOD_S = 0.2
FAILURES_MAX = 3
assert 2 * CHECK_MS / 1000 < EXIT_DELAY_S


def probe(port: int, path: str) -> bool:
    """One probe of the kubelet: a new connection, an answer below 400 within its time-out."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 400
    except OSError:
        return False
    finally:
        connection.close()


class Pod:
    """A server in its place, with more `flags` and variables of its `environment`. `failures` says what a kubelet would have
    reported."""

    def __init__(
        self, place: Place, models: Path, flags: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self.place = place
        self.failures: list[str] = []
        self._server = ServerProcess(
            f"--http-port={place.http}",
            f"--grpc-port={place.grpc}",
            f"--metrics-port={place.metrics}",
            f"--exit-delay-secs={EXIT_DELAY_S}",
            "--exit-timeout-secs=10",
            *flags,
            repositories=[models],
            environment=environment,
        )
        self._over = threading.Event()
        self._liveness = threading.Thread(target=self._watch)

    @property
    def log(self) -> str:
        """All that the server has written so far."""
        return self._server.log

    def start(self) -> None:
        """Start, and wait for startup, then readiness."""
        self._server.__enter__()
        wait_until(lambda: probe(self.place.http, "/v2/health/live"))
        self._liveness.start()
        wait_until(lambda: probe(self.place.http, "/v2/health/ready"))

    def terminate(self) -> None:
        """SIGTERM, and SIGKILL after the grace period."""
        self._over.set()
        if self._liveness.ident is not None:
            self._liveness.join()
        process = self._server.process
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
            self.failures.append("killed: the grace period was over")
        if code != 0 or tracebacks(self._server.log):
            self.failures.append(f"ended with {code}: {self._server.log}")

    def _watch(self) -> None:
        """The liveness probe."""
        failed = 0
        while not self._over.wait(PERIOD_S):
            failed = 0 if probe(self.place.http, "/v2/health/live") else failed + 1
            if failed == FAILURES_MAX:
                self.failures.append("not live")


class Deployment:
    """Two pods in three places. `restart` replaces the older one, as a rolling update with maxSurge 1 and maxUnavailable 0."""

    def __init__(self, places: Sequence[Place], models: Path) -> None:
        self.failures: list[str] = []
        self.pods: list[Pod] = []
        self._free = list(places)
        self._models = models

    def add(self) -> None:
        """Start a pod, in the place that has been free longest."""
        pod = Pod(self._free.pop(0), self._models)
        self.pods.append(pod)
        pod.start()

    def restart(self) -> None:
        """One more, then one less."""
        self.add()
        self.remove()

    def remove(self) -> None:
        """Terminate the oldest."""
        pod = self.pods.pop(0)
        pod.terminate()
        self.failures += pod.failures
        self._free.append(pod.place)

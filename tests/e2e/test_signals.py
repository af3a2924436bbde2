"""Signals: which end the server, which make it read its files again, and that no other does anything."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient

from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until

CERTIFICATES = Path(__file__).parents[1] / "frontends" / "grpc" / "transport" / "certificates"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    ModelFolder(tmp_path / "models", "m").identity()
    return tmp_path / "models"


def is_live(server: ServerProcess) -> bool:
    with InferenceServerClient(server.http) as client:
        return bool(client.is_server_live())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGPWR, signal.SIGXCPU])
def test_signals_that_stop_in_order(repository: Path, number: signal.Signals) -> None:
    with ServerProcess(repositories=[repository]) as server:
        server.process.send_signal(number)
        assert server.wait_end(20) == 0
        assert f"stopping ({number.name})" in server.log


def test_no_other_signal_ends_the_server(repository: Path) -> None:
    """Nor a frontend process of it."""
    others = {*signal.valid_signals()} - {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGPWR, signal.SIGXCPU}
    crashes = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
    stops = {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    answers = {
        signal.SIGHUP: "reloaded at SIGHUP",
        signal.SIGUSR1: "reloaded at SIGUSR1",
        signal.SIGUSR2: "ignoring signal SIGUSR2",
        signal.SIGALRM: "ignoring signal SIGALRM",
        signal.SIGVTALRM: "ignoring signal SIGVTALRM",
        signal.SIGPROF: "ignoring signal SIGPROF",
        **{number: f"ignoring signal {name(number)}" for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1)},
    }
    with ServerProcess("--frontend-processes=1", repositories=[repository]) as server:
        frontends = server.children()
        for number in sorted(others - crashes - stops):
            for pid in (*frontends, server.process.pid):
                os.kill(pid, number)
            if number in answers:  # several at once are too much for the signal stack of PYTHONFAULTHANDLER
                server.wait_log(answers[number])
        assert is_live(server)
        assert server.children() == frontends


def name(number: int) -> str:
    """The name of a real-time signal in the log, as a pattern."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return rf"SIGRTMIN\+{number - signal.SIGRTMIN}"


@pytest.mark.parametrize("processes", [0, 1])
def test_a_reload_opens_the_log_again_and_reads_certificates(repository: Path, tmp_path: Path, processes: int) -> None:
    """logrotate renames the file and sends SIGHUP; what renews certificates does that, too. Bad files change nothing."""
    log, key, certificate = tmp_path / "server.log", tmp_path / "key.pem", tmp_path / "certificate.pem"
    install("server", certificate, key)
    tls = ("--grpc-use-ssl=true", f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}")
    flags = (f"--log-file={log}", f"--frontend-processes={processes}", *tls)
    with ServerProcess(*flags, repositories=[repository]) as server:
        first = presented(server)
        log.rename(tmp_path / "server.log.1")
        install("stranger", certificate, key)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.exists() and "reloaded at SIGHUP" in log.read_text())
        wait_until(lambda: presented(server) != first)
        second = presented(server)
        key.write_text("no key")
        log.rename(tmp_path / "server.log.2")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.exists() and "reloaded in part only at SIGHUP" in log.read_text())
        assert "not reloaded, the previous settings stay in use" in log.read_text()
        assert presented(server) == second
        assert is_live(server)


_TERMINAL = """
import os, pty, signal, sys
pid, terminal = pty.fork()
if not pid:
    signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
    os.execv(sys.argv[2], sys.argv[2:])
print(pid, flush=True)
sys.stdin.readline()
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""A server in a terminal that closes when there is a line of input, and its exit code."""


@pytest.mark.parametrize("how", ["plain", "nohup"])
def test_a_terminal_that_closes_ends_the_server_but_for_nohup(repository: Path, tmp_path: Path, how: str) -> None:
    log = tmp_path / "server.log"
    serve = (sys.executable, "-m", "tpy", "serve", str(repository), "--http-port=0", "--allow-grpc=0", "--allow-metrics=0")
    command = [sys.executable, "-c", _TERMINAL, how, *serve, f"--log-file={log}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as terminal:
        assert terminal.stdin is not None
        assert terminal.stdout is not None
        server = int(terminal.stdout.readline())
        wait_until(lambda: log.exists() and "Started HTTPService" in log.read_text())
        terminal.stdin.write("close\n")
        if how == "nohup":
            wait_until(lambda: "reloaded at SIGHUP" in log.read_text())
            os.kill(server, signal.SIGTERM)
        assert terminal.stdout.readline() == "0\n"
        assert f"stopping ({'SIGTERM' if how == 'nohup' else 'SIGHUP'})" in log.read_text()


def test_a_service_manager_is_told(repository: Path, tmp_path: Path) -> None:
    """As systemd's Type=notify expects it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        with ServerProcess(repositories=[repository], environment={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as server:
            assert manager.recv(100) == b"READY=1"
            server.process.send_signal(signal.SIGHUP)
            assert manager.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"STOPPING=1"


def install(name: str, certificate: Path, key: Path) -> None:
    shutil.copy(CERTIFICATES / f"{name}.pem", certificate)
    shutil.copy(CERTIFICATES / f"{name}.key", key)


def presented(server: ServerProcess) -> bytes:
    """The certificate that the gRPC port shows."""
    host, _, port = server.grpc.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), timeout=10) as plain, context.wrap_socket(plain) as stream:
        return stream.getpeercert(binary_form=True) or b""

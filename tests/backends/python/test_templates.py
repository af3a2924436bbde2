"""Workers that are forked from a template: what they share with it and with each other, and what becomes of them without it."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends.python.conftest import Serve, Served, request
from tests.e2e.waiting import wait_until
from tpy import templates as template
from tpy.backend import HostPolicy, InstancePlacement
from tpy.config.model_config import InstanceKind
from tpy.testing.hosting import HostedInstance, HostedModel
from tpy_data.backends.python.environment.process import WORKER

LOOK = """
import random, signal, threading

class TritonPythonModel:
    def initialize(self, args):
        self.random = random.random()

    def execute(self, requests):
        said = {
            "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0),
            "command": open("/proc/self/cmdline").read().split(chr(0)),
            "files": sorted(os.readlink(f"/proc/self/fd/{number}").partition(":")[0] for number in os.listdir("/proc/self/fd")
                            if os.path.islink(f"/proc/self/fd/{number}")),
            "random": [self.random, float(np.random.rand()), random.random()],
            "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
            "blocked": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            "main": sys.modules["__main__"].__file__, "argv": sys.argv, "bytecode": sys.dont_write_bytecode,
            "product": float((np.ones((300, 300)) @ np.ones((300, 300))).sum()),
            "cores": sorted(os.sched_getaffinity(0)),
            "folder": os.getcwd(), "variable": os.environ.get("OF_THE_PROGRAM"),
        }
        return [answer(tensor(np.array([json.dumps(said)], dtype=object)))]
"""


def look(instance: HostedInstance, served: Served) -> dict[str, Any]:
    """The report of the worker about itself."""
    result = next(iter(instance.execute(request())))
    assert result.error is None, result.error
    said: dict[str, Any] = json.loads(result.outputs[0].array[0])
    return said


def opened(served: Served, count: int, host: HostPolicy | None = None) -> tuple[HostedModel, list[HostedInstance]]:
    """The model with some instances."""
    model = HostedModel(served.backend, served.context)
    rest = {} if host is None else {"host": host}
    return model, [
        model.instance(InstancePlacement(name=f"m_{number}", kind=InstanceKind.KIND_CPU, **rest)) for number in range(count)
    ]


def test_workers_are_as_those_that_are_started_by_themselves(make: Serve) -> None:
    """But for the parent; and no worker has what another one has."""
    served = make(LOOK)
    model, forked = opened(served, 2)
    first, second = (look(instance, served) for instance in forked)
    model.close()
    model, [alone] = opened(served, 1, HostPolicy(cpu_cores=tuple(sorted(os.sched_getaffinity(0)))))
    started = look(alone, served)
    model.close()
    for each in (first, second):
        assert each["parent"] not in (started["parent"], each["pid"])
        assert each["group"] == each["pid"]
        for same in ("files", "signals", "blocked", "main", "argv", "bytecode", "product", "cores"):
            assert each[same] == started[same], same
        assert each["command"][0:3] == started["command"][0:3]
        assert each["command"][5] == str(os.getpid())
    assert first["parent"] == second["parent"]
    assert started["parent"] == os.getpid()
    assert [each["command"][6] for each in (first, second, started)] == ["m_0", "m_1", "m_0"]
    assert not set(first["random"]) & set(second["random"])


def test_a_template_that_was_ended_is_replaced(make: Serve) -> None:
    """Its workers die with it, as with the server. Whoever asks next gets a worker all the same."""
    served = make(LOOK)
    model, [instance] = opened(served, 1)
    was = look(instance, served)
    assert was["parent"] != os.getpid()
    os.kill(was["parent"], signal.SIGKILL)
    process = os.pidfd_open(was["pid"])
    poller = select.poll()
    poller.register(process, select.POLLIN)
    assert poller.poll(20_000)
    os.close(process)
    others = [look(model.instance(_placement(name)), served) for name in ("m_1", "m_2")]
    assert others[0]["parent"] == others[1]["parent"]
    assert others[0]["parent"] not in (os.getpid(), was["parent"])
    model.close()


def test_a_template_that_hangs_is_not_waited_for_long(make: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers go on."""
    served = make(LOOK)
    model, [instance] = opened(served, 1)
    was = look(instance, served)
    assert was["parent"] != os.getpid()
    monkeypatch.setattr(template, "ANSWER_S_MAX", 0.3)
    os.kill(was["parent"], signal.SIGSTOP)
    alone = look(model.instance(_placement("m_1")), served)
    assert alone["parent"] == os.getpid()
    assert look(instance, served)["pid"] == was["pid"]
    model.close()
    assert not Path(f"/proc/{was['parent']}").exists()


def _ignores_ended_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _templates(before: Callable[[], None] | None = None) -> template.Templates:
    def start(command: list[str], files: tuple[int, ...]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, pass_fds=files, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=before)

    return template.Templates(start, lambda executable, arguments: [executable, "-B", str(WORKER), *arguments])


def _forked(templates: template.Templates) -> tuple[socket.socket, template.ForkedProcess | template.NoAnswer]:
    """The server's end of a new connection, and the worker that was given the other one."""
    ours, theirs = socket.socketpair()
    tokens = socket.socketpair()
    with theirs, tokens[0], tokens[1], open(os.devnull, "r+b") as null:
        try:
            return ours, templates.fork(sys.executable, "m", (theirs.fileno(), tokens[1].fileno(), *[null.fileno()] * 2))
        except template.NoAnswer as error:
            return ours, error


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[3])


def _living_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    states = [(int(each), Path(f"/proc/{each}/stat").read_text(encoding="ascii").split()[2]) for each in children]
    return [child for child, state in states if state != "Z"]


def test_a_worker_of_an_order_that_was_given_up_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one was started with other descriptors, so that never two read one connection."""
    templates = _templates()
    first, worker = _forked(templates)
    assert isinstance(worker, template.ForkedProcess)
    assert first.recv(1)
    parent = _parent(worker.pid)
    monkeypatch.setattr(template, "ANSWER_S_MAX", 0.2)
    os.kill(parent, signal.SIGSTOP)
    late, nobody = _forked(templates)
    assert isinstance(nobody, template.NoAnswer)
    os.kill(parent, signal.SIGCONT)
    late.settimeout(60)
    assert late.recv(1)  # it is there all the same
    assert len(_living_children(parent)) == 2
    late.close()
    wait_until(lambda: _living_children(parent) == [worker.pid], within_s=60)
    templates.close()
    first.close()


def test_the_first_process_of_a_container_leaves_no_zombie_of_a_worker_without_its_template(make: Serve) -> None:
    set_subreaper = 36
    served = make(LOOK)
    model, [instance] = opened(served, 1)
    was = look(instance, served)
    libc = ctypes.CDLL(None)
    libc.prctl(set_subreaper, 1, 0, 0, 0)
    try:
        os.kill(was["parent"], signal.SIGKILL)
        process = os.pidfd_open(was["pid"])
        poller = select.poll()
        poller.register(process, select.POLLIN)
        assert poller.poll(20_000)
        os.close(process)
        model.close()
    finally:
        libc.prctl(set_subreaper, 0, 0, 0, 0)
    assert not Path(f"/proc/{was['pid']}").exists()


def test_a_worker_has_the_environment_and_the_folder_of_now(make: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that has the server in it may change them."""
    served = make(LOOK)
    model, _ = opened(served, 1)
    monkeypatch.setenv("OF_THE_PROGRAM", "set")
    monkeypatch.chdir(tmp_path)
    later = look(model.instance(_placement("m_1")), served)
    assert (later["variable"], later["folder"]) == ("set", str(tmp_path))
    model.close()


def test_packages_that_were_installed_meanwhile_are_found(make: Serve, tmp_path: Path) -> None:
    """A template has imported what was there before; it is replaced, and goes with its last worker."""
    served = make(LOOK, parameters={"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"})
    packages = tmp_path / "packages"
    packages.mkdir()
    binaries = served.context.model_directory / "env" / "bin"
    binaries.mkdir(parents=True)
    python = binaries / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    model, [instance] = opened(served, 1)
    before = look(instance, served)
    (packages / "new_package").mkdir()
    after = look(model.instance(_placement("m_1")), served)
    assert len({before["parent"], after["parent"], os.getpid()}) == 3
    assert Path(f"/proc/{before['parent']}").exists()
    assert look(instance, served)["pid"] == before["pid"]
    model.close()
    assert not Path(f"/proc/{before['parent']}").exists()


def _placement(name: str) -> InstancePlacement:
    return InstancePlacement(name=name, kind=InstanceKind.KIND_CPU)


def test_a_template_waits_for_workers_where_the_server_was_started_with_sigchld_ignored() -> None:
    templates = _templates(_ignores_ended_children)
    for _ in range(2):
        connection, worker = _forked(templates)
        assert isinstance(worker, template.ForkedProcess)
        assert connection.recv(1)
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
        connection.close()
    templates.close()

"""The audit log of a whole server: who changed what over HTTP and gRPC, by keys and certificates, also in frontend processes; and
what files, signals and the program change."""

from __future__ import annotations

import contextlib
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

import tpy
from tpy.frontends.access.config import digest, key_entry

from .repositories import ModelFolder
from .server import ServerProcess, run_tpy
from .test_access import CERTIFICATES, context, tls
from .waiting import wait_until


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_line(path: Path, **members: object) -> dict[str, Any]:
    """The newest line with these members."""
    found = wait_until(lambda: [line for line in read(path) if members.items() <= line.items()])
    return found[-1]


class Audited:
    """A server that demands certificates and keys."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.server = server
        self.log = folder / "audit.log"

    def post(self, path: str, body: str = "{}", key: str = "") -> int:
        headers = {"X-API-Key": key} if key else {}
        request = urllib.request.Request(f"https://{self.server.http}{path}", body.encode(), headers)
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, context=context()) as answer:
            return int(answer.status)
        return 0

    def grpc(self) -> triton_grpc.InferenceServerClient:
        return triton_grpc.InferenceServerClient(
            f"localhost:{self.server.grpc.rpartition(':')[2]}",
            ssl=True,
            root_certificates=str(CERTIFICATES / "ca.pem"),
            private_key=str(CERTIFICATES / "client.key"),
            certificate_chain=str(CERTIFICATES / "client.pem"),
        )


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audited")
    ModelFolder(folder / "models", "m").identity()
    (folder / "auth.toml").write_text(key_entry("ci", digest("key-of-ci"), ["manage", "observe", "infer"], ["*"]))
    flags = [
        *tls("http", mutual=True),
        *tls("grpc", mutual=True),
        "--model-control-mode=explicit",
        "--allow-client-shm=true",
        f"--auth-config={folder / 'auth.toml'}",
        f"--audit-log={folder / 'audit.log'}",
        "--audit-log-required=true",
        "--frontend-processes=1",
    ]
    with ServerProcess(*flags, repositories=[folder / "models"]) as server:
        yield Audited(server, folder)
    assert read(folder / "audit.log")[-1]["action"] == "stop"
    assert read(folder / "audit.log")[-1]["route"] == "SIGTERM"
    assert "key-of-" not in (folder / "audit.log").read_text()


SUBJECT = "CN=tpy test client"
"""The name in the client's certificate."""


def test_over_http(audited: Audited) -> None:
    config = json.dumps({"parameters": {"config": json.dumps({"backend": "identity", "max_batch_size": 4})}})
    assert audited.post("/v2/repository/models/m/load", config, "key-of-ci") == 200
    line = wait_line(audited.log, audit="done", action="load")
    assert (line["caller"], line["model"], line["protocol"], line["result"]) == ("ci", "m", "http", "OK")
    assert line["route"] == "POST /v2/repository/models/<model>/load"
    assert line["certificate"].startswith(SUBJECT)
    assert line["peer"].startswith("127.0.0.1:")
    assert line["ms"] > 0
    assert line["details"]["config_bytes"] == 44
    assert "identity" not in json.dumps(line["details"])
    begun = [each for each in read(audited.log) if each["id"] == line["id"]]
    assert [each["audit"] for each in begun] == ["begin", "done"]


def test_refused_over_http(audited: Audited) -> None:
    assert audited.post("/v2/logging", '{"log_verbose_level": 1}', "key-of-nobody") == 0
    line = wait_line(audited.log, route="POST /v2/logging")
    assert (line["result"], line.get("caller")) == ("UNAUTHENTICATED", None)


def test_over_grpc(audited: Audited) -> None:
    with audited.grpc() as client:
        client.update_log_settings({"log_verbose_level": 1}, headers={"x-api-key": "key-of-ci"})
        line = wait_line(audited.log, audit="done", action="log settings")
        assert (line["caller"], line["route"]) == ("ci", "/inference.GRPCInferenceService/LogSettings")
        assert line["details"] == {"log_verbose_level": 1}
        assert line["certificate"].startswith(SUBJECT)
        with pytest.raises(InferenceServerException):
            client.register_system_shared_memory("r", "/no-such-segment", 8, headers={"x-api-key": "key-of-ci"})
        line = wait_line(audited.log, audit="done", action="register region")
        assert (line["result"], line["details"]["region"], line["details"]["key"]) == ("INTERNAL", "r", "/no-such-segment")


def test_rotation(audited: Audited) -> None:
    rotated = audited.log.with_suffix(".1")
    audited.log.rename(rotated)
    try:
        audited.server.process.send_signal(signal.SIGHUP)
        assert wait_line(audited.log, action="reload")["route"] == "SIGHUP"

        def unloads() -> bool:  # a frontend process opens the file again a moment after the engine
            audited.post("/v2/repository/models/m/unload", key="key-of-ci")
            return any(line["action"] == "unload" for line in read(audited.log))

        wait_until(unloads)
    finally:
        audited.log.write_text(rotated.read_text() + audited.log.read_text())


def test_files_that_change(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    model = ModelFolder(tmp_path / "models", "m").identity()
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1", "--repository-settle-ms=0", f"--audit-log={log}"]
    with ServerProcess(*flags, "--allow-grpc=false", repositories=[tmp_path / "models"]) as server:
        wait_line(log, action="load", route="startup", model="m", result="OK")
        model.identity(batch=4)
        server.process.send_signal(signal.SIGHUP)
        wait_line(log, action="load", route="file change", model="m", result="OK")
        with pytest.raises(urllib.error.HTTPError):  # in one process
            urllib.request.urlopen(f"http://{server.http}/v2/repository/models/m/load", b"{}")
        assert wait_line(log, action="load", protocol="http", result="UNAVAILABLE")["peer"].startswith("127.0.0.1:")
        model.config("backend: ")
        server.process.send_signal(signal.SIGHUP)
        wait_line(log, action="load", model="m", result="ERROR")
        assert (
            'tpy_log_lines_dropped_total{log="audit"} 0'
            in urllib.request.urlopen(f"http://{server.metrics}/metrics").read().decode()
        )


def test_calls_of_the_program(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    ModelFolder(tmp_path / "models", "m").identity()
    with tpy.Server(tmp_path / "models", audit_log=str(log)) as server:
        server.unload("m")
    lines = [(line["action"], line["protocol"], line.get("model")) for line in read(log)]
    assert lines[0] == ("start", "server", None)
    assert ("unload", "program", "m") in lines


def test_lines_that_are_required_need_a_file(tmp_path: Path) -> None:
    ended = run_tpy("serve", f"--model-repository={tmp_path}", "--audit-log-required=true")
    assert ended.code != 0
    assert "--audit-log-required: expected --audit-log FILE, too" in ended.err

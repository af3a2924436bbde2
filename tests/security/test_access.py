"""Ways round a restricted API (CVE-2026-24206, CVE-2026-24207), and what is for whom runs the server only."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

from tests.chaos.models import FACTOR
from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import ServerProcess
from tpy._proto import message_class

from .attacker import Attacker

SERVICE = "/inference.GRPCInferenceService/"
KEY = "x-admin: secret"
REFUSAL = b"This API is restricted, expecting header 'x-admin'"
MODE_NONE = "explicit model load / unload is not allowed if polling is enabled"


LOAD = b"/v2/repository/models/copy/load"
TARGETS = [
    LOAD,
    b"/v2//repository/models/copy/load",
    b"//v2/repository/models/copy/load",
    b"/V2/repository/models/copy/load",
    b"/v2/repository/models/copy/load/",
    b"/v2/repository/models/copy/load?x=/v2/health/live",
    b"/v2/repository/models/copy/load#",
    b"/v2/repository/models/copy/load;x=y",
    b"/v2/./repository/models/copy/load",
    b"/v2/health/../repository/models/copy/load",
    b"/v2/health/live/../../repository/models/copy/load",
    b"/v2%2frepository%2fmodels%2fcopy%2fload",
    b"/v2/repository%2fmodels/copy/load",
    b"/v2/%72epository/models/copy/load",
    b"/v2/repository/models/copy/%6coad",
    b"/v2/repository/x/models/copy/load",
    b"http://x/v2/repository/models/copy/load",
    b"\\v2\\repository\\models\\copy\\load",
    b"/v2/repository/index",
    b"/v2/repository/models/affine/unload",
    b"/v2/logging",
    b"/v2/trace/setting",
    b"/v2/models/affine/trace/setting",
    b"/v2/systemsharedmemory/region/x/register",
    b"/v2/cudasharedmemory/unregister",
]
HEADERS = [
    (),
    ("X-Admin: wrong",),
    ("X-Admin:",),
    ("X-Admin: secret\x00",),
    ("X_Admin: secret",),
    ("X-Admin: secret, secret",),
    ("X-Admin: SECRET",),
    ("Authorization: secret",),
    ("X-Original-URL: /v2/health/live", "X-Rewrite-URL: /v2/health/live"),
    ("X-HTTP-Method-Override: GET",),
    ("X-Forwarded-For: 127.0.0.1",),
    ("Connection: x-admin", "X-Admin: wrong"),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.decode())
def test_no_spelling_of_a_path_needs_no_key(restricted: Attacker, target: bytes) -> None:
    for method in ("POST", "GET", "HEAD", "PUT", "OPTIONS", "post"):
        for more in HEADERS if target == LOAD else HEADERS[:1]:
            for answer in restricted.exchange(
                b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n%b\r\n{}"
                % (method.encode(), target, "".join(f"{each}\r\n" for each in more).encode())
            ):
                assert answer.status in (400, 403, 404, 405), (method, more, answer)
    assert restricted.ask("GET", "/v2/models/copy/ready").status != 200
    assert restricted.ask("GET", "/v2/models/affine/ready").status == 200


def test_the_key_opens_what_it_is_for(restricted: Attacker) -> None:
    assert restricted.ask("POST", "/v2/repository/index", b"", KEY).status == 200
    assert restricted.ask("POST", "/v2/repository/index", b"").error == "This API is restricted, expecting header 'x-admin'"
    assert restricted.ask("GET", "/v2/health/ready").status == 200


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.2"])
def test_an_upgrade_is_no_way_round(restricted: Attacker, protocol: str) -> None:
    head = f"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nUpgrade: {protocol}\r\nContent-Length: 0\r\n"
    more = "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    said = restricted.said_until(REFUSAL, (head + more).encode())
    assert said.startswith(b"HTTP/1.1 403 ")
    assert REFUSAL in said


def test_over_grpc(restricted: Attacker) -> None:
    calls = {
        "RepositoryIndex": "RepositoryIndexRequest",
        "RepositoryModelLoad": "RepositoryModelLoadRequest",
        "RepositoryModelUnload": "RepositoryModelUnloadRequest",
        "ModelConfig": "ModelConfigRequest",
        "ModelStatistics": "ModelStatisticsRequest",
        "LogSettings": "LogSettingsRequest",
        "TraceSetting": "TraceSettingRequest",
        "SystemSharedMemoryRegister": "SystemSharedMemoryRegisterRequest",
        "CudaSharedMemoryStatus": "CudaSharedMemoryStatusRequest",
        "ModelInfer": "ModelInferRequest",
    }
    keys = [
        (),
        (("admin", "secret"),),
        (("triton-grpc-protocol-admin", "wrong"),),
        (("triton-grpc-protocol-admin-bin", b"secret"),),
    ]
    with grpc.insecure_channel(restricted.server.grpc) as channel:
        for method, message in calls.items():
            request = message_class(f"inference.{message}")().SerializeToString()
            for metadata in keys:
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(SERVICE + method)(request, timeout=20, metadata=metadata)
                assert caught.value.details() == "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'"
        stream = channel.stream_stream(f"{SERVICE}ModelStreamInfer")(iter([b""]), timeout=20)
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert "This protocol is restricted" in (caught.value.details() or "")
        for path in (
            "//inference.GRPCInferenceService/RepositoryIndex",
            f"{SERVICE}repositoryindex",
            f"{SERVICE}RepositoryIndex/",
        ):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(path)(b"", timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        index = channel.unary_unary(f"{SERVICE}RepositoryIndex")
        assert index(b"", timeout=20, metadata=(("triton-grpc-protocol-admin", "secret"),))


def test_files_of_the_server_are_not_for_clients(attacker: Attacker) -> None:
    """CVE-2024-0087: the log file was any file. CVE-2024-0100: so was the trace file."""
    target = attacker.home / "written"
    for document in ({"log_file": str(target)}, {"log_file": ""}, {"log_file": "../../x"}, {"log_file": 1}):
        answer = attacker.ask("POST", "/v2/logging", json.dumps(document).encode())
        assert answer.status in (400, 501)
        assert answer.error == "log file location can not be updated through network protocol"
    for path in ("/v2/trace/setting", "/v2/models/affine/trace/setting"):
        assert attacker.ask("POST", path, json.dumps({"trace_file": str(target)}).encode()).status == 501
    settings = message_class("inference.LogSettingsRequest")()
    settings.settings["log_file"].string_param = str(target)
    traces = message_class("inference.TraceSettingRequest")()
    traces.settings["trace_file"].value.append(str(target))
    with grpc.insecure_channel(attacker.server.grpc) as channel:
        for method, message in (("LogSettings", settings), ("TraceSetting", traces)):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(SERVICE + method)(message.SerializeToString(), timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not target.exists()


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_models_are_loaded_by_nobody_in_other_modes(tmp_path: Path, mode: str) -> None:
    """The default is none: a public port lets nobody change what is served."""
    ModelFolder(tmp_path / "models", "affine").config(AFFINE_CONFIG + "dynamic_batching { }\n").affine(1, FACTOR)
    flags = () if mode == "none" else ("--model-control-mode=poll",)
    with ServerProcess(*flags, repositories=[tmp_path / "models"]) as server:
        attacker = Attacker(server, tmp_path)
        for answer in (
            attacker.load("affine", {}),
            attacker.load("intruder", {"config": "{}", "file:1/model.py": "AA=="}),
            attacker.ask("POST", "/v2/repository/models/affine/unload", b""),
        ):
            assert answer.status == 503
            assert answer.error == MODE_NONE
        attacker.check_served()

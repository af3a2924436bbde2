"""Paths, names and configurations that lead out of the repository, into a shell, or are made to cost."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.chaos.models import COPY, python_config
from tests.e2e.repositories import AFFINE_CONFIG
from tests.pace import at_pace
from tpy._proto import message_class

from .attacker import Attacker

CPU_S_MAX = 10.0
"""Of the server, for one message: what takes quadratic time takes minutes, on any machine."""
SERVICE = "/inference.GRPCInferenceService/"


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def untouched(attacker: Attacker) -> Iterator[None]:
    """Nothing in the repository, nor secret.txt beside it, may change."""
    before = files_below(attacker.home)
    yield
    assert files_below(attacker.home) == before


TOO_LONG = "1/" + "x" * 300
OUTSIDE = [
    "../x",
    "../../secret.txt",
    "1/../../../secret.txt",
    "1/../../x",
    "/tmp/tpy-security-x",
    "//tmp/tpy-security-x",
    "./x",
    "1/..",
    "..",
    "",
    "/",
    "1/",
    "1/x\0y",
    TOO_LONG,
    "1/" + "x/" * 5000 + "x",
]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: repr(path[:30]))
def test_files_of_a_load_call_stay_inside(attacker: Attacker, untouched: None, path: str) -> None:
    """CVE-2023-31036, CVE-2026-24208, CVE-2026-24209."""
    content = base64.b64encode(b"taken").decode()
    answer = attacker.load("intruder", {"config": json.dumps({"backend": "identity"}), f"file:{path}": content})
    too_long = path == TOO_LONG
    assert answer.status == (500 if too_long else 400)  # as in Triton
    assert len(answer.error) < 10_000
    request = message_class("inference.RepositoryModelLoadRequest")(model_name="intruder")
    request.parameters["config"].string_param = json.dumps({"backend": "identity"})
    request.parameters[f"file:{path}"].bytes_param = b"taken"
    with grpc.insecure_channel(attacker.server.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"{SERVICE}RepositoryModelLoad")(request.SerializeToString(), timeout=20)
    assert caught.value.code() is (grpc.StatusCode.INTERNAL if too_long else grpc.StatusCode.INVALID_ARGUMENT)
    assert not list(Path("/tmp").glob("tpy-security-x*"))


IO = {
    "input": [{"name": "INPUT", "data_type": "TYPE_FP32", "dims": [3]}],
    "output": [{"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [3]}],
}
SECRET = "../../secret.txt"
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "a model file": {"default_model_filename": SECRET},
    "an absolute model file": {"default_model_filename": "/etc/passwd"},
    "labels": {"output": [{**IO["output"][0], "label_filename": SECRET}]},
    "absolute labels": {"output": [{**IO["output"][0], "label_filename": "/etc/passwd"}]},
    "warm-up data": {
        "model_warmup": [
            {
                "name": "w",
                "batch_size": 1,
                "inputs": {"INPUT": {"data_type": "TYPE_FP32", "dims": [3], "input_data_file": "../" + SECRET}},
            }
        ]
    },
}


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_configurations_name_no_file_outside(attacker: Attacker, untouched: None, kind: str) -> None:
    config = {"backend": "onnxruntime", "max_batch_size": 8, **IO, **CONFIGURATIONS[kind]}
    answer = attacker.load("bait", {"config": json.dumps(config)})
    assert answer.status in (400, 500)
    assert "not to be told" not in answer.error
    assert "root:" not in answer.error


NAMES = [
    b"..",
    b".",
    b"%2e%2e",
    b"..%2f..%2fsecret.txt",
    b"..%5c..",
    b"%2e%2e%2f%2e%2e",
    b"%252e%252e",
    b"affine%00",
    b"affine%00.txt",
    b"%00",
    b"%0aaffine",
    b"affine%20",
    b"Affine",
    b"affine;id",
    b"$(id)",
    b"%60id%60",
    b"%7cid",
    b"affine%2f1",
    b"1",
    b"*",
    b"%c0%ae%c0%ae",
    b"%ff%fe",
    b"%ef%bc%8e%ef%bc%8e",
    b"a%cc%8affine",
    b"%ed%a0%80",
    b"%e2%80%ae",
    b"x" * 255,
    b"x" * 256,
    b"x" * 30_000,
    b"%F0%9F%92%A9" * 100,
]
ROUTES = [
    ("GET", b"/v2/models/%b"),
    ("GET", b"/v2/models/%b/ready"),
    ("GET", b"/v2/models/%b/config"),
    ("GET", b"/v2/models/%b/stats"),
    ("POST", b"/v2/models/%b/infer"),
    ("POST", b"/v2/models/%b/generate"),
    ("POST", b"/v2/repository/models/%b/load"),
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20].decode())
def test_names_of_models(attacker: Attacker, untouched: None, name: bytes) -> None:
    """None of them is a model; none is looked for outside, becomes a long answer or another model."""
    for method, route in ROUTES:
        answer = attacker.ask(method, route % name, b"{}" if method == "POST" else b"")
        assert 400 <= answer.status < 500 or b"failed to load" in answer.body, (route, answer)
        assert len(answer.body) < 10_000


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../affine", "affine\0", "/etc", "x" * 256, "x" * 3_000_000, ""])
def test_names_of_models_over_grpc(attacker: Attacker, untouched: None, name: str) -> None:
    calls = [
        ("RepositoryModelLoad", "RepositoryModelLoadRequest", "model_name"),
        ("ModelInfer", "ModelInferRequest", "model_name"),
    ]
    with grpc.insecure_channel(attacker.server.grpc) as channel:
        for method, message, field in calls:
            request = message_class(f"inference.{message}")(**{field: name})
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(SERVICE + method)(request.SerializeToString(), timeout=20)
            assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
            assert len(caught.value.details() or "") < 10_000


@pytest.mark.parametrize("text", ["x" * 3_000_000, "9" * 3_000_000, " " * 3_000_000, "-" * 3_000_000])
def test_versions_of_megabytes(attacker: Attacker, text: str) -> None:
    request = message_class("inference.ModelInferRequest")(model_name="affine", model_version=text)
    began = attacker.server.cpu_s()
    with grpc.insecure_channel(attacker.server.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"{SERVICE}ModelInfer")(request.SerializeToString(), timeout=20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(caught.value.details() or "") < 10_000
    assert attacker.server.cpu_s() - began < at_pace(CPU_S_MAX)


@pytest.mark.parametrize(
    "name", ["x; touch PWNED; #", "$(touch PWNED)", "`touch PWNED`", "x | touch PWNED", "-c", "--help", "x\ny"]
)
def test_no_shell_sees_a_name(attacker: Attacker, untouched: None, name: str) -> None:
    """CVE-2025-23316: the python backend's worker was started with the model's name in a shell's command line."""
    config = {"backend": "python", "max_batch_size": 8, **IO, "instance_group": [{"kind": "KIND_CPU", "count": 1}]}
    request = message_class("inference.RepositoryModelLoadRequest")(model_name=name)
    request.parameters["config"].string_param = json.dumps(config)
    request.parameters["file:1/model.py"].bytes_param = COPY.encode()
    with grpc.insecure_channel(attacker.server.grpc) as channel:
        channel.unary_unary(f"{SERVICE}RepositoryModelLoad")(request.SerializeToString(), timeout=60)
        unload = message_class("inference.RepositoryModelUnloadRequest")(model_name=name)
        channel.unary_unary(f"{SERVICE}RepositoryModelUnload")(unload.SerializeToString(), timeout=60)
    working = Path(f"/proc/{attacker.server.process.pid}/cwd")
    assert not (working / "PWNED").exists()
    assert not list(Path("/tmp").glob("PWNED"))


def _inputs(count: int) -> dict[str, Any]:
    return {"input": [{"name": f"I{n}", "data_type": "TYPE_FP32", "dims": [3]} for n in range(count)]}


BOMBS: dict[str, str] = {
    "deep objects": '{"parameters":' * 50_000,
    "deep arrays": '{"input":' + "[" * 500_000,
    "closed deep arrays": '{"input":' + "[" * 50_000 + "]" * 50_000 + "}",
    "more than a megabyte": json.dumps(_inputs(40_000)),
    "dims beyond 64 bits": json.dumps({**IO, "input": [{**IO["input"][0], "dims": [2**63]}]}),
    "dims whose product overflows": json.dumps({**IO, "input": [{**IO["input"][0], "dims": [2**62, 4]}]}),
    "negative dims": json.dumps({**IO, "input": [{**IO["input"][0], "dims": [-2]}]}),
    "more dims than there may be": json.dumps({**IO, "input": [{**IO["input"][0], "dims": [1] * 5000}]}),
    "instances without end": json.dumps({**IO, "instance_group": [{"count": 2**31 - 1, "kind": "KIND_CPU"}]}),
    "groups without end": json.dumps({**IO, "instance_group": [{"count": 4096, "kind": "KIND_CPU"}] * 10_000}),
    "a batch without end": json.dumps({**IO, "max_batch_size": 2**31}),
    "levels without end": json.dumps({**IO, "dynamic_batching": {"priority_levels": 2**32 - 1}}),
    "a digit of megabytes": '{"max_batch_size":' + "9" * 900_000 + "}",
    "one key many times": "{" + ",".join(['"name":"other"'] * 50_000) + "}",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_configurations_that_are_made_to_cost(attacker: Attacker, untouched: None, kind: str) -> None:
    resident, began = attacker.resident_bytes(), attacker.server.cpu_s()
    answer = attacker.load("bait", {"config": BOMBS[kind]})
    assert answer.status in (400, 500), answer
    assert len(answer.error) < 70_000
    assert attacker.server.cpu_s() - began < at_pace(CPU_S_MAX)
    assert attacker.resident_bytes() - resident < 300_000_000


TEXTS: dict[str, str] = {
    "deep messages": AFFINE_CONFIG + "parameters { " * 50_000,
    "deep lists": AFFINE_CONFIG + "input [ " * 50_000,
    "closed deep messages": AFFINE_CONFIG + "x { " * 50_000 + "}" * 50_000,
    "dims whose product overflows": python_config(f"{2**62}, {2**62}"),
    "instances without end": python_config(count=2**31 - 1),
    "strings without end": AFFINE_CONFIG + 'parameters { key: "' + "\\x41" * 200_000,
    "noise": "\x00\xff}{][" * 100_000,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_files_that_are_made_to_cost(attacker: Attacker, kind: str) -> None:
    """config.pbtxt in the repository: its owner may be trusted, but the server must outlive it."""
    folder = attacker.home / "models" / "bomb"
    (folder / "1").mkdir(parents=True)
    try:
        (folder / "config.pbtxt").write_text(TEXTS[kind], encoding="latin-1")
        resident, began = attacker.resident_bytes(), attacker.server.cpu_s()
        answer = attacker.load("bomb", {})
        assert answer.status in (400, 500)
        assert len(answer.error) < 70_000
        assert attacker.server.cpu_s() - began < at_pace(CPU_S_MAX)
        assert attacker.resident_bytes() - resident < 300_000_000
    finally:
        (folder / "config.pbtxt").unlink()
        (folder / "1").rmdir()
        folder.rmdir()


def test_links_in_a_circle_end(attacker: Attacker) -> None:
    folder = attacker.home / "models" / "circle"
    (folder / "1").mkdir(parents=True)
    links = [folder / "1" / "again", folder / "2", folder / "1" / "pipe"]
    links[0].symlink_to(folder)
    links[1].symlink_to(folder / "2")
    links[2].symlink_to("/dev/zero")
    try:
        (folder / "config.pbtxt").write_text(AFFINE_CONFIG)
        began = attacker.server.cpu_s()
        assert attacker.load("circle", {}).status in (400, 500)
        assert attacker.server.cpu_s() - began < at_pace(CPU_S_MAX)
    finally:
        for link in links:
            link.unlink()
        (folder / "config.pbtxt").unlink()
        (folder / "1").rmdir()
        folder.rmdir()

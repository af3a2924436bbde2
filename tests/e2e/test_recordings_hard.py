"""Recordings under TLS and access control, of requests with shared memory and of cancelled ones, and on a disk that is full."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import shared_memory

from tests.recording.reading import read_file
from tpy.frontends.access.config import digest, key_entry
from tpy.recording.core.file_format import RecordingReader
from tpy_tools.commands.client import Client

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess, run_tpy
from .test_access import CERTIFICATES, tls
from .waiting import wait_until

CA = ("--ca-file", str(CERTIFICATES / "ca.pem"))
SHOWN = ("--client-certificate", str(CERTIFICATES / "client.pem"), "--client-key", str(CERTIFICATES / "client.key"))
KEY = ("--header", "authorization:Bearer key-of-all")
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that demands a certificate and a key, and records."""
    home = tmp_path_factory.mktemp("guarded")
    ModelFolder(home / "models", "affine").config(AFFINE_CONFIG).affine(1, 2)
    (home / "recordings").mkdir()
    entries = [key_entry("all", digest("key-of-all"), ["infer", "manage", "observe"], ["*"])]
    entries.append(key_entry("user", digest("key-of-user"), ["infer"], ["*"]))
    (home / "auth.toml").write_text("\n".join(entries))
    flags = [flag for prefix in ("http", "grpc") for flag in tls(prefix, mutual=True)]
    flags += [f"--recording-directory={home / 'recordings'}", "--frontend-processes=1"]
    flags += [f"--auth-config={home / 'auth.toml'}", "--auth-required=true"]
    with ServerProcess(*flags, repositories=[home / "models"]) as server:
        yield server


@pytest.fixture(scope="module")
def recording(guarded: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of three requests, which `tpy replay` has sent itself."""
    first = tmp_path_factory.mktemp("first") / "first.tpyrec"
    with ServerProcess(
        f"--recording-directory={first.parent}", repositories=[_affine(tmp_path_factory.mktemp("plain"))]
    ) as plain:
        assert run_tpy("record", "*", "--url", plain.http, "--detach").code == 0
        client = tritonclient.http.InferenceServerClient(plain.http)
        for scale in (1, 2, 3):
            tensor = tritonclient.http.InferInput("INPUT", [2, 3], "FP32")
            tensor.set_data_from_numpy(VALUES * scale)
            client.infer("affine", [tensor])
        client.close()
        stopped = run_tpy("record", "--stop", "--url", plain.http)
    return Path(stopped.out.partition(": ")[0])


def _affine(repository: Path) -> Path:
    ModelFolder(repository, "affine").config(AFFINE_CONFIG).affine(1, 2)
    return repository


@pytest.mark.parametrize("protocol", ["http", "grpc", "grpc-stream"])
def test_every_protocol_over_tls_with_a_certificate_and_a_key(guarded: ServerProcess, recording: Path, protocol: str) -> None:
    url = f"https://{guarded.http}" if protocol == "http" else f"grpcs://{guarded.grpc}"
    command = ("replay", str(recording), "--url", url, "--protocol", protocol, "--speed", "max", *CA)
    done = run_tpy(*command, *SHOWN, *KEY)
    assert done.code == 0, (done.out, done.err)
    assert done.out.endswith("all 3 answers are equal\n")

    refused = run_tpy(*command, *SHOWN, "--header", "authorization:Bearer wrong")
    assert refused.code == 1
    assert "3 of 3 answers are different" in refused.out
    assert "an error in place of an answer" in refused.out

    without = run_tpy(*command, *KEY)
    assert without.code == 2
    assert "ended early, 0 answered, 0 of them different: every connection was lost before an answer: " in without.out


def test_certificates_that_nobody_trusts_and_files_that_are_none(guarded: ServerProcess, recording: Path, tmp_path: Path) -> None:
    to = ("replay", str(recording), "--url", f"https://{guarded.http}")
    unknown = run_tpy(*to, *SHOWN, *KEY)
    assert unknown.code == 2
    assert "CERTIFICATE_VERIFY_FAILED" in unknown.out
    trusting = run_tpy(*to, *SHOWN, *KEY, "--no-tls-verify", "--speed", "max")
    assert trusting.code == 0, trusting.out
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing")
    for arguments, said in (
        (("--ca-file", "/nowhere.pem"), "--ca-file: cannot read '/nowhere.pem': No such file or directory"),
        (("--ca-file", str(nonsense)), f"--ca-file {nonsense}: expected PEM, and a key that fits its certificate: "),
        (SHOWN[2:], "--client-key: expected its certificate, too: --client-certificate FILE"),
        ((*SHOWN[:3], str(CERTIFICATES / "stranger.key")), "KEY_VALUES_MISMATCH"),
    ):
        wrong = run_tpy(*to, *arguments)
        assert wrong.code == 2
        assert said in wrong.err


def test_record_over_tls_is_for_those_who_may_manage(guarded: ServerProcess) -> None:
    to = ("--url", f"https://{guarded.http}", *CA, *SHOWN)
    refused = run_tpy("record", "*", *to, "--header", "authorization:Bearer key-of-user", "--detach")
    assert (refused.code, "403" in refused.err) == (1, True)
    started = run_tpy("record", "*", *to, *KEY, "--detach")
    assert started.code == 0, started.err
    stopped = run_tpy("record", "--stop", *to, *KEY)
    assert stopped.out.endswith("stopped: it was stopped\n")
    Path(stopped.out.partition(": ")[0]).unlink()
    for command in (("explain", "affine"), ("top", "--once", "--interval", "0.1")):
        shown = run_tpy(*command, *to, *KEY)
        assert shown.code == 0, shown.err
        assert "affine" in shown.out


def test_tensors_in_shared_memory_are_recorded_as_they_were(tmp_path: Path) -> None:
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    with ServerProcess(
        f"--recording-directory={recordings}",
        "--frontend-processes=1",
        "--allow-client-shm=true",
        repositories=[_affine(tmp_path / "models")],
    ) as server:
        assert run_tpy("record", "*", "--url", server.http, "--detach").code == 0
        client = tritonclient.grpc.InferenceServerClient(server.grpc)
        region = shared_memory.create_shared_memory_region("both", "/tpy-recorded", 48)
        try:
            shared_memory.set_shared_memory_region(region, [VALUES])
            client.register_system_shared_memory("both", "/tpy-recorded", 48)
            given = tritonclient.grpc.InferInput("INPUT", [2, 3], "FP32")
            given.set_shared_memory("both", 24)
            wanted = tritonclient.grpc.InferRequestedOutput("OUTPUT")
            wanted.set_shared_memory("both", 24, 24)
            client.infer("affine", [given], outputs=[wanted])
            answer = shared_memory.get_contents_as_numpy(region, np.float32, [2, 3], 24)
            assert np.array_equal(answer, 2 * VALUES)
        finally:
            client.unregister_system_shared_memory()
            shared_memory.destroy_shared_memory_region(region)
            client.close()
        file = Path(run_tpy("record", "--stop", "--url", server.http).out.partition(": ")[0])
        [recorded] = read_file(file)
        assert recorded.inputs[0].data == VALUES.tobytes(), "and not what is in the region afterwards"
        assert recorded.responses[0].outputs[0].data == (2 * VALUES).tobytes()
        replayed = run_tpy("replay", str(file), "--url", server.grpc, "--protocol", "grpc", "--speed", "max")
        assert replayed.code == 0, replayed.out


def test_a_full_disk_ends_the_recording_and_not_the_server(tmp_path: Path) -> None:
    """The system lets the server write no file of more than 8 KiB."""
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    with ServerProcess(
        f"--recording-directory={recordings}", repositories=[_affine(tmp_path / "models")], launcher=["prlimit", "--fsize=8192"]
    ) as server:
        assert run_tpy("record", "*", "--url", server.http, "--detach").code == 0
        client = tritonclient.http.InferenceServerClient(server.http)
        tensor = tritonclient.http.InferInput("INPUT", [8, 3], "FP32")
        tensor.set_data_from_numpy(np.ones((8, 3), np.float32))
        for _ in range(40):
            client.infer("affine", [tensor])
        client.close()
        host, _, port = server.http.partition(":")
        asking = Client(host, int(port))
        status = wait_until(lambda: _stopped(asking.get("/v2/recording")))
        assert "cannot write" in str(status["reason"])
        assert "File too large" in str(status["reason"])
        server.wait_log("the recording has ended: cannot write")
        reader = RecordingReader()
        found = reader.feed(Path(str(status["file"])).read_bytes())
        reader.finish()
        assert 0 < len(found) < 40
        assert len(found) == status["requests"], "whole up to there"
        assert reader.problem.startswith("it is cut off at byte"), "without its last entry"
        again = run_tpy("record", "*", "--url", server.http, "--detach")
        assert again.code == 0, "another one may be made"
        replayed = run_tpy("replay", str(status["file"]), "--url", server.http, "--json", "-")
        report = json.loads(replayed.out)
        assert (replayed.code, report["equal"]) == (2, len(found)), "all that is there is equal, and that is not all"
        assert report["file_problem"].startswith("it is cut off at byte")


def _stopped(document: object) -> dict[str, object]:
    assert isinstance(document, dict)
    return document if document["state"] == "stopped" else {}

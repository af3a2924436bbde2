"""Servers of repositories in the cloud, on a real S3 server: 50 models in all modes, changes, agents, restarts without it."""

from __future__ import annotations

import hashlib
import os
import signal
import urllib.request
from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException

from tests.backends import onnx_models
from tests.cloud_servers import KEYS, Answer, FaultyProxy, S3Server, refuse

from .clouds import SECRETS, address, affine
from .repositories import AFFINE_CONFIG, IDENTITY_PAIR, ModelFolder
from .server import ServerProcess, run_tpy
from .test_agents import EXAMPLE, KEY, OTHER_KEY, install, module_of
from .test_poll import scaled
from .waiting import wait_until

IDENTITY = f'backend: "identity"\nmax_batch_size: 8\n{IDENTITY_PAIR}'


def serve(*flags: str, expect_exit: int = 0, environment: dict[str, str] | None = None) -> ServerProcess:
    return ServerProcess(*flags, expect_exit=expect_exit, environment=environment or KEYS)


def ready(server: ServerProcess) -> set[str]:
    with InferenceServerClient(server.http) as client:
        return {entry["name"] for entry in client.get_model_repository_index() if entry.get("state") == "READY"}


def metric(server: ServerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name}{{")).rpartition(" ")[2])


@pytest.fixture(scope="module")
def fifty(s3: S3Server) -> str:
    """The prefix of a repository of 50 models."""
    for number in range(50):
        s3.put(f"fifty/m{number:02}/config.pbtxt", IDENTITY)
        s3.put(f"fifty/m{number:02}/1/weights.bin", bytes([number]) * 1000)
    return "fifty"


def test_fifty_models_in_mode_poll_then_without_the_cloud(s3: S3Server, proxy: FaultyProxy, fifty: str, tmp_path: Path) -> None:
    names = {f"m{number:02}" for number in range(50)}
    flags = (f"--model-repository={address(proxy.host, fifty)}", f"--repository-cache={tmp_path / 'cache'}")
    poll = ("--model-control-mode=poll", "--repository-poll-secs=1", "--repository-settle-ms=200")
    disk = ModelFolder(tmp_path / "disk", "local").identity()
    with serve(*flags, *poll, f"--model-repository={tmp_path / 'disk'}") as server:
        assert ready(server) == {*names, "local"}
        del proxy.requests[:]
        affine(s3, fifty, "new", 3)
        with InferenceServerClient(server.http) as client:
            wait_until(lambda: scaled(client, "new") == 3)
            affine(s3, fifty, "new", 4)  # the configuration is written again, too, with the same content
            wait_until(lambda: scaled(client, "new") == 4)
        fetched = [path for path in proxy.requests if "list-type" not in path]
        assert len(fetched) == 3, "what has changed was downloaded, and nothing else"
        s3.delete(f"{fifty}/new/")
        wait_until(lambda: ready(server) == {*names, "local"})

        # The cloud goes away, and comes back.
        proxy.fault = refuse(503, "SlowDown")
        server.wait_log("served models stay loaded: .*503 SlowDown")
        assert metric(server, "tpy_repository_reachable") == 0
        disk.file("1/touched", "changes on a disk are followed meanwhile")
        ModelFolder(tmp_path / "disk", "later").identity()
        wait_until(lambda: "later" in ready(server))
        assert ready(server) == {*names, "local", "later"}
        proxy.fault = None
        server.wait_log("can be read again")
        assert server.log.count("served models stay loaded") == 1
        proxy.fault = refuse(400, "ExpiredToken")
        server.wait_log("served models stay loaded: .*400 ExpiredToken: the session token has expired: .* restart the server")
        assert ready(server) == {*names, "local", "later"}
    assert not any(secret in server.log for secret in SECRETS)

    proxy.fault = refuse(503, "SlowDown")
    with serve(*flags) as server:
        assert ready(server) == names
    with serve(*flags, "--model-control-mode=explicit", "--load-model=m07") as server:
        assert ready(server) == {"m07"}
        with InferenceServerClient(server.http) as client:
            client.load_model("m08")
            assert ready(server) == {"m07", "m08"}


def test_mode_explicit_fetches_what_is_loaded_and_gives_it_back(
    s3: S3Server, proxy: FaultyProxy, fifty: str, tmp_path: Path
) -> None:
    environment = {**KEYS, "TMPDIR": str(tmp_path)}
    with (
        serve(
            f"--model-repository={address(proxy.host, fifty)}", "--model-control-mode=explicit", environment=environment
        ) as server,
        InferenceServerClient(server.http) as client,
    ):
        assert len(client.get_model_repository_index()) >= 50
        assert not any("m17/" in path for path in proxy.requests)
        client.load_model("m17")
        copies = list(tmp_path.glob("tpy-repository-*/*/models/*"))
        assert [path.name for path in copies] == ["m17"]
        assert not [path for path in proxy.requests if "m18" in path]
        client.unload_model("m17")
        wait_until(lambda: not copies[0].exists())
        client.load_model("m17")  # and again
        assert client.is_model_ready("m17")
        with pytest.raises(InferenceServerException, match="model not found"):
            client.load_model("nosuch")
    assert not list(tmp_path.glob("tpy-repository-*")), "nothing is left behind"


def test_a_load_whose_new_object_does_not_come_fails_and_the_old_one_is_served(
    s3: S3Server, proxy: FaultyProxy, prefix: str
) -> None:
    """It answered 200. So it did when the model could not be listed: whether it has new objects was not known."""
    affine(s3, prefix, "m", 2)
    flags = (f"--model-repository={address(proxy.host, prefix)}", "--model-control-mode=explicit", "--load-model=m")
    with serve(*flags) as server, InferenceServerClient(server.http) as client:
        assert scaled(client, "m") == 2
        affine(s3, prefix, "m", 3)

        def cut(path: str, answer: Answer) -> None:
            if "model.onnx" in path:
                answer.close_after = len(answer.content) // 2

        def cut_listing(path: str, answer: Answer) -> None:
            if "list-type" in path:
                answer.close_after = len(answer.content) // 2

        for fault in (cut, cut_listing, refuse(403, "AccessDenied"), refuse(503, "SlowDown")):
            proxy.fault = fault
            with pytest.raises(InferenceServerException, match="previously loaded versions stay in service"):
                client.load_model("m")
            assert scaled(client, "m") == 2
            assert client.is_model_ready("m")
        proxy.fault = None
        client.load_model("m")
        assert scaled(client, "m") == 3


def test_python_models_and_backends_of_a_repository(s3: S3Server, prefix: str) -> None:
    model = "class TritonPythonModel:\n    def execute(self, requests):\n        return [None for _ in requests]\n"
    s3.put(f"{prefix}/backends/mine/model.py", model)
    s3.put(f"{prefix}/m/config.pbtxt", IDENTITY.replace('"identity"', '"mine"'))
    s3.put(f"{prefix}/m/1/data", "x")
    with serve(f"--model-repository={address(s3.host, prefix)}") as server:
        assert ready(server) == {"m"}


def test_a_start_that_cannot_be(proxy: FaultyProxy, prefix: str) -> None:
    proxy.hangs.set()
    flags = (f"--model-repository={address(proxy.host, prefix)}", "--repository-start-secs=1", "--exit-on-error=false")
    with serve(*flags) as server, InferenceServerClient(server.http) as client:
        assert not client.is_server_live()
        assert not client.is_server_ready()


def test_a_server_stops_while_the_cloud_hangs(s3: S3Server, proxy: FaultyProxy, prefix: str) -> None:
    affine(s3, prefix, "m", 2)
    flags = (f"--model-repository={address(proxy.host, prefix)}", "--model-control-mode=poll", "--repository-poll-secs=1")
    with serve(*flags) as server, InferenceServerClient(server.http) as client:
        proxy.hangs.set()
        count = len(proxy.requests)
        wait_until(lambda: len(proxy.requests) > count)
        assert scaled(client, "m") == 2
        assert server.stop(signal.SIGTERM) == 0


def test_an_upload_that_is_broken_off_is_refused_by_its_checksums(s3: S3Server, prefix: str) -> None:
    affine(s3, prefix, "m", 2)
    new = {"2/model.onnx": onnx_models.affine(3, 0), "2/more.data": b"more"}
    digests = " ".join(
        f'parameters {{ key: "MD5:{path}" value: "{hashlib.md5(content).hexdigest()}" }}' for path, content in new.items()
    )
    flags = (f"--model-repository={address(s3.host, prefix)}", "--model-control-mode=explicit", "--load-model=m")
    with serve(*flags) as server, InferenceServerClient(server.http) as client:
        agent = f'agents [ {{ name: "checksum" {digests} }} ]'
        s3.put(f"{prefix}/m/config.pbtxt", f"{AFFINE_CONFIG}model_repository_agents {{ {agent} }}")
        s3.put(f"{prefix}/m/2/model.onnx", new["2/model.onnx"])  # and no more of it
        with pytest.raises(InferenceServerException, match=r"2/more\.data"):
            client.load_model("m")
        assert scaled(client, "m") == 2
        s3.put(f"{prefix}/m/2/more.data", new["2/more.data"])
        client.load_model("m")
        assert scaled(client, "m") == 3


def test_check_reads_a_repository_in_the_cloud(s3: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    s3.put(f"{prefix}/bad/config.pbtxt", 'backend: "identity"\nmax_batch_size: many')
    s3.put(f"{prefix}/bad/1/x", "x")
    outcome = run_tpy("check", address(s3.host, prefix))
    assert outcome.code == 1
    assert f"{address(s3.host, prefix)}/bad/config.pbtxt:2" in outcome.out


def models_in(folder: Path) -> list[str]:
    """The ONNX files somewhere below it; folders may vanish meanwhile, which Path.rglob does not take."""
    return [place for place, _, files in os.walk(folder) if "model.onnx" in files]


def test_an_agent_decrypts_models_of_a_bucket(s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path) -> None:
    """The bucket and the copies are encrypted; the files that the agent makes are gone with the server."""
    install(tmp_path / "site", EXAMPLE / "tpy_decrypt.py", "decrypt", "DecryptAgent")
    example = module_of(EXAMPLE / "tpy_decrypt.py")
    (scratch := tmp_path / "scratch").mkdir()
    environment = {**KEYS, "PYTHONPATH": str(tmp_path / "site"), "TMPDIR": str(scratch), "MODEL_KEY": KEY.hex()}
    flags = (f"--model-repository={address(proxy.host, prefix)}", f"--repository-cache={tmp_path / 'cache'}")
    poll = ("--model-control-mode=poll", "--repository-poll-secs=1", "--repository-settle-ms=100")

    def upload(scale: float, key: bytes) -> None:
        asks = AFFINE_CONFIG + 'model_repository_agents { agents [ { name: "decrypt" } ] }'
        plain = ModelFolder(tmp_path / f"plain{scale}", "secret").config(asks).affine(1, scale)
        example.encrypt(plain.path, target := tmp_path / f"encrypted{scale}", key)
        for file in sorted(target.rglob("*")):
            if file.is_file():
                s3.put(f"{prefix}/secret/{file.relative_to(target)}", file.read_bytes())

    upload(2, KEY)
    with serve(*flags, *poll, environment=environment) as server, InferenceServerClient(server.http) as client:
        assert scaled(client, "secret") == 2
        upload(4, OTHER_KEY)
        server.wait_log("loaded versions go on serving: .*'1/model.onnx' was changed.*repository agent 'decrypt'")
        assert scaled(client, "secret") == 2
        upload(5, KEY)
        wait_until(lambda: scaled(client, "secret") == 5)
        [copy] = (tmp_path / "cache").rglob("model.onnx")
        assert copy.read_bytes() == (tmp_path / "encrypted5/1/model.onnx").read_bytes()
        wait_until(lambda: len(models_in(scratch)) == 1)
    assert not models_in(scratch)
    assert KEY.hex() not in server.log

    proxy.fault = refuse(503, "SlowDown")  # the copy serves without the cloud, by way of the agent as before
    with (
        serve(*flags, "--model-control-mode=explicit", "--load-model=secret", environment=environment) as server,
        InferenceServerClient(server.http) as client,
    ):
        assert scaled(client, "secret") == 5
        client.unload_model("secret")
        wait_until(lambda: not models_in(scratch))

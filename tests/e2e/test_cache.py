"""The response cache and the rate limiter of a real server, with the stock client."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from benchmarks.servers.peers import peers_folder
from tests.cache.hostile_redis import hostile_redis
from tests.cache.redis_server import redis_server
from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess, run_tpy
from tests.e2e.waiting import wait_until
from tests.native.compiled import cache_library
from tests.pace import with_patience

REDIS_HARM_S_MAX = 20.0
"""The time-out of 300 ms for looking up and for keeping, on a machine that is busy."""
CACHE = "response_cache { enable: true }"


def _http_infer(server: ServerProcess, model: str, value: int) -> int:
    with http_client.InferenceServerClient(server.http) as client:
        given = http_client.InferInput("INPUT0", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[value]], np.int32))
        return int(client.infer(model, [given]).as_numpy("OUTPUT0")[0, 0])


def _grpc_infer(server: ServerProcess, model: str, value: int) -> int:
    with grpc_client.InferenceServerClient(server.grpc) as client:
        given = grpc_client.InferInput("INPUT0", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[value]], np.int32))
        return int(client.infer(model, [given]).as_numpy("OUTPUT0")[0, 0])


def _metrics(server: ServerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as response:
        lines = response.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_hits_and_misses_are_seen_on_both_protocols(tmp_path: Path) -> None:
    ModelFolder(tmp_path, "cached").identity(CACHE)
    ModelFolder(tmp_path, "plain").identity()
    with ServerProcess("--cache-config=local,size=100000", repositories=[tmp_path]) as server:
        for infer in (_http_infer, _grpc_infer, _http_infer):
            assert infer(server, "cached", 7) == 7
            assert infer(server, "plain", 7) == 7
        assert _grpc_infer(server, "cached", 8) == 8
        with grpc_client.InferenceServerClient(server.grpc) as client:
            (over_grpc,) = client.get_inference_statistics("cached").model_stats
        with http_client.InferenceServerClient(server.http) as client:
            (over_http,) = client.get_inference_statistics("cached")["model_stats"]
        shown = over_http["inference_stats"]
        assert (shown["cache_hit"]["count"], shown["cache_miss"]["count"], over_http["inference_count"]) == (2, 2, 2)
        assert (over_grpc.inference_stats.cache_hit.count, over_grpc.inference_stats.cache_miss.count) == (2, 2)
        assert shown["success"]["count"] == shown["queue"]["count"] == 4
        assert shown["compute_infer"]["count"] == 2
        metrics = _metrics(server)
        label = '{model="cached",version="1"}'
        assert metrics[f"nv_cache_num_hits_per_model{label}"] == metrics[f"nv_cache_num_misses_per_model{label}"] == 2
        assert 0 < metrics["nv_cache_util"] < 1
        assert (metrics["nv_cache_num_entries"], metrics["nv_cache_num_lookups"]) == (2, 4)
        assert not any("nv_cache" in name and "plain" in name for name in metrics)


def test_two_servers_share_a_redis_and_both_live_without_it(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    ModelFolder(repository, "cached").identity(CACHE)
    with redis_server(tmp_path, password="p,w=d") as redis:
        flags = (f"--cache-config=redis,host=127.0.0.1,port={redis.port}", "--cache-config=redis,socket_timeout=500")
        environment = {"TRITONCACHE_REDIS_PASSWORD": redis.password}
        with (
            ServerProcess(*flags, repositories=[repository], environment=environment) as one,
            ServerProcess(*flags, repositories=[repository], environment=environment) as other,
        ):
            assert _http_infer(one, "cached", 7) == 7
            label = '{model="cached",version="1"}'
            hits = f"nv_cache_num_hits_per_model{label}"
            for _ in range(50):  # the first may still be on its way into Redis
                assert _http_infer(other, "cached", 7) == 7
                if _metrics(other)[hits]:
                    break
            assert _metrics(other)[hits] >= 1
            redis.stop()
            assert (_http_infer(one, "cached", 7), _http_infer(other, "cached", 9)) == (7, 9)
            with http_client.InferenceServerClient(one.http) as client:
                assert client.is_server_ready()
            one.wait_log("the response cache does not answer")
            assert redis.password not in one.log


@pytest.mark.parametrize("harm", ["garbage", "flips", "mixes up", "promises", "sleeps"])
def test_a_poisoned_or_slow_redis_changes_no_answer_and_holds_up_nobody(tmp_path: Path, harm: str) -> None:
    repository = tmp_path / "repository"
    ModelFolder(repository, "cached").identity(CACHE)
    with hostile_redis(harm) as redis:
        flags = (f"--cache-config=redis,host=127.0.0.1,port={redis.port}", "--cache-config=redis,socket_timeout=300")
        with ServerProcess(*flags, repositories=[repository]) as server:
            for value in (1, 2, 1, 2, 1, 2):
                began_s = time.monotonic()
                assert _http_infer(server, "cached", value) == value
                assert time.monotonic() - began_s < with_patience(REDIS_HARM_S_MAX)
            with http_client.InferenceServerClient(server.http) as client:
                assert client.is_server_ready()
        assert redis.reads, "it was asked"


def test_a_compiled_cache_keeps_answers_and_its_crash_costs_none(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    ModelFolder(repository, "cached").identity(CACHE)
    cache_library(tmp_path / "caches")
    flags = (f"--cache-directory={tmp_path}/caches", "--cache-config=table,behaviour=crashes")
    with ServerProcess(*flags, repositories=[repository]) as server:
        assert _http_infer(server, "cached", 7) == 7
        wait_until(lambda: _metrics(server).get("nv_cache_num_entries") == 1)
        assert _http_infer(server, "cached", 7) == 7, "it crashes when it finds something"
        server.wait_log("the process of cache 'table' was ended by SIGSEGV")
        assert _grpc_infer(server, "cached", 7) == 7
        assert _metrics(server)['nv_cache_num_misses_per_model{model="cached",version="1"}'] >= 2


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--cache-config=table,behaviour=fails-initialize"], "CacheInitialize was told to fail"),
        (["--cache-config=table,behaviour=x,isolation=cell"], "isolation is process or thread, got 'cell'"),
    ],
)
def test_a_server_does_not_start_without_its_compiled_cache(tmp_path: Path, flags: list[str], text: str) -> None:
    cache_library(tmp_path / "caches")
    (tmp_path / "repository").mkdir()
    outcome = run_tpy("serve", f"--model-repository={tmp_path}/repository", f"--cache-directory={tmp_path}/caches", *flags)
    assert outcome.code != 0
    assert text in " ".join((outcome.err + outcome.out).split())


NVIDIA = peers_folder() / "tritonserver" / "caches"


@pytest.mark.skipif(not (NVIDIA / "local" / "libtritoncache_local.so").is_file(), reason=f"NVIDIA's cache is not in {NVIDIA}")
@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_nvidias_own_local_cache_serves(tmp_path: Path, isolation: str) -> None:
    ModelFolder(tmp_path, "cached").identity(CACHE)
    settings = f"local,use-library=true,isolation={isolation},size=1048576"
    with ServerProcess(f"--cache-directory={NVIDIA}", f"--cache-config={settings}", repositories=[tmp_path]) as server:
        assert _http_infer(server, "cached", 7) == 7
        assert _http_infer(server, "cached", 8) == 8
        wait_until(lambda: _metrics(server).get("nv_cache_num_entries") == 2)  # it sets them once a second
        assert _grpc_infer(server, "cached", 7) == 7
        assert _metrics(server)['nv_cache_num_hits_per_model{model="cached",version="1"}'] == 1
        wait_until(lambda: (_metrics(server)["nv_cache_num_hits"], _metrics(server)["nv_cache_num_misses"]) == (1, 2))
        assert 0 < _metrics(server)["nv_cache_util"] < 1


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--cache-config=local,size=x"], "size is a number from 1 on, got 'x'"),
        (["--cache-config=local,size=0"], "size is a number from 1 on, got '0'"),
        (["--cache-config=local"], "option format is '<cache name>,<setting>=<value>'. Got local"),
        (["--cache-config=size=5"], "option format is '<cache name>,<setting>=<value>'. Got size=5"),
        (
            ["--cache-config=disk,size=5", "--cache-directory=/x"],
            "unable to find 'libtritoncache_disk.so' for cache. Searched: /x",
        ),
        (["--cache-config=local,size=5,use-library=true"], "unable to find 'libtritoncache_local.so' for cache. Searched: "),
        (["--cache-config=disk,size=5", "--cache-config=tape,size=5"], "found multiple cache configurations"),
        (["--cache-config=local,sizes=5"], "cache 'local' has no setting 'sizes'; it has size"),
        (["--cache-config=redis,host=a"], "didn't specify address"),
        (["--cache-config=redis,host=a,port=70000"], "port is a number from 1 to 65535"),
        (["--cache-config=local,size=5", "--cache-config=redis,host=a"], "found multiple cache configurations"),
        (["--cache-config=local,size=5", "--response-cache-byte-size=5"], "Incompatible flags"),
        (["--rate-limit=always"], "expected one of execution_count, off"),
        (["--rate-limit-resource=R"], "option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got R"),
        (["--rate-limit-resource=R:1:2:3"], "option format is"),
        (["--rate-limit-resource=R:-1"], "option format is"),
        (["--rate-limit-resource=R:1", "--rate-limit-resource=R:2"], "was given before"),
    ],
)
def test_flags_that_make_no_sense_are_refused(tmp_path: Path, flags: list[str], text: str) -> None:
    outcome = run_tpy("serve", f"--model-repository={tmp_path}", *flags)
    assert outcome.code != 0
    assert text in " ".join(outcome.err.split())

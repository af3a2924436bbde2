"""Arguments, and the configuration of Serve that is made of them."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tpy.errors import InvalidArgument, Unavailable
from tpy.ray.__main__ import main
from tpy.ray.application import build, deployment_options
from tpy.ray.arguments import read_arguments
from tpy.ray.cluster import Want, problems, shortages, wants_of
from tpy.ray.config import serve_config
from tpy.ray.replica import start
from tpy.ray.scaling import ByLoad


def model(repository: Path, name: str, config: str = "") -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "identity"\n{config}')


def test_words_are_read_by_the_types_of_the_arguments_and_the_rest_are_flags() -> None:
    read = read_arguments(
        {"repository": "/a,s3://b", "models": "x,y", "cpus": "0.5", "max_replicas": "4", "http_max_input_size": "1000"}
    )
    assert (read.repository, read.models, read.cpus, read.max_replicas) == (("/a", "s3://b"), ("x", "y"), 0.5, 4)
    assert read.flags == {"http_max_input_size": "1000"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "tpy.ray: expected repository=FOLDER, the model repository that every node can read"),
        ({"repository": "r", "cpus": "many"}, "tpy.ray: Expected `float`, got `str` - at `$.cpus`"),
        ({"repository": "r", "scale_by": "luck"}, "tpy.ray: expected scale_by to be load or ongoing, got 'luck'"),
        ({"repository": "r", "min_replicas": 1}, "tpy.ray: min_replicas needs max_replicas"),
        ({"repository": "r", "min_replicas": 3, "max_replicas": 2}, "expected 0 <= min_replicas <= max_replicas, got 3 and 2"),
        ({"repository": "r", "replicas": 0}, "tpy.ray: expected replicas from 1 on, got 0"),
        ({"repository": "r", "max_surge_percent": 101}, "tpy.ray: expected max_surge_percent from 0 to 100, got 101"),
        ({"repository": "r", "target": "nan"}, "tpy.ray: expected target above 0, got nan"),
    ],
)
def test_wrong_arguments_are_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        read_arguments(given)
    assert text in raised.value.message


def test_proxies_are_where_the_arguments_say() -> None:
    assert serve_config({"repository": "r", "proxy_location": "HeadOnly"})["proxy_location"] == "HeadOnly"
    with pytest.raises(InvalidArgument, match="expected proxy_location to be one of EveryNode, HeadOnly, Disabled, got 'Head'"):
        serve_config({"repository": "r", "proxy_location": "Head"})


def test_an_argument_that_is_no_flag_is_refused_where_the_application_is_built() -> None:
    with pytest.raises(InvalidArgument, match="not a flag of tpy serve either: 'htp_port'"):
        serve_config({"repository": "r", "htp_port": "1"})


def test_one_application_for_the_repository(tmp_path: Path) -> None:
    config = serve_config(
        {"repository": str(tmp_path), "replicas": "2", "models": "a,b", "grpc_port": "9001", "strict_readiness": "false"}
    )
    (application,) = config["applications"]
    assert config["grpc_options"]["port"] == 9001
    assert application["args"] == {"repository": str(tmp_path), "models": ["a", "b"], "strict_readiness": "false"}
    (deployment,) = application["deployments"]
    assert (deployment["num_replicas"], deployment["user_config"]) == (2, {"models": ["a", "b"]})


def test_an_application_for_each_model_and_one_for_the_servers_routes(tmp_path: Path) -> None:
    gpu = "instance_group [{ kind: KIND_GPU gpus: [0, 1] }]"
    queue = "max_batch_size: 4 dynamic_batching { default_queue_policy { max_queue_size: 10 } }"
    own = 'parameters { key: "ray.max_replicas" value { string_value: "5" } }'
    model(tmp_path, "on-gpus", gpu)
    model(tmp_path, "plain", f"instance_group [{{ kind: KIND_CPU count: 3 }}] {queue} {own}")
    config = serve_config({"repository": str(tmp_path), "per_model": "true", "backend_config": "identity,a=b"})
    found = {each["name"]: each for each in config["applications"]}
    assert {name: each["route_prefix"] for name, each in found.items()} == {
        "on-gpus": "/v2/models/on-gpus",
        "plain": "/v2/models/plain",
        "tpy": "/",
    }
    options = {name: each["deployments"][0] for name, each in found.items()}
    assert options["on-gpus"]["ray_actor_options"] == {"num_cpus": 1.0, "num_gpus": 2.0}
    assert options["plain"]["ray_actor_options"] == {"num_cpus": 3.0, "num_gpus": 0.0}
    assert options["plain"]["max_ongoing_requests"] == 10 + 3 * 4
    assert options["plain"]["autoscaling_config"]["max_replicas"] == 5
    assert options["on-gpus"]["num_replicas"] == 1
    assert found["plain"]["args"] == {"repository": str(tmp_path), "backend_config": "identity,a=b", "model": "plain"}
    assert found["tpy"]["args"]["applications"] == ["on-gpus", "plain"]
    assert options["tpy"]["ray_actor_options"]["num_cpus"] == 0


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            'parameters { key: "ray.relicas" value { string_value: "5" } }',
            "model 'm': there is no parameter 'ray.relicas'; there are ray.",
        ),
        ("max_batch_size: x", "model 'm': "),
    ],
)
def test_a_model_that_cannot_be_deployed_is_named(tmp_path: Path, config: str, text: str) -> None:
    model(tmp_path, "m", config)
    with pytest.raises(InvalidArgument) as raised:
        serve_config({"repository": str(tmp_path), "per_model": "true"})
    assert text in raised.value.message


def test_replicas_scale_by_load_or_by_requests() -> None:
    by_load = deployment_options(read_arguments({"repository": "r", "max_replicas": 3, "target": 0.5}))["autoscaling_config"]
    assert (by_load.min_replicas, by_load.max_replicas) == (1, 3)
    assert by_load.policy.policy_kwargs == {"target": 0.5}
    ongoing = deployment_options(read_arguments({"repository": "r", "max_replicas": 3, "scale_by": "ongoing"}))[
        "autoscaling_config"
    ]
    assert ongoing.target_ongoing_requests == 16


@pytest.mark.parametrize(
    ("loads", "running", "wanted"), [([0.0], 1, 0), ([0.7], 1, 1), ([2.8], 1, 4), ([1.4, 0.7], 2, 3), ([], 2, 2)]
)
def test_as_many_replicas_as_bring_each_to_the_target(loads: list[float], running: int, wanted: int) -> None:
    told = {"tpy_load": {f"r{at}": load for at, load in enumerate(loads)}} if loads else {}
    context = SimpleNamespace(
        aggregated_metrics=told, current_num_replicas=running, target_num_replicas=running, total_num_requests=0
    )
    assert ByLoad(0.7)(context)[0] == wanted


def test_a_repository_that_a_node_cannot_read_is_named_with_the_node(tmp_path: Path) -> None:
    async def begin() -> None:
        arguments = read_arguments({"repository": str(tmp_path / "none")})
        await asyncio.to_thread(start, arguments, "r1", asyncio.get_running_loop())

    with pytest.raises(Unavailable) as raised:
        asyncio.run(begin())
    assert raised.value.message.startswith("replica r1 on the node ")
    assert str(tmp_path / "none") in raised.value.message


@pytest.mark.parametrize(
    ("wants", "text"),
    [
        ([], ""),
        ([Want("m", 3, {"CPU": 1, "GPU": 0})], ""),
        (
            [Want("m", 3, {"CPU": 1, "GPU": 2})],
            "too few GPUs: the application 'm' wants 2 for each of 3 replicas, the cluster (nodes: 2) has room for 1",
        ),
        (  # as many as there are, but not on one node
            [Want("m", 1, {"CPU": 4, "GPU": 0})],
            "too few CPUs: the application 'm' wants 4 for each of 1 replicas, the cluster (nodes: 2) has room for 0",
        ),
        (
            [Want("a", 2, {"CPU": 1, "GPU": 0}), Want("b", 3, {"CPU": 1, "GPU": 0})],
            "too few CPUs: the applications want 5 (a 2, b 3), the cluster has 4",
        ),
    ],
)
def test_what_a_cluster_lacks_is_named(wants: list[Want], text: str) -> None:
    assert shortages(wants, [{"CPU": 3.0}, {"CPU": 1.0, "GPU": 2.0}]) == ([text] if text else [])


def test_the_wants_of_a_configuration_are_those_of_its_deployments(tmp_path: Path) -> None:
    model(tmp_path, "m", 'parameters { key: "ray.max_replicas" value { string_value: "5" } }')
    config = serve_config({"repository": str(tmp_path), "per_model": "true", "gpus": "0.5"})
    assert wants_of(config) == [Want("m", 1, {"CPU": 1.0, "GPU": 0.5}), Want("tpy", 1, {"CPU": 0.0, "GPU": 0.0})]


def test_a_cluster_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    assert problems({}, address) == [f"no Ray cluster at {address}: [Errno 111] Connection refused"]
    assert problems({}, "6379")[0].startswith("expected the address of a Ray cluster as HOST:PORT")


def test_another_ray_than_was_tried_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ray.__version__", "2.99.1")
    build({"repository": "r"})
    assert caplog.messages == ["tpy.ray was tested with Ray 2.60, this is Ray 2.99.1"]
    assert main(["repository=r"]) == 0
    assert capsys.readouterr().err == "warning: tpy.ray was tested with Ray 2.60, this is Ray 2.99.1\n"


def test_the_manifest_of_kuberay_serves_what_the_command_in_it_writes() -> None:
    text = Path("deploy/kuberay/rayservice.yaml").read_text()
    command = re.search(r"# python -m tpy\.ray (.+)", text)
    assert command is not None
    spec = yaml.safe_load(text)["spec"]
    config = yaml.safe_load(spec["serveConfigV2"])
    assert config == serve_config(dict(word.split("=", 1) for word in command[1].split()))
    ports = {"serve": config["http_options"]["port"], "serve-grpc": config["grpc_options"]["port"]}
    [application] = config["applications"]
    cluster = spec["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        [container] = pod["containers"]
        assert ports.items() <= {port["name"]: port["containerPort"] for port in container["ports"]}.items()
        assert pod["terminationGracePeriodSeconds"] > application["deployments"][0]["graceful_shutdown_timeout_s"]
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {application["args"]["repository"]}


def test_an_older_ray_is_named() -> None:
    code = "import ray.serve.handle as handle; del handle.DeploymentHandle.broadcast; import tpy.ray"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: tpy.ray needs Ray 2.60 or newer: install tpy's extra `ray`" in ended.stderr


def test_without_ray_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['ray'] = None\nimport tpy.ray"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: tpy.ray needs Ray Serve: install tpy's extra `ray`" in ended.stderr


def test_calls_are_for_an_application_of_one_model() -> None:
    with pytest.raises(InvalidArgument, match="calls is for an application of one model"):
        read_arguments({"repository": "r", "calls": "a"})


@pytest.mark.parametrize(("last", "circle"), [("b", "b -> c -> b"), ("c", "c -> c"), ("a", "a -> b -> c -> a")])
def test_calls_in_a_circle_are_refused(tmp_path: Path, last: str, circle: str) -> None:
    for name, called in ("a", "b"), ("b", "c"), ("c", last):
        model(tmp_path, name, f'parameters {{ key: "ray.calls" value {{ string_value: "{called}" }} }}')
    with pytest.raises(InvalidArgument) as raised:
        serve_config({"repository": str(tmp_path), "per_model": "true"})
    names = set(circle.split(" -> "))
    told = re.search(r"calls lead in a circle \((.+)\)", raised.value.message)
    assert told is not None
    path = told[1].split(" -> ")
    assert set(path) == names
    assert len(path) == len(names) + 1
    following = {"a": "b", "b": "c", "c": last}
    assert all(following[one] == next_one for one, next_one in itertools.pairwise(path))

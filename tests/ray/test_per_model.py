"""An application for each model, and one for the routes of the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from .repository import build, copy_of
from .serving import HAPROXY, configure, environment, serving, until

HTTP, GRPC = "127.0.0.1:8000", "127.0.0.1:8001"
ROW = np.arange(16, dtype=np.int32).reshape(1, 16)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpclient.InferenceServerClient]:
    folder = tmp_path_factory.mktemp("per-model")
    repository = build(folder / "models")
    copy_of(repository, "simple", "simple2")
    words = (f"repository={repository}", "per_model=true", "models=simple,simple2", "cpus=0.1")
    environ = environment(folder / "home", **HAPROXY)
    served = serving(configure(folder / "serve.yaml", *words), folder / "log", environ, f"http://{HTTP}/v2/health/ready")
    with served, httpclient.InferenceServerClient(HTTP, network_timeout=60) as client:
        until(lambda: [row["state"] for row in _rows(client)] == ["READY", "READY"], seconds=120)
        yield client


def _rows(client: httpclient.InferenceServerClient) -> list[dict[str, Any]]:
    try:
        return [row for row in client.get_model_repository_index() if row["name"].startswith("simple")]
    except Exception as error:  # applications come one after the other
        raise OSError(str(error)) from None


def _inputs(module: Any) -> list[Any]:
    found = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, ROW.shape, "INT32")
        tensor.set_data_from_numpy(ROW)
        found.append(tensor)
    return found


def test_http_clients_reach_each_model_at_its_url(client: httpclient.InferenceServerClient) -> None:
    for name in ("simple", "simple2"):
        assert client.is_model_ready(name)
        assert client.get_model_metadata(name)["name"] == name
        answer = client.infer(name, _inputs(httpclient))
        assert answer.get_response()["model_name"] == name
        assert (answer.as_numpy("OUTPUT0") == 2 * ROW).all()


def test_the_servers_routes_speak_for_all_models(client: httpclient.InferenceServerClient) -> None:
    client.infer("simple", _inputs(httpclient))
    counts = {each["name"]: each["inference_count"] for each in client.get_inference_statistics()["model_stats"]}
    assert set(counts) == {"simple", "simple2"}
    assert counts["simple"] > 0
    client.unload_model("simple2")
    assert {row["name"]: row["state"] for row in _rows(client)} == {"simple": "READY", "simple2": "UNAVAILABLE"}
    with pytest.raises(InferenceServerException, match="has no available versions"):
        client.infer("simple2", _inputs(httpclient))
    client.load_model("simple2")
    assert (client.infer("simple2", _inputs(httpclient)).as_numpy("OUTPUT0") == 2 * ROW).all()


def test_grpc_clients_name_the_application(client: httpclient.InferenceServerClient) -> None:
    with grpcclient.InferenceServerClient(GRPC) as grpc:
        for name in ("simple", "simple2"):
            assert (grpc.infer(name, _inputs(grpcclient), headers={"application": name}).as_numpy("OUTPUT0") == 2 * ROW).all()
        assert {row.name for row in grpc.get_model_repository_index(headers={"application": "tpy"}).models} >= {
            "simple",
            "simple2",
        }

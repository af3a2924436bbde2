"""Ensembles with the stock clients, over HTTP and gRPC, in a server that runs as its users run it."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.conformance.ensemble_repository import build

from .server import ServerProcess

FOUR = np.array([[3, 2, 3, 4]], np.int32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("repository")
    build(repository)
    with ServerProcess("--model-control-mode=explicit", repositories=[repository]) as running:
        with httpclient.InferenceServerClient(running.http) as client:
            for name in ("chain", "fails", "counts", "texts"):
                client.load_model(name)
        yield running


def test_over_http(server: ServerProcess) -> None:
    with httpclient.InferenceServerClient(server.http) as client:
        given = httpclient.InferInput("INPUT0", [1, 4], "INT32")
        given.set_data_from_numpy(FOUR)
        result = client.infer("chain", [given], request_id="x")
        assert result.as_numpy("OUTPUT0").tolist() == FOUR.tolist()
        assert result.get_response()["id"] == "x"
        text = httpclient.InferInput("INPUT0", [1, 2], "BYTES")
        text.set_data_from_numpy(np.array([["a", "\u00e9"]], np.object_))
        assert client.infer("texts", [text]).as_numpy("OUTPUT0").tolist() == [[b"a", "\u00e9".encode()]]
        given.set_data_from_numpy(np.array([[5, 0, 0, 0]], np.int32))
        with pytest.raises(InferenceServerException, match="in ensemble 'fails', gone") as caught:
            client.infer("fails", [given])
        assert caught.value.status() == "404"


def test_over_grpc(server: ServerProcess) -> None:
    with grpcclient.InferenceServerClient(server.grpc) as client:
        given = grpcclient.InferInput("INPUT0", [1, 4], "INT32")
        given.set_data_from_numpy(FOUR)
        result = client.infer("chain", [given])
        assert result.as_numpy("OUTPUT0").tolist() == FOUR.tolist()
        given.set_data_from_numpy(np.array([[5, 0, 0, 0]], np.int32))
        with pytest.raises(InferenceServerException, match="in ensemble 'fails', gone") as caught:
            client.infer("fails", [given])
        assert caught.value.status() == "StatusCode.NOT_FOUND"


def test_a_stream_of_a_decoupled_ensemble(server: ServerProcess) -> None:
    answers: queue.Queue[tuple[grpcclient.InferResult, InferenceServerException | None]] = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        given = grpcclient.InferInput("INPUT0", [1, 4], "INT32")
        given.set_data_from_numpy(FOUR)
        client.async_stream_infer("counts", [given], enable_empty_final_response=True)
        values = []
        while True:
            result, error = answers.get(timeout=10)
            assert error is None
            response = result.get_response()
            if response.outputs:
                values.append(int(result.as_numpy("OUTPUT0")[0, 0]))
            if response.parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
    assert values == [0, 1, 2]


def test_the_ensemble_and_its_members_count(server: ServerProcess) -> None:
    with httpclient.InferenceServerClient(server.http) as client:
        before = {name: client.get_inference_statistics(name)["model_stats"][0] for name in ("chain", "ident")}
        given = httpclient.InferInput("INPUT0", [1, 4], "INT32")
        given.set_data_from_numpy(FOUR)
        client.infer("chain", [given])
        for name in ("chain", "ident"):
            (after,) = client.get_inference_statistics(name)["model_stats"]
            assert after["execution_count"] == before[name]["execution_count"] + 1


def test_readiness_follows_the_members(server: ServerProcess) -> None:
    """A member that is unloaded takes its ensembles along, which leaves the server ready, as a plain unload does."""
    with httpclient.InferenceServerClient(server.http) as client:
        client.unload_model("text")
        assert not client.is_model_ready("texts")
        index = client.get_model_repository_index()
        states = {entry["name"]: (entry["state"], entry.get("reason")) for entry in index if "state" in entry}
        assert states["texts"] == ("UNAVAILABLE", "unloaded")
        client.load_model("text")
        assert client.is_model_ready("texts")
        client.unload_model("text")
        client.load_model("texts")
        assert client.is_model_ready("texts"), "loading it brings its member back"

"""Ensembles with the stock clients, over HTTP and gRPC, in a server that runs as its users run it."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

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


LABELLED = (
    'backend: "identity"\nmax_batch_size: 4\ninput [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
    'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] %s } ]\n'
)
LABEL_FILE = 'label_filename: "labels.txt"'


def _ensemble(*steps: tuple[str, str, str], label: str = "") -> str:
    written = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{taken}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{made}" }} }}'
        for model, taken, made in steps
    )
    return f'platform: "ensemble"\n{(LABELLED % label).partition(chr(10))[2]}ensemble_scheduling {{ step [ {written} ] }}\n'


def test_labels_are_those_of_the_member_that_makes_the_output(repository: Path) -> None:
    """As Triton 2.51 answers: an ensemble's own file goes first, and labels come through nested ensembles."""
    models = {
        "labels": (LABELLED % LABEL_FILE, "cat\ndog\nbird\nfish\n"),
        "plain": (LABELLED % "", None),
        "taken": (_ensemble(("labels", "INPUT0", "OUTPUT0")), None),
        "nested": (_ensemble(("taken", "INPUT0", "OUTPUT0")), None),
        "first": (_ensemble(("labels", "INPUT0", "middle"), ("plain", "middle", "OUTPUT0")), None),
        "own": (_ensemble(("labels", "INPUT0", "OUTPUT0"), label=LABEL_FILE), "own0\nown1\n"),
    }
    for name, (config, labels) in models.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if labels is not None:
            (repository / name / "labels.txt").write_text(labels)
    values = np.array([[1, 2, 3, 4]], np.float32)
    answered = {
        "taken": ["4.000000:3:fish", "3.000000:2:bird", "2.000000:1:dog", "1.000000:0:cat"],
        "first": ["4.000000:3", "3.000000:2", "2.000000:1", "1.000000:0"],
        "own": ["4.000000:3", "3.000000:2", "2.000000:1:own1", "1.000000:0:own0"],
    }
    answered["labels"] = answered["nested"] = answered["taken"]
    with ServerProcess(repositories=[repository]) as server:
        for module, address in ((httpclient, server.http), (grpcclient, server.grpc)):
            with module.InferenceServerClient(address) as client:
                given = module.InferInput("INPUT0", [1, 4], "FP32")
                given.set_data_from_numpy(values)
                for name, expected in answered.items():
                    wanted = [module.InferRequestedOutput("OUTPUT0", class_count=4)]
                    found = client.infer(name, [given], outputs=wanted).as_numpy("OUTPUT0")
                    assert [text.decode() for text in found.reshape(-1)] == expected, name


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

"""Models of any backend with `isolation` `process`: the same answers, and a native crash that costs one instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient as GrpcClient
from tritonclient.grpc import InferInput as GrpcInput
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from tests.backends import onnx_models
from tests.backends.isolated.test_hosting import SITE
from tests.backends.test_onnxruntime_states import summing
from tpy.messages import DataType

from .repositories import AFFINE_CONFIG, IDENTITY_PAIR, ModelFolder, parameter
from .server import ServerProcess
from .waiting import wait_until

ISOLATED = parameter("isolation", "process")

_ZEROS = 'inputs { key: "INPUT" value { data_type: TYPE_FP32 dims: 3 zero_data: true } }'
WARMUP = f'model_warmup [ {{ name: "w" batch_size: 2 {_ZEROS} }} ]\n'

SUMMING = """
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
sequence_batching {
  oldest { max_candidate_sequences: 4 }
  state [ { input_name: "S" output_name: "S_NEXT" data_type: TYPE_FP32 dims: [ 2 ] } ]
}
"""

HOSTILE = f'backend: "hostile"\nmax_batch_size: 4\n{IDENTITY_PAIR}\ninstance_group [ {{ count: 1 }} ]\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("isolation")
    for prefix, more in (("plain", ""), ("apart", ISOLATED)):
        ModelFolder(repository, prefix).config(AFFINE_CONFIG + "dynamic_batching { }\n" + WARMUP + more).affine(1, 2.0, 1.0)
        ModelFolder(repository, f"{prefix}_found").config(more).file(
            "1/model.onnx", onnx_models.identity(DataType.BYTES, ["N", "K"])
        )
        ModelFolder(repository, f"{prefix}_sums").config(SUMMING + more).file("1/model.onnx", summing())
    ModelFolder(repository, "hostile").config(HOSTILE).file("1/.keep", "")
    with ServerProcess(
        "--backend-config=hostile,isolation=process", repositories=[repository], environment={"PYTHONPATH": str(SITE)}
    ) as process:
        yield process


def asked(client: InferenceServerClient, model: str, name: str, array: np.ndarray[Any, Any], **options: Any) -> Any:
    tensor = InferInput(
        name, list(array.shape), "BYTES" if array.dtype == object else {"f": "FP32", "i": "INT32"}[array.dtype.kind]
    )
    tensor.set_data_from_numpy(array)
    return client.infer(model, [tensor], **options)


def statistics(client: InferenceServerClient, model: str) -> Mapping[str, Any]:
    (found,) = client.get_inference_statistics(model)["model_stats"]
    return found  # type: ignore[no-any-return]


def test_a_real_model_answers_the_same_in_a_worker(server: ServerProcess) -> None:
    with InferenceServerClient(server.http) as http:
        random = np.random.default_rng(1)
        for rows in (1, 3, 8):
            given = random.normal(size=(rows, 3)).astype(np.float32)
            plain, apart = (asked(http, model, "INPUT", given).as_numpy("OUTPUT") for model in ("plain", "apart"))
            np.testing.assert_array_equal(plain, apart)
            np.testing.assert_array_equal(plain, given * np.float32(2) + np.float32(1))
        texts = np.array([[b"", "schön".encode(), b"a" * 100_000]], dtype=object)
        for model in ("plain_found", "apart_found"):
            assert asked(http, model, "INPUT", texts).as_numpy("OUTPUT").tolist() == texts.tolist()
        for model in ("plain", "apart"):
            found = statistics(http, model)
            assert (found["inference_count"], found["execution_count"]) == (12, 3)
            assert all(int(found["inference_stats"][part]["ns"]) > 0 for part in ("queue", "compute_infer"))
    with GrpcClient(server.grpc) as client:
        tensor = GrpcInput("INPUT", [1, 3], "FP32")
        tensor.set_data_from_numpy(given[:1])
        np.testing.assert_array_equal(client.infer("apart", [tensor]).as_numpy("OUTPUT"), apart[:1])


def test_a_configuration_is_completed_by_a_worker(server: ServerProcess) -> None:
    with InferenceServerClient(server.http) as client:
        plain, apart = (client.get_model_config(model) for model in ("plain_found", "apart_found"))
        for config in (plain, apart):
            del config["name"], config["instance_group"][0]["name"]
        assert apart.pop("parameters") == {"isolation": {"string_value": "process"}}
        assert plain.pop("parameters") == {}
        assert plain == apart


def test_the_state_of_sequences_stays_with_them(server: ServerProcess) -> None:
    with InferenceServerClient(server.http) as client:
        for model in ("plain_sums", "apart_sums"):
            sums = {}
            for step in range(3):
                for sequence in (1, 2):
                    given = np.full((1, 2), sequence, np.float32)
                    options = {"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == 2}
                    sums[sequence] = asked(client, model, "X", given, **options).as_numpy("OUT").tolist()
            assert sums == {1: [[3, 3]], 2: [[6, 6]]}, model


@pytest.mark.parametrize("how", ["segfault", "abort", "exit", "out of memory"])
def test_a_native_crash_costs_one_instance_which_comes_back(server: ServerProcess, how: str) -> None:
    given = np.array([[7]], np.int32)
    with InferenceServerClient(server.http) as client:
        wait_until(lambda: client.is_model_ready("hostile"))
        with pytest.raises(InferenceServerException, match=r"^\[500\] .*Stub process 'hostile_0_0' is not healthy\."):
            asked(client, "hostile", "INPUT0", given, parameters={"execute": how})
        assert asked(client, "apart", "INPUT", np.zeros((1, 3), np.float32)).as_numpy("OUTPUT").tolist() == [[1, 1, 1]]
        wait_until(lambda: client.is_model_ready("hostile"))
        assert asked(client, "hostile", "INPUT0", given).as_numpy("OUTPUT0").tolist() == [[7]]


def test_a_model_whose_load_crashes_is_unavailable_with_the_reason(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    ModelFolder(repository, "fine").identity(ISOLATED)
    ModelFolder(repository, "hostile").config(HOSTILE + ISOLATED + parameter("load", "segfault")).file("1/.keep", "")
    flags = ("--exit-on-error=false", "--load-model=*", "--model-control-mode=explicit")
    with ServerProcess(*flags, repositories=[repository], environment={"PYTHONPATH": str(SITE)}, fresh=True) as server:
        with InferenceServerClient(server.http) as client:
            rows = {row["name"]: row for row in client.get_model_repository_index()}
            assert rows["fine"]["state"] == "READY"
            assert "It was ended by SIGSEGV while loading the model" in rows["hostile"]["reason"]
            with pytest.raises(InferenceServerException, match="was ended by SIGSEGV while loading the model"):
                client.load_model("hostile")
        mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "onnxruntime" not in mapped

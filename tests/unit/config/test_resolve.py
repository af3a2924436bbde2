"""The backend that a configuration means."""

from __future__ import annotations

import pytest

from tpy.config import ConfigError, ModelConfig, normalise, resolve
from tpy.config.model_config import (
    DynamicBatching,
    EnsembleScheduling,
    Optimization,
    PinnedMemoryBuffer,
    SequenceBatching,
    StrategyOldest,
    TransactionPolicy,
    VersionPolicy,
    VersionPolicyAll,
    VersionPolicyLatest,
)


@pytest.mark.parametrize(
    ("config", "files", "backend", "platform", "filename"),
    [
        (ModelConfig(), ("model.onnx",), "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        (ModelConfig(), ("model.onnx/",), "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        (ModelConfig(), ("model.py",), "python", "", "model.py"),
        (ModelConfig(), ("model.py", "model.onnx"), "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        (ModelConfig(), ("model.plan", "model.onnx"), "tensorrt", "tensorrt_plan", "model.plan"),
        (ModelConfig(), ("model.savedmodel/",), "tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
        (ModelConfig(), ("model.graphdef",), "tensorflow", "tensorflow_graphdef", "model.graphdef"),
        (ModelConfig(), ("model.pt",), "pytorch", "pytorch_libtorch", "model.pt"),
        (ModelConfig(), ("model.pt2",), "pytorch", "torch_aoti", "model.pt2"),
        (ModelConfig(), ("model.xml", "model.bin"), "openvino", "", "model.xml"),
        (ModelConfig(), ("model.dali",), "dali", "", "model.dali"),
        (ModelConfig(), ("dali.py",), "dali", "", "dali.py"),
        (ModelConfig(backend="dali"), ("dali.py",), "dali", "", "dali.py"),
        (ModelConfig(backend="dali"), ("dali.py", "model.dali"), "dali", "", "model.dali"),
        (ModelConfig(platform="onnxruntime_onnx"), None, "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        (ModelConfig(platform="libtorch"), None, "pytorch", "libtorch", "model.pt"),
        (ModelConfig(backend="onnxruntime"), None, "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        (ModelConfig(backend="pytorch"), None, "pytorch", "pytorch_libtorch", "model.pt"),
        (ModelConfig(backend="tensorflow"), ("model.savedmodel/",), "tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
        (ModelConfig(backend="python", default_model_filename="other.py"), None, "python", "", "other.py"),
        (ModelConfig(default_model_filename="model.py"), None, "python", "", "model.py"),
        (ModelConfig(backend="identity"), ("model.onnx",), "identity", "", ""),
        (ModelConfig(default_model_filename="x.bin"), ("model.onnx",), "", "", "x.bin"),
        (ModelConfig(platform="ensemble"), ("model.onnx",), "", "ensemble", ""),
    ],
)
def test_the_backend_that_is_meant(
    config: ModelConfig, files: tuple[str, ...] | None, backend: str, platform: str, filename: str
) -> None:
    resolved = resolve(config, directory_name="m", version_files=files)
    assert resolved.name == "m"
    assert (resolved.backend, resolved.platform, resolved.default_model_filename) == (backend, platform, filename)
    assert resolve(resolved, directory_name="m", version_files=files) == resolved


def test_a_file_in_place_of_a_folder_resolves_nothing() -> None:
    with pytest.raises(ConfigError, match="Could not determine backend"):
        resolve(ModelConfig(), directory_name="m", version_files=("model.savedmodel", "model.plan/", "model.pt/"))


def test_a_name_that_ends_in_the_backend() -> None:
    resolved = resolve(ModelConfig(), directory_name="resize.identity", version_files=())
    assert (resolved.backend, resolved.default_model_filename) == ("identity", "model.identity")


def test_another_name_than_the_directorys() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(ModelConfig(name="a", backend="python"), directory_name="b", version_files=())
    assert caught.value.problems[0].message == (
        "unexpected directory name 'b' for model 'a', directory name must equal model name"
    )
    assert str(caught.value).startswith("name: unexpected directory name")


def test_defaults() -> None:
    config = normalise(ModelConfig(name="m", backend="identity", max_batch_size=4, dynamic_batching=DynamicBatching()))
    assert config.version_policy == VersionPolicy(latest=VersionPolicyLatest(num_versions=1))
    assert config.dynamic_batching == DynamicBatching(preferred_batch_size=(4,))
    enabled = PinnedMemoryBuffer(enable=True)
    assert config.optimization == Optimization(input_pinned_memory=enabled, output_pinned_memory=enabled)
    assert config.default_model_filename == ""
    assert normalise(config, default_model_filename="model.bin").default_model_filename == "model.bin"


def test_what_is_given_stays() -> None:
    given = ModelConfig(
        name="m",
        version_policy=VersionPolicy(all=VersionPolicyAll()),
        max_batch_size=8,
        dynamic_batching=DynamicBatching(preferred_batch_size=(2,)),
        optimization=Optimization(
            input_pinned_memory=PinnedMemoryBuffer(), output_pinned_memory=PinnedMemoryBuffer(), eager_batching=True
        ),
        default_model_filename="mine",
    )
    assert normalise(given, default_model_filename="model.bin") == given


def test_sequence_defaults() -> None:
    oldest = normalise(ModelConfig(max_batch_size=4, sequence_batching=SequenceBatching(oldest=StrategyOldest())))
    assert oldest.sequence_batching == SequenceBatching(
        oldest=StrategyOldest(preferred_batch_size=(4,)), max_sequence_idle_microseconds=1_000_000
    )
    unbatched = normalise(
        ModelConfig(sequence_batching=SequenceBatching(oldest=StrategyOldest(), max_sequence_idle_microseconds=5))
    )
    assert unbatched.sequence_batching == SequenceBatching(oldest=StrategyOldest(), max_sequence_idle_microseconds=5)


def test_ensembles_have_no_optimization() -> None:
    config = normalise(ModelConfig(platform="ensemble", ensemble_scheduling=EnsembleScheduling()), default_model_filename="x")
    assert config.optimization is None
    assert config.default_model_filename == ""
    assert config.model_transaction_policy == TransactionPolicy()

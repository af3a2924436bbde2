"""`tpy import` of what TensorFlow Serving serves."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tpy.config.aliases import aliases
from tpy.config.model_config import VersionPolicy, VersionPolicyAll, VersionPolicyLatest, VersionPolicySpecific
from tpy_tools.commands.importing.core.plan import ImportPlan, LinkTarget, ModelPlan, Part, Unimportable
from tpy_tools.commands.importing.core.tensorflow_serving import (
    BasePath,
    BatchingParameters,
    ConfiguredModel,
    plan_serving,
    read_batching,
    read_models,
)
from tpy_tools.commands.importing.tensorflow_serving import is_serving_source, plan_of_serving

SAVED = frozenset({"saved_model.pb", "variables"})

MODELS = """
model_config_list {
  config {
    name: "half_plus_two"
    base_path: "/models/half_plus_two"
    model_platform: "tensorflow"
    model_version_policy { specific { versions: 2 versions: 3 } }
    version_labels { key: "stable" value: 2 }
    version_labels { key: 'canary' value: 3 }
    logging_config { sampling_config { sampling_rate: 0.1 } }
  }
  config { name: 'all' base_path: '/models/all' model_version_policy: { all: {} } }
  config: { name: 'latest' base_path: '/models/latest' model_version_policy { latest { num_versions: 2 } } }
  config { name: 'one' base_path: 'one' model_version_policy { latest { num_versions: 1 } } }
}
"""

BATCHING = """
max_batch_size { value: 32 }
batch_timeout_micros { value: 5000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 4 }
allowed_batch_sizes: [ 8, 32 ]
pad_variable_length_inputs: true
thread_pool_name { value: "batches" }
"""


def planned(
    model: ConfiguredModel, *versions: str, batching: BatchingParameters | None = None, names: frozenset[str] = SAVED
) -> ImportPlan:
    base = BasePath(folder="/store/m", versions=dict.fromkeys(versions, names))
    return plan_serving([model], {model.base_path: base}, batching)


def only(plan: ImportPlan) -> ModelPlan:
    assert not plan.refused, plan.refused
    [model] = plan.models
    return model


def refusal(plan: ImportPlan) -> str:
    assert not plan.models
    return plan.refused[0].becomes


def test_a_models_config() -> None:
    named, every, latest, one = read_models(MODELS, "models.config")
    assert (named.name, named.base_path, named.logs) == ("half_plus_two", "/models/half_plus_two", True)
    assert named.labels == {"stable": 2, "canary": 3}
    assert named.policy == VersionPolicy(specific=VersionPolicySpecific(versions=(2, 3)))
    assert every.policy == VersionPolicy(all=VersionPolicyAll())
    assert latest.policy == VersionPolicy(latest=VersionPolicyLatest(num_versions=2))
    assert one.policy is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "model_config_list { config { nam: 'x' } }",
            'models.config: 1:30 : Message type "tensorflow.serving.ModelConfig" has no',
        ),
        ("custom_model_config { }", 'has no field named "custom_model_config"'),
        ("model_config_list {", "models.config: "),
    ],
)
def test_what_is_unknown_is_not_dropped(text: str, told: str) -> None:
    with pytest.raises(Unimportable) as raised:
        read_models(text, "models.config")
    assert told in str(raised.value)


def test_versions_become_links() -> None:
    model = only(planned(ConfiguredModel(name="m", base_path="/m"), "2", "00000123"))
    assert list(model.files) == [
        LinkTarget("/store/m/2", "2/model.savedmodel"),
        LinkTarget("/store/m/00000123", "123/model.savedmodel"),
    ]
    assert model.config.backend == "tensorflow"
    assert "/store/m/N {model}/N/model.savedmodel" in model.steps[0]


def test_labels_are_aliases_and_logs_are_named_as_lost() -> None:
    served = ConfiguredModel(name="m", base_path="/m", labels={"stable": 2, "canary": 3}, logs=True)
    model = only(planned(served, "2", "3", names=SAVED | {"batching_params.pbtxt"}))
    assert aliases(model.config) == {"stable": 2, "canary": 3}
    assert Part("version_labels: stable", "parameters.aliases: ask for m@stable") in model.carried
    assert [part.source for part in model.lost] == ["logging_config", "3/batching_params.pbtxt"]
    odd = only(planned(msgspec.structs.replace(served, labels={"über": 2}), "2"))
    assert odd.lost[0].source == 'version_labels: {"über":2}'
    assert not odd.config.parameters


def test_batching_parameters() -> None:
    batching = read_batching(BATCHING, "b")
    config = only(planned(ConfiguredModel(name="m", base_path="/m"), "1", batching=batching)).config
    assert (config.max_batch_size, config.instance_group[0].count) == (32, 4)
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.max_queue_delay_microseconds == 5000
    assert config.dynamic_batching.preferred_batch_size == (8, 32)
    assert config.dynamic_batching.default_queue_policy is not None
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 3200
    assert [part.source for part in batching.lost] == ["pad_variable_length_inputs", "thread_pool_name"]


def test_batching_parameters_have_the_defaults_of_their_server() -> None:
    batching = read_batching("", "b")
    assert (batching.max_batch_size, batching.instances) == (1000, 0)
    assert batching.dynamic.max_queue_delay_microseconds == 0
    assert batching.dynamic.default_queue_policy is not None
    assert batching.dynamic.default_queue_policy.max_queue_size == 10_000
    huge = read_batching("max_enqueued_batches { value: 2000000000 }", "b")
    assert huge.dynamic.default_queue_policy is not None
    assert huge.dynamic.default_queue_policy.max_queue_size == 2**31 - 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_batch_size { value: 0 }", "max_batch_size: 0 is not between 1 and"),
        ("batch_timeout_micros { value: -1 }", "batch_timeout_micros: -1 is not between 0 and"),
        ("num_batch_threads { value: 100000 }", "num_batch_threads: 100000 is not between"),
        ("max_batch_size { value: 4 } allowed_batch_sizes: 8", "allowed_batch_sizes: not all are between 1 and 4"),
        ("max_size: 1", 'has no field named "max_size"'),
    ],
)
def test_wrong_batching_parameters(text: str, told: str) -> None:
    with pytest.raises(Unimportable) as raised:
        read_batching(text, "b")
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("model", "versions", "told"),
    [
        (ConfiguredModel(name="m", base_path="gs://bucket/m"), ("1",), "is in the cloud"),
        (ConfiguredModel(name="m", base_path="/m"), (), "no version with a saved_model.pb"),
        (ConfiguredModel(name="m", base_path="/m", platform="other"), ("1",), "model_platform: 'other'"),
        (ConfiguredModel(name="a/b", base_path="/m"), ("1",), "'a/b' cannot be a model's name here"),
        (ConfiguredModel(name="m", base_path="/m"), ("1", "01"), "01 and 1 are the same version"),
        (
            ConfiguredModel(name="m", base_path="/m", policy=VersionPolicy(specific=VersionPolicySpecific(versions=(2,)))),
            ("1",),
            "there is no version 2, which model_version_policy names",
        ),
        (
            ConfiguredModel(name="m", base_path="/m", policy=VersionPolicy(specific=VersionPolicySpecific())),
            ("1",),
            "specific names no versions",
        ),
    ],
)
def test_models_that_are_refused(model: ConfiguredModel, versions: tuple[str, ...], told: str) -> None:
    assert told in refusal(planned(model, *versions))


def test_one_refused_model_does_not_cost_the_others() -> None:
    models = [
        ConfiguredModel(name="m", base_path="/m"),
        ConfiguredModel(name="m", base_path="/m"),
        ConfiguredModel(name="n", base_path="/n"),
    ]
    bases = {"/m": BasePath(folder="/m", versions={"1": SAVED}), "/n": BasePath(folder="")}
    plan = plan_serving(models, bases, None)
    assert [model.name for model in plan.models] == ["m"]
    assert [part.source for part in plan.refused] == ["m", "n"]
    assert plan.refused[0].becomes == "two models have this name"


def saved_model(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "saved_model.pb").touch()


def test_base_paths_of_a_container_are_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    saved_model(tmp_path / "half_plus_two" / "2")
    saved_model(tmp_path / "half_plus_two" / "3")
    saved_model(tmp_path / "one" / "1")
    (tmp_path / "models.config").write_text(MODELS)
    (tmp_path / "monitoring.config").write_text("prometheus_config { enable: true }")
    plan = plan_of_serving(tmp_path)
    assert [model.name for model in plan.models] == ["half_plus_two", "one"]
    assert plan.models[0].files[0] == LinkTarget(f"{tmp_path.resolve()}/half_plus_two/2", "2/model.savedmodel")
    assert Part("monitoring.config", "metrics are on port 8002, /metrics") in plan.models[0].lost
    assert [part.source for part in plan.refused] == ["all", "latest"]
    assert plan_of_serving(tmp_path / "models.config") == plan


def test_the_base_path_of_a_model(tmp_path: Path) -> None:
    saved_model(tmp_path / "mine" / "7")
    assert is_serving_source(tmp_path / "mine")
    assert not is_serving_source(tmp_path)
    assert only(plan_of_serving(tmp_path / "mine")).name == "mine"


def test_a_configuration_without_models(tmp_path: Path) -> None:
    (tmp_path / "models.config").touch()
    with pytest.raises(Unimportable, match="has no models"):
        plan_of_serving(tmp_path)

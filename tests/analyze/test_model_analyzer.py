"""Model Analyzer's configuration files: what is read, and what is refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpy_tools.analyze.core.goal import Constraint
from tpy_tools.analyze.model_analyzer import read_file
from tpy_tools.analyze.plan import AnalysisError, parse_numbers, parse_objectives


def read(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return read_file(file)


def problem(tmp_path: Path, text: str) -> str:
    try:
        read(tmp_path, text)
    except AnalysisError as error:
        return str(error)
    return ""


def test_an_automatic_search(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        model_repository: /models
        profile_models: resnet, bert
        run_config_search_mode: brute
        run_config_search_max_concurrency: 16
        run_config_search_max_instance_count: 3
        run_config_search_min_model_batch_size: 4
        client_protocol: grpc
        triton_launch_mode: remote
        triton_http_endpoint: localhost:8000
        objectives: [perf_throughput]
        constraints: {perf_latency_p99: {max: 20}}
        perf_analyzer_flags: {measurement-interval: 500, shape: ["X:3,4"]}
        """,
    )
    assert found.options == {
        "model_repository": ("/models",),
        "search": "brute",
        "concurrency": "1:16:*2",
        "instances": "1:3",
        "batches": "4:128:*2",
        "protocol": "grpc",
        "launch_mode": "remote",
        "url": "localhost:8000",
        "objective": (("perf_throughput", 1.0),),
        "constraints": (Constraint(metric="perf_latency_p99", maximum=20),),
        "measurement_interval": "500",
        "shape": ("X:3,4",),
    }
    assert [model.name for model in found.models] == ["resnet", "bert"]


def test_values_by_hand(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        profile_models:
          resnet:
            objectives: {perf_throughput: 10, perf_latency_p99: 5}
            latency_budget: 30
            weighting: 2
            parameters: {concurrency: {start: 2, stop: 8, step: 2}, batch_sizes: "1,4"}
            perf_analyzer_flags: {percentile: 95, streaming: true, shape: "X:3,4", protocol: http}
            triton_server_flags: {strict_model_config: false, log-verbose: 1}
            model_config_parameters:
              max_batch_size: [4, 8]
              instance_group: [{kind: KIND_CPU, count: [1, 2]}]
              dynamic_batching: {max_queue_delay_microseconds: [100, 200], preferred_batch_size: [[4], [8]]}
              parameters: {intra_op_thread_count: {string_value: [1, 2]}}
        """,
    )
    assert found.models[0].options == {
        "objective": (("perf_throughput", 10.0), ("perf_latency_p99", 5.0)),
        "constraints": (Constraint(metric="perf_latency_p99", maximum=30),),
        "weighting": 2.0,
        "concurrency": "2:8:2",
        "batch_size": "1,4",
        "stable_percentile": "95",
        "streaming": True,
        "shape": ("X:3,4",),
        "server_flag": ("--strict-model-config=false", "--log-verbose=1"),
        "batches": "4,8",
        "instances": "1,2",
        "kinds": "KIND_CPU",
        "delays": "100,200",
        "preferred": "4,8",
        "threads": "",
        "parameter": ("intra_op_thread_count=1,2",),
    }
    assert found.warnings == (
        "profile_models.resnet.perf_analyzer_flags.protocol has no effect: the search sets it, as Model Analyzer does",
    )


@pytest.mark.parametrize(
    ("text", "options"),
    [
        # One value of a list, and alternatives; groups that are no product of counts and kinds; fields without a name here.
        ("max_batch_size: 6", {"batches": "6"}),
        ("dynamic_batching: {}", {"delays": "0"}),
        (
            "dynamic_batching: {preferred_batch_size: [4, 8]}",
            {"field": ('dynamic_batching=[{"preferred_batch_size":[4,8]}]',)},
        ),
        (
            "instance_group: [[{kind: KIND_CPU, count: 2}], [{kind: KIND_GPU, count: 1}]]",
            {"field": ('instance_group=[[{"count":2,"kind":"KIND_CPU"}],[{"count":1,"kind":"KIND_GPU"}]]',)},
        ),
        (
            "instance_group: [{kind: KIND_CPU, count: [1, 2]}, {kind: KIND_GPU}]",
            {
                "field": (
                    'instance_group=[[{"count":1,"kind":"KIND_CPU"},{"kind":"KIND_GPU"}],[{"count":2,"kind":"KIND_CPU"},{"kind":"KIND_GPU"}]]',
                )
            },
        ),
        (
            "optimization: {priority: [PRIORITY_MAX, PRIORITY_MIN]}",
            {"field": ('optimization=[{"priority":"PRIORITY_MAX"},{"priority":"PRIORITY_MIN"}]',)},
        ),
    ],
)
def test_sweeps_of_the_configuration(tmp_path: Path, text: str, options: dict[str, Any]) -> None:
    found = read(tmp_path, f"profile_models: {{m: {{model_config_parameters: {{{text}}}}}}}").models[0].options
    assert {name: value for name, value in found.items() if value != ""} == options


def test_several_models_optuna_and_members(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        profile_models: [a, b]
        run_config_profile_models_concurrently_enable: true
        run_config_search_mode: optuna
        optuna_max_trials: 50
        min_percentage_of_search_space: 10
        use_concurrency_formula: true
        checkpoint_directory: kept
        gpus: [GPU-1, GPU-2]
        triton_server_environment: {A: 1}
        bls_composing_models: {inner: {model_config_parameters: {instance_group: [{count: [1, 2]}]}}}
        ensemble_composing_models: [{other: {cpu_only: true}}]
        cpu_only_composing_models: third
        duration_seconds: 5
        """,
    )
    assert found.options == {
        "together": True,
        "search": "optuna",
        "optuna_max_trials": 50,
        "optuna_percent_min": 10,
        "concurrency_formula": True,
        "checkpoint_directory": "kept",
        "server_environment": {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "A": "1"},
        "members": "inner",
        "member_options": {"inner": {"instances": "1,2", "batches": "", "delays": "", "threads": ""}},
        "cpu_only_members": ("other", "third"),
    }
    assert found.warnings == ("duration_seconds has no effect: memory is that of the statistics, or of the server's processes",)


def test_a_search_of_rates(tmp_path: Path) -> None:
    assert read(tmp_path, "request_rate_search_enable: true").options == {"rate": "16:8092:*2"}
    assert read(tmp_path, "run_config_search_max_request_rate: 64").options == {"rate": "16:64:*2"}


DOCUMENTED = """
always_report_gpu_metrics batch_sizes bls_composing_models checkpoint_directory client_max_retries client_protocol
collect_cpu_metrics concurrency concurrency_sweep_disable config_file constraints cpu_only_composing_models dcgm_disable
duration_seconds early_exit_enable ensemble_composing_models export_path filename_model_gpu filename_model_inference
filename_server_only genai_perf_flags gpu_output_fields gpus inference_output_fields latency_budget max_percentage_of_search_space
min_percentage_of_search_space min_throughput model_repository model_type monitoring_interval num_configs_per_model
num_top_model_configs objectives optuna_early_exit_threshold optuna_max_trials optuna_min_trials output_model_repository_path
override_output_model_repository perf_analyzer_cpu_util perf_analyzer_flags perf_analyzer_max_auto_adjusts perf_analyzer_path
perf_analyzer_timeout perf_output perf_output_path plots profile_models reload_model_disable report_model_configs request_rate
request_rate_search_enable run_config_profile_models_concurrently_enable run_config_search_disable
run_config_search_max_binary_search_steps run_config_search_max_concurrency run_config_search_max_instance_count
run_config_search_max_model_batch_size run_config_search_max_request_rate run_config_search_min_concurrency
run_config_search_min_instance_count run_config_search_min_model_batch_size run_config_search_min_request_rate
run_config_search_mode server_output_fields skip_detailed_reports skip_summary_reports triton_docker_args triton_docker_image
triton_docker_labels triton_docker_mounts triton_docker_shm_size triton_grpc_endpoint triton_http_endpoint triton_install_path
triton_launch_mode triton_metrics_url triton_output_path triton_server_environment triton_server_flags triton_server_path
use_concurrency_formula weighting
"""
"""The keys of the whole file in Model Analyzer 1.60 (26.05)."""


@pytest.mark.parametrize("name", DOCUMENTED.split())
def test_every_key_of_model_analyzer_is_known(tmp_path: Path, name: str) -> None:
    assert "is not supported; supported here" not in problem(tmp_path, f"{name}: null")
    assert f"{name}s is not supported; supported here" in problem(tmp_path, f"{name}s: null")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("checkpoint_folder: x", "checkpoint_folder is not supported; supported here: batch_sizes, "),
        ("run_config_search_mode: slow", "run_config_search_mode: expected quick or brute or optuna, got 'slow'"),
        ("triton_launch_mode: docker", "triton_launch_mode: expected local (start a server) or remote"),
        ("profile_models: {m: {weighting: 0}}", "profile_models.m.weighting: expected a weight above 0, got 0"),
        ("profile_models: {m: {weight: 2}}", "profile_models.m.weight is not supported; supported here: constraints, cpu_only, "),
        (
            "profile_models: {m: {model_config_parameters: {optimisation: {}}}}",
            "profile_models.m.model_config_parameters.optimisation: a configuration has no such field",
        ),
        ("objectives: [gpu_power_usage]", "objectives: there is no metric 'gpu_power_usage'; there are throughput, "),
        ("constraints: {perf_latency_p99: {most: 2}}", "constraints.perf_latency_p99: expected min or max, got {'most': 2}"),
        ("concurrency: [a]", "concurrency: expected a whole number, got 'a'"),
        ("perf_analyzer_flags: {sync: true}", "perf_analyzer_flags.sync is not supported; supported here: input-data, "),
        ("reload_model_disable: true", "reload_model_disable: True is not supported: each configuration is loaded"),
        ("model_type: LLM", "model_type: 'LLM' is not supported: models of tokens"),
        ("bls_composing_models: {m: {parameters: {}}}", "bls_composing_models.m.parameters is not supported; "),
        ("use_concurrency_formula: 1", "use_concurrency_formula: expected true or false, got 1"),
        ("- a", "expected names and values"),
        ("a: [", "not YAML: "),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(AnalysisError) as caught:
        read(tmp_path, text)
    assert f"{tmp_path / 'config.yaml'}: {message}" in str(caught.value)


def test_numbers() -> None:
    assert parse_numbers("1,4,8") == (1, 4, 8)
    assert parse_numbers("1:4") == (1, 2, 3, 4)
    assert parse_numbers("1:64:*2") == (1, 2, 4, 8, 16, 32, 64)
    assert parse_numbers("off,0:200:100", words=("off",)) == ("off", 0, 100, 200)
    assert parse_objectives("throughput:2,perf_latency_p95") == (("perf_throughput", 2.0), ("perf_latency_p95", 1.0))


@pytest.mark.parametrize("text", ["", "4:1", "1:8:*1", "0:8:*2", "1:2:3:4", "off", "-1", "1:999999999999"])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(AnalysisError):
        parse_numbers(text)

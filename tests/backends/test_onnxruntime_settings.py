"""Session options and execution providers from configurations, as in the onnxruntime backend's README."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tpy.config import ModelConfig
from tpy.config.model_config import (
    ExecutionAccelerator,
    ExecutionAccelerators,
    InstanceKind,
    ModelParameter,
    Optimization,
    OptimizationGraph,
)
from tpy.errors import InvalidArgument, TpyError, Unsupported
from tpy_backends.onnxruntime.providers import CPU, CUDA, OPENVINO, TENSORRT, Provider, providers_for
from tpy_backends.onnxruntime.settings import OnnxRuntimeConfig, SessionSettings, backend_config, session_settings

EVERYTHING = (TENSORRT, CUDA, OPENVINO, CPU)


def with_parameters(parameters: Mapping[str, str], optimization: Optimization | None = None) -> ModelConfig:
    return ModelConfig(
        name="m",
        parameters={key: ModelParameter(string_value=text) for key, text in parameters.items()},
        optimization=optimization,
    )


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, SessionSettings()),
        (
            {"intra_op_thread_count": "2", "inter_op_thread_count": "3", "execution_mode": "1"},
            SessionSettings(intra_op_thread_count=2, inter_op_thread_count=3, parallel_execution=True),
        ),
        ({"enable_mem_arena": "0", "enable_mem_pattern": "TRUE"}, SessionSettings(memory_arena=False, memory_pattern=True)),
        ({"enable_mem_arena": "on", "enable_mem_pattern": "off"}, SessionSettings(memory_arena=True, memory_pattern=False)),
        (
            {"memory.enable_memory_arena_shrinkage": "cpu:0", "session.intra_op.allow_spinning": "0", "mine": "x"},
            SessionSettings(
                run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"},
                session_entries={"session.intra_op.allow_spinning": "0"},
            ),
        ),
    ],
)
def test_parameters(parameters: dict[str, str], expected: SessionSettings) -> None:
    assert session_settings(with_parameters(parameters)) == expected


def test_graph_level() -> None:
    assert session_settings(with_parameters({}, Optimization(graph=OptimizationGraph(level=-1)))).graph_level == -1


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"intra_op_thread_count": "two"}, "failed to convert 'two' to integral number"),
        ({"inter_op_thread_count": ""}, "failed to convert '' to integral number"),
        ({"inter_op_thread_count": "2147483648"}, "failed to convert '2147483648' to integral number"),
        ({"enable_mem_arena": "yes"}, "failed to convert 'yes' to boolean"),
        (
            {"execution_mode": "2"},
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 .",
        ),
    ],
)
def test_wrong_parameters(parameters: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(text)}$"):
        session_settings(with_parameters(parameters))


def test_backend_config() -> None:
    assert backend_config({}) == OnnxRuntimeConfig(default_max_batch_size=4)
    assert backend_config(
        {"default-max-batch-size": "8", "enable-global-threadpool": "1", "intra_op_thread_count": "2", "other": "x"}
    ) == OnnxRuntimeConfig(default_max_batch_size=8, global_thread_pool=True, intra_op_thread_count=2)
    with pytest.raises(InvalidArgument, match="failed to convert 'many' to integral number"):
        backend_config({"default-max-batch-size": "many"})


def accelerated(
    gpu: tuple[tuple[str, dict[str, str]], ...] = (),
    cpu: tuple[tuple[str, dict[str, str]], ...] = (),
    parameters: Mapping[str, str] | None = None,
) -> ModelConfig:
    def accelerators(given: tuple[tuple[str, dict[str, str]], ...]) -> tuple[ExecutionAccelerator, ...]:
        return tuple(ExecutionAccelerator(name=name, parameters=options) for name, options in given)

    policy = ExecutionAccelerators(gpu_execution_accelerator=accelerators(gpu), cpu_execution_accelerator=accelerators(cpu))
    return with_parameters(parameters or {}, Optimization(execution_accelerators=policy))


@pytest.mark.parametrize(
    ("config", "kind", "expected"),
    [
        (accelerated(), InstanceKind.KIND_CPU, ((CPU, {}),)),
        (accelerated(gpu=(("tensorrt", {}),)), InstanceKind.KIND_CPU, ((CPU, {}),)),
        (accelerated(gpu=(("tensorrt", {}),)), InstanceKind.KIND_MODEL, ((CPU, {}),)),
        (accelerated(), InstanceKind.KIND_GPU, ((CUDA, {"device_id": "1"}), (CPU, {}))),
        (
            accelerated(cpu=(("openvino", {"num_of_threads": "2"}),)),
            InstanceKind.KIND_CPU,
            ((OPENVINO, {"device_type": "CPU", "num_of_threads": "2"}), (CPU, {})),
        ),
        (
            accelerated(
                gpu=(
                    (
                        "tensorrt",
                        {
                            "precision_mode": "FP16",
                            "max_workspace_size_bytes": "1073741824",
                            "trt_engine_cache_enable": "1",
                            "trt_engine_cache_path": "/cache",
                            "int8_use_native_calibration_table": "off",
                            "trt_builder_optimization_level": "3",
                        },
                    ),
                )
            ),
            InstanceKind.KIND_GPU,
            (
                (
                    TENSORRT,
                    {
                        "trt_fp16_enable": "True",
                        "trt_max_workspace_size": "1073741824",
                        "trt_engine_cache_enable": "True",
                        "trt_engine_cache_path": "/cache",
                        "trt_int8_use_native_calibration_table": "False",
                        "trt_builder_optimization_level": "3",
                        "device_id": "1",
                    },
                ),
                (CUDA, {"device_id": "1"}),
                (CPU, {}),
            ),
        ),
        (
            accelerated(
                gpu=(("cuda", {"use_ep_level_unified_stream": "1", "gpu_mem_limit": "1"}),),
                parameters={"cudnn_conv_algo_search": "1", "gpu_mem_limit": "9", "arena_extend_strategy": "1"},
            ),
            InstanceKind.KIND_GPU,
            (
                (
                    CUDA,
                    {
                        "use_ep_level_unified_stream": "True",
                        "gpu_mem_limit": "9",
                        "cudnn_conv_algo_search": "HEURISTIC",
                        "arena_extend_strategy": "kSameAsRequested",
                        "device_id": "1",
                    },
                ),
                (CPU, {}),
            ),
        ),
    ],
)
def test_providers(config: ModelConfig, kind: InstanceKind, expected: tuple[Provider, ...]) -> None:
    assert providers_for(config, kind=kind, device_id=1, offered=EVERYTHING) == expected


@pytest.mark.parametrize(
    ("config", "kind", "offered", "error", "text"),
    [
        (
            accelerated(),
            InstanceKind.KIND_GPU,
            (CPU,),
            Unsupported,
            "GPU instances not supported: the installed ONNX Runtime has no",
        ),
        (
            accelerated(gpu=(("tensorrt", {}),)),
            InstanceKind.KIND_GPU,
            (CUDA, CPU),
            InvalidArgument,
            "unknown Execution Accelerator 'tensorrt' is requested: the installed ONNX Runtime has no TensorrtExecutionProvider",
        ),
        (
            accelerated(gpu=(("magic", {}),)),
            InstanceKind.KIND_GPU,
            EVERYTHING,
            InvalidArgument,
            "unknown Execution Accelerator 'magic' is requested",
        ),
        (
            accelerated(cpu=(("openvino", {}),)),
            InstanceKind.KIND_CPU,
            (CPU,),
            InvalidArgument,
            "unknown Execution Accelerator 'openvino' is requested: the installed ONNX Runtime has no OpenVINOExecutionProvider",
        ),
        (
            accelerated(cpu=(("tensorrt", {}),)),
            InstanceKind.KIND_CPU,
            EVERYTHING,
            InvalidArgument,
            "unknown Execution Accelerator 'tensorrt' is requested",
        ),
        (
            accelerated(gpu=(("tensorrt", {"precision_mode": "FP4"}),)),
            InstanceKind.KIND_GPU,
            EVERYTHING,
            InvalidArgument,
            "unsupported precision mode 'FP4' is requested",
        ),
        (
            accelerated(gpu=(("tensorrt", {"speed": "9"}),)),
            InstanceKind.KIND_GPU,
            EVERYTHING,
            InvalidArgument,
            "unknown parameter 'speed' is provided for TensorRT Execution Accelerator",
        ),
        (
            accelerated(gpu=(("tensorrt", {"trt_dla_core": "x"}),)),
            InstanceKind.KIND_GPU,
            EVERYTHING,
            InvalidArgument,
            "failed to convert 'x' to integral number",
        ),
        (
            accelerated(parameters={"cudnn_conv_algo_search": "3"}),
            InstanceKind.KIND_GPU,
            EVERYTHING,
            InvalidArgument,
            "unsupported cudnn_conv_algo_search value '3' is requested",
        ),
    ],
)
def test_what_cannot_be_provided(
    config: ModelConfig, kind: InstanceKind, offered: tuple[str, ...], error: type[TpyError], text: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        providers_for(config, kind=kind, device_id=0, offered=offered)

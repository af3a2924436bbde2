"""Execution providers: what runs the graph, chosen from an instance's placement and `optimization.execution_accelerators`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from tpy.config import ModelConfig
from tpy.config.model_config import ExecutionAccelerator, InstanceKind
from tpy.errors import InvalidArgument, Unsupported
from tpy_backends.parameter_values import parse_boolean, parse_integer
from tpy_data.onnxruntime_packages import CPU as CPU_PACKAGE
from tpy_data.onnxruntime_packages import GPU as GPU_PACKAGE
from tpy_data.onnxruntime_packages import package_clash

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"

Provider = tuple[str, Mapping[str, str]]
"""Name, and options as ONNX Runtime takes them."""


_TENSORRT_OPTIONS: dict[str, tuple[str, Callable[[str], object]]] = {
    "max_workspace_size_bytes": ("trt_max_workspace_size", parse_integer),
    "int8_calibration_table_name": ("trt_int8_calibration_table_name", str),
    "int8_use_native_calibration_table": ("trt_int8_use_native_calibration_table", parse_boolean),
    **{
        name: (name, parse_integer)
        for name in (
            "trt_max_partition_iterations",
            "trt_min_subgraph_size",
            "trt_dla_core",
            "trt_builder_optimization_level",
            "trt_auxiliary_streams",
            "trt_ep_context_embed_mode",
        )
    },
    **{
        name: (name, parse_boolean)
        for name in (
            "trt_dla_enable",
            "trt_engine_cache_enable",
            "trt_dump_subgraphs",
            "trt_force_sequential_engine_build",
            "trt_context_memory_sharing_enable",
            "trt_layer_norm_fp32_fallback",
            "trt_timing_cache_enable",
            "trt_force_timing_cache",
            "trt_detailed_build_log",
            "trt_build_heuristics_enable",
            "trt_sparsity_enable",
            "trt_cuda_graph_enable",
            "trt_dump_ep_context_model",
        )
    },
    **{
        name: (name, str)
        for name in (
            "trt_engine_cache_path",
            "trt_engine_cache_prefix",
            "trt_timing_cache_path",
            "trt_tactic_sources",
            "trt_extra_plugin_lib_paths",
            "trt_profile_min_shapes",
            "trt_profile_max_shapes",
            "trt_profile_opt_shapes",
            "trt_ep_context_file_path",
        )
    },
}
"""Key in the configuration -> ONNX Runtime's option and what parses its value, whose str() ONNX Runtime takes."""

_PRECISIONS = {"FP32": None, "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}

_CUDA_PARAMETERS: dict[str, tuple[str, ...] | None] = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "gpu_mem_limit": None,
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "do_copy_in_default_stream": None,
}
"""Model parameters that are CUDA options by Triton's old spelling; a tuple gives the words for the numbers 0, 1, ..."""


_ADVICE = {
    TENSORRT: f"`pip uninstall -y {CPU_PACKAGE} && pip install {GPU_PACKAGE} tensorrt` brings one",
    OPENVINO: f"`pip uninstall -y {CPU_PACKAGE} && pip install onnxruntime-openvino` brings one",
}

_GRAPH_OPTIONS = ("enable_cuda_graph", "trt_cuda_graph_enable")

_GPU_ADVICE = f"`pip uninstall -y {CPU_PACKAGE} && pip install {GPU_PACKAGE}` brings one"


def providers_for(
    config: ModelConfig, *, kind: InstanceKind, device_id: int, offered: Collection[str], stream: int = 0
) -> tuple[Provider, ...]:
    """The providers of a session, most wanted first; the last is always the CPU.

    `offered` are the providers of the installed ONNX Runtime. Accelerators for GPUs count on GPU placements only, accelerators
    for CPUs always, as in Triton. `stream` is the CUDA stream in which a GPU's session computes, 0: the session makes its
    streams. Raises InvalidArgument for an unknown accelerator or option, or one without its provider, Unsupported for a GPU
    without CUDA."""
    chosen: list[Provider] = []
    policy = config.optimization.execution_accelerators if config.optimization is not None else None
    if kind is InstanceKind.KIND_GPU:
        if CUDA not in offered:
            raise Unsupported(f"GPU instances not supported: {without_cuda(offered)}")
        cuda = _cuda_parameters(config)
        on_device = {"device_id": str(device_id)}
        if stream:
            on_device["user_compute_stream"] = str(stream)
        for accelerator in policy.gpu_execution_accelerator if policy is not None else ():
            if accelerator.name == "tensorrt":
                _require(TENSORRT, accelerator.name, offered)
                chosen.append((TENSORRT, {**_tensorrt_options(accelerator), **on_device}))
            elif accelerator.name == "cuda":
                cuda = {**_cuda_options(accelerator), **cuda}
            else:
                raise InvalidArgument(f"unknown Execution Accelerator '{accelerator.name}' is requested")
        chosen.append((CUDA, {**cuda, **on_device}))
    for accelerator in policy.cpu_execution_accelerator if policy is not None else ():
        if accelerator.name != "openvino":
            raise InvalidArgument(f"unknown Execution Accelerator '{accelerator.name}' is requested")
        _require(OPENVINO, accelerator.name, offered)
        chosen.append((OPENVINO, {"device_type": "CPU", **accelerator.parameters}))
    return (*chosen, (CPU, {}))


def without_cuda(offered: Collection[str]) -> str:
    """The reason why nothing runs on a GPU, with what to install; "" where CUDA is offered."""
    if CUDA in offered:
        return ""
    return f"the installed ONNX Runtime has no {CUDA} (it has {_words(offered)}); {package_clash() or _GPU_ADVICE}"


def captures(providers: Iterable[Provider]) -> bool:
    """Returns whether a provider runs CUDA graphs."""
    return any(parse_boolean(options.get(key, "0")) for _, options in providers for key in _GRAPH_OPTIONS)


def _require(provider: str, accelerator: str, offered: Collection[str]) -> None:
    if provider not in offered:
        raise InvalidArgument(
            f"unknown Execution Accelerator '{accelerator}' is requested: the installed ONNX Runtime has no {provider} "
            f"(it has {_words(offered)}); {package_clash() or _ADVICE[provider]}"
        )


def _words(offered: Collection[str]) -> str:
    return ", ".join(sorted(offered))


def _tensorrt_options(accelerator: ExecutionAccelerator) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, text in accelerator.parameters.items():
        if key == "precision_mode":
            if text not in _PRECISIONS:
                raise InvalidArgument(f"unsupported precision mode '{text}' is requested")
            flag = _PRECISIONS[text]
            if flag is not None:
                options[flag] = str(True)
            continue
        if key not in _TENSORRT_OPTIONS:
            raise InvalidArgument(f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
        option, parse = _TENSORRT_OPTIONS[key]
        options[option] = str(parse(text))
    return options


def _cuda_options(accelerator: ExecutionAccelerator) -> dict[str, str]:
    """As given: ONNX Runtime itself refuses unknown ones by name."""
    options = dict(accelerator.parameters)
    for key in ("do_copy_in_default_stream", "use_ep_level_unified_stream"):
        if key in options:
            options[key] = str(parse_boolean(options[key]))
    return options


def _cuda_parameters(config: ModelConfig) -> dict[str, str]:
    """The deprecated spelling: CUDA options among the model's parameters."""
    options: dict[str, str] = {}
    for key, words in _CUDA_PARAMETERS.items():
        if key not in config.parameters:
            continue
        text = config.parameter(key)
        if words is not None:
            number = parse_integer(text)
            if not 0 <= number < len(words):
                raise InvalidArgument(f"unsupported {key} value '{number}' is requested")
            text = words[number]
        options[key] = text
    return options

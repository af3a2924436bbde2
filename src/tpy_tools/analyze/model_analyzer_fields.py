"""The fields of Model Analyzer's YAML, each with its reader: what it becomes of the options of `tpy analyze`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpy_tools.analyze.core.goal import Constraint
from tpy_tools.analyze.plan import AnalysisError, metric_name
from tpy_tools.analyze.sweeps import NOTHING, sweep_options

Options = dict[str, Any]
Reader = Callable[[str, Any, Options], None]

_BUDGETS = {"latency_budget": ("perf_latency_p99", "maximum"), "min_throughput": ("perf_throughput", "minimum")}


def read_field(fields: Mapping[str, Reader], name: str, value: Any, options: Options, where: str = "") -> None:
    """Add the options of a field. Raises AnalysisError with its place."""
    reader = fields.get(name)
    if reader is None:
        raise AnalysisError(f"{where}{name} is not supported; supported here: {', '.join(sorted(fields))}")
    reader(f"{where}{name}", value, options)


def whole(where: str, value: Any) -> int:
    """A whole number. Raises AnalysisError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise AnalysisError(f"{where}: expected a whole number, got {value!r}")
    return value


def _numbers(option: str) -> Reader:
    """Numbers as a list, one, a text "1,2", or start, stop and step."""

    def read(where: str, value: Any, options: Options) -> None:
        if isinstance(value, dict):
            if not {"start", "stop"} <= value.keys() <= {"start", "stop", "step"}:
                raise AnalysisError(f"{where}: expected start, stop and step")
            parts = [whole(where, value["start"]), whole(where, value["stop"]), whole(where, value.get("step", 1))]
            options[option] = ":".join(map(str, parts))
        elif isinstance(value, str):
            options[option] = value.replace(" ", "")
        else:
            options[option] = ",".join(str(whole(where, number)) for number in _list(value))

    return read


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _text(option: str, allowed: Sequence[str] = ()) -> Reader:
    def read(where: str, value: Any, options: Options) -> None:
        if not isinstance(value, str) or (allowed and value not in allowed):
            raise AnalysisError(f"{where}: expected {' or '.join(allowed) if allowed else 'a text'}, got {value!r}")
        options[option] = value

    return read


def _count(option: str) -> Reader:
    def read(where: str, value: Any, options: Options) -> None:
        options[option] = whole(where, value)

    return read


def _switch(option: str) -> Reader:
    def read(where: str, value: Any, options: Options) -> None:
        options[option] = _boolean(where, value)

    return read


def _boolean(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise AnalysisError(f"{where}: expected true or false, got {value!r}")
    return value


def _refused(reason: str, *allowed: Any) -> Reader:
    """A field that asks for what is not done here, unless it has one of the values that do not."""

    def read(where: str, value: Any, options: Options) -> None:
        if value not in allowed:
            raise AnalysisError(f"{where}: {value!r} is not supported: {reason}")

    return read


def _repository(where: str, value: Any, options: Options) -> None:
    options["model_repository"] = tuple(str(path) for path in _list(value))


def _objectives(where: str, value: Any, options: Options) -> None:
    pairs = list(value.items()) if isinstance(value, dict) else [(name, 1) for name in _list(value)]
    found = []
    for name, weight in pairs:
        found.append((_metric(where, name), _weight(f"{where}.{name}", weight)))
    options["objective"] = tuple(found)


def _weight(where: str, weight: Any) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or weight <= 0:
        raise AnalysisError(f"{where}: expected a weight above 0, got {weight!r}")
    return float(weight)


def _weighting(where: str, value: Any, options: Options) -> None:
    options["weighting"] = _weight(where, value)


def _constraints(where: str, value: Any, options: Options) -> None:
    if not isinstance(value, dict):
        raise AnalysisError(f"{where}: expected metrics with min or max")
    found = []
    for name, bounds in value.items():
        known = isinstance(bounds, dict) and bounds and bounds.keys() <= {"min", "max"}
        if not known or not all(isinstance(bound, int | float) for bound in bounds.values()):
            raise AnalysisError(f"{where}.{name}: expected min or max, got {bounds!r}")
        found.append(Constraint(metric=_metric(where, name), minimum=bounds.get("min"), maximum=bounds.get("max")))
    options["constraints"] = (*options.get("constraints", ()), *found)


def _metric(where: str, name: Any) -> str:
    try:
        return metric_name(str(name))
    except AnalysisError as error:
        raise AnalysisError(f"{where}: {error}") from None


def _budget(where: str, value: Any, options: Options) -> None:
    metric, bound = _BUDGETS[where.rpartition(".")[2]]
    constraint = Constraint(metric=metric, **{bound: float(whole(where, value))})
    options["constraints"] = (*options.get("constraints", ()), constraint)


def _launch_mode(where: str, value: Any, options: Options) -> None:
    if value not in ("local", "remote"):
        raise AnalysisError(f"{where}: expected local (start a server) or remote (with triton_http_endpoint), got {value!r}")
    options["launch_mode"] = value


def _server_flags(where: str, value: Any, options: Options) -> None:
    if not isinstance(value, dict):
        raise AnalysisError(f"{where}: expected flags with values")
    flags = {
        str(name).replace("_", "-"): str(given).lower() if isinstance(given, bool) else given for name, given in value.items()
    }
    options["server_flag"] = tuple(f"--{name}={one}" for name, given in flags.items() for one in _list(given))


def _environment(where: str, value: Any, options: Options) -> None:
    if not isinstance(value, dict):
        raise AnalysisError(f"{where}: expected names with values, got {value!r}")
    options["server_environment"] = {
        **options.get("server_environment", {}),
        **{str(name): str(given) for name, given in value.items()},
    }


def _gpus(where: str, value: Any, options: Options) -> None:
    """The GPUs that the started server can see."""
    devices = [part.strip() for part in value.split(",")] if isinstance(value, str) else [str(one) for one in _list(value)]
    if devices != ["all"]:
        _environment(where, {"CUDA_VISIBLE_DEVICES": ",".join(devices)}, options)


def _load_flags(where: str, value: Any, options: Options) -> None:
    """The flags of perf_analyzer that there are options for."""
    if not isinstance(value, dict):
        raise AnalysisError(f"{where}: expected flags with values")
    for name, given in value.items():
        if name in _OVERRIDDEN:
            said = options.setdefault("warnings", [])
            said.append(f"{where}.{name} has no effect: the search sets it, as Model Analyzer does")
            continue
        option = _LOAD_FLAGS.get(str(name))
        if option is None:
            raise AnalysisError(f"{where}.{name} is not supported; supported here: {', '.join(sorted(_LOAD_FLAGS))}")
        match option:
            case "shape":
                options[option] = tuple(map(str, _list(given)))
            case "streaming":
                options[option] = _boolean(f"{where}.{name}", given)
            case "input_data" if isinstance(given, list) and len(given) != 1:
                raise AnalysisError(f"{where}.{name}: expected one of zero, random and a file, got {given!r}")
            case _:
                options[option] = str(_list(given)[0])


_LOAD_FLAGS = {
    "measurement-interval": "measurement_interval",
    "stability-percentage": "stability_percentage",
    "max-trials": "max_trials",
    "percentile": "stable_percentile",
    "input-data": "input_data",
    "shape": "shape",
    "streaming": "streaming",
    "string-length": "string_length",
    "string-data": "string_data",
    "sequence-length": "sequence_length",
    "sequence-length-variation": "sequence_length_variation",
    "request-distribution": "request_distribution",
}
_OVERRIDDEN = frozenset(
    {
        *("concurrency-range", "request-rate-range", "batch-size", "model-name", "measurement-mode", "service-kind"),
        *("triton-server-directory", "model-repository", "protocol", "url"),
    }
)


def _parameters(where: str, value: Any, options: Options) -> None:
    if not isinstance(value, dict):
        raise AnalysisError(f"{where}: expected concurrency, request_rate or batch_sizes")
    for name, given in value.items():
        read_field(_LOADS, str(name), given, options, f"{where}.")


def _model_config(where: str, value: Any, options: Options) -> None:
    """The values to try, of the fields that are varied; only these are tried."""
    options.update(sweep_options(where, value))


def _disable(where: str, value: Any, options: Options) -> None:
    if _boolean(where, value):
        options.update({name: text for name, text in NOTHING.items() if name not in options})


def _search_rate(where: str, value: Any, options: Options) -> None:
    options["search_rate"] = _boolean(where, value)


def _members(*, are_called: bool) -> Reader:
    """Models behind others: the ones that a model calls have to be named, members of an ensemble are known."""

    def read(where: str, value: Any, options: Options) -> None:
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",")]
        entries = list(value.items()) if isinstance(value, dict) else [_entry(where, one) for one in _list(value)]
        if are_called:
            options["members"] = ",".join(name for name, _ in entries)
        for name, fields in entries:
            own: Options = {}
            for field, given in (fields or {}).items():
                read_field(_MEMBER, str(field), given, own, f"{where}.{name}.")
            if own.pop("cpu_only", False):
                options["cpu_only_members"] = (*options.get("cpu_only_members", ()), name)
            if own:
                options["member_options"] = {**options.get("member_options", {}), name: own}

    return read


def _entry(where: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, dict) or len(value) != 1:
        raise AnalysisError(f"{where}: expected a name, or a name with its fields, got {value!r}")
    ((name, fields),) = value.items()
    return str(name), fields


def _cpu_only_members(where: str, value: Any, options: Options) -> None:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else map(str, _list(value))
    options["cpu_only_members"] = (*options.get("cpu_only_members", ()), *names)


_LOADS = {"concurrency": _numbers("concurrency"), "request_rate": _numbers("rate"), "batch_sizes": _numbers("batch_size")}
_SHARED: dict[str, Reader] = {
    "objectives": _objectives,
    "constraints": _constraints,
    "latency_budget": _budget,
    "min_throughput": _budget,
    "perf_analyzer_flags": _load_flags,
    "genai_perf_flags": _refused("models of tokens are measured as models that answer with several responses", None, {}),
    "triton_server_flags": _server_flags,
    "triton_server_environment": _environment,
    "weighting": _weighting,
}
_MEMBER: dict[str, Reader] = {"model_config_parameters": _model_config, "cpu_only": _switch("cpu_only")}
MODEL: dict[str, Reader] = {**_SHARED, **_MEMBER, "parameters": _parameters}
"""The fields of a model."""

TOP: dict[str, Reader] = {
    **_SHARED,
    **_LOADS,
    "model_repository": _repository,
    "run_config_search_mode": _text("search", ("quick", "brute", "optuna")),
    "run_config_search_disable": _disable,
    "run_config_profile_models_concurrently_enable": _switch("together"),
    "request_rate_search_enable": _search_rate,
    "min_percentage_of_search_space": _count("optuna_percent_min"),
    "max_percentage_of_search_space": _count("optuna_percent_max"),
    "optuna_min_trials": _count("optuna_min_trials"),
    "optuna_max_trials": _count("optuna_max_trials"),
    "optuna_early_exit_threshold": _count("optuna_early_exit_threshold"),
    "use_concurrency_formula": _switch("concurrency_formula"),
    "client_protocol": _text("protocol", ("http", "grpc")),
    "triton_launch_mode": _launch_mode,
    "triton_http_endpoint": _text("url"),
    "triton_grpc_endpoint": _text("grpc_url"),
    "triton_output_path": _text("server_log"),
    "gpus": _gpus,
    "export_path": _text("output"),
    "checkpoint_directory": _text("checkpoint_directory"),
    "bls_composing_models": _members(are_called=True),
    "ensemble_composing_models": _members(are_called=False),
    "cpu_only_composing_models": _cpu_only_members,
    "model_type": _refused("models of tokens are measured as models that answer with several responses", "generic"),
    "reload_model_disable": _refused("each configuration is loaded", False),
}
"""The fields of the whole file, beside profile_models and the ends of ranges (run_config_search_min_..., _max_...)."""

_NOT_WRITTEN = "configurations are sent to the server, and no repository of variants is written"
_OWN_LOAD = "load is made by tpy itself, not by a perf_analyzer"
_DOCKER = "no containers are started"
_FILES = "results.csv and results.json have all columns and rows, report.html all configurations"
_SERVER_ONLY = "memory is that of the statistics, or of the server's processes"

WITHOUT_EFFECT = {
    "output_model_repository_path": _NOT_WRITTEN,
    "override_output_model_repository": _NOT_WRITTEN,
    "client_max_retries": "a server that does not answer ends the analysis, which can be resumed",
    "duration_seconds": _SERVER_ONLY,
    "monitoring_interval": _SERVER_ONLY,
    "collect_cpu_metrics": _SERVER_ONLY,
    "always_report_gpu_metrics": _SERVER_ONLY,
    "triton_metrics_url": _SERVER_ONLY,
    "dcgm_disable": _SERVER_ONLY,
    "perf_analyzer_path": _OWN_LOAD,
    "perf_analyzer_timeout": _OWN_LOAD,
    "perf_analyzer_cpu_util": _OWN_LOAD,
    "perf_analyzer_max_auto_adjusts": _OWN_LOAD,
    "perf_output": _OWN_LOAD,
    "perf_output_path": _OWN_LOAD,
    "triton_docker_image": _DOCKER,
    "triton_docker_mounts": _DOCKER,
    "triton_docker_shm_size": _DOCKER,
    "triton_docker_labels": _DOCKER,
    "triton_docker_args": _DOCKER,
    "triton_install_path": "the server is tpy's, or one that runs",
    "triton_server_path": "the server is tpy's, or one that runs",
    "run_config_search_max_binary_search_steps": "the load is searched from that of the best configuration on",
    "early_exit_enable": "the quick search ends a direction by itself, the exhaustive one measures all",
    "concurrency_sweep_disable": "each configuration is measured at several levels of load while it is searched",
    "skip_summary_reports": _FILES,
    "skip_detailed_reports": _FILES,
    "num_configs_per_model": _FILES,
    "num_top_model_configs": _FILES,
    "filename_model_inference": _FILES,
    "filename_model_gpu": _FILES,
    "filename_server_only": _FILES,
    "inference_output_fields": _FILES,
    "gpu_output_fields": _FILES,
    "server_output_fields": _FILES,
    "report_model_configs": _FILES,
    "plots": _FILES,
    "config_file": "it is this one",
}
"""Fields that are read and change nothing, with the reason."""

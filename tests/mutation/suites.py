"""The files that get faults, and the suites that are to notice."""

from __future__ import annotations

from pathlib import Path

_SCHEDULERS = "data/tpy_data/schedulers"
_ENGINE = "data/tpy_data/engine"
_WORKER = "data/tpy_data/backends/python/worker"
_GRPC = "src/tpy/frontends/grpc/transport/core"
_HTTP = "src/tpy/frontends/http"
_SEQUENCES = ("fuzz:sequence_direct", "fuzz:sequence_oldest")
_HTTP_BYTES = ("fuzz:http_requests", "fuzz:http_hostile_bytes", "tests/frontends/http/test_protocol.py")

SUITES: dict[str, tuple[str, ...]] = {
    f"{_SCHEDULERS}/core/sequence_*.py": (*_SEQUENCES, "tests/schedulers", "tests/engine"),
    f"{_SCHEDULERS}/core/idle_times.py": (*_SEQUENCES, "tests/schedulers"),
    f"{_SCHEDULERS}/core/ensemble*.py": ("fuzz:ensemble_graph", "tests/schedulers", "tests/engine"),
    f"{_SCHEDULERS}/core/rate_limiter.py": ("fuzz:rate_limiter", "tests/schedulers", "tests/engine"),
    f"{_SCHEDULERS}/core/deadlines.py": ("fuzz:deadlines", "fuzz:scheduler_default", "tests/schedulers", "tests/engine"),
    f"{_SCHEDULERS}/core/contract.py": ("fuzz:scheduler_default", "fuzz:sequence_direct", "tests/schedulers", "tests/engine"),
    f"{_SCHEDULERS}/core/fair_*.py": (
        "fuzz:scheduler_fair_default",
        "fuzz:scheduler_fair_dynamic",
        "fuzz:scheduler_fair_wide",
        "tests/schedulers/test_fair_cores.py",
        "tests/engine/test_tenancy.py",
    ),
    f"{_SCHEDULERS}/core/device_queue.py": ("fuzz:scheduler_fair_devices", "tests/schedulers/test_device_shares.py"),
    f"{_SCHEDULERS}/core/tuned_cores.py": ("fuzz:scheduler_tuned", "tests/tuning"),
    f"{_SCHEDULERS}/core/length_*.py": ("fuzz:scheduler_lengths", "fuzz:scheduler_lengths_fair", "tests/tuning/test_lengths.py"),
    f"{_SCHEDULERS}/core/arrivals.py": ("tests/tuning",),
    f"{_SCHEDULERS}/core/batch_tuner.py": ("tests/tuning",),
    f"{_SCHEDULERS}/core/cost_curve.py": ("tests/tuning",),
    f"{_SCHEDULERS}/core/replay.py": ("tests/tuning",),
    f"{_SCHEDULERS}/core/splitting.py": ("tests/tuning",),
    f"{_ENGINE}/tuning/*.py": ("tests/tuning",),
    f"{_SCHEDULERS}/core/tenants.py": ("tests/schedulers/test_fair_cores.py", "tests/engine/test_tenancy.py"),
    f"{_SCHEDULERS}/core/engine_core.py": (
        "fuzz:scheduler_engine",
        "tests/schedulers/test_engine_core.py",
        "tests/engine/test_engines.py",
    ),
    "data/tpy_data/generation/core/*.py": (
        "tests/unit/test_generation.py",
        "tests/unit/test_images_of_requests.py",
        "tests/engine/test_engines.py",
    ),
    f"{_SCHEDULERS}/core/*.py": ("fuzz:scheduler_default", "fuzz:scheduler_dynamic", "tests/schedulers", "tests/engine"),
    f"{_SCHEDULERS}/*driver.py": ("tests/schedulers", "tests/engine", "tests/simulation"),
    "data/tpy_data/cache/core/*.py": ("fuzz:response_cache", "fuzz:cache_entry", "tests/cache", "tests/engine"),
    f"{_ENGINE}/*/core/*.py": ("fuzz:call_circles", "tests/unit/test_call_circles.py", "tests/engine", "tests/simulation"),
    f"{_ENGINE}/channels/rate_limiter.py": ("tests/engine", "tests/simulation"),
    f"{_WORKER}/wire/core/*.py": (
        "fuzz:worker_frames",
        "fuzz:worker_tensors",
        "fuzz:worker_session",
        "fuzz:worker_lies",
        "fuzz:worker_window",
        "tests/backends/python/test_wire.py",
        "tests/backends/python/test_models.py",
        "tests/backends/python",
    ),
    "control/tpy_cloud/core/*.py": ("tests/control/test_cloud_core.py",),
    "control/tpy_control/core/*.py": ("fuzz:control_core", "fuzz:control_debounce", "tests/control"),
    "control/tpy_control/plane.py": ("tests/control", "tests/simulation"),
    "src/tpy/state/*.py": ("fuzz:state_store", "tests/unit/test_state_store.py", "tests/control"),
    "src/tpy/regions/*.py": ("tests/unit/test_regions.py", "tests/unit/test_region_maps.py"),
    "src/tpy/remote/core/*.py": ("fuzz:remote_protocol", "fuzz:remote_protocol_hostile", "tests/remote"),
    "src/tpy/frontends/core/*.py": ("tests/frontends/grpc/transport/test_timing.py", "tests/frontends/grpc/transport"),
    f"{_HTTP}/parser.py": (*_HTTP_BYTES, "tests/frontends/http", "tests/security"),
    f"{_HTTP}/codec/*.py": (
        "fuzz:http_request_bodies",
        "fuzz:http_response_bodies",
        "tests/frontends/codec",
        "tests/frontends/http/test_generate.py",
    ),
    "src/tpy/hot/*.py": ("tests/hot", "fuzz:native_requests", "fuzz:native_responses"),
    f"{_GRPC}/*.py": (
        "fuzz:grpc_hostile_frames",
        "fuzz:grpc_conversation",
        "fuzz:grpc_framing",
        "tests/frontends/grpc/transport",
    ),
}
"""The first pattern that fits a file says which suites are to notice; the quick ones come first."""

AREAS: dict[str, tuple[str, ...]] = {
    "src/tpy/frontends/http/": (
        "tests/frontends/http",
        "tests/frontends/codec",
        "tests/conformance/test_http.py",
        "tests/security",
    ),
    "src/tpy/frontends/grpc/": ("tests/frontends/grpc", "tests/conformance/test_grpc.py", "tests/security"),
    "src/tpy/tenants.py": (
        "tests/unit/test_tenants_file.py",
        "tests/frontends/access",
        "tests/engine",
        "tests/e2e/test_tenants.py",
    ),
    "src/tpy/frontends/": ("tests/frontends", "tests/conformance", "tests/security"),
    "src/tpy_page/": ("tests/frontends/http/test_page_files.py", "tests/frontends/http/test_pages.py", "tests/page"),
    "src/tpy_platforms/mlflow/": ("tests/frontends/mlflow", "tests/e2e/test_import.py"),
    "src/tpy_platforms/openai/": ("tests/frontends/openai", "tests/e2e/test_openai.py", "tests/e2e/test_openai_engine.py"),
    "src/tpy_platforms/sagemaker/": ("tests/unit/test_sagemaker_models.py", "tests/e2e/test_platforms.py"),
    "src/tpy_platforms/tensorflow_serving/": ("tests/frontends/tensorflow_serving", "tests/e2e/test_tensorflow_serving.py"),
    "src/tpy_platforms/torchserve/": ("tests/e2e/test_import_torchserve.py",),
    "src/tpy_platforms/": ("tests/e2e/test_platforms.py", "tests/e2e/test_auth_platforms.py", "tests/golden"),
    "src/tpy/regions/": ("tests/conformance/test_shared_memory.py", "tests/e2e/test_shared_memory.py"),
    "src/tpy/remote/": ("tests/remote", "tests/e2e/test_frontend_processes.py"),
    "src/tpy/templates.py": ("tests/backends/python/test_templates.py", "tests/remote/test_processes.py"),
    "src/tpy/frontend_process.py": ("tests/remote", "tests/e2e/test_frontend_processes.py"),
    "src/tpy/config/": ("tests/unit", "tests/control", "tests/backends"),
    "src/tpy/state/": ("tests/unit", "tests/control", "tests/engine"),
    "src/tpy/auditing/": ("tests/unit/test_audit_log.py", "tests/security/test_audited_routes.py", "tests/e2e/test_audit_log.py"),
    "src/tpy/telemetry/": ("tests/unit", "tests/e2e/test_start.py"),
    "src/tpy_tools/load/": ("tests/load", "tests/e2e/test_perf.py", "tests/e2e/test_perf_tls.py"),
    "src/tpy_tools/commands/perf/": (
        "tests/load",
        "tests/e2e/test_perf.py",
        "tests/e2e/test_perf_data.py",
        "tests/e2e/test_perf_tls.py",
    ),
    "src/tpy_tools/analyze/": ("tests/analyze", "tests/e2e/test_analyze.py", "tests/e2e/test_analyze_models.py"),
    "src/tpy_tools/commands/top/": ("tests/unit/test_top.py", "tests/e2e/test_top.py"),
    "src/tpy_tools/commands/explain/": ("tests/unit/test_explain_command.py", "tests/e2e/test_explain_advice.py"),
    "src/tpy/ray/": ("tests/ray",),
    "src/tpy/tritonserver/": ("tests/tritonserver", "tests/embedded"),
    "src/tpy/recording/": ("tests/recording", "tests/e2e/test_recordings.py"),
    "src/tpy_tools/replay/": ("tests/recording", "tests/e2e/test_recordings.py"),
    "src/tpy_tools/commands/init/": ("tests/e2e/test_init.py", "tests/docs/test_reference.py"),
    "src/tpy_tools/commands/importing/mls/": ("tests/unit/importing", "tests/e2e/test_import_mlserver.py"),
    "src/tpy_tools/commands/importing/": ("tests/unit/importing", "tests/e2e/test_import.py", "tests/docs/test_reference.py"),
    "src/tpy_tools/commands/infer.py": ("tests/e2e/test_infer.py", "tests/docs/test_reference.py"),
    "src/tpy_tools/commands/infer_request.py": ("tests/e2e/test_infer.py", "tests/docs/test_reference.py"),
    "src/tpy_tools/commands/check.py": (
        "tests/unit/test_check_report.py",
        "tests/e2e/test_check.py",
        "tests/docs/test_reference.py",
    ),
    "src/tpy_tools/commands/check_report.py": (
        "tests/unit/test_check_report.py",
        "tests/e2e/test_check.py",
        "tests/docs/test_reference.py",
    ),
    "src/tpy_tools/commands/deep_check.py": ("tests/e2e/test_check_deep.py",),
    "src/tpy_tools/commands/doctor.py": ("tests/unit/test_doctor.py",),
    "src/tpy_tools/commands/doctor_machine.py": ("tests/unit/test_doctor.py",),
    "src/tpy_tools/commands/doctor_backends.py": ("tests/unit/test_doctor.py",),
    "src/tpy_tools/commands/analyze.py": ("tests/e2e/test_analyze.py", "tests/e2e/test_analyze_models.py"),
    "src/tpy_tools/commands/analyze_plan.py": ("tests/e2e/test_analyze.py", "tests/e2e/test_analyze_models.py"),
    "src/tpy_tools/commands/analyze_run.py": ("tests/e2e/test_analyze.py", "tests/e2e/test_analyze_models.py"),
    "src/tpy_tools/commands/commands_of_recordings.py": ("tests/recording", "tests/e2e/test_recordings.py"),
    "src/tpy_tools/commands/record.py": ("tests/recording", "tests/e2e/test_recordings.py"),
    "src/tpy_tools/commands/replay.py": ("tests/recording", "tests/e2e/test_recordings.py"),
    "src/tpy_tools/commands/rollout.py": ("tests/e2e/test_rollout_command.py",),
    "src/tpy_tools/plots.py": ("tests/unit/test_plots.py",),
    "src/tpy_tools/": (
        "tests/unit/test_commands.py",
        "tests/unit/test_command_table.py",
        "tests/e2e/test_analyze.py",
        "tests/e2e/test_demo.py",
        "tests/e2e/test_infer.py",
        "tests/e2e/test_perf_tls.py",
        "tests/e2e/test_recordings.py",
        "tests/e2e/test_top.py",
        "tests/docs/test_reference.py",
    ),
    "src/tpy/cli/": (
        "tests/unit",
        "tests/e2e/test_start.py",
        "tests/e2e/test_check.py",
        "tests/e2e/test_serve_target.py",
        "tests/docs/test_reference.py",
    ),
    "src/tpy/embedded/": ("tests/embedded",),
    "data/tpy_data/backends/function/": ("tests/embedded",),
    "src/tpy/assembly/": ("tests/e2e", "tests/simulation"),
    "data/tpy_data/onnx_graph.py": ("tests/unit/test_onnx_graph.py", "tests/page"),
    "control/tpy_cloud/": (
        "tests/control/test_cloud_core.py",
        "tests/e2e/test_cloud.py",
        "tests/e2e/test_cloud_source.py",
        "tests/e2e/test_cloud_copies.py",
    ),
    "control/": ("tests/control", "tests/simulation", "tests/e2e/test_poll.py", "tests/e2e/test_explicit.py"),
    "data/tpy_data/backends/python/": ("tests/backends/python", "tests/e2e/test_workers.py", "tests/e2e/test_python_api.py"),
    "data/tpy_backends/dali/": ("tests/backends/dali",),
    "data/tpy_backends/fil/": ("tests/backends/fil",),
    "data/tpy_backends/litert/": ("tests/backends/litert",),
    "data/tpy_backends/openvino/": ("tests/backends/openvino",),
    "data/tpy_backends/pytorch/": ("tests/backends/pytorch", "tests/e2e/test_pytorch.py"),
    "data/tpy_backends/sklearn/": ("tests/backends/sklearn",),
    "data/tpy_backends/tensorflow/": ("tests/backends/tensorflow",),
    "data/tpy_backends/": ("tests/backends",),
    "data/tpy_data/backends/": ("tests/backends",),
    "data/tpy_native/strategies/": ("tests/strategies",),
    "data/tpy_native/caches/": ("tests/cache/test_compiled.py",),
    "data/tpy_native/": ("tests/native", "tests/strategies", "tests/cache/test_compiled.py", "tests/tritonserver"),
    "data/tpy_data/cache/": ("tests/cache", "tests/engine/test_cache.py", "tests/conformance/test_cache.py"),
    "data/tpy_data/schedulers/": ("tests/schedulers", "tests/engine", "tests/simulation"),
    "data/": ("tests/engine", "tests/schedulers", "tests/backends", "tests/simulation"),
    "benchmarks/": ("tests/benchmarks",),
    "fuzz/": ("tests/schedulers/test_fuzz_runner.py",),
    "docs/examples/": ("tests/docs", "tests/e2e"),
    "docs/": ("tests/docs",),
    "README.md": ("tests/docs",),
}
"""Suites of what a file belongs to, for `make test-changed`; the first that the path begins with. For other files: all tests."""

GROUPS: dict[str, str] = {
    "schedulers, cores": f"{_SCHEDULERS}/core/*.py",
    "schedulers, drivers": f"{_SCHEDULERS}/*driver.py",
    "response cache, core": "data/tpy_data/cache/core/*.py",
    "engine, core": f"{_ENGINE}/*/core/*.py",
    "engine, rate limiter": f"{_ENGINE}/channels/rate_limiter.py",
    "python worker, core": f"{_WORKER}/wire/core/*.py",
    "control plane, core": "control/tpy_control/core/*.py",
    "repositories in the cloud, core": "control/tpy_cloud/core/*.py",
    "control plane, driver": "control/tpy_control/plane.py",
    "store": "src/tpy/state/*.py",
    "shared memory regions": "src/tpy/regions/*.py",
    "frontend processes, core": "src/tpy/remote/core/*.py",
    "gRPC transport, core": f"{_GRPC}/*.py",
    "HTTP codec": f"{_HTTP}/codec/*.py",
    "HTTP: parser, budget": "src/tpy/frontends/*/*.py",
}
"""The lines of the report; the first pattern that fits."""


def suites_of(path: Path) -> tuple[str, ...]:
    """Of a file; () when its mutants are not tried."""
    return next((suites for pattern, suites in SUITES.items() if path.match(pattern)), ())


def group_of(path: Path) -> str:
    """The line of the report that it counts in."""
    return next(group for group, pattern in GROUPS.items() if path.match(pattern))

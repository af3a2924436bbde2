"""The options of `tpy perf` as they were given."""

from __future__ import annotations

from pathlib import Path

import msgspec


class PerfOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each flag of the command."""

    model: str
    model_version: str = ""
    url: str = ""
    protocol: str = "http"
    streaming: bool = False
    service_kind: str = "triton"
    endpoint: str = "v1/chat/completions"
    concurrency: str = ""
    rate: str = ""
    request_distribution: str = "constant"
    request_intervals: Path | None = None
    measurement_interval: int = 5000
    measurement_mode: str = "time_windows"
    measurement_request_count: int = 50
    request_count: int = 0
    warmup_request_count: int = 0
    warmup_s: float = 0.0
    stability_percentage: float = 10.0
    max_trials: int = 10
    percentile: int = -1
    latency_threshold: int = 0
    binary_search: bool = False
    processes: int = 1
    batch: int = 1
    input_data: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    string_length: int = 128
    string_data: str | None = None
    input_tensor_format: str = "binary"
    output_tensor_format: str = "binary"
    parameters: tuple[str, ...] = ()
    shared_memory: str = "none"
    output_shared_memory_size: int = 102_400
    num_of_sequences: int = 4
    sequence_length: int = 0
    sequence_length_variation: float = 20.0
    sequence_id_range: str = "1"
    bls_composing_models: str = ""
    headers: tuple[str, ...] = ()
    tls: bool = False
    tls_grpc: str = "false"
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verify: int = 1
    verify_host: int = 2
    compression: str = "none"
    certificate_type: str = "PEM"
    key_type: str = "PEM"
    trace_levels: tuple[str, ...] = ()
    trace_rate: int | None = None
    trace_count: int | None = None
    log_frequency: int | None = None
    collect_metrics: bool = False
    metrics_url: str = "localhost:8002/metrics"
    metrics_interval: int = 1000
    verbose_csv: bool = False
    csv_file: Path | None = None
    json_file: str = ""
    html_file: Path | None = None
    profile_file: Path | None = None
    seed: int = 0

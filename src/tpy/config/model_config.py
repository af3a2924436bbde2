"""ModelConfig: a model's configuration as frozen values, one class per message of Triton's model_config.proto.

Field names, numbers of enums and defaults are the proto's; repeated fields are tuples, an unset sub-message is None, an unset
oneof member is None. Map fields are read-only mappings. `tpy.config` converts between these, config.pbtxt, and JSON.

Source: Triton Inference Server, model_config.proto of version 2.73.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from tpy.messages.datatypes import DataType

EXECUTION_ENVIRONMENT = "EXECUTION_ENV_PATH"
"""The parameter of a Python model that names the folder or the archive of its interpreter."""

MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
"""Stands for the model's directory in that parameter."""


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    pass


class InputFormat(enum.Enum):
    """ModelInput.Format."""

    FORMAT_NONE = 0
    FORMAT_NHWC = 1
    FORMAT_NCHW = 2


class InstanceKind(enum.Enum):
    """ModelInstanceGroup.Kind."""

    KIND_AUTO = 0
    KIND_GPU = 1
    KIND_CPU = 2
    KIND_MODEL = 3


class SecondaryDeviceKind(enum.Enum):
    """ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind."""

    KIND_NVDLA = 0


class ModelPriority(enum.Enum):
    """ModelOptimizationPolicy.ModelPriority."""

    PRIORITY_DEFAULT = 0
    PRIORITY_MAX = 1
    PRIORITY_MIN = 2


class TimeoutAction(enum.Enum):
    """ModelQueuePolicy.TimeoutAction."""

    REJECT = 0
    DELAY = 1


class ControlKind(enum.Enum):
    """ModelSequenceBatching.Control.Kind."""

    CONTROL_SEQUENCE_START = 0
    CONTROL_SEQUENCE_READY = 1
    CONTROL_SEQUENCE_END = 2
    CONTROL_SEQUENCE_CORRID = 3


class BatchInputKind(enum.Enum):
    """BatchInput.Kind."""

    BATCH_ELEMENT_COUNT = 0
    BATCH_ACCUMULATED_ELEMENT_COUNT = 1
    BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = 2
    BATCH_MAX_ELEMENT_COUNT_AS_SHAPE = 3
    BATCH_ITEM_SHAPE = 4
    BATCH_ITEM_SHAPE_FLATTEN = 5


class BatchOutputKind(enum.Enum):
    """BatchOutput.Kind."""

    BATCH_SCATTER_WITH_INPUT_SHAPE = 0


class RateLimiterResource(_Message, frozen=True, kw_only=True):
    name: str = ""
    # `global` is a keyword in Python; the wire name is in msgspec's rename and in the converter's table.
    global_: bool = msgspec.field(default=False, name="global")
    count: int = 0


class RateLimiter(_Message, frozen=True, kw_only=True):
    resources: tuple[RateLimiterResource, ...] = ()
    priority: int = 0


class SecondaryDevice(_Message, frozen=True, kw_only=True):
    kind: SecondaryDeviceKind = SecondaryDeviceKind.KIND_NVDLA
    device_id: int = 0


class InstanceGroup(_Message, frozen=True, kw_only=True):
    name: str = ""
    kind: InstanceKind = InstanceKind.KIND_AUTO
    count: int = 0
    rate_limiter: RateLimiter | None = None
    gpus: tuple[int, ...] = ()
    secondary_devices: tuple[SecondaryDevice, ...] = ()
    profile: tuple[str, ...] = ()
    passive: bool = False
    host_policy: str = ""


class TensorReshape(_Message, frozen=True, kw_only=True):
    shape: tuple[int, ...] = ()


class ModelInput(_Message, frozen=True, kw_only=True):
    name: str = ""
    data_type: DataType = DataType.INVALID
    format: InputFormat = InputFormat.FORMAT_NONE
    dims: tuple[int, ...] = ()
    reshape: TensorReshape | None = None
    is_shape_tensor: bool = False
    allow_ragged_batch: bool = False
    optional: bool = False
    is_non_linear_format_io: bool = False


class ModelOutput(_Message, frozen=True, kw_only=True):
    name: str = ""
    data_type: DataType = DataType.INVALID
    dims: tuple[int, ...] = ()
    reshape: TensorReshape | None = None
    label_filename: str = ""
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False


class BatchInput(_Message, frozen=True, kw_only=True):
    kind: BatchInputKind = BatchInputKind.BATCH_ELEMENT_COUNT
    target_name: tuple[str, ...] = ()
    data_type: DataType = DataType.INVALID
    source_input: tuple[str, ...] = ()


class BatchOutput(_Message, frozen=True, kw_only=True):
    target_name: tuple[str, ...] = ()
    kind: BatchOutputKind = BatchOutputKind.BATCH_SCATTER_WITH_INPUT_SHAPE
    source_input: tuple[str, ...] = ()


class VersionPolicyLatest(_Message, frozen=True, kw_only=True):
    num_versions: int = 0


class VersionPolicyAll(_Message, frozen=True, kw_only=True):
    pass


class VersionPolicySpecific(_Message, frozen=True, kw_only=True):
    versions: tuple[int, ...] = ()


class VersionPolicy(_Message, frozen=True, kw_only=True):
    """oneof policy_choice."""

    latest: VersionPolicyLatest | None = None
    all: VersionPolicyAll | None = None
    specific: VersionPolicySpecific | None = None


class OptimizationGraph(_Message, frozen=True, kw_only=True):
    level: int = 0


class CudaGraphShape(_Message, frozen=True, kw_only=True):
    dim: tuple[int, ...] = ()


class CudaGraphLowerBound(_Message, frozen=True, kw_only=True):
    batch_size: int = 0
    input: Mapping[str, CudaGraphShape] = msgspec.field(default_factory=dict)


class CudaGraphSpec(_Message, frozen=True, kw_only=True):
    batch_size: int = 0
    input: Mapping[str, CudaGraphShape] = msgspec.field(default_factory=dict)
    graph_lower_bound: CudaGraphLowerBound | None = None


class OptimizationCuda(_Message, frozen=True, kw_only=True):
    graphs: bool = False
    busy_wait_events: bool = False
    graph_spec: tuple[CudaGraphSpec, ...] = ()
    output_copy_stream: bool = False


class ExecutionAccelerator(_Message, frozen=True, kw_only=True):
    name: str = ""
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)


class ExecutionAccelerators(_Message, frozen=True, kw_only=True):
    gpu_execution_accelerator: tuple[ExecutionAccelerator, ...] = ()
    cpu_execution_accelerator: tuple[ExecutionAccelerator, ...] = ()


class PinnedMemoryBuffer(_Message, frozen=True, kw_only=True):
    enable: bool = False


class Optimization(_Message, frozen=True, kw_only=True):
    """ModelOptimizationPolicy."""

    graph: OptimizationGraph | None = None
    priority: ModelPriority = ModelPriority.PRIORITY_DEFAULT
    cuda: OptimizationCuda | None = None
    execution_accelerators: ExecutionAccelerators | None = None
    input_pinned_memory: PinnedMemoryBuffer | None = None
    output_pinned_memory: PinnedMemoryBuffer | None = None
    gather_kernel_buffer_threshold: int = 0
    eager_batching: bool = False


class QueuePolicy(_Message, frozen=True, kw_only=True):
    """ModelQueuePolicy."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


class DynamicBatching(_Message, frozen=True, kw_only=True):
    """ModelDynamicBatching."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: Mapping[int, QueuePolicy] = msgspec.field(default_factory=dict)


class SequenceControl(_Message, frozen=True, kw_only=True):
    kind: ControlKind = ControlKind.CONTROL_SEQUENCE_START
    int32_false_true: tuple[int, ...] = ()
    fp32_false_true: tuple[float, ...] = ()
    bool_false_true: tuple[bool, ...] = ()
    data_type: DataType = DataType.INVALID


class SequenceControlInput(_Message, frozen=True, kw_only=True):
    name: str = ""
    control: tuple[SequenceControl, ...] = ()


class InitialState(_Message, frozen=True, kw_only=True):
    """oneof state_data: zero_data, data_file."""

    data_type: DataType = DataType.INVALID
    dims: tuple[int, ...] = ()
    zero_data: bool | None = None
    data_file: str | None = None
    name: str = ""


class SequenceState(_Message, frozen=True, kw_only=True):
    input_name: str = ""
    output_name: str = ""
    data_type: DataType = DataType.INVALID
    dims: tuple[int, ...] = ()
    initial_state: tuple[InitialState, ...] = ()
    use_same_buffer_for_input_output: bool = False
    use_growable_memory: bool = False


class StrategyDirect(_Message, frozen=True, kw_only=True):
    max_queue_delay_microseconds: int = 0
    minimum_slot_utilization: float = 0.0


class StrategyOldest(_Message, frozen=True, kw_only=True):
    max_candidate_sequences: int = 0
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False


class SequenceBatching(_Message, frozen=True, kw_only=True):
    """ModelSequenceBatching; oneof strategy_choice: direct, oldest."""

    direct: StrategyDirect | None = None
    oldest: StrategyOldest | None = None
    max_sequence_idle_microseconds: int = 0
    control_input: tuple[SequenceControlInput, ...] = ()
    state: tuple[SequenceState, ...] = ()
    iterative_sequence: bool = False


class EnsembleStep(_Message, frozen=True, kw_only=True):
    model_name: str = ""
    model_version: int = 0
    input_map: Mapping[str, str] = msgspec.field(default_factory=dict)
    output_map: Mapping[str, str] = msgspec.field(default_factory=dict)
    model_namespace: str = ""


class EnsembleScheduling(_Message, frozen=True, kw_only=True):
    """ModelEnsembling."""

    step: tuple[EnsembleStep, ...] = ()
    max_inflight_requests: int = 0


class ModelParameter(_Message, frozen=True, kw_only=True):
    string_value: str = ""


class WarmupInput(_Message, frozen=True, kw_only=True):
    """oneof input_data_type: zero_data, random_data, input_data_file."""

    data_type: DataType = DataType.INVALID
    dims: tuple[int, ...] = ()
    zero_data: bool | None = None
    random_data: bool | None = None
    input_data_file: str | None = None


class Warmup(_Message, frozen=True, kw_only=True):
    """ModelWarmup."""

    name: str = ""
    batch_size: int = 0
    inputs: Mapping[str, WarmupInput] = msgspec.field(default_factory=dict)
    count: int = 0


class ModelOperations(_Message, frozen=True, kw_only=True):
    op_library_filename: tuple[str, ...] = ()


class TransactionPolicy(_Message, frozen=True, kw_only=True):
    """ModelTransactionPolicy."""

    decoupled: bool = False


class RepositoryAgent(_Message, frozen=True, kw_only=True):
    name: str = ""
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)


class RepositoryAgents(_Message, frozen=True, kw_only=True):
    agents: tuple[RepositoryAgent, ...] = ()


class ResponseCache(_Message, frozen=True, kw_only=True):
    enable: bool = False


class MetricIdentifier(_Message, frozen=True, kw_only=True):
    family: str = ""


class HistogramOptions(_Message, frozen=True, kw_only=True):
    buckets: tuple[float, ...] = ()


class MetricControl(_Message, frozen=True, kw_only=True):
    metric_identifier: MetricIdentifier | None = None
    histogram_options: HistogramOptions | None = None


class ModelMetrics(_Message, frozen=True, kw_only=True):
    metric_control: tuple[MetricControl, ...] = ()


class ModelConfig(_Message, frozen=True, kw_only=True):
    """The whole configuration of a model. `dynamic_batching`, `sequence_batching` and `ensemble_scheduling` are one oneof."""

    name: str = ""
    platform: str = ""
    backend: str = ""
    runtime: str = ""
    version_policy: VersionPolicy | None = None
    max_batch_size: int = 0
    input: tuple[ModelInput, ...] = ()
    output: tuple[ModelOutput, ...] = ()
    batch_input: tuple[BatchInput, ...] = ()
    batch_output: tuple[BatchOutput, ...] = ()
    optimization: Optimization | None = None
    dynamic_batching: DynamicBatching | None = None
    sequence_batching: SequenceBatching | None = None
    ensemble_scheduling: EnsembleScheduling | None = None
    instance_group: tuple[InstanceGroup, ...] = ()
    default_model_filename: str = ""
    cc_model_filenames: Mapping[str, str] = msgspec.field(default_factory=dict)
    metric_tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    parameters: Mapping[str, ModelParameter] = msgspec.field(default_factory=dict)
    model_warmup: tuple[Warmup, ...] = ()
    model_operations: ModelOperations | None = None
    model_transaction_policy: TransactionPolicy | None = None
    model_repository_agents: RepositoryAgents | None = None
    response_cache: ResponseCache | None = None
    model_metrics: ModelMetrics | None = None

    @property
    def decoupled(self) -> bool:
        """True if the model may answer a request with any number of responses."""
        return self.model_transaction_policy is not None and self.model_transaction_policy.decoupled

    def parameter(self, key: str, default: str = "") -> str:
        """The string value of `parameters[key]`, or `default`."""
        value = self.parameters.get(key)
        return default if value is None else value.string_value

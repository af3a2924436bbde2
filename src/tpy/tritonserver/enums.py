"""Triton's enumerations, with the numbers of its C interface, which programs use. Those of configurations have other numbers."""

from __future__ import annotations

import enum

from tpy import dlpack, messages


class DataType(enum.IntEnum):
    """The data type of a tensor's elements."""

    INVALID = 0
    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14


class MemoryType(enum.IntEnum):
    """The kind of a buffer's memory."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


class DLDeviceType(enum.IntEnum):
    """The device types of DLPack."""

    kDLCPU = dlpack.CPU  # noqa: N815
    kDLCUDA = dlpack.CUDA  # noqa: N815
    kDLCUDAHost = dlpack.CUDA_HOST  # noqa: N815
    kDLOpenCL = 4  # noqa: N815
    kDLVulkan = 7  # noqa: N815
    kDLMetal = 8  # noqa: N815
    kDLVPI = 9  # noqa: N815
    kDLROCM = 10  # noqa: N815
    kDLROCMHost = 11  # noqa: N815
    kDLExtDev = 12  # noqa: N815
    kDLCUDAManaged = 13  # noqa: N815
    kDLOneAPI = 14  # noqa: N815
    kDLWebGPU = 15  # noqa: N815
    kDLHexagon = 16  # noqa: N815


class ModelControlMode(enum.IntEnum):
    """The models that are loaded: all at the start, all with their changes, or on call."""

    NONE = 0
    POLL = 1
    EXPLICIT = 2


class RateLimitMode(enum.IntEnum):
    """Instances wait for resources, or do not."""

    OFF = 0
    EXEC_COUNT = 1


class InstanceGroupKind(enum.IntEnum):
    """The devices that instances run on."""

    AUTO = 0
    CPU = 1
    GPU = 2
    MODEL = 3


class LogLevel(enum.IntEnum):
    """The level of a log line."""

    INFO = 0
    WARN = 1
    ERROR = 2
    VERBOSE = 3


class LogFormat(enum.IntEnum):
    """The form of log lines."""

    DEFAULT = 0
    ISO8601 = 1


class MetricFormat(enum.IntEnum):
    """The form of the metrics page."""

    PROMETHEUS = 0


class MetricKind(enum.IntEnum):
    """The kind of a metric."""

    COUNTER = 0
    GAUGE = 1


class ModelBatchFlag(enum.IntEnum):
    """The first dimension of a model's tensors is that of a batch, or is not."""

    UNKNOWN = 1
    FIRST_DIM = 2


class ModelTxnPropertyFlag(enum.IntEnum):
    """A model sends one response for a request, or any number."""

    ONE_TO_ONE = 1
    DECOUPLED = 2


SEQUENCE_START = 1
SEQUENCE_END = 2
"""Bits of the flags of a request."""

TO_MESSAGES = {each: messages.DataType[each.name] for each in DataType}
FROM_MESSAGES = {message: each for each, message in TO_MESSAGES.items()}
"""Triton's data types and those of the server."""

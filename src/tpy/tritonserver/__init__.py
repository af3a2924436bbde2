"""Triton's in-process Python API (the module `tritonserver`) over `tpy.Server`: same names, same behaviour.

Read in this order: server.py (Server and its dictionary of models), model.py (requests to one model), inference.py (a request and
its responses), tensor.py (tensors and memory), options.py, metrics.py, enums.py, errors.py. The module `tritonserver` itself is
one file that imports this package, so that NVIDIA's package of that name, which is a folder, is preferred where both
are installed.
"""

from tpy.tritonserver.enums import (
    DataType,
    DLDeviceType,
    InstanceGroupKind,
    LogFormat,
    LogLevel,
    MemoryType,
    MetricFormat,
    MetricKind,
    ModelBatchFlag,
    ModelControlMode,
    ModelTxnPropertyFlag,
    RateLimitMode,
)
from tpy.tritonserver.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from tpy.tritonserver.metrics import Metric, MetricFamily
from tpy.tritonserver.model import AsyncResponseIterator, InferenceRequest, InferenceResponse, Model, ResponseIterator
from tpy.tritonserver.options import ModelLoadDeviceLimit, Options, RateLimiterResource
from tpy.tritonserver.server import ModelDictionary, Server
from tpy.tritonserver.tensor import MemoryBuffer, Tensor

__all__ = [
    "AlreadyExistsError",
    "AsyncResponseIterator",
    "DLDeviceType",
    "DataType",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceGroupKind",
    "InternalError",
    "InvalidArgumentError",
    "LogFormat",
    "LogLevel",
    "MemoryBuffer",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "Model",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelDictionary",
    "ModelLoadDeviceLimit",
    "ModelTxnPropertyFlag",
    "NotFoundError",
    "Options",
    "RateLimitMode",
    "RateLimiterResource",
    "ResponseIterator",
    "Server",
    "Tensor",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
]

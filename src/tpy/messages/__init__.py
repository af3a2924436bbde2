"""The values that the parts of the server exchange: frozen, without behaviour of their own.

Nothing here knows a protocol (JSON, protobuf, HTTP) and nothing here knows the engine.
"""

from tpy.messages.datatypes import DataType
from tpy.messages.inference import (
    FINAL_ONLY,
    InferenceRequest,
    InferenceResponse,
    ParameterValue,
    Residency,
    SequencePosition,
)
from tpy.messages.models import ModelDescription, TensorDescription
from tpy.messages.places import HOST, MemoryType, Place
from tpy.messages.repository import IndexEntry, LoadRequest, ModelState
from tpy.messages.server import LogSettings, ServerMetadata
from tpy.messages.shared_memory import CudaRegistration, RegionFacts, RegionKind, Registration, SystemRegistration
from tpy.messages.statistics import (
    BatchStatistics,
    CacheStatistics,
    Duration,
    FailureCounts,
    InferenceStatistics,
    MemoryUsage,
    ModelStatistics,
    ResponseStatistics,
)
from tpy.messages.tensors import Tensor

__all__ = [
    "FINAL_ONLY",
    "HOST",
    "BatchStatistics",
    "CacheStatistics",
    "CudaRegistration",
    "DataType",
    "Duration",
    "FailureCounts",
    "IndexEntry",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceStatistics",
    "LoadRequest",
    "LogSettings",
    "MemoryType",
    "MemoryUsage",
    "ModelDescription",
    "ModelState",
    "ModelStatistics",
    "ParameterValue",
    "Place",
    "RegionFacts",
    "RegionKind",
    "Registration",
    "Residency",
    "ResponseStatistics",
    "SequencePosition",
    "ServerMetadata",
    "SystemRegistration",
    "Tensor",
    "TensorDescription",
]

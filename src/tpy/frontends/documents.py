"""Answers that HTTP gives as JSON and gRPC as protobuf, whose members have the same names in both."""

from __future__ import annotations

from typing import Any

import msgspec

from tpy.messages import IndexEntry, ModelStatistics, TensorDescription

Document = dict[str, Any]


def tensor_document(tensor: TensorDescription) -> Document:
    """An input or output in a model's metadata."""
    return {"name": tensor.name, "datatype": tensor.datatype.value, "shape": list(tensor.shape)}


def index_document(entry: IndexEntry) -> Document:
    """A row of the index, without what is not known."""
    row = {"name": entry.name}
    if entry.version is not None:
        row["version"] = str(entry.version)
    if entry.state is not None:
        row["state"] = entry.state.value
    if entry.reason:
        row["reason"] = entry.reason
    return row


def statistics_document(entry: ModelStatistics) -> Document:
    """The statistics of a model version."""
    responses = msgspec.to_builtins(entry.responses)
    generation: Document = {"generation_stats": dict(entry.generation)} if entry.generation else {}
    return {
        "name": entry.name,
        "version": str(entry.version),
        "last_inference": entry.last_inference_ms,
        "inference_count": entry.inference_count,
        "execution_count": entry.execution_count,
        "inference_stats": msgspec.to_builtins(entry.inference),
        "response_stats": {str(row.pop("index")): row for row in responses},
        "batch_stats": msgspec.to_builtins(entry.batches),
        "memory_usage": [{"type": usage.kind, "id": usage.id, "byte_size": usage.byte_size} for usage in entry.memory_usage],
        **generation,
    }

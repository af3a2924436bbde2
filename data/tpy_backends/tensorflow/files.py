"""Reads what a SavedModel says of itself, without loading it: its MetaGraphs and their signatures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from tpy.errors import Internal, InvalidArgument, Unavailable, Unsupported
from tpy.messages import DataType
from tpy.messages.datatypes import from_numpy
from tpy_backends.contents import contents_of
from tpy_backends.file_backend import read_whole
from tpy_backends.signature import Signature, TensorInfo, tensors_text
from tpy_backends.tensorflow.settings import TensorFlowModelSettings

Names = Mapping[str, str]
"""From the name of a tensor in the configuration to that in the graph."""

_TAG = "serve"
_SIGNATURE = "serving_default"
_OPAQUE = frozenset({"resource", "variant"})
_NOT_FOR_SERVING = frozenset({"__saved_model_init_op", "__saved_model_train_op"})


def meta_graph(folder: Path, name: str, settings: TensorFlowModelSettings) -> Any:
    """The MetaGraph with the tag that the settings name, else `serve`, else the only one. Raises Unavailable for a folder that is
    not a SavedModel, Internal for one that cannot be read, InvalidArgument for a tag that it does not have."""
    binary, text = folder / "saved_model.pb", folder / "saved_model.pbtxt"
    try:
        if binary.is_file():
            model = saved_model_pb2.SavedModel.FromString(read_whole(binary, name))
        elif text.is_file():
            model = text_format.Parse(text.read_text(encoding="utf-8"), saved_model_pb2.SavedModel())
        else:
            raise Unavailable(f"'{folder}' is not a SavedModel, for model instance '{name}': it holds no saved_model.pb")
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise _unreadable(binary if binary.is_file() else text, name, str(error)) from error
    graphs = list(model.meta_graphs)
    if not graphs:
        raise _unreadable(binary if binary.is_file() else text, name, "it holds no graphs")
    wanted = settings.graph_tag or _TAG
    for graph in graphs:
        if list(graph.meta_info_def.tags) == [wanted]:
            return graph
    if not settings.graph_tag and len(graphs) == 1:
        return graphs[0]
    tags = "; ".join(", ".join(sorted(graph.meta_info_def.tags)) for graph in graphs) or "none"
    raise InvalidArgument(
        f"unable to load model '{name}', its SavedModel has no graph with tag '{wanted}' (TF_GRAPH_TAG); tags of its "
        f"graphs: {tags}"
    )


def _unreadable(file: Path, name: str, reason: str) -> Internal:
    advice = contents_of(file, "tensorflow")
    return Internal(f"unable to read the SavedModel of model '{name}': '{file.parent.name}/{file.name}': {reason}{advice}")


def signature_of(graph: Any, name: str, settings: TensorFlowModelSettings) -> tuple[Signature, Names, Names]:
    """The signature that the settings name, else `serving_default`, else the only one; and the graph's names of inputs and
    outputs. Raises InvalidArgument when there is no signature, or more than one to choose from, Unsupported for a tensor that
    cannot be served."""
    found = {key: value for key, value in sorted(graph.signature_def.items()) if key not in _NOT_FOR_SERVING}
    if settings.signature:
        chosen = graph.signature_def.get(settings.signature) if settings.signature in graph.signature_def else None
    else:
        chosen = found.get(_SIGNATURE) or (next(iter(found.values())) if len(found) == 1 else None)
    if chosen is None:
        why = f"has no signature '{settings.signature}'" if settings.signature else f"has no signature '{_SIGNATURE}'"
        each = "; ".join(f"{key}({_inputs_text(value)})" for key, value in found.items()) or "none"
        raise InvalidArgument(f"unable to load model '{name}', its SavedModel {why} (TF_SIGNATURE_DEF); it has: {each}")
    inputs = {key: _info(key, value) for key, value in sorted(chosen.inputs.items())}
    outputs = {key: _info(key, value) for key, value in sorted(chosen.outputs.items())}
    return (
        Signature(inputs=inputs, outputs=outputs),
        {key: value.name for key, value in chosen.inputs.items()},
        {key: value.name for key, value in chosen.outputs.items()},
    )


def _inputs_text(signature: Any) -> str:
    """Types that cannot be served are shown all the same."""
    try:
        return tensors_text({key: _info(key, value) for key, value in sorted(signature.inputs.items())})
    except Unsupported:
        return ", ".join(sorted(signature.inputs))


def _info(name: str, value: Any) -> TensorInfo:
    if value.WhichOneof("encoding") not in {"name", None}:
        raise Unsupported(f"tensor '{name}' is sparse or composite, which the protocol cannot carry")
    shape = value.tensor_shape
    sizes = None if shape.unknown_rank else tuple(max(dim.size, -1) for dim in shape.dim)
    return TensorInfo(name, datatype_of(name, tf.dtypes.as_dtype(value.dtype)), sizes)


def datatype_of(name: str, dtype: Any) -> DataType:
    """Raises Unsupported for a type that the protocol does not have."""
    dtype = dtype.base_dtype
    datatype = (
        from_numpy(np.dtype(dtype.as_numpy_dtype)) if not dtype.is_quantized and dtype.name not in _OPAQUE else DataType.INVALID
    )
    if datatype is DataType.INVALID or (datatype is DataType.BYTES and dtype != tf.string):
        raise Unsupported(f"unsupported type '{dtype.name}' of tensor '{name}': the protocol has no such datatype")
    return datatype

"""Rules of inputs and outputs, and of batch_input and batch_output."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Final

from tpy.config.known_backends import TENSORRT_PLAN
from tpy.config.model_config import BatchInput, BatchOutput, InputFormat, ModelInput, ModelOutput
from tpy.config.validation.report import Report
from tpy.messages.datatypes import DataType

_ELEMENTS_MAX: Final = 2**63 - 1


def check_tensors(report: Report, *, complete: bool) -> None:
    """Checks every input and output by itself, and that none occurs twice."""
    config = report.config
    tensors_of: dict[str, tuple[ModelInput | ModelOutput, ...]] = {"input": config.input, "output": config.output}
    for kind, tensors in tensors_of.items():
        seen: set[str] = set()
        for index, tensor in enumerate(tensors):
            path = f"{kind}[{index}]"
            _check_tensor(report, tensor, path, f"model {kind} ", complete=complete)
            if tensor.name and tensor.name in seen:
                what = "no request can fit both" if kind == "input" else "answers have it once"
                report.warning(f"{path}.name", f"model {kind} '{tensor.name}' is there more than once; {what}")
            seen.add(tensor.name)
    for index, given in enumerate(config.input):
        if given.format is not InputFormat.FORMAT_NONE and len(given.dims) != 3 and (complete or given.dims):
            report.error(f"input[{index}].dims", f"model input NHWC/NCHW require 3 dims for {config.name}")
        if given.allow_ragged_batch and config.max_batch_size == 0 and complete:
            text = f"model input '{given.name}' allows ragged batches, but {config.name} does not batch: every request runs alone"
            report.warning(f"input[{index}].allow_ragged_batch", text)


def _check_tensor(report: Report, tensor: ModelInput | ModelOutput, path: str, prefix: str, *, complete: bool) -> None:
    suffix = f" for {report.config.name}"
    if not tensor.name:
        report.error(path, f"{prefix}must specify 'name'{suffix}")
    title = f"{prefix}'{tensor.name}' " if tensor.name else prefix
    if complete and tensor.data_type is DataType.INVALID:
        report.error(f"{path}.data_type", f"{title}must specify 'data_type'{suffix}")
    if complete and not tensor.dims:
        report.error(f"{path}.dims", f"{title}must specify 'dims'{suffix}")
    wanted = "must be integer >= 1, or -1 to indicate a variable-size dimension"
    for index in _wrong_dims(tensor.dims):
        report.error(f"{path}.dims[{index}]", f"{title}dimension {wanted}{suffix}")
    if tensor.reshape is not None:
        for index in _wrong_dims(tensor.reshape.shape):
            report.error(f"{path}.reshape.shape[{index}]", f"{title}reshape dimensions {wanted}{suffix}")
        _check_reshape(report, tensor, tensor.reshape.shape, path, title)
    if report.config.platform != TENSORRT_PLAN:
        if tensor.is_shape_tensor:
            report.error(f"{path}.is_shape_tensor", f"shape tensors are only supported for TensorRT platform{suffix}")
        if tensor.is_non_linear_format_io:
            text = "Non-linear IO format is only supported for the TensorRT platform"
            report.error(f"{path}.is_non_linear_format_io", f"{text}{suffix}")
    elif tensor.is_non_linear_format_io and len(tensor.dims) != 3:
        kind = path.partition("[")[0]
        report.error(f"{path}.dims", f"Non-linear IO format {kind} requires 3 dims{suffix}")


def _wrong_dims(dims: Iterable[int]) -> Iterator[int]:
    """The indices of dims that are neither a size nor -1."""
    return (index for index, dim in enumerate(dims) if dim < 1 and dim != -1)


def _check_reshape(report: Report, tensor: ModelInput | ModelOutput, shape: tuple[int, ...], path: str, title: str) -> None:
    """Both shapes hold the same elements, and between variable-size dimensions too: [2, 4, -1, 6] fits [8, -1, 1, 6]."""
    suffix = f" for {report.config.name}"
    if not shape and report.config.max_batch_size == 0:
        text = "cannot have empty reshape for non-batching model as scalar tensors are not supported"
        report.error(f"{path}.reshape", f"{title}{text}{suffix}")
        return
    dims = tensor.dims
    if not dims or any(_wrong_dims((*dims, *shape))):
        return
    for what, given in (("dims", dims), ("reshape", shape)):
        if -1 not in given and math.prod(given) > _ELEMENTS_MAX:
            text = f"element count for tensor '{tensor.name} {what}' exceeds maximum size of {_ELEMENTS_MAX}"
            report.error(f"{path}.{what}", f"{text}{suffix}")
            return
    different = f"{title}has different size for dims and reshape{suffix}"
    if (-1 in dims) != (-1 in shape):
        report.error(f"{path}.reshape", different)
    elif dims.count(-1) != shape.count(-1):
        text = "has different number of variable-size dimensions for dims and reshape"
        report.error(f"{path}.reshape", f"{title}{text}{suffix}")
    elif _fixed_products(dims) != _fixed_products(shape):
        report.error(f"{path}.reshape", different)


def _fixed_products(shape: tuple[int, ...]) -> list[int]:
    """The products of the dims before, between and after the variable-size ones."""
    products = [1]
    for dim in shape:
        if dim == -1:
            products.append(1)
        else:
            products[-1] *= dim
    return products


def check_batch_io(report: Report, *, complete: bool) -> None:
    """batch_input and batch_output name tensors that are there."""
    config = report.config
    suffix = f" for {config.name}"
    for index, given in enumerate(config.batch_input):
        path = f"batch_input[{index}]"
        _check_source(report, given, path, "input", complete=complete)
        if given.data_type not in (DataType.INT32, DataType.FP32):
            report.error(f"{path}.data_type", f"batch input data type must be TYPE_INT32 or TYPE_FP32{suffix}")
    for index, made in enumerate(config.batch_output):
        path = f"batch_output[{index}]"
        _check_source(report, made, path, "output", complete=complete)
        outputs = {output.name for output in config.output}
        for position, name in enumerate(made.target_name):
            if complete and name not in outputs:
                report.error(f"{path}.target_name[{position}]", f"unknown target output name '{name}'{suffix}")
            if name in itertools.islice(made.target_name, position):
                text = f"target output name '{name}' can only be specified once"
                report.error(f"{path}.target_name[{position}]", f"{text}{suffix}")


def _check_source(report: Report, item: BatchInput | BatchOutput, path: str, kind: str, *, complete: bool) -> None:
    suffix = f" for {report.config.name}"
    if len(item.source_input) != 1:
        text = f"batch {kind} kind '{item.kind.name}' expects 1 source input, got {len(item.source_input)}"
        report.error(f"{path}.source_input", f"{text}{suffix}")
    inputs = {tensor.name for tensor in report.config.input}
    for position, name in enumerate(item.source_input):
        if complete and name not in inputs:
            report.error(f"{path}.source_input[{position}]", f"unknown source input name '{name}'{suffix}")

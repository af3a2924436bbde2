"""The `inputs` of a request: each from its JSON data or from its blob behind the JSON."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from tpy.echo import echo, echo_list, request_prefix
from tpy.errors import InvalidArgument
from tpy.frontends.binary_tensor import element_count, read_binary, shaped
from tpy.frontends.bytes_tensor import BrokenElements
from tpy.frontends.http.codec.document import (
    INT64_MAX,
    NON_UNSIGNED,
    array_member,
    data_member,
    is_unsigned,
    members_text,
    refuse_type,
    region_of,
    string_member,
)
from tpy.frontends.http.codec.json_data import read_json_data
from tpy.frontends.shared_memory import TensorResolver, read_region
from tpy.limits import TENSOR_DIMS_MAX
from tpy.messages import DataType, ModelDescription, Tensor
from tpy.messages.allowed import allowed_datatypes, with_hint
from tpy.messages.datatypes import BY_WORD


class InputReader:
    """Reads the inputs of one request; blobs are taken from `body` in the order of the inputs, from `blobs_at` on."""

    __slots__ = (
        "_blob_at",
        "_body",
        "_described",
        "_description",
        "_model",
        "_request_id",
        "_tensors",
        "content_types",
        "uses_regions",
    )

    def __init__(
        self,
        body: bytes | bytearray | memoryview,
        *,
        blobs_at: int,
        description: ModelDescription,
        request_id: str,
        tensors: TensorResolver,
    ) -> None:
        self._body = body
        self._blob_at = blobs_at
        self._model = description.name
        self._description = description
        self._described = description.input_by_name
        self._request_id = request_id
        self._tensors = tensors
        self.content_types: dict[str, str] = {}
        """Parameters of the request, `NAME.content_type`, for inputs that have one."""
        self.uses_regions = False
        """True once an input was in a region."""

    def read(self, inputs: list[object]) -> tuple[Tensor, ...]:
        """All inputs in their order. Raises InvalidArgument, also for bytes that no input claims."""
        tensors: list[Tensor] = []
        names = set()
        for item in inputs:
            has_data, blob_size, region = _source(item)
            name = string_member(item, "name")
            datatype = BY_WORD.get(string_member(item, "datatype"))
            shape = _read_shape(item)
            if name in names:
                raise InvalidArgument(f"{self._prefix}input '{echo(name)}' already exists in request")
            names.add(name)
            if type(item) is dict and "parameters" in item and (kind := _content_type(item["parameters"])):
                self.content_types[f"{name}.content_type"] = kind
            if has_data:
                array = self._read_data(item, name, datatype, shape)
            elif region is not None:
                array = self._read_region(region, name, datatype, shape)
            else:
                array = self._read_blob(blob_size, name, datatype, shape)
            tensors.append(Tensor(name, datatype or DataType.INVALID, array))
        if self._blob_at != len(self._body):
            raise InvalidArgument(f"unexpected additional input data for model '{self._model}'")
        return tuple(tensors)

    @property
    def _prefix(self) -> str:
        return request_prefix(self._request_id)

    def _read_data(self, item: object, name: str, datatype: DataType | None, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        count = element_count(shape)
        if count > INT64_MAX:
            _refuse_shape(name, shape, f"causes total element count to exceed maximum size of {INT64_MAX}")
        if count == 0:
            return shaped(np.empty(0, self._known(name, datatype).numpy), shape, name)
        data = data_member(item, "data")
        if datatype is None:
            hint = allowed_datatypes(string_member(item, "datatype"))
            raise InvalidArgument(with_hint(f"invalid datatype for input {echo(name)}", hint))
        try:
            return shaped(read_json_data(data, datatype, count, tensor=name), shape, name)
        except BrokenElements as broken:
            raise InvalidArgument(broken.text(tensor=name, model=self._model, prefix=self._prefix)) from None

    def _read_blob(self, size: object, name: str, datatype: DataType | None, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if type(size) is not int or not is_unsigned(size):
            refuse_type("binary_data_size", NON_UNSIGNED, size, place=f" for input '{echo(name)}'")
        start = self._blob_at
        end = start + size
        if end > len(self._body):
            missing = end - len(self._body)
            raise InvalidArgument(
                f"unexpected size for input '{echo(name)}', expecting {missing} additional bytes for model '{self._model}'"
            )
        self._blob_at = end
        return read_binary(
            memoryview(self._body)[start:end],
            self._known(name, datatype),
            shape,
            tensor=name,
            model=self._model,
            prefix=self._prefix,
        )

    def _read_region(
        self, parameters: dict[str, object], name: str, datatype: DataType | None, shape: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        self.uses_regions = True
        found = region_of(parameters, self._tensors)
        known = self._known(name, datatype)
        return read_region(found, known, shape, tensor=name, description=self._description, prefix=self._prefix)

    def _known(self, name: str, datatype: DataType | None) -> DataType:
        if datatype is None:
            described = self._described.get(name)
            if described is None:
                raise InvalidArgument(f"invalid datatype for input {echo(name)}")
            raise InvalidArgument(
                f"{self._prefix}inference input '{echo(name)}' data-type is '<invalid>', but model '{self._model}' expects "
                f"'{described.datatype.value}'"
            )
        return datatype


def _source(item: object) -> tuple[bool, object, dict[str, object] | None]:
    """Returns True if the input has JSON data, else its `binary_data_size`, or the parameters that name its region. Raises
    InvalidArgument unless it has exactly one source."""
    if type(item) is not dict:
        _refuse_sources([], item)
    has_data = "data" in item
    parameters = item.get("parameters")
    if type(parameters) is not dict or not parameters:
        if not has_data:
            _refuse_sources([], item)
        return True, None, None
    has_blob = "binary_data_size" in parameters
    has_region = "shared_memory_region" in parameters
    if has_data + has_blob + has_region != 1:
        given = (("data", has_data), ("binary_data_size", has_blob), ("shared_memory_region", has_region))
        _refuse_sources([field for field, present in given if present], item)
    if has_region:
        return False, None, parameters
    return has_data, parameters.get("binary_data_size"), None


def _content_type(parameters: object) -> str:
    """The `content_type` in an input's parameters, by which models of MLServer choose a codec; "" without one."""
    kind = parameters.get("content_type") if type(parameters) is dict else None
    return kind if type(kind) is str else ""


def _refuse_sources(given: list[str], item: object) -> NoReturn:
    which = "set " + " ".join(f"'{field}'" for field in given) if given else "no field is set"
    text = (
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {which}"
    )
    raise InvalidArgument(with_hint(text, f"expected one of them in an input, got {members_text(item)}"))


def _read_shape(item: object) -> tuple[int, ...]:
    shape: list[Any] = array_member(item, "shape")
    for size in shape:
        if type(size) is not int or size < 0:
            place = f" in the shape of input '{echo(string_member(item, 'name'))}'"
            refuse_type("shape", NON_UNSIGNED, size, place=place)
        if size > INT64_MAX:
            name = string_member(item, "name")
            _refuse_shape(name, tuple(shape), "contains one or more invalid dimensions")
    if len(shape) > TENSOR_DIMS_MAX:
        name = string_member(item, "name")
        _refuse_shape(name, tuple(shape), f"has {len(shape)} dimensions, at most {TENSOR_DIMS_MAX} are supported")
    return tuple(shape)


def _refuse_shape(name: str, shape: tuple[int, ...], problem: str) -> NoReturn:
    raise InvalidArgument(f"invalid shape for input '{echo(name)}': shape [{echo_list(shape)}] {problem}")

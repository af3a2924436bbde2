"""Messages of the Open Inference Protocol, with the names and methods of MLServer's.

Tensors keep the array that they came as, or are made of; `data.root` is the list that MLServer has there.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

_Self = TypeVar("_Self", bound="BaseModel")
_REQUIRED: Any = object()


class Datatype(enum.Enum):
    """The datatypes."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"


Fields = Mapping[str, tuple[Any, Callable[[Any], Any] | None]]
"""Default and converter of each field."""


class BaseModel:
    """A message: keyword arguments in, attributes out. Arguments without a field are left out, as MLServer leaves them out."""

    _FIELDS: ClassVar[Fields] = {}

    _EXTRA: ClassVar[bool] = False
    """True: arguments without a field become attributes, too."""

    def __init__(self, **values: Any) -> None:
        given: dict[str, None] = {}
        for name, (default, convert) in self._FIELDS.items():
            value = values.get(name, default)
            if value is _REQUIRED:
                raise ValueError(f"{type(self).__name__}: {name} is missing")
            if name in values:
                given[name] = None
            if convert is not None and value is not None:
                value = convert(value)
            object.__setattr__(self, name, value)
        if self._EXTRA:
            for name, value in values.items():
                if name not in self._FIELDS:
                    given[name] = None
                    object.__setattr__(self, name, value)
        object.__setattr__(self, "_given", given)

    def __setattr__(self, name: str, value: Any) -> None:
        field = self._FIELDS.get(name)
        if field is not None and field[1] is not None and value is not None:
            value = field[1](value)
        if field is not None or (self._EXTRA and not name.startswith("_")):
            self._given[name] = None
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, BaseModel) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._given)})"

    _given: dict[str, None]

    @property
    def model_extra(self) -> dict[str, Any]:
        """Attributes without a field."""
        return {name: getattr(self, name) for name in self._given if name not in self._FIELDS}

    def model_dump(self, exclude_unset: bool = True, exclude_none: bool = True, **_: Any) -> dict[str, Any]:
        """The message as dicts and lists."""
        names = self._given if exclude_unset else [*self._FIELDS, *self.model_extra]
        found = {name: _dumped(getattr(self, name), exclude_unset, exclude_none) for name in names}
        return {name: value for name, value in found.items() if value is not None or not exclude_none}

    def model_dump_json(self, exclude_unset: bool = True, exclude_none: bool = True, **_: Any) -> str:
        """The message as JSON; bytes as text."""
        document = self.model_dump(exclude_unset, exclude_none)
        return json.dumps(document, default=_as_text, ensure_ascii=False, separators=(",", ":"))

    dict = model_dump
    json = model_dump_json

    @classmethod
    def model_validate(cls: type[_Self], document: Any) -> _Self:
        """The message of a dict, or of itself."""
        if isinstance(document, cls):
            return document
        if not isinstance(document, Mapping):
            raise ValueError(f"{cls.__name__}: expected names and values, got {type(document).__name__}")
        return cls(**document)

    parse_obj = model_validate

    @classmethod
    def model_validate_json(cls: type[_Self], text: str | bytes) -> _Self:
        """The message of JSON."""
        return cls.model_validate(json.loads(text))


def _dumped(value: Any, exclude_unset: bool, exclude_none: bool) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset, exclude_none)
    if isinstance(value, TensorData):
        return value.root
    if isinstance(value, list):
        return [_dumped(each, exclude_unset, exclude_none) for each in value]
    return value


def _as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


class TensorData:
    """The elements of a tensor: a list, or an array that becomes a list when somebody asks for it."""

    def __init__(self, root: Any = None, *, array: np.ndarray[Any, Any] | None = None) -> None:
        self._root = root
        self.array = array
        """The elements, in the shape of the tensor; None: those of `root`."""

    @property
    def root(self) -> Any:
        """The elements as a list; those of an array without its shape, as over gRPC."""
        if self._root is None and self.array is not None:
            self._root = self.array.ravel().tolist()
        return self._root

    def __iter__(self) -> Iterator[Any]:
        return iter(self.root)

    def __getitem__(self, at: Any) -> Any:
        return self.root[at]

    def __len__(self) -> int:
        return len(self.root)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorData) and bool(self.root == other.root)

    __hash__ = None  # type: ignore[assignment]  # it holds a list

    def __repr__(self) -> str:
        return f"TensorData(root={self.root!r})"


def _datatype(value: Any) -> str:
    """Its word: as in MLServer, messages hold texts."""
    return str(Datatype(value).value)


def _shape(value: Any) -> list[int]:
    return [int(size) for size in value]


def _data(value: Any) -> TensorData:
    return value if isinstance(value, TensorData) else TensorData(value)


def _listed(kind: type[BaseModel]) -> Callable[[Any], list[Any]]:
    return lambda values: [kind.model_validate(each) for each in values]


class Parameters(BaseModel):
    """Parameters of a message, or of a tensor."""

    content_type: str | None
    headers: Mapping[str, str] | None

    _FIELDS: ClassVar[Fields] = {"content_type": (None, None), "headers": (None, None)}
    _EXTRA: ClassVar[bool] = True


class _Parametrised(BaseModel):
    parameters: Parameters | None


_PARAMETERS = (None, Parameters.model_validate)


class MetadataTensor(_Parametrised):
    """An input or output as settings describe it."""

    name: str
    datatype: str
    shape: list[int]

    _FIELDS: ClassVar[Fields] = {
        "name": (_REQUIRED, None),
        "datatype": (_REQUIRED, _datatype),
        "shape": (_REQUIRED, _shape),
        "parameters": _PARAMETERS,
    }


class RequestInput(_Parametrised):
    """An input of a request."""

    name: str
    shape: list[int]
    datatype: str
    data: TensorData

    _FIELDS: ClassVar[Fields] = {
        "name": (_REQUIRED, None),
        "shape": (_REQUIRED, _shape),
        "datatype": (_REQUIRED, _datatype),
        "parameters": _PARAMETERS,
        "data": (_REQUIRED, _data),
    }


class ResponseOutput(RequestInput):
    """An output of a response."""


class RequestOutput(_Parametrised):
    """An output that a request asks for."""

    name: str

    _FIELDS: ClassVar[Fields] = {"name": (_REQUIRED, None), "parameters": _PARAMETERS}


class InferenceRequest(_Parametrised):
    """A request."""

    id: str | None
    inputs: list[RequestInput]
    outputs: list[RequestOutput] | None

    _FIELDS: ClassVar[Fields] = {
        "id": (None, None),
        "parameters": _PARAMETERS,
        "inputs": (_REQUIRED, _listed(RequestInput)),
        "outputs": (None, _listed(RequestOutput)),
    }


class InferenceResponse(_Parametrised):
    """A response."""

    model_name: str
    model_version: str | None
    id: str | None
    outputs: list[ResponseOutput]

    _FIELDS: ClassVar[Fields] = {
        "model_name": (_REQUIRED, None),
        "model_version": (None, None),
        "id": (None, None),
        "parameters": _PARAMETERS,
        "outputs": (_REQUIRED, _listed(ResponseOutput)),
    }


class MetadataModelResponse(_Parametrised):
    """A description of a model."""

    name: str
    versions: list[str] | None
    platform: str
    inputs: list[MetadataTensor] | None
    outputs: list[MetadataTensor] | None

    _FIELDS: ClassVar[Fields] = {
        "name": (_REQUIRED, None),
        "versions": (None, None),
        "platform": (_REQUIRED, None),
        "inputs": (None, _listed(MetadataTensor)),
        "outputs": (None, _listed(MetadataTensor)),
        "parameters": _PARAMETERS,
    }

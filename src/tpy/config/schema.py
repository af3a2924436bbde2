"""The shape of a configuration as data: which fields a message has, of what kind, and where its structs keep them.

Made once from the descriptors of model_config.proto and the struct classes; text, JSON and protobuf converters walk it, so
that a new field is a line in the .proto file and one in model_config.py.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tpy._proto import message_class
from tpy.config.model_config import ModelConfig
from tpy.messages.datatypes import BY_NUMBER, DataType


class Cardinality(enum.Enum):
    """The number of times that a field may be given."""

    SINGULAR = enum.auto()
    REPEATED = enum.auto()
    MAP = enum.auto()


class Scalar(enum.Enum):
    """The protobuf type of a field that is neither message nor enum; the value is protobuf's word."""

    INT32 = "int32"
    INT64 = "int64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    FLOAT = "float"
    DOUBLE = "double"
    BOOL = "bool"
    STRING = "string"

    @property
    def is_integer(self) -> bool:
        """True if values are whole numbers."""
        return self in INTEGER_RANGE


INTEGER_RANGE: Final[Mapping[Scalar, tuple[int, int]]] = {
    Scalar.INT32: (-(2**31), 2**31 - 1),
    Scalar.INT64: (-(2**63), 2**63 - 1),
    Scalar.UINT32: (0, 2**32 - 1),
    Scalar.UINT64: (0, 2**64 - 1),
}
"""Smallest and largest value of each integer type."""

_SCALAR_OF_TYPE: Final = {
    FieldDescriptor.TYPE_INT32: Scalar.INT32,
    FieldDescriptor.TYPE_INT64: Scalar.INT64,
    FieldDescriptor.TYPE_UINT32: Scalar.UINT32,
    FieldDescriptor.TYPE_UINT64: Scalar.UINT64,
    FieldDescriptor.TYPE_FLOAT: Scalar.FLOAT,
    FieldDescriptor.TYPE_DOUBLE: Scalar.DOUBLE,
    FieldDescriptor.TYPE_BOOL: Scalar.BOOL,
    FieldDescriptor.TYPE_STRING: Scalar.STRING,
}


class EnumSchema:
    """An enum: the members of a Python enum by protobuf name and by number."""

    __slots__ = ("by_name", "by_number", "full_name", "name", "name_of", "number_of")

    def __init__(self, kind: type[enum.Enum], descriptor: Any) -> None:
        self.name: str = descriptor.name
        self.full_name: str = descriptor.full_name
        self.by_number: dict[int, enum.Enum] = dict(BY_NUMBER) if kind is DataType else {m.value: m for m in kind}
        self.by_name: dict[str, enum.Enum] = {v.name: self.by_number[v.number] for v in descriptor.values}
        self.number_of: dict[enum.Enum, int] = {member: number for number, member in self.by_number.items()}
        self.name_of: dict[enum.Enum, str] = {member: name for name, member in self.by_name.items()}


class FieldSchema:
    """One field. `name` is protobuf's, `attribute` the struct's. `kind` is that of one element; of a map, that of a value.

    `has_presence` is true where "not given" differs from every value: messages and members of a oneof.
    """

    __slots__ = ("attribute", "cardinality", "has_presence", "json_name", "key", "kind", "name", "oneof")

    def __init__(self, attribute: str, descriptor: FieldDescriptor, cardinality: Cardinality, element: Any) -> None:
        self.attribute = attribute
        self.name: str = descriptor.name
        self.json_name: str = descriptor.json_name
        self.cardinality = cardinality
        self.oneof: str | None = None if descriptor.containing_oneof is None else descriptor.containing_oneof.name
        self.key: Scalar | None = None
        value = descriptor
        if cardinality is Cardinality.MAP:
            self.key = _SCALAR_OF_TYPE[descriptor.message_type.fields_by_name["key"].type]
            value = descriptor.message_type.fields_by_name["value"]
        self.kind: Scalar | EnumSchema | MessageSchema = _kind(value, element)
        self.has_presence = self.oneof is not None or (
            cardinality is Cardinality.SINGULAR and isinstance(self.kind, MessageSchema)
        )

    @property
    def is_message(self) -> bool:
        """True if the field is written with braces in text: messages, and maps whatever their values are."""
        return self.cardinality is Cardinality.MAP or isinstance(self.kind, MessageSchema)


class MessageSchema:
    """One message: its struct class, its fields by protobuf name (in the order of the struct), and its oneofs."""

    __slots__ = ("by_json_name", "fields", "full_name", "name", "struct")

    def __init__(self, struct: type[msgspec.Struct], descriptor: Descriptor) -> None:
        self.struct = struct
        self.name: str = descriptor.name
        self.full_name: str = descriptor.full_name
        self.fields: dict[str, FieldSchema] = {}
        for info in msgspec.structs.fields(struct):
            cardinality, element = _cardinality(info.type)
            self.fields[info.encode_name] = FieldSchema(
                info.name, descriptor.fields_by_name[info.encode_name], cardinality, element
            )
        self.by_json_name: dict[str, FieldSchema] = {}
        for field in self.fields.values():
            self.by_json_name[field.name] = field
            self.by_json_name[field.json_name] = field


def _cardinality(hint: Any) -> tuple[Cardinality, Any]:
    """Split a struct field's type into how often and of what: `tuple[X, ...]`, `Mapping[K, X]`, `X | None`, X."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is tuple:
        return Cardinality.REPEATED, arguments[0]
    if origin is Mapping:
        return Cardinality.MAP, arguments[1]
    if origin in (types.UnionType, typing.Union):
        return Cardinality.SINGULAR, next(argument for argument in arguments if argument is not types.NoneType)
    return Cardinality.SINGULAR, hint


def _kind(descriptor: FieldDescriptor, element: Any) -> Scalar | EnumSchema | MessageSchema:
    if descriptor.message_type is not None:
        return MessageSchema(element, descriptor.message_type)
    if descriptor.enum_type is not None:
        return EnumSchema(element, descriptor.enum_type)
    return _SCALAR_OF_TYPE[descriptor.type]


MODEL_CONFIG_CLASS: Final = message_class("inference.ModelConfig")
"""The protobuf class of a whole configuration."""

MODEL_CONFIG: Final = MessageSchema(ModelConfig, MODEL_CONFIG_CLASS.DESCRIPTOR)
"""The schema of a whole configuration."""

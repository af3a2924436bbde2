"""ModelConfig to and from its protobuf message."""

from __future__ import annotations

import enum
from typing import Any, cast

import msgspec
from google.protobuf.message import Message

from tpy.config.model_config import ModelConfig
from tpy.config.schema import MODEL_CONFIG, MODEL_CONFIG_CLASS, Cardinality, EnumSchema, FieldSchema, MessageSchema


def to_message(config: ModelConfig) -> Message:
    """The configuration as an inference.ModelConfig of the private pool."""
    message = MODEL_CONFIG_CLASS()
    _fill(message, config, MODEL_CONFIG)
    return message


def from_message(message: Message) -> ModelConfig:
    """The configuration that an inference.ModelConfig holds. Raises ValueError for an enum number that has no name."""
    return cast(ModelConfig, _read(message, MODEL_CONFIG))


def _fill(message: Message, value: msgspec.Struct, schema: MessageSchema) -> None:
    for field in schema.fields.values():
        given = getattr(value, field.attribute)
        if field.cardinality is Cardinality.REPEATED:
            _fill_repeated(getattr(message, field.name), given, field)
        elif field.cardinality is Cardinality.MAP:
            _fill_map(getattr(message, field.name), given, field)
        elif isinstance(field.kind, MessageSchema):
            if given is not None:
                nested = getattr(message, field.name)
                nested.SetInParent()
                _fill(nested, given, field.kind)
        elif given is not None:
            setattr(message, field.name, _plain(given, field))


def _fill_repeated(container: Any, values: tuple[Any, ...], field: FieldSchema) -> None:
    if isinstance(field.kind, MessageSchema):
        for value in values:
            _fill(container.add(), value, field.kind)
    else:
        container.extend([_plain(value, field) for value in values])


def _fill_map(container: Any, values: dict[Any, Any], field: FieldSchema) -> None:
    for key, value in values.items():
        if isinstance(field.kind, MessageSchema):
            _fill(container[key], value, field.kind)
        else:
            container[key] = _plain(value, field)


def _plain(value: Any, field: FieldSchema) -> Any:
    return field.kind.number_of[value] if isinstance(field.kind, EnumSchema) else value


def _read(message: Message, schema: MessageSchema) -> msgspec.Struct:
    values: dict[str, Any] = {}
    for field in schema.fields.values():
        if field.has_presence and not message.HasField(field.name):
            continue
        given = getattr(message, field.name)
        if field.cardinality is Cardinality.REPEATED:
            values[field.attribute] = tuple(_element(item, field) for item in given)
        elif field.cardinality is Cardinality.MAP:
            # Sorted: protobuf's maps have no order, and a configuration should print the same every time.
            items = {key: _element(given[key], field) for key in sorted(given)}
            values[field.attribute] = items
        else:
            values[field.attribute] = _element(given, field)
    return schema.struct(**values)


def _element(value: Any, field: FieldSchema) -> Any:
    if isinstance(field.kind, MessageSchema):
        return _read(value, field.kind)
    if isinstance(field.kind, EnumSchema):
        return _member(value, field.kind)
    return value


def _member(number: int, schema: EnumSchema) -> enum.Enum:
    member = schema.by_number.get(number)
    if member is None:
        raise ValueError(f"{number} is not a value of enum {schema.name}")
    return member

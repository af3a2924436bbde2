"""Requests as Google's library has read them, as the classes of the services: the same as betterproto2 would have read."""

from __future__ import annotations

import random
from typing import Any

import betterproto2
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tpy._proto import message_class, request_class
from tpy._proto.messages import inference
from tpy._proto.messages.grpc.health import v1 as health
from tpy._proto.messages.grpc.reflection import v1 as reflection
from tpy.frontends.grpc.conversion import converted

_SERVICES = (inference.GrpcInferenceServiceBase, health.HealthBase, reflection.ServerReflectionBase)
METHODS = {path: handler.request_type for base in _SERVICES for path, handler in base().__mapping__().items()}
_TEXTS = ("", "a", "ä\n", "x" * 300)
_NUMBERS = {"bool": (True, False), "uint": (0, 1, 2**31), "int": (0, 1, -1, 2**31 - 1), "float": (0.0, -1.5)}


def filled(message: Message, descriptor: Descriptor, chance: random.Random, depth: int = 0) -> Message:
    """A message with some of its fields set, some of them to their defaults."""
    for field in descriptor.fields:
        if chance.random() < 0.4:
            continue
        target = getattr(message, field.name)
        repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED
        if field.message_type is None:
            if repeated:
                target.extend(scalar(field, chance) for _ in range(chance.randrange(3)))
            else:
                setattr(message, field.name, scalar(field, chance))
        elif field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            for _ in range(chance.randrange(3)):
                if value.message_type is None:
                    target[scalar(key, chance)] = scalar(value, chance)
                else:
                    filled(target[scalar(key, chance)], value.message_type, chance, depth + 1)
        elif depth < 3:
            for _ in range(chance.randrange(3) if repeated else 1):
                filled(target.add() if repeated else target, field.message_type, chance, depth + 1)
                if not repeated:
                    target.SetInParent()
    return message


def scalar(field: FieldDescriptor, chance: random.Random) -> Any:
    if field.enum_type is not None:
        return chance.choice(field.enum_type.values).number
    kinds: dict[int, Any] = {
        FieldDescriptor.TYPE_STRING: _TEXTS,
        FieldDescriptor.TYPE_BYTES: tuple(text.encode() for text in _TEXTS),
        FieldDescriptor.TYPE_BOOL: _NUMBERS["bool"],
        FieldDescriptor.TYPE_UINT32: _NUMBERS["uint"],
        FieldDescriptor.TYPE_UINT64: _NUMBERS["uint"],
        FieldDescriptor.TYPE_FLOAT: _NUMBERS["float"],
        FieldDescriptor.TYPE_DOUBLE: _NUMBERS["float"],
    }
    return chance.choice(kinds.get(field.type, _NUMBERS["int"]))


@pytest.mark.parametrize("path", METHODS)
def test_as_betterproto_reads_it(path: str) -> None:
    parsed_type, into = request_class(path), METHODS[path]
    for seed in range(40):
        message = filled(parsed_type(), parsed_type.DESCRIPTOR, random.Random(f"{path}/{seed}"))
        octets = message.SerializeToString()
        again = parsed_type.FromString(octets)
        assert converted(again, into) == into.parse(octets), seed
        assert message_class(parsed_type.DESCRIPTOR.full_name).FromString(bytes(converted(again, into))) == again


def test_all_that_a_message_can_have_is_converted() -> None:
    """Also what no request has now: enums and nested messages, in lists and maps."""
    name = "inference.ModelConfig"
    parsed_type = message_class(name)
    seen: set[str] = set()
    for seed in range(60):
        octets = filled(parsed_type(), parsed_type.DESCRIPTOR, random.Random(seed)).SerializeToString()
        got = converted(parsed_type.FromString(octets), inference.ModelConfig)
        assert got == inference.ModelConfig.parse(octets), seed
        seen |= {each for each, value in vars(got).items() if value}
    assert len(seen) > 20
    assert isinstance(converted(parsed_type(input=[{"data_type": 11}]), inference.ModelConfig).input[0], betterproto2.Message)


def test_the_files_of_a_load_call() -> None:
    parsed_type = request_class("/inference.GRPCInferenceService/RepositoryModelLoad")
    message = parsed_type()
    message.parameters["file:1/x"].bytes_param = b"x" * 1000
    given = converted(message, inference.RepositoryModelLoadRequest)
    assert given.parameters["file:1/x"].bytes_param == b"x" * 1000
    assert given.parameters["file:1/x"].string_param is None

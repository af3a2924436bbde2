"""The private descriptor pool, and the message classes made in it."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from tpy._proto.descriptors import FILE_DESCRIPTOR_SET


def build_pool(file_descriptor_set: str) -> descriptor_pool.DescriptorPool:
    """A pool with the files that `proto/generate.py` has written."""
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(file_descriptor_set))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


POOL: Final = build_pool(FILE_DESCRIPTOR_SET)


def message_class(full_name: str) -> type[Message]:
    """The class of a message, such as "inference.ModelConfig". Raises KeyError for an unknown name."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(full_name))


def messages(file: str, pool: descriptor_pool.DescriptorPool = POOL) -> Any:
    """The classes of the messages of a file of proto/, as attributes: `messages("health.proto").HealthCheckRequest`."""
    described = pool.FindFileByName(file).message_types_by_name
    return SimpleNamespace(**{name: message_factory.GetMessageClass(each) for name, each in described.items()})


def request_class(path: str) -> type[Message]:
    """The class of the request of a method, such as "/inference.GRPCInferenceService/ModelInfer". Raises KeyError for an unknown
    one."""
    _, service, method = path.split("/")
    return message_factory.GetMessageClass(POOL.FindServiceByName(service).methods_by_name[method].input_type)

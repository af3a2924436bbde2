"""The messages of TensorFlow Serving's configuration files, by their published names and numbers, in a separate pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from tpy_tools.commands.importing.core.plan import Unimportable

_PACKAGE: Final = "tensorflow.serving"

_SCALARS: Final = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint32": descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
}

_MESSAGES: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    "ModelServerConfig": {"model_config_list": (1, "ModelConfigList")},
    "ModelConfigList": {"config": (1, "*ModelConfig")},
    "ModelConfig": {
        "name": (1, "string"),
        "base_path": (2, "string"),
        "model_platform": (4, "string"),
        "logging_config": (6, "LoggingConfig"),
        "model_version_policy": (7, "ServableVersionPolicy"),
        "version_labels": (8, "*VersionLabelsEntry"),
    },
    "VersionLabelsEntry": {"key": (1, "string"), "value": (2, "int64")},
    "ServableVersionPolicy": {"latest": (100, "Latest"), "all": (101, "All"), "specific": (102, "Specific")},
    "Latest": {"num_versions": (1, "uint32")},
    "All": {},
    "Specific": {"versions": (1, "*int64")},
    "LoggingConfig": {"log_collector_config": (1, "LogCollectorConfig"), "sampling_config": (2, "SamplingConfig")},
    "LogCollectorConfig": {"type": (1, "string"), "filename_prefix": (2, "string")},
    "SamplingConfig": {"sampling_rate": (1, "double")},
    "BatchingParameters": {
        "max_batch_size": (1, "Int64Value"),
        "batch_timeout_micros": (2, "Int64Value"),
        "max_enqueued_batches": (3, "Int64Value"),
        "num_batch_threads": (4, "Int64Value"),
        "thread_pool_name": (5, "StringValue"),
        "allowed_batch_sizes": (6, "*int64"),
        "pad_variable_length_inputs": (7, "bool"),
    },
    "Int64Value": {"value": (1, "int64")},
    "StringValue": {"value": (1, "string")},
}
"""Fields with number and type; `*` for repeated ones. Wrappers of google.protobuf are written out: their text is the same."""


def _classes() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="tpy/importing/serving.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            word = kind.removeprefix("*")
            added = message.field.add(name=field, number=number)
            added.label = added.LABEL_REPEATED if kind.startswith("*") else added.LABEL_OPTIONAL
            if word in _SCALARS:
                added.type = _SCALARS[word]
            else:
                added.type, added.type_name = added.TYPE_MESSAGE, f".{_PACKAGE}.{word}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("ModelServerConfig", "BatchingParameters")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in names}


_CLASSES: Final = _classes()


def parse(name: str, text: str, path: str) -> Any:
    """A message of a file in text format. Raises Unimportable, with the line, also for fields that nobody knows: what they say
    would be lost."""
    try:
        return text_format.Parse(text, _CLASSES[name]())
    except text_format.ParseError as error:
        raise Unimportable(f"{path}: {str(error).splitlines()[0]}") from None

"""The .proto files say what Triton's clients expect, and their classes share a process with the clients'."""

from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from tpy._proto import POOL


def _numbers(file: FileDescriptor) -> dict[str, object]:
    """Every field, enum value and method of a file, by full name, with number, type and label."""
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    found: dict[str, object] = {}

    def message(prefix: str, descriptor: descriptor_pb2.DescriptorProto) -> None:
        for field in descriptor.field:
            one_of = descriptor.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            found[f"{prefix}.{field.name}"] = (field.number, field.type, field.label, field.type_name, one_of)
        for nested in descriptor.nested_type:
            message(f"{prefix}.{nested.name}", nested)
        for kind in descriptor.enum_type:
            found.update({f"{prefix}.{kind.name}.{value.name}": value.number for value in kind.value})

    for descriptor in proto.message_type:
        found[descriptor.name] = "message"
        message(descriptor.name, descriptor)
    for service in proto.service:
        for method in service.method:
            arity = method.client_streaming, method.server_streaming
            found[f"{service.name}/{method.name}"] = (method.input_type, method.output_type, *arity)
    return found


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("grpc_service.proto", service_pb2), ("model_config.proto", model_config_pb2)],
    ids=["service", "configuration"],
)
def test_names_numbers_and_types_are_those_of_the_stock_client(ours: str, theirs: object) -> None:
    assert _numbers(POOL.FindFileByName(ours)) == _numbers(theirs.DESCRIPTOR)  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", ["tpy", "tritonclient"])
def test_the_stock_client_can_be_imported_in_the_same_process(first: str) -> None:
    imports = ["import tpy.frontends.grpc", "import tritonclient.grpc, tritonclient.grpc.aio"]
    lines = imports if first == "tpy" else imports[::-1]
    program = "; ".join([*lines, "tritonclient.grpc.service_pb2.ModelInferRequest(model_name='m')"])
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

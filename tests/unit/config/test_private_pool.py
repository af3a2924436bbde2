"""The server's protobuf classes share a process with a client's, and are in step with the .proto files."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tpy._proto import message_class
from tpy.config.schema import MODEL_CONFIG, Cardinality, MessageSchema

REPOSITORY = Path(__file__).resolve().parents[3]


def test_generated_code_is_in_step() -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "proto" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_different_definition_in_the_default_pool_does_not_clash() -> None:
    # In a process of its own: what is registered in the default pool stays there.
    program = textwrap.dedent(
        """
        import sys
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        def register_other_definition():
            file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package="inference", syntax="proto3")
            message = file.message_type.add(name="ModelConfig")
            message.field.add(name="something_else", number=1, type=1, label=1)
            default = descriptor_pool.Default()
            default.Add(file)
            return message_factory.GetMessageClass(default.FindMessageTypeByName("inference.ModelConfig"))

        if sys.argv[1] == "ours first":
            from tpy.config import parse_pbtxt, to_message
        theirs = register_other_definition()
        from tpy.config import parse_pbtxt, to_message
        ours = to_message(parse_pbtxt('name: "m" max_batch_size: 4').config)
        assert ours.max_batch_size == 4
        assert theirs(something_else=0.5).something_else == 0.5
        """
    )
    for order in ("ours first", "theirs first"):
        done = subprocess.run([sys.executable, "-c", program, order], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_every_field_of_the_proto_has_its_place_in_a_struct() -> None:
    def compare(schema: MessageSchema) -> None:
        descriptor = message_class(schema.full_name).DESCRIPTOR
        assert set(schema.fields) == set(descriptor.fields_by_name), schema.full_name
        for field in schema.fields.values():
            if isinstance(field.kind, MessageSchema):
                compare(field.kind)

    compare(MODEL_CONFIG)


def test_fields_that_clients_know_have_their_numbers() -> None:
    numbers = {name: field.number for name, field in message_class("inference.ModelConfig").DESCRIPTOR.fields_by_name.items()}
    assert numbers["name"] == 1
    assert numbers["dynamic_batching"] == 11
    assert numbers["backend"] == 17
    assert numbers["response_cache"] == 24
    assert numbers["model_metrics"] == 26
    assert MODEL_CONFIG.fields["parameters"].cardinality is Cardinality.MAP
    assert MODEL_CONFIG.fields["dynamic_batching"].oneof == "scheduling_choice"

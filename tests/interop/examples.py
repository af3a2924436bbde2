"""Triton's client examples, as they are in its public client repository."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .repository import write_image
from .trial import Command, Setting


def _example(setting: Setting, name: str, *arguments: str, expected: str = "PASS") -> Command:
    """A command that runs an example against the server; the port follows its name, unless the arguments say `-i grpc`."""
    tools = setting.tools
    over_grpc = "grpc" in name or "grpc" in arguments
    url = setting.grpc if over_grpc else setting.http
    program = tools.client_examples() / f"{name}.py"
    return Command((tools.python("client", "tritonclient"), program, "-u", url, *arguments), expected)


def infer(setting: Setting) -> Sequence[Command]:
    """Requests of every kind of client."""
    run = partial(_example, setting)
    return (
        run("simple_http_infer_client", expected="wrong_model_name"),
        run("simple_http_infer_client", "--request-compression-algorithm", "gzip", expected="wrong_model_name"),
        run("simple_http_infer_client", "--response-compression-algorithm", "deflate", expected="wrong_model_name"),
        run("simple_http_async_infer_client", expected="15 - 1 = 14"),
        run("simple_http_aio_infer_client"),
        run("simple_grpc_infer_client"),
        run("simple_grpc_infer_client", "-C", "gzip"),
        run("simple_grpc_async_infer_client"),
        run("simple_grpc_aio_infer_client"),
    )


def contents(setting: Setting) -> Sequence[Command]:
    """Strings, and contents that are not raw."""
    run = partial(_example, setting)
    return (
        run("simple_http_string_infer_client"),
        run("simple_grpc_string_infer_client"),
        run("grpc_explicit_byte_content_client"),
        run("grpc_explicit_int8_content_client"),
        run("grpc_explicit_int_content_client"),
    )


def health(setting: Setting) -> Sequence[Command]:
    """Health and metadata of the server and its models."""
    run = partial(_example, setting)
    return (
        run("simple_http_health_metadata", expected="INPUT1"),
        run("simple_grpc_health_metadata", expected="INPUT1"),
        run("grpc_client"),
        run("simple_grpc_custom_args_client"),
        run("simple_grpc_keepalive_client"),
    )


def sequences(setting: Setting) -> Sequence[Command]:
    """Both strategies, and ids that are numbers or text."""
    names = (
        "simple_http_sequence_sync_infer_client",
        "simple_grpc_sequence_sync_infer_client",
        "simple_grpc_sequence_stream_infer_client",
        "simple_grpc_aio_sequence_stream_infer_client",
    )
    return [_example(setting, name, *dyna) for name in names for dyna in ((), ("--dyna",))]


def decoupled(setting: Setting) -> Sequence[Command]:
    """Ten responses to one request."""
    return (_example(setting, "simple_grpc_custom_repeat"),)


def images(setting: Setting) -> Sequence[Command]:
    """Classifications of a picture."""
    image = setting.folder / "image.ppm"
    write_image(image)
    run = partial(_example, setting)
    of_model = [
        run(program, *flags, "-m", model, "-c", "3", str(image), expected=r"class \d+[\s\S]*PASS")
        for model in ("densenet_onnx", "inception_onnx")
        for program, flags in (
            ("image_client", ("-s", "INCEPTION")),
            ("image_client", ("-i", "grpc", "--streaming", "-a")),
            ("grpc_image_client", ()),
        )
    ]
    return (
        *of_model,
        run("image_client", "-a", "-b", "3", "-m", "inception_batched", str(image)),
        run("ensemble_image_client", str(image)),
        run("ensemble_image_client", "-i", "grpc", str(image)),
    )


def shared_memory(setting: Setting) -> Sequence[Command]:
    """Regions of the system."""
    run = partial(_example, setting)
    return (
        run("simple_http_shm_client"),
        run("simple_http_shm_string_client"),
        run("simple_grpc_shm_client"),
        run("simple_grpc_shm_string_client"),
        run("reuse_infer_objects_client", expected=""),
        run("reuse_infer_objects_client", "-i", "grpc", expected=""),
    )


def cuda_memory(setting: Setting) -> Sequence[Command]:
    """Regions of a GPU."""
    return tuple(_example(setting, name) for name in ("simple_http_cudashm_client", "simple_grpc_cudashm_client"))


def control_http(setting: Setting) -> Sequence[Command]:
    """Loads, overrides and unloads."""
    return (_example(setting, "simple_http_model_control"),)


def control_grpc(setting: Setting) -> Sequence[Command]:
    """The same over gRPC."""
    return (_example(setting, "simple_grpc_model_control"),)

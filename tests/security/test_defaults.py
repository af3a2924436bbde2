"""The ports that are open without flags, as the page on threats tells them."""

from __future__ import annotations

import pytest

from tpy.cli.flags import FLAG_BY_NAME


def default(name: str) -> object:
    return FLAG_BY_NAME[name.replace("_", "-")].default


@pytest.mark.parametrize("platform", ["mlflow", "openai", "sagemaker", "tensorflow_serving", "torchserve", "vertex_ai"])
def test_ports_of_platforms_are_closed(platform: str) -> None:
    assert default(f"allow_{platform}") is False


def test_addresses() -> None:
    names = ("http_address", "grpc_address", "metrics_address", "management_address")
    assert [default(name) for name in names] == ["0.0.0.0", "0.0.0.0", "", ""]


def test_what_is_off() -> None:
    off = (
        "audit_log",
        "access_log",
        "recording_directory",
        "trace_config",
        "auth_config",
        "allow_client_shm",
        "allow_usage_data",
    )
    assert [default(name) for name in off] == ["", "", "", (), "", False, False]

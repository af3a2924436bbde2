"""Repositories in the cloud, for tests: their addresses, models in them, and the source that reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tests.backends import onnx_models
from tests.cloud_servers import BUCKET, KEYS, S3Server
from tpy.clock import SystemClock
from tpy_cloud.address import CloudAddress
from tpy_cloud.source import CloudSource
from tpy_control.core.scan import ModelScan
from tpy_control.sources import HiddenEnvironment, RemoteOptions, parse_address

from .repositories import AFFINE_CONFIG

SECRETS = tuple(KEYS.values())[:2]


def affine(s3: S3Server, prefix: str, name: str, scale: float, version: int = 1) -> None:
    """A model that multiplies."""
    s3.put(f"{prefix}/{name}/{version}/model.onnx", onnx_models.affine(scale, 0))
    s3.put(f"{prefix}/{name}/config.pbtxt", AFFINE_CONFIG)


def address(host: str, prefix: str) -> str:
    return f"s3://{host}/{BUCKET}/{prefix}"


class LateClock(SystemClock):
    """Of a machine that is an hour late: whatever is in the bucket was written just now."""

    def wall_ms(self) -> int:
        return super().wall_ms() - 3_600_000


@asynccontextmanager
async def opened(host: str, prefix: str, tmp_path: Path, **more: object) -> AsyncIterator[CloudSource]:
    parsed = parse_address(address(host, prefix))
    assert isinstance(parsed, CloudAddress)
    options = RemoteOptions(directory=tmp_path / "cache", keep=True, start_ns=0, environment=HiddenEnvironment(KEYS))
    source = CloudSource([parsed], msgspec.structs.replace(options, **more), LateClock())
    try:
        yield source
    finally:
        await source.aclose()


async def scan_of(source: CloudSource, name: str = "m") -> ModelScan:
    locations = {location.name: location for location in await source.list_models()}
    scan = await source.scan(locations[name], config_name="")
    assert scan is not None
    return scan

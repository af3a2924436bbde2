"""Servers that tests share: they only ask."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient

from tests.cloud_servers import FaultyProxy, S3Server

from .examples import Serve
from .server import ServerProcess

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def demo_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo models, built as `make demo` builds them; a build that is there is used."""
    built = ROOT / "demo" / "models"
    if not built.exists():
        built = tmp_path_factory.mktemp("demo") / "models"
    subprocess.run([sys.executable, ROOT / "docs" / "examples" / "demo" / "build.py", built], check=True)
    return built


@pytest.fixture(scope="session")
def demo_server(demo_repository: Path) -> Iterator[ServerProcess]:
    """A server of the demo models."""
    with ServerProcess(repositories=[demo_repository]) as server:
        yield server


@pytest.fixture
def demo(demo_server: ServerProcess) -> Iterator[InferenceServerClient]:
    """The stock client, connected to the demo server."""
    with InferenceServerClient(demo_server.http, concurrency=4) as client:
        yield client


@pytest.fixture(scope="session")
def example_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """A server of an example in docs/examples, built as its make target builds it; started when it is first asked for. Tests of
    an example whose packages are not installed are skipped."""
    with ExitStack() as servers:

        @functools.cache
        def serve(name: str) -> ServerProcess:
            built = tmp_path_factory.mktemp(name) / "models"
            command = [sys.executable, ROOT / "docs" / "examples" / "build.py", name, built]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if "is missing: pip install" in done.stderr:
                pytest.skip(done.stderr.strip())
            assert done.returncode == 0, done.stderr
            return servers.enter_context(ServerProcess(repositories=[built]))

        yield serve


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty model repository."""
    path = tmp_path / "models"
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A server of S3's protocol."""
    with S3Server() as server:
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    """A proxy before it, which can have faults."""
    with FaultyProxy(s3.host) as proxy:
        yield proxy


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """The path of this test's repository in the bucket."""
    return f"of/{abs(hash(request.node.nodeid))}"

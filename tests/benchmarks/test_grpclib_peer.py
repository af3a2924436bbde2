"""The peer made with grpclib starts and gives tensors back; wrong answers void a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.grpc_exchange import call
from benchmarks.servers.plans import GrpclibPlan
from benchmarks.servers.process import running
from benchmarks.tensors import WrongAnswer


def test_the_peer_gives_tensors_back(tmp_path: Path) -> None:
    with running(GrpclibPlan(), tmp_path / "log") as server:
        call(server.ports.grpc, "any", "INPUT0", np.arange(16, dtype=np.float32), times=2)
        with pytest.raises(WrongAnswer, match="UNAVAILABLE"):
            call(server.ports.http, "any", "INPUT0", np.zeros(1, np.float32))

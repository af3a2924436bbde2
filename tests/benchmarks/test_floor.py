"""The loop in C answers as a server, and the system calls of a table are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.rows.floor import build, calls_in
from benchmarks.rows.tiny import VALUES
from benchmarks.servers.plans import FloorPlan
from benchmarks.servers.process import running
from benchmarks.tensors import check_identity, json_request

TABLE = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000300           3       100        50 recvfrom
 40.00    0.000200           4        50           epoll_wait
------ ----------- ----------- --------- --------- ----------------
100.00    0.000500           3       150        50 total
"""


@pytest.mark.parametrize("worker", [False, True], ids=["alone", "worker"])
def test_the_loop_copies_numbers(tmp_path: Path, worker: bool) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    build(compiler, tmp_path / "floor")
    with running(FloorPlan(program=tmp_path / "floor", worker=worker), tmp_path / "log") as server:
        check_identity(server.ports.http, json_request("identity", "INPUT0", VALUES), VALUES)


@pytest.mark.parametrize(
    ("table", "calls"), [(TABLE, 150), (TABLE.replace("        50 total", "           total"), 150), ("", None)]
)
def test_the_calls_of_a_table(table: str, calls: int | None) -> None:
    assert calls_in(table) == calls

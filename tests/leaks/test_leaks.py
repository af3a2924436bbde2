"""The short form of `python -m tests.leaks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .run import run

REQUESTS = 5_000
GROWTH_BYTES_MAX = 24 * 1024 * 1024
"""For what the allocator keeps of large requests that met by chance; 5,000 times anything that a request has is more."""


@pytest.mark.time_limit(600)
def test_nothing_is_left_of_many_requests(tmp_path: Path, soak: int) -> None:
    report = run(tmp_path, REQUESTS * soak)
    print(report)
    report.check(growth_bytes_max=GROWTH_BYTES_MAX)

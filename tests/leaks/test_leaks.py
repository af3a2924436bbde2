"""The short form of `python -m tests.leaks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .run import run

pytestmark = pytest.mark.alone

REQUESTS = 10_000
GROWTH_BYTES_MAX = 24 * 1024 * 1024
"""For what the allocator keeps of large requests that met by chance; 10,000 times anything that a request has is more."""


def test_nothing_is_left_of_ten_thousand_requests(tmp_path: Path) -> None:
    report = run(tmp_path, REQUESTS)
    print(report)
    report.check(growth_bytes_max=GROWTH_BYTES_MAX)

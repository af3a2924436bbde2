"""The limit of open files that `tpy serve` gives itself."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from tpy import limits
from tpy.cli.serve import raise_open_files_limit


@pytest.fixture
def hard() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_goes_up_to_what_the_system_allows(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    raise_open_files_limit()
    allowed = limits.OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, limits.OPEN_FILES_WANTED)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (allowed, hard)


def test_a_higher_soft_limit_stays(hard: int) -> None:
    if hard != resource.RLIM_INFINITY and hard <= limits.OPEN_FILES_WANTED:
        pytest.skip("the system allows no more than is asked for")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits.OPEN_FILES_WANTED + 1, hard))
    raise_open_files_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limits.OPEN_FILES_WANTED + 1

"""The commands and scripts of the first half of the how-to pages are run, and what they print is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from .following import HOW_TO_HALVES, follow, name_of
from .reader import Reader


@pytest.mark.parametrize("page", HOW_TO_HALVES[0], ids=name_of)
def test_the_commands_of_a_page_work(page: Path, reader: Reader) -> None:
    follow(page, reader)

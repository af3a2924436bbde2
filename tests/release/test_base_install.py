"""The wheel without extras, installed into a clean environment, beside release/install_sizes.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from release.install_sizes import BASE, OURS, build, distributions, grown, install, read


@pytest.mark.time_limit(600)
def test_the_base_install_has_not_grown(tmp_path: Path) -> None:
    """If it is meant to: `python -m release.install_sizes --extra base`. Compiled parts, 2 MB, take most of the time to build."""
    wheel = build(tmp_path / "wheel", compiled=False)
    found = distributions(install(wheel, BASE, tmp_path / "environment"))
    assert OURS in found
    assert grown(read().extras[BASE], found) == []

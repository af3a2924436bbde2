"""Configurations of load calls are taken and refused as Triton 2.51 did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tpy.config import ConfigError, normalise
from tpy.config.json_form import parse_json, to_json
from tpy.ids import Version
from tpy_control.core.candidate import select_versions

from .override_cases import CASES

TAKEN = json.loads((Path(__file__).parent / "transcripts" / "overrides.json").read_text())


def take(text: str) -> dict[str, Any] | None:
    """The configuration that becomes of it for a model with one version; None when it is refused."""
    try:
        config = normalise(parse_json(text))
    except ConfigError:
        return None
    return to_json(config) if select_versions(config.version_policy, [Version(1)]) else None


def test_every_case_is_recorded() -> None:
    assert list(TAKEN) == list(dict.fromkeys(CASES))


@pytest.mark.parametrize("text", CASES)
def test_an_override(text: str) -> None:
    recorded, taken = TAKEN[text], take(text)
    if recorded is None:
        assert taken is None
    else:
        assert taken is not None
        assert {key: taken.get(key) for key in recorded} == recorded

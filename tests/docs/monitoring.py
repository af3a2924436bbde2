"""The dashboard and the alert rules of the examples, as tests read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml  # type: ignore[import-untyped]

from .pages import ROOT

FOLDER = ROOT / "docs" / "examples" / "container"
RULES = FOLDER / "alerts.yml"

_NAME = re.compile(r"\b(?:nv|tpy)_\w+")


def dashboard() -> dict[str, Any]:
    """grafana-dashboard.json."""
    found: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    """The panels that show something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    """The PromQL of the panels, with a value for each variable."""
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"].replace("$instance", ".*").replace("$model", ".*").replace("$__rate_interval", "10s")


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def names_in(promql: str) -> set[str]:
    """The names of series in an expression."""
    return set(_NAME.findall(promql))

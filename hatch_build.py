"""Wheels with the library for compiled backends are for one kind of machine (`make wheel`); others are for all."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Tag the wheel as `make wheel` says."""
        tag = os.environ.get("TPY_WHEEL_TAG")
        if tag:
            build_data["pure_python"] = False
            build_data["tag"] = tag

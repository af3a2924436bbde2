"""Wheels with the library for compiled plug-ins in them are for one kind of machine (`make wheel`); others are for all."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, and have it put into the wheel, where the environment asks for that."""
        if not os.environ.get("TPY_WHEEL_WITH_LIBRARY"):
            return
        sys.path[:0] = [f"{self.root}/src", f"{self.root}/data"]
        from tpy.hot import build as codec
        from tpy_data.native import building

        self._scratch = tempfile.TemporaryDirectory(prefix="tpy-wheel-")
        built = Path(self._scratch.name) / building.source_hash()
        building.build(built)
        # For the version of Python that builds the wheel; under others the codec is Python.
        library = codec.build(Path(self._scratch.name))
        build_data["force_include"][str(library)] = f"tpy/hot/{library.name}"
        build_data["pure_python"] = False
        # `make wheel` replaces `linux` by the manylinux tag that the libraries' symbols allow.
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["force_include"][str(built)] = f"tpy_data/native/{building.PREBUILT.name}/{built.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built."""
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()

"""Wheels with the library for compiled plug-ins in them are for one kind of machine (`make wheel`); others are for all.
Each has a list of what it needs and was made of (SBOM, PEP 770)."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_SBOM = "tpy-server.cdx.json"
_DEVELOPERS = ("bench", "coverage", "dev", "fuzz", "page", "release", "site")
"""Extras that nobody has who runs a server."""


_GLIBC = "2.28"
"""The oldest of machines of another kind that libraries are made for: that of manylinux_2_28."""


def _compile_for(machine: str, scratch: Path) -> None:
    """Have the compilers of this process make libraries for another kind of machine: zig's, from PyPI, which bring its C library.
    Headers of Python and NumPy are those of this machine: both are Linux with 64 bits."""
    for variable, name in (("CC", "cc"), ("CXX", "c++")):
        command = scratch / name
        command.write_text(
            f'#!/bin/sh\nexec {sys.executable} -m ziglang {name} -target {machine}-linux-gnu.{_GLIBC} -g0 -s "$@"\n'
        )
        command.chmod(0o755)
        os.environ[variable] = str(command)


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the SBOM. Build the libraries, and have them put into the wheel, where the environment asks for that: for this
        kind of machine by `1`, for another one by its name (`aarch64`)."""
        self._scratch = tempfile.TemporaryDirectory(prefix="tpy-wheel-")
        sbom = Path(self._scratch.name) / _SBOM
        sbom.write_text(json.dumps(self._sbom(), indent=1) + "\n")
        build_data["sbom_files"].append(os.path.relpath(sbom, self.root))
        wanted = os.environ.get("TPY_WHEEL_WITH_LIBRARY")
        if not wanted:
            return
        machine = platform.machine() if wanted == "1" else wanted
        sys.path[:0] = [f"{self.root}/src", f"{self.root}/data"]
        from tpy.hot import build as codec
        from tpy_native import building

        if machine != platform.machine():
            _compile_for(machine, Path(self._scratch.name))
        built = Path(self._scratch.name) / building.source_hash(machine)
        building.build(built)
        # For the version of Python that builds the wheel; under others the codec is Python.
        library = codec.build(Path(self._scratch.name), machine)
        build_data["force_include"][str(library)] = f"tpy/hot/{library.name}"
        build_data["pure_python"] = False
        # `make wheel` replaces `linux` by the manylinux tag that the libraries' symbols allow.
        build_data["tag"] = f"py3-none-linux_{machine}"
        build_data["force_include"][str(built)] = f"tpy_native/{building.PREBUILT.name}/{built.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built."""
        self._scratch.cleanup()

    def _sbom(self) -> dict[str, Any]:
        """CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/): the distribution, and what it requires, with or without an extra,
        with licences and the versions that were tested. Nothing of third parties is in the wheel."""
        root = Path(self.root)
        stated: dict[str, str] = json.loads((root / "licenses.json").read_text(encoding="utf-8"))
        licenses = {canonicalize_name(name): expression for name, expression in stated.items()}
        pins = [line.partition("==") for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines()]
        tested = {canonicalize_name(name): version for name, _, version in pins}
        core = self.metadata.core
        purl = f"pkg:pypi/{core.name}@{self.metadata.version}"
        requirements = [(Requirement(each), "required", "") for each in core.dependencies]
        for extra, needed in sorted(core.optional_dependencies.items()):
            requirements += [(Requirement(each), "optional", extra) for each in needed if extra not in _DEVELOPERS]
        components = {}
        for requirement, scope, extra in requirements:
            ref = f"{requirement.name}[{extra}]" if extra else requirement.name
            components[ref] = {
                "type": "library",
                "bom-ref": ref,
                "name": requirement.name,
                "purl": f"pkg:pypi/{requirement.name.lower().replace('_', '-')}",
                "scope": scope,
                "licenses": [{"expression": licenses[canonicalize_name(requirement.name)]}],
                "properties": [
                    {"name": f"tpy:{name}", "value": value}
                    for name, value in (
                        ("requires", str(requirement)),
                        ("extra", extra),
                        ("tested", tested.get(canonicalize_name(requirement.name), "")),
                    )
                    if value
                ],
            }
        own = {
            "type": "application",
            "bom-ref": purl,
            "name": core.name,
            "version": self.metadata.version,
            "description": core.description,
            "purl": purl,
            "licenses": [{"license": {"id": core.license_expression}}],
        }
        return {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"component": own},
            "components": [components[ref] for ref in sorted(components)],
            "dependencies": [{"ref": purl, "dependsOn": sorted(components)}, *({"ref": ref} for ref in sorted(components))],
        }

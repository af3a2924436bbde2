"""The licences of what tpy requires, as the SBOM of a wheel names them."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.licenses import canonicalize_license_expression
from packaging.requirements import Requirement

from hatch_build import _DEVELOPERS

ROOT = Path(__file__).parents[2]
LICENSES: dict[str, str] = json.loads((ROOT / "licenses.json").read_text(encoding="utf-8"))


def test_every_package_that_a_user_may_install_has_a_license() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].items()
    needed = [*project["dependencies"], *(each for extra, given in extras if extra not in _DEVELOPERS for each in given)]
    assert set(LICENSES) == {Requirement(each).name for each in needed}


def test_licenses_are_expressions_of_spdx() -> None:
    assert {name: canonicalize_license_expression(found) for name, found in LICENSES.items()} == LICENSES


def test_packages_that_are_here_say_the_same() -> None:
    stated = {name: expression for name in LICENSES if (expression := _stated(name)) is not None}
    assert len(stated) > 10
    assert {name: LICENSES[name] for name in stated} == stated


def _stated(name: str) -> str | None:
    """The expression in the metadata of a package; None if it is not installed, or older than such expressions."""
    try:
        return metadata(name).get("License-Expression")
    except PackageNotFoundError:
        return None

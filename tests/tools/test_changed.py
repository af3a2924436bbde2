"""The tests that a change asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.changed import files_of_package, packages_of, suites_of_changes
from tests.mutation.suites import AREAS, SUITES

_ROOT = Path(__file__).parents[2]


def test_a_test_file_is_run_itself() -> None:
    assert suites_of_changes(["tests/cache/test_core.py"]) == ["tests/cache/test_core.py"]


def test_what_tests_share_runs_their_folder_once() -> None:
    assert suites_of_changes(["tests/cache/redis_server.py", "tests/cache/test_core.py"]) == ["tests/cache"]
    assert suites_of_changes(["tests/conftest.py", "tests/cache/test_core.py"]) == ["tests"]


def test_a_source_file_runs_the_suites_that_kill_its_mutants() -> None:
    assert suites_of_changes(["data/tpy_data/cache/core/entry.py"]) == [
        "tests/cache",
        "tests/conformance/test_cache.py",
        "tests/engine",
    ]


def test_what_nothing_is_known_of_runs_everything() -> None:
    assert suites_of_changes(["src/tpy/errors.py", "CHANGELOG.md"]) == ["tests"]
    assert suites_of_changes(["CHANGELOG.md"]) == []


def test_the_map_names_what_is_there() -> None:
    named = {suite for suites in (*SUITES.values(), *AREAS.values()) for suite in suites if not suite.startswith("fuzz:")}
    assert [suite for suite in sorted(named) if not (_ROOT / suite).exists()] == []
    assert [prefix for prefix in AREAS if not (_ROOT / prefix).exists()] == []


def test_only_what_the_tests_use_is_installed() -> None:
    assert packages_of(suites_of_changes(["data/tpy_data/engine/data_plane.py"])) == []
    assert packages_of(suites_of_changes(["data/tpy_backends/pytorch/model.py"])) == ["torch"]
    assert packages_of(["tests/e2e/test_example_ocr.py", "tests/e2e/test_cache.py"]) == ["ocr"]
    everything = packages_of(["tests"])
    stamps = re.findall(r"\$\(VENV\)/\.tpy-([a-z]+)-setup", (_ROOT / "Makefile").read_text())
    examples = re.findall(r"^EXAMPLES := (.*)$", (_ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    assert set(everything) <= {*stamps, *examples}
    assert set(examples) <= set(everything), "an example that is new has no tests here"


def test_a_package_is_run_with_its_tests() -> None:
    assert suites_of_changes(files_of_package("tpy_data.cache")) == [
        "tests/cache",
        "tests/conformance/test_cache.py",
        "tests/engine",
    ]
    assert suites_of_changes(files_of_package("tpy_tools.load")) == [
        "tests/e2e/test_perf.py",
        "tests/e2e/test_perf_tls.py",
        "tests/load",
    ]
    assert suites_of_changes(files_of_package("tools.load")) == suites_of_changes(files_of_package("tpy_tools.load"))


@pytest.mark.parametrize(
    ("package", "some"),
    [
        ("tools", {"tests/analyze", "tests/load", "tests/unit/importing", "tests/unit/test_command_table.py"}),
        ("platforms", {"tests/frontends/openai", "tests/frontends/mlflow", "tests/e2e/test_platforms.py"}),
        ("cloud", {"tests/control/test_cloud_core.py", "tests/e2e/test_cloud.py", "tests/e2e/test_cloud_copies.py"}),
        ("backends", {"tests/backends"}),
        ("native", {"tests/native", "tests/strategies", "tests/cache/test_compiled.py"}),
    ],
)
def test_a_package_beside_the_server_is_tested_alone(package: str, some: set[str]) -> None:
    suites = suites_of_changes(files_of_package(package))
    assert some <= set(suites)
    assert not {"tests", "tests/unit", "tests/e2e", "tests/engine", "tests/frontends"} & set(suites), (
        "not all tests of the server"
    )


def test_a_package_that_does_not_exist_is_named_with_those_beside_it() -> None:
    with pytest.raises(ValueError, match=r"^no package is called 'tools\.lode'; .*"):
        files_of_package("tools.lode")
    with pytest.raises(ValueError, match=r"^no package is called 'tpy_tools\.lode'; .*load"):
        files_of_package("tpy_tools.lode")
    with pytest.raises(ValueError, match="expected a name like"):
        files_of_package("tool")

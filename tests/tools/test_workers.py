"""Tests that share workers: which of them run beside others, what is reported, and what becomes of a worker that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pace import with_patience

_ROOT = Path(__file__).parents[2]

_CONFTEST = """
pytest_plugins = ["tests.workers"]
import os
from pathlib import Path
import pytest

NOTES = Path(__file__).parent / "notes"

@pytest.fixture(autouse=True)
def noted(request):
    NOTES.mkdir(exist_ok=True)
    yield
    with (NOTES / f"{os.getppid()}-{os.getpid()}").open("a") as file:
        file.write(f"{request.node.name}\\n")

@pytest.fixture(scope="session")
def shared():
    yield os.getpid()
    with (NOTES / "closed").open("a") as file:
        file.write("x")

@pytest.fixture(scope="module")
def of_module(request):
    yield
    with (NOTES / "modules").open("a") as file:
        file.write(f"{request.node.name}\\n")
"""

_FILES = {
    "a": """
import os, pytest
from pathlib import Path

def running():
    return [each for each in os.listdir("/proc") if each.isdigit() and parent(each) == str(os.getppid())]

def parent(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return ""

def test_first(shared, of_module):
    assert shared == os.getpid()

@pytest.mark.alone
def test_alone(shared):
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    beside = [int(each) for each in running() if each != str(os.getpid())]
    assert all(os.sched_getscheduler(each) == os.SCHED_IDLE for each in beside)
    assert len(beside) <= 1

def test_fails():
    print("what it wrote")
    assert "a" == "b"

@pytest.mark.skip(reason="for no reason")
def test_skipped():
    pass
""",
    "b": """
import os, signal

def test_before(shared, of_module):
    pass

def test_ends_its_worker():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
""",
    "c": """
import pytest

@pytest.mark.alone
def test_too():
    pass

def test_of_a_third_file(of_module):
    pass
""",
}


def _pytest(folder: Path, files: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider -p no:schemathesis\nmarkers = alone\n")
    (folder / "conftest.py").write_text(_CONFTEST)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", *options, "."]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=with_patience(60), check=False
    )


def test_what_workers_ran_is_reported_once(tmp_path: Path) -> None:
    outcome = _pytest(tmp_path, _FILES, "--workers=2")
    lines = outcome.stdout.splitlines()
    assert lines[-1].startswith("2 failed, 6 passed, 1 skipped in"), outcome.stdout
    assert "what it wrote" in lines
    assert (
        f"the worker of test_b.py::test_ends_its_worker was ended by {signal.SIGKILL.name}; what it wrote last is above" in lines
    )
    ran = [file.read_text().split() for file in (tmp_path / "notes").glob("*-*")]
    (first,) = [tests for tests in ran if "test_alone" in tests]
    assert first[:2] == ["test_alone", "test_too"]
    assert sorted(test for tests in ran for test in tests) == [
        *["test_after", "test_alone", "test_before", "test_fails", "test_first", "test_of_a_third_file", "test_too"],
    ]
    assert sorted((tmp_path / "notes" / "modules").read_text().split()) == ["test_a.py", "test_c.py"]
    assert outcome.returncode == 1


def test_fixtures_of_the_session_stay_from_file_to_file(tmp_path: Path) -> None:
    files = dict.fromkeys("abc", "def test_it(shared):\n    pass\n")
    outcome = _pytest(tmp_path, files, "--workers=1")
    assert outcome.returncode == 0, outcome.stdout
    assert (tmp_path / "notes" / "closed").read_text() == "x"


@pytest.mark.parametrize(("options", "workers"), [(["--by-test"], 2), ([], 1)])
def test_tests_of_a_file_are_shared_where_that_is_asked_for(tmp_path: Path, options: list[str], workers: int) -> None:
    meet = "import pathlib, threading, pytest\n\n@pytest.mark.parametrize('number', [0, 1])\ndef test_it(number):\n    pass\n"
    outcome = _pytest(tmp_path, {"a": meet}, "--workers=2", *options)
    assert outcome.returncode == 0, outcome.stdout
    assert len(list((tmp_path / "notes").glob("*-*"))) == workers


def test_the_first_failure_ends_a_run_that_is_to_end_then(tmp_path: Path) -> None:
    files = dict.fromkeys("ab", "def test_it():\n    assert False\n\ndef test_next():\n    pass\n")
    outcome = _pytest(tmp_path, files, "--workers=1", "-x")
    assert outcome.stdout.splitlines()[-1].startswith("1 failed in"), outcome.stdout
    assert outcome.returncode == 1


def test_what_cannot_be_collected_is_an_error(tmp_path: Path) -> None:
    outcome = _pytest(tmp_path, {"a": "import no_such_module\n"}, "--workers=2")
    assert "1 error" in outcome.stdout.splitlines()[-1], outcome.stdout
    assert outcome.returncode == 2

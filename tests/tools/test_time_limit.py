"""Tests that hang, in every way there is: the run ends and says which test it was and where it stood."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.pace import with_patience

_ROOT = Path(__file__).parents[2]
_INI = "[pytest]\ntrio_mode = true\naddopts = -q -p no:cacheprovider -p no:schemathesis\n"

_HANGS = {
    "task": """
        import trio
        async def wait_for_nobody():
            await trio.sleep_forever()
        async def test_hangs():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_nobody)
    """,
    "busy_task": """
        import trio
        async def wait_for_nobody():
            while True:
                await trio.lowlevel.checkpoint()
        async def test_hangs():
            await wait_for_nobody()
    """,
    "thread": """
        import threading
        def wait_for_nobody():
            threading.Event().wait()
        def test_hangs():
            wait_for_nobody()
    """,
    "loop_thread": """
        import threading
        def wait_for_nobody():
            threading.Event().wait()
        async def test_hangs():
            wait_for_nobody()
    """,
    "marked": """
        import pytest, threading
        def wait_for_nobody():
            threading.Event().wait()
        @pytest.mark.time_limit(1.5)
        def test_hangs():
            wait_for_nobody()
    """,
    "teardown": """
        import threading, pytest
        @pytest.fixture
        def slow():
            yield
            wait_for_nobody()
        def wait_for_nobody():
            threading.Event().wait()
        def test_hangs(slow):
            pass
    """,
}
"""They can be ended: the test fails, and the next one runs."""

_DEAF = {
    "shielded_task": """
        import trio
        async def wait_for_nobody():
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()
        async def test_hangs():
            await wait_for_nobody()
    """,
    "interpreter_held": """
        import ctypes
        def wait_for_nobody():
            ctypes.PyDLL(None).pause()
            ctypes.PyDLL(None).pause()
        def test_hangs():
            wait_for_nobody()
    """,
}
"""They cannot, the second because no Python runs: the process is ended."""

_STAYS = """
    import threading
    def wait_for_nobody():
        threading.Event().wait()
    def test_leaves_a_thread():
        threading.Thread(target=wait_for_nobody).start()
"""

_SERVER = """
    from tests.e2e.server import ServerProcess
    from tests.stacks import describe_servers
    def test_describes(tmp_path):
        server = ServerProcess("--model-control-mode=explicit", repositories=[tmp_path])
        server.start()
        server.wait_log("(?i)started metrics service", within_s=60)
        print("\\n".join(describe_servers()))
        assert server.process.poll() is not None
"""


_SHARED = """
    import threading, pytest
    from tests.e2e.server import ServerProcess
    @pytest.fixture(scope="module")
    def server(tmp_path_factory):
        with ServerProcess("--model-control-mode=explicit", repositories=[tmp_path_factory.mktemp("models")]) as server:
            yield server
    def wait_for_nobody():
        threading.Event().wait()
    def test_hangs(server):
        wait_for_nobody()
    def test_asks(server):
        assert server.process.poll() is None
    def test_asks_again(server):
        assert server.process.poll() is None
"""


_RUNS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "alone": (_HANGS, ()),
    "beside": (_HANGS, ("--workers=2",)),
    **{kind: ({kind: text}, ()) for kind, text in _DEAF.items()},
    "worker": (_DEAF, ("--workers=1",)),
    "stays": ({"it": _STAYS}, ("--exit-limit=3",)),
    "shared": ({"it": _SHARED}, ("--time-limit=15",)),
}
"""Files and options. Nearly all of their time is waited, so they run side by side."""

Outcome = Callable[[str], subprocess.CompletedProcess[str]]


def _run(folder: Path, texts: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(_INI, encoding="utf-8")
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.time_limit", "tests.workers"]\n', encoding="utf-8")
    for name, text in texts.items():
        (folder / f"test_{name}.py").write_text(textwrap.dedent(text) + "\ndef test_next():\n    pass\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--time-limit=2", "--time-limit-extensions=0", *options, "."]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=with_patience(110), check=False
    )


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Waits for one of the runs, which this starts."""
    with ThreadPoolExecutor(len(_RUNS)) as threads:
        runs = {
            name: threads.submit(_run, tmp_path_factory.mktemp(name), texts, *options) for name, (texts, options) in _RUNS.items()
        }
        yield lambda name: runs[name].result()


@pytest.mark.parametrize("how", ["alone", "beside"])
def test_tests_that_hang_fail_and_the_others_run(how: str, outcome_of: Outcome) -> None:
    outcome = outcome_of(how)
    for kind in _HANGS:
        line = f"TIME LIMIT: test_{kind}.py::test_hangs has run for too long"
        assert line in outcome.stderr, outcome.stderr
        assert line in outcome.stdout, outcome.stdout
    assert outcome.stderr.count(" wait_for_nobody: ") >= len(_HANGS)
    assert outcome.stdout.splitlines()[-1].startswith("5 failed, 7 passed, 1 error in"), outcome.stdout


@pytest.mark.parametrize("kind", _DEAF)
def test_a_test_that_nothing_ends_ends_the_run(kind: str, outcome_of: Outcome) -> None:
    outcome = outcome_of(kind)
    assert "wait_for_nobody" in outcome.stderr
    assert "test_hangs" in outcome.stderr
    assert outcome.returncode not in (0, 5)


def test_a_worker_that_nothing_ends_is_replaced(outcome_of: Outcome) -> None:
    outcome = outcome_of("worker")
    for kind in _DEAF:
        assert f"the worker of test_{kind}.py::test_hangs exited with status" in outcome.stdout
    assert outcome.stdout.splitlines()[-1].startswith("2 failed, 2 passed in"), outcome.stdout


def test_a_thread_that_stays_does_not_keep_the_process(outcome_of: Outcome) -> None:
    outcome = outcome_of("stays")
    assert "2 passed" in outcome.stdout
    assert "in wait_for_nobody" in outcome.stderr
    assert outcome.returncode == 1


def test_a_server_that_the_limit_ended_is_started_anew_for_the_next_test(outcome_of: Outcome) -> None:
    outcome = outcome_of("shared")
    assert outcome.stdout.splitlines()[-1].startswith("1 failed, 3 passed, 1 error in"), outcome.stdout
    assert "ERROR at teardown of test_hangs" in outcome.stdout


def test_the_stacks_of_a_server_are_shown(tmp_path: Path) -> None:
    outcome = _run(tmp_path, {"it": _SERVER}, "--time-limit=90", "-s")
    assert "2 passed" in outcome.stdout, outcome.stdout
    assert "Fatal Python error: Aborted" in outcome.stdout
    assert "reactor.py" in outcome.stdout

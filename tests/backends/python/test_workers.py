"""Worker processes: what they print, how they die, what is left of them."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from tests.backends.python.conftest import Serve, request
from tests.e2e.waiting import wait_until
from tests.pace import with_patience
from tpy.backend import InstanceFailure, QueuedInstance, WatchedInstance
from tpy.errors import Internal, TpyError
from tpy.limits import WORKER_SEEN_END_S
from tpy.testing.resources import NOTHING, left_since, measure

COPY = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(tensor(given(r))) for r in requests]
"""


def _gone(pid: int) -> bool:
    """Returns True if the process has ended (it may be a zombie of somebody else's)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _wait_gone(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(10_000))
    finally:
        os.close(descriptor)


def test_what_a_model_prints_is_logged_line_by_line(make: Serve) -> None:
    served = make("""
        class TritonPythonModel:
            def execute(self, requests):
                print("to stdout", 1)
                print("to stderr\\n\\nand more", file=sys.stderr)
                os.write(1, b"\\xff" + b"x" * 20_000)
                return [answer(tensor(given(r))) for r in requests]
    """)
    served.output()
    served.close()
    info = served.logged("info")
    assert info[0] == "m_0: to stdout 1"
    assert [len(text) for text in info[1:]] == [len("m_0: ") + size for size in (8192, 8192, 20_001 - 2 * 8192)]
    assert served.logged("warning") == ["m_0: to stderr", "m_0: and more"]


def test_an_async_execute_is_awaited_on_one_loop(make: Serve) -> None:
    served = make("""
        import asyncio
        class TritonPythonModel:
            loop = None
            async def execute(self, requests):
                await asyncio.sleep(0)
                running = asyncio.get_running_loop()
                same = self.loop in (None, running)
                self.loop = running
                if requests[0].request_id():
                    raise ValueError("async boom")
                return [answer(tensor(np.array([same]))) for r in requests]
    """)
    assert served.output().tolist() == [True]
    assert served.output().tolist() == [True]
    path = served.context.version_directory / "model.py"
    with pytest.raises(Internal) as caught:
        served.run(request(id="x"))
    where = f"  {path}(24): execute\n"
    assert caught.value.message == (
        "Failed to process the request(s) for model 'm_0', message: ValueError: async boom\n\nAt:\n" + where
    )


def test_an_async_execute_is_refused_in_the_servers_process(make: Serve) -> None:
    with pytest.raises(TpyError, match="async execute needs a separate process"):
        make("class TritonPythonModel:\n    async def execute(self, requests):\n        return []\n", "thread").run()
    # What hides that it is async is seen when it runs.
    hidden = make(
        "class TritonPythonModel:\n    def execute(self, requests):\n"
        "        async def run():\n            return []\n        return run()\n",
        "thread",
    )
    with pytest.raises(TpyError, match="async execute needs a separate process"):
        hidden.run()


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("os._exit(7)", "exited with status 7"),
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "was ended by SIGSEGV"),
        (
            "os.write(int(open('/proc/self/cmdline').read().split(chr(0))[3]), b'garbage ' * 100); import time; time.sleep(60)",
            "sent what no worker sends",
        ),
    ],
)
def test_a_worker_that_dies_fails_its_batch_and_its_instance_only(make: Serve, code: str, how: str) -> None:
    served = make(f"""
        class TritonPythonModel:
            def execute(self, requests):
                if requests[0].request_id():
                    {code}
                return [answer(tensor(given(r))) for r in requests]
    """)
    served.output()
    pid = served.python.pid
    with pytest.raises(InstanceFailure, match=rf"^Stub process 'm_0' is not healthy\. It {how}"):
        served.run(request(id="die"))
    assert _gone(pid)
    assert any("was ended by" in text or "exited with" in text for text in served.logged("error"))
    with pytest.raises(InstanceFailure, match=rf"^Stub process 'm_0' is not healthy\. It {how}"):
        served.run()
    served.close()
    served.output()


def test_whoever_asks_what_a_living_instance_can_do_does_not_wait(make: Serve) -> None:
    """isinstance reads the properties of a protocol. The loop asks this for each instance that it starts."""
    served = make(COPY)
    served.output()
    began_s = time.monotonic()
    for _ in range(200):
        assert isinstance(served.python, WatchedInstance)
        assert isinstance(served.python, QueuedInstance)
    assert time.monotonic() - began_s < with_patience(400 * WORKER_SEEN_END_S / 2)


def test_a_worker_killed_between_batches(make: Serve) -> None:
    served = make(COPY)
    served.output()
    os.kill(served.python.pid, signal.SIGKILL)
    with pytest.raises(InstanceFailure, match="is not healthy"):
        served.run()


def test_a_death_is_seen_although_a_forked_child_holds_the_socket(make: Serve) -> None:
    served = make("""
        import ctypes, time
        class TritonPythonModel:
            def execute(self, requests):
                if ctypes.PyDLL(None).fork() == 0:  # Python, which would close it, does not hear of that
                    time.sleep(60)
                os._exit(1)
    """)
    with pytest.raises(InstanceFailure, match="is not healthy"):
        served.run()


def test_children_of_a_worker_end_with_it(make: Serve) -> None:
    served = make("""
        import subprocess
        class TritonPythonModel:
            def execute(self, requests):
                child = subprocess.Popen(["sleep", "60"])
                return [answer(tensor(np.array([child.pid])))]
    """)
    child = int(served.output().item())
    assert not _gone(child)
    served.close()
    assert _wait_gone(child)


def test_what_outlives_a_worker_and_goes_on_writing_is_not_waited_for(make: Serve) -> None:
    served = make("""
        import subprocess
        class TritonPythonModel:
            def execute(self, requests):
                subprocess.Popen(["sh", "-c", "while echo still here; do :; done"], start_new_session=True)
                os._exit(1)
    """)
    with pytest.raises(InstanceFailure, match="is not healthy"):
        served.run()
    served.close()


def test_an_interrupt_in_the_terminal_does_not_reach_workers(make: Serve) -> None:
    served = make(COPY)
    served.output()
    assert os.getpgid(served.python.pid) == served.python.pid
    assert os.getpgid(0) != served.python.pid


def test_a_model_that_hangs_in_initialize_is_given_up(make: Serve) -> None:
    code = """
        import time
        class TritonPythonModel:
            def initialize(self, args):
                time.sleep(60)
    """
    before = measure().child_processes
    served = make(code, settings={"stub-timeout-seconds": "30", "initialize-timeout-seconds": "0.2"})
    with pytest.raises(Internal, match=r"Stub process 'm_0' is not ready: initialize did not return within 0\.2 s"):
        served.run()
    wait_until(lambda: measure().child_processes <= before + 1)  # the template


def test_a_model_that_ends_its_process_in_initialize(make: Serve) -> None:
    served = make("class TritonPythonModel:\n    def initialize(self, args):\n        os._exit(2)\n")
    with pytest.raises(Internal, match=r"^Stub process 'm_0' is not healthy\. It exited with status 2 while loading the model$"):
        served.run()


def test_a_model_that_hangs_in_finalize_is_ended(make: Serve) -> None:
    served = make(
        """
        import signal, time
        class TritonPythonModel:
            def initialize(self, args):
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            def execute(self, requests):
                return [answer(tensor(given(r))) for r in requests]
            def finalize(self):
                time.sleep(60)
        """,
        settings={"finalize-timeout-seconds": "0.1"},
    )
    served.output()
    pid = served.python.pid
    served.close()
    assert _gone(pid)
    assert any("did not finalize within 0.1 s and was ended by SIGTERM" in text for text in served.logged("error"))


def test_twenty_workers_leave_nothing(make: Serve) -> None:
    served = make("""
        class TritonPythonModel:
            def execute(self, requests):
                if requests[0].request_id():
                    os._exit(1)
                return [answer(tensor(given(r))) for r in requests]
    """)
    large = np.zeros(200_000, np.float32)
    served.output(request(large))
    served.close()
    before = measure()
    for n in range(20):
        served.output(request(large))
        if n % 4 == 0:
            with pytest.raises(InstanceFailure):
                served.run(request(large, id="die"))
        served.close()
    assert left_since(before) == NOTHING


def test_memory_is_used_again_and_given_back(make: Serve) -> None:
    served = make(COPY)
    large = np.zeros(8_000_000, np.float32)  # two of them are all that is kept
    for _ in range(3):
        served.output(request(large))
    before = _mapped_segments()
    for _ in range(30):
        served.output(request(large))
    assert _mapped_segments() == before
    held = [served.output(request(large)) for _ in range(10)]
    assert _mapped_segments() >= 10
    del held
    for _ in range(3):
        served.output(request(large))
    assert _mapped_segments() <= before + 2
    served.close()
    assert _mapped_segments() == 0


def test_shared_memory_is_given_back_while_there_are_no_requests(make: Serve) -> None:
    served = make(COPY)
    large = np.ones(8_000_000, np.float32)
    for _ in range(2):
        assert served.output(request(large)).min() == 1
    before, inputs = _resident_shared_kib(), large.nbytes // 1024
    served.python.give_memory_back()
    assert before - _resident_shared_kib() >= inputs
    for _ in range(2):
        assert served.output(request(large)).min() == 1
    instance = served.python
    served.close()
    instance.give_memory_back()


def _resident_shared_kib() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssShmem:")]
    return int(line.split()[1])


def _mapped_segments() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:tpy-tensors")


def test_workers_die_with_the_server(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(
        "import time\nclass TritonPythonModel:\n    def execute(self, requests):\n        time.sleep(60)\n"
    )
    program = textwrap.dedent("""
        import sys, threading
        from pathlib import Path
        from tests.backends.python.conftest import request
        from tpy.backend import BackendSettings, InstancePlacement, ModelContext
        from tpy.config import ModelConfig
        from tpy.config.model_config import InstanceKind
        from tpy.testing.hosting import HostedModel
        from tpy.testing.requests import batch_of
        from tpy_data.backends.python import create

        folder = Path(sys.argv[1])
        context = ModelContext(name="m", version=1, generation=1, config=ModelConfig(name="m"),
                               model_directory=folder, version_directory=folder / "1")
        instance = HostedModel(create(BackendSettings(name="python")), context).instance(
            InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU))
        instance.start(batch_of([request()]))
        print(instance.model_instance.pid, flush=True)
        threading.Event().wait()
    """)
    root = Path(__file__).parents[3]
    server = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root)
    try:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert not _gone(pid)
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()
    assert _wait_gone(pid)


def test_a_model_may_use_multiprocessing(make: Serve) -> None:
    served = make("""
        import multiprocessing
        def double(number):
            return 2 * number
        class TritonPythonModel:
            def initialize(self, args):
                self.pool = multiprocessing.get_context("spawn").Pool(1)
            def execute(self, requests):
                return [answer(tensor(np.array(self.pool.map(double, given(r).tolist())))) for r in requests]
            def finalize(self):
                self.pool.terminate()
                self.pool.join()
    """)
    assert served.output().tolist() == [0, 2, 4]


def test_texts_that_are_too_long_fail_their_batch_only(make: Serve) -> None:
    served = make("""
        class TritonPythonModel:
            def execute(self, requests):
                if requests[0].request_id() == "long":
                    return [pb_utils.InferenceResponse(error=pb_utils.TritonError("x" * 10_000_000))]
                return [answer(tensor(given(r))) for r in requests]
    """)
    with pytest.raises(Internal, match=r"^a batch with \d+ bytes of request ids, parameters and names is too long to be sent$"):
        served.run(request(id="x" * 10_000_000))
    with pytest.raises(Internal, match=r"^answers with \d+ bytes of error texts, parameters and names are too long to be sent$"):
        served.run(request(id="long"))
    served.output()


def test_shared_memory_goes_with_the_worker_that_had_it(make: Serve) -> None:
    """And not when the garbage collector comes by: what failed refers to the instance."""
    served = make(COPY)
    large = np.zeros(1_000_000, np.float32)
    gc.disable()
    try:
        before = _mapped()
        served.output(request(large))
        assert _mapped() > before
        os.kill(served.python.pid, signal.SIGKILL)
        with pytest.raises(InstanceFailure):
            served.output(request(large))
        assert _mapped() == before
    finally:
        gc.enable()


def _mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:tpy-tensors")

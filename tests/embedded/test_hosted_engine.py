"""A server on the asyncio loop of the program: Trio is its guest, and no request changes threads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import sniffio
import trio

import tpy
from tests.e2e.repositories import ModelFolder
from tpy.assembly import ServerOptions
from tpy.clock import SystemClock
from tpy.demand import Demand
from tpy.embedded.hosted_engine import HostedEngine
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.limits import LOOP_TURN_NS_MAX
from tpy.messages import LoadRequest
from tpy.reactor import reactor_of_run

ROOT = Path(__file__).parents[2]
CONFIG = """
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
SLOW = 'parameters { key: "execute_delay_ms" value { string_value: "300" } }\n'
DELAYED = "dynamic_batching { max_queue_delay_microseconds: 20000 }\n"
MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        outputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", output)]) for output in outputs]
"""
ROW = np.arange(3, dtype=np.float32).reshape(1, 3)


class Hosted(tpy.Server):
    """A server on the loop that it is made in."""

    def __init__(self, repository: Path, **options: Any) -> None:
        super().__init__(repository, **options)
        self.loop = asyncio.get_running_loop()

    engine: HostedEngine

    def _open_engine(self, options: ServerOptions) -> HostedEngine:
        self.engine = HostedEngine(options, self.loop)
        return self.engine


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name, extra in (("plain", ""), ("slow", SLOW), ("delayed", DELAYED)):
        ModelFolder(folder, name).config(CONFIG + extra).file("1/.keep", "")
    ModelFolder(folder, "worker").config(CONFIG.replace("identity", "python")).file("1/model.py", MODEL)
    return folder


@asynccontextmanager
async def hosted(repository: Path, *models: str) -> AsyncIterator[Hosted]:
    server = Hosted(repository, load_model=models)
    await asyncio.to_thread(server.start)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.stop)


def on_asyncio(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("model", ["plain", "delayed", "worker"])
def test_requests_are_answered_alone_and_together(repository: Path, model: str) -> None:
    async def main() -> None:
        async with hosted(repository, model) as server:
            asked = server.model(model)
            for _ in range(40):
                assert (await asked.infer_async({"INPUT0": ROW}))["OUTPUT0"].tolist() == ROW.tolist()
            answers = await asyncio.gather(*[asked.infer_async({"INPUT0": ROW + number}) for number in range(50)])
            assert [float(answer["OUTPUT0"][0, 0]) for answer in answers] == list(range(50))

    on_asyncio(main)


def test_everything_is_on_the_thread_of_the_loop(repository: Path) -> None:
    async def main() -> None:
        before = {thread.name for thread in threading.enumerate()}
        async with hosted(repository, "plain") as server:
            found: list[int] = []

            def look() -> None:
                found.append(threading.get_ident())

            server.engine.enter(look)
            assert found == [threading.get_ident()], "at once"
            await asyncio.to_thread(server.engine.run, look)
            assert found == [threading.get_ident()] * 2
            assert "tpy-server" not in {thread.name for thread in threading.enumerate()} - before

    on_asyncio(main)


def test_the_loop_goes_on_while_models_load_and_requests_wait(repository: Path) -> None:
    async def main() -> None:
        turns = [0]

        async def count() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0.001)

        async with hosted(repository, "slow") as server:
            counting = asyncio.create_task(count())
            before = turns[0]
            await server.model("slow").infer_async({"INPUT0": ROW})
            assert turns[0] - before > 10
            before = turns[0]
            await asyncio.to_thread(server.load, "worker")
            assert turns[0] - before > 5
            counting.cancel()

    on_asyncio(main)


def test_what_would_wait_for_the_loop_itself_is_refused(repository: Path) -> None:
    async def main() -> None:
        async with hosted(repository, "plain") as server:
            with pytest.raises(Internal, match="would wait for itself"):
                server.model("plain").infer({"INPUT0": ROW})
            with pytest.raises(Internal, match="would wait for itself"):
                server.stop()

    on_asyncio(main)


def test_other_threads_may_ask_as_ever(repository: Path) -> None:
    async def main() -> None:
        async with hosted(repository, "plain") as server:
            answers = await asyncio.gather(
                *[asyncio.to_thread(server.model("plain").infer, {"INPUT0": ROW + number}) for number in range(20)]
            )
            assert [float(answer["OUTPUT0"][0, 0]) for answer in answers] == list(range(20))

    on_asyncio(main)


def test_a_stop_answers_what_is_in_flight_and_refuses_the_rest(repository: Path) -> None:
    async def main() -> None:
        async with hosted(repository, "slow") as server:
            asking = asyncio.create_task(server.model("slow").infer_async({"INPUT0": ROW}))
            await asyncio.sleep(0)
            engine = server.engine
            await asyncio.to_thread(server.stop)
            assert (await asking)["OUTPUT0"].tolist() == ROW.tolist()
            with pytest.raises(Unavailable, match="stopped"):
                engine.enter(lambda: None)
            with pytest.raises(Unavailable):
                await server.model("slow").infer_async({"INPUT0": ROW})

    on_asyncio(main)


def test_a_request_may_be_cancelled(repository: Path) -> None:
    async def main() -> None:
        async with hosted(repository, "slow") as server:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(server.model("slow").infer_async({"INPUT0": ROW}), 0.05)
            assert (await server.model("slow").infer_async({"INPUT0": ROW}))["OUTPUT0"].tolist() == ROW.tolist()

    on_asyncio(main)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises((InvalidArgument, Unavailable), match="none"):
            async with hosted(tmp_path / "none"):
                raise AssertionError

    on_asyncio(main)


_LEFT = """
import asyncio, sys
from pathlib import Path
from tests.embedded.test_hosted_engine import Hosted

async def main():
    server = Hosted(Path(sys.argv[1]), load_model=["plain"])
    await asyncio.to_thread(server.start)
    return server

server = asyncio.run(main())
print("left")
"""


def test_who_asks_when_the_loop_was_left_is_told(repository: Path) -> None:
    async def start() -> Hosted:
        server = Hosted(repository, load_model=["plain"])
        await asyncio.to_thread(server.start)
        return server

    runner = asyncio.Runner()
    server = runner.run(start())
    for ask in (server.ready, server.index):
        with pytest.raises(Unavailable, match="stopped"):
            ask_in_a_thread(ask)
    runner.run(asyncio.to_thread(server.stop))
    runner.close()


def ask_in_a_thread(ask: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as executor:
        executor.submit(ask).result(20)


def test_tasks_of_the_loop_ask_without_a_thread(repository: Path) -> None:
    async def main() -> None:
        async with hosted(repository, "plain") as server:
            before = threading.active_count()
            models = server.engine.services.repository
            answers = await asyncio.gather(*[server.engine.ask(models.index) for _ in range(20)])
            assert [len(index) for index in answers] == [4] * 20
            assert threading.active_count() == before
            with pytest.raises(Internal, match="none"):
                await server.engine.ask(lambda: models.load(LoadRequest(model_name="none", config_json=None, files={})))
            asking = asyncio.create_task(server.engine.ask(trio.sleep_forever))
            await asyncio.sleep(0.01)
            asking.cancel()
            engine = server.engine
            waiting = asyncio.create_task(engine.ask(trio.sleep_forever))
            await asyncio.sleep(0.01)
        with pytest.raises(Unavailable, match="stopping"):
            await waiting
        with pytest.raises(Unavailable, match="stopped"):
            await engine.ask(models.index)

    on_asyncio(main)


def test_a_process_that_has_left_the_loop_ends(repository: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _LEFT, repository], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left\n", "")


def test_the_context_of_a_request_stays_with_its_task(repository: Path) -> None:
    async def main() -> None:
        async with hosted(repository, "plain") as server:
            request = ContextVar("request", default="")
            request.set("one")
            seen: list[str] = []
            asked = asyncio.Event()

            def look() -> None:
                seen.append(request.get())
                asked.set()

            def begin() -> None:
                asyncio.get_running_loop().call_soon(look)

            server.engine.enter(begin)
            await asked.wait()
            assert (seen, request.get()) == ([""], "one")

    on_asyncio(main)


def test_events_of_anyio_are_those_of_trio_in_a_call_at_once(repository: Path) -> None:
    async def main() -> None:
        async with hosted(repository, "plain") as server:
            made: list[anyio.Event] = []
            server.engine.enter(lambda: made.append(anyio.Event()))
            await asyncio.sleep(0)
            assert sniffio.current_async_library() == "asyncio"

            async def wait() -> None:
                with trio.fail_after(5):
                    await made[0].wait()

            waiting = asyncio.create_task(asyncio.to_thread(server.engine.run_async, wait))
            server.engine.soon(lambda: made[0].set())
            await waiting

    on_asyncio(main)


def test_a_request_of_plain_numbers_asks_for_the_types_at_once(repository: Path) -> None:
    async def main() -> None:
        async with hosted(repository, "plain") as server:
            assert (await server.model("plain").infer_async({"INPUT0": ROW.tolist()}))["OUTPUT0"].tolist() == ROW.tolist()
            with pytest.raises(InvalidArgument, match="NONE"):
                await server.model("plain").infer_async({"NONE": [1]})

    on_asyncio(main)


def test_a_second_server_on_the_loop_is_refused(repository: Path) -> None:
    async def main() -> None:
        async with hosted(repository, "plain") as server:
            second = Hosted(repository, load_model=["plain"])
            with pytest.raises(RuntimeError, match="run"):
                await asyncio.to_thread(second.start)
            await asyncio.to_thread(second.stop)
            assert (await server.model("plain").infer_async({"INPUT0": ROW}))["OUTPUT0"].tolist() == ROW.tolist()

    on_asyncio(main)


def test_a_forked_process_may_not_ask(repository: Path) -> None:
    async def main() -> None:
        async with hosted(repository, "plain") as server:
            child = os.fork()
            if not child:
                code = 1
                try:
                    server.engine.enter(lambda: None)
                except Unavailable:
                    code = 0
                finally:
                    os._exit(code)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0

    on_asyncio(main)


class SteppedClock(SystemClock):
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


class Busy:
    """A descriptor that always has more to read, which takes as long as a turn may take."""

    def __init__(self, clock: SteppedClock) -> None:
        self.is_continuing = False
        self.count = 0
        self._clock = clock
        self._descriptor = os.eventfd(1)

    def fileno(self) -> int:
        return self._descriptor

    def receive(self) -> Demand:
        self.count += 1
        self._clock.ns += LOOP_TURN_NS_MAX + 1
        return Demand.READ

    def proceed(self) -> Demand:
        raise AssertionError

    def end(self, error: BaseException | None = None) -> None:
        raise AssertionError


def test_who_always_has_more_to_read_leaves_turns_to_the_others() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[list[int]] = loop.create_future()

        async def serve() -> list[int]:
            clock = SteppedClock()
            reactor = reactor_of_run(clock)
            reactor.host = loop
            all_busy = [Busy(clock) for _ in range(3)]
            with reactor.running():
                for each in all_busy:
                    reactor.add(each)
                await trio.sleep(0.05)
                for each in all_busy:
                    reactor.discard(each)
                    os.close(each.fileno())
            return [each.count for each in all_busy]

        trio.lowlevel.start_guest_run(
            serve,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=lambda outcome: ended.set_result(outcome.unwrap()),
            host_uses_signal_set_wakeup_fd=True,
        )
        counts = await ended
        assert max(counts) - min(counts) <= 1
        assert min(counts) > 0

    on_asyncio(main)

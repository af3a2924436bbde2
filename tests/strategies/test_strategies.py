"""Custom batching strategies: in the scheduler's core, as compiled libraries in this process and in their own, and found."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.e2e.waiting import wait_until
from tests.native.compiled import library
from tests.pace import with_patience
from tpy.backend import Isolation
from tpy.config import ModelConfig
from tpy.config.model_config import DynamicBatching, ModelInput, ModelOutput, ModelParameter
from tpy.errors import Internal, InvalidArgument, NotFound, TpyError
from tpy.messages import DataType, Tensor
from tpy_data.schedulers.core import BatchStrategy, Dispatch, Ticket
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.overlap import OverlapTerms
from tpy_data.strategies import OpenStrategy, find_strategy
from tpy_native.process import plugin_process
from tpy_native.strategies import open_strategy, opening
from tpy_native.strategies.requests import describe, elements

DELAY_NS = 1000


class Pairs:
    """A strategy: two tickets to a batch. Notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def begin(self) -> None:
        self.asked.append([])

    def include(self, ticket: Ticket) -> bool:
        self.asked[-1].append(ticket)
        return len(self.asked[-1]) <= 2

    def end(self) -> None:
        self.asked[-1] = tuple(self.asked[-1])


def batches(core: DynamicCore) -> list[list[Ticket]]:
    return [list(batch) for action in core.take_actions() if isinstance(action, Dispatch) for batch in action.batches]


def core_with(strategy: BatchStrategy, *, delay_ns: int = DELAY_NS, size: int = 8) -> DynamicCore:
    options = DynamicOptions(
        batch_size_max=size,
        preferred=frozenset({size}),
        queue_delay_ns_max=delay_ns,
        overlap=None if delay_ns else OverlapTerms(),
    )
    return DynamicCore(options, strategy=strategy)


def test_a_ticket_that_is_not_included_closes_the_batch_and_begins_the_next() -> None:
    strategy = Pairs()
    core = core_with(strategy)
    core.add_instance(0, 0)
    one, two, three = tickets = [Ticket() for _ in range(3)]
    for ticket in tickets:
        core.submit(ticket, 0)
    assert batches(core) == [[one, two]]
    assert strategy.asked == [(one, two, three)]
    core.done(0, 10)
    assert batches(core) == []
    assert core.next_deadline_ns() == DELAY_NS
    core.advance(DELAY_NS)
    assert batches(core) == [[three]]
    assert strategy.asked == [(one, two, three), (three,)]


def test_the_first_ticket_is_in_a_batch_whatever_the_strategy_says() -> None:
    class Never(Pairs):
        def include(self, ticket: Ticket) -> bool:
            super().include(ticket)
            return False

    core = core_with(Never(), delay_ns=0)
    waiting = [Ticket() for _ in range(3)]
    for ticket in waiting:
        core.submit(ticket, 0)
    core.add_instance(0, 0)
    core.done(0, 1)
    core.done(0, 2)
    assert batches(core) == [[ticket] for ticket in waiting]


def test_the_limits_of_the_configuration_come_first() -> None:
    strategy = Pairs()
    core = core_with(strategy, size=2)
    for ticket in (waiting := [Ticket(batch_size=2), Ticket(), Ticket(signature="other")]):
        core.submit(ticket, 0)
    for instance in range(3):
        core.add_instance(instance, 0)
    assert batches(core) == [[ticket] for ticket in waiting][:2]
    assert strategy.asked == [(waiting[0],), (waiting[1],), [waiting[2]]], "nobody was asked about what does not fit"


def test_a_batch_that_changes_while_it_is_formed_is_begun_anew() -> None:
    strategy = Pairs()
    core = core_with(strategy)
    core.add_instance(0, 0)
    one, two, three = (Ticket() for _ in range(3))
    core.submit(one, 0)
    core.submit(two, 0)
    core.cancel(one, 1)
    assert strategy.asked == [(one, two), [two]]
    core.submit(three, 2)
    assert strategy.asked == [(one, two), [two, three]]
    assert batches(core) == []


CONFIG = ModelConfig(
    name="m",
    backend="b",
    max_batch_size=8,
    input=(ModelInput(name="X", data_type=DataType.FP32, dims=(2,)),),
    output=(ModelOutput(name="Y", data_type=DataType.FP32, dims=(2,)),),
    dynamic_batching=DynamicBatching(),
)


def config_with(**parameters: str) -> ModelConfig:
    values = {key: ModelParameter(string_value=text) for key, text in parameters.items()}
    return msgspec.structs.replace(CONFIG, parameters=values)


class Request(Ticket):
    """A ticket with what a strategy may ask of it: `size_bytes` of input."""

    def __init__(self, size_bytes: int = 8, id: str = "") -> None:
        super().__init__()
        self.id = id
        self.inputs = {
            "X": Tensor("X", DataType.FP32, np.zeros((1, size_bytes // 8), np.float32)),
            "S": Tensor("S", DataType.BYTES, np.array([b"x" * (size_bytes // 2 - 4)], dtype=object)),
        }
        self.requested_outputs = ()
        self.parameters = {"a": 1}
        self.timeout_us = 0


class Strategies:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: list[OpenStrategy] = []

    def open(
        self, behaviour: str = "", isolation: Isolation = Isolation.THREAD, *, volume: int = 24, path: Path | None = None
    ) -> OpenStrategy:
        config = config_with(behaviour=behaviour, isolation=isolation.value, MAX_BATCH_VOLUME_BYTES=str(volume))
        self._open.append(open_strategy(path or library("strategy"), config, 1, self._folder))
        return self._open[-1]

    def close(self) -> None:
        for each in self._open:
            each.close()


@pytest.fixture
def strategies(tmp_path: Path) -> Iterator[Strategies]:
    made = Strategies(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_compiled_strategy_bounds_the_volume_of_batches(strategies: Strategies, isolation: Isolation) -> None:
    core = core_with(strategies.open(isolation=isolation), delay_ns=0)
    waiting = [Request(16), Request(8), Request(8), Request(24), Request(400_000), Request(8)]
    for ticket in waiting:
        core.submit(ticket, 0)
    core.add_instance(0, 0)
    for _ in range(3):
        core.done(0, 0)
    # What is first is in, however large; this strategy counts only what it has included.
    assert batches(core) == [waiting[:2], waiting[2:3], waiting[3:4], waiting[4:]]


@pytest.mark.parametrize("isolation", list(Isolation))
def test_errors_of_a_strategy_are_said_and_hold_up_nothing(
    strategies: Strategies, isolation: Isolation, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = strategies.open("fails", isolation)
    for _ in range(3):
        strategy.begin()
        assert strategy.include(Request())
        assert strategy.include(Request())
        strategy.end()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "Custom batching initialization function failed: ModelBatchInitialize was told to fail" in told[0]


_ENDS_WITH_7 = np.array([[1, 7]], np.uint8)


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        (DataType.UINT8, np.tile(_ENDS_WITH_7, 100_000)),
        (DataType.UINT8, np.array([[0, 1, 0, 7]], np.uint8)[:, 1::2]),
        (DataType.BF16, np.array([[0, 0x0700]], np.uint16).view(DataType.BF16.numpy)),
        (DataType.BYTES, np.array([[b"", b"a", b"bc\x07"]], object)),
    ],
    ids=["large", "strided", "BF16", "BYTES"],
)
def test_a_strategy_may_look_at_the_elements(
    strategies: Strategies, isolation: Isolation, datatype: DataType, array: np.ndarray[Any, Any]
) -> None:
    strategy = strategies.open("looks", isolation, volume=1 << 30)
    strategy.begin()
    for given, is_included in ((array, False), (array[:, :-1], True), (array[:, :0], True), (array, False)):
        request = Request()
        request.inputs = {"X": request.inputs["X"], "D": Tensor("D", datatype, given)}
        assert strategy.include(request) is is_included
    strategy.end()


def test_elements_that_nobody_looks_at_stay_where_they_are() -> None:
    assert len(describe([], Request(16 << 20))) < 200
    request = Request(64)
    sent = elements(request, "X")
    assert isinstance(sent, memoryview)
    assert np.shares_memory(np.frombuffer(sent, np.uint8), request.inputs["X"].array)
    with pytest.raises(NotFound, match="the request has no input 'Z'"):
        elements(request, "Z")


@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_slow_strategy_is_told(strategies: Strategies, isolation: Isolation, caplog: pytest.LogCaptureFixture) -> None:
    strategy = strategies.open("slow", isolation)
    strategy.begin()
    assert strategy.include(Request())
    strategy.end()
    assert re.search(r"Custom batching include function took \d\d+ ms, for which the whole server waits", caplog.text)


def test_slow_answers_are_not_waited_for_again_and_again(strategies: Strategies) -> None:
    """The loop waits for each: it goes on without most of them."""
    strategy = strategies.open("slow", Isolation.PROCESS)
    strategy.begin()
    began_s = time.monotonic()
    strategy.include(Request())
    first_s = time.monotonic() - began_s
    for _ in range(60):
        strategy.include(Request())
        strategy.end()
        strategy.begin()
    assert time.monotonic() - began_s < 30 * first_s
    strategy.end()


def test_a_strategy_that_releases_requests_releases_nothing(strategies: Strategies) -> None:
    strategy = strategies.open("releases")
    for _ in range(100):
        strategy.begin()
        assert strategy.include(Request())
        assert strategy.include(Request())
        strategy.end()


@pytest.mark.parametrize(
    ("behaviour", "said"), [("fails-batcher", "^ModelBatcherInitialize was told to fail$"), ("crashes-batcher", "SIGABRT")]
)
def test_a_strategy_that_cannot_be_initialised_fails_the_load(strategies: Strategies, behaviour: str, said: str) -> None:
    with pytest.raises(Internal, match=said):
        strategies.open(behaviour, Isolation.PROCESS)


def test_a_strategy_whose_process_dies_at_its_start_is_started_once_more(
    strategies: Strategies, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = strategies.open("crashes-once", Isolation.PROCESS)
    strategy.begin()
    assert strategy.include(Request())
    assert "the process of the batching strategy of model 'm' was ended by SIGABRT; it is started once more" in caplog.text


def test_a_start_that_takes_long_is_reported_and_has_a_limit(
    strategies: Strategies, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_process, "NATIVE_PLUGIN_SLOW_S", 0.2)
    monkeypatch.setattr(plugin_process, "NATIVE_PLUGIN_START_S_MAX", 0.5)
    with pytest.raises(Internal, match=r"the batching strategy of model 'm' did not start within 0\.5 s: .*load it again"):
        strategies.open("hangs-batcher", Isolation.PROCESS)
    assert "the batching strategy of model 'm' is still starting after 0 s; the limit is 0.5 s" in caplog.text


def test_a_strategy_that_cannot_be_started_again_is_tried_until_it_can(
    strategies: Strategies, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "NATIVE_STRATEGY_PAUSE_S_MIN", 0.05)
    copied = tmp_path / "strategy.so"
    shutil.copy(library("strategy"), copied)
    strategy = strategies.open("crashes", Isolation.PROCESS, volume=8, path=copied)
    copied.rename(tmp_path / "away.so")
    strategy.begin()
    assert strategy.include(Request(id="bad"))
    wait_until(lambda: "cannot be started again" in caplog.text, within_s=60)
    (tmp_path / "away.so").rename(copied)

    def is_asked() -> bool:
        strategy.end()
        strategy.begin()
        strategy.include(Request(8))
        return not strategy.include(Request(8))

    wait_until(is_asked, within_s=60)


@pytest.mark.parametrize(("behaviour", "reason"), [("crashes", "was ended by SIGSEGV"), ("hangs", "did not answer in time")])
def test_batches_are_formed_without_a_strategy_that_dies_until_it_is_back(
    strategies: Strategies, behaviour: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = strategies.open(behaviour, Isolation.PROCESS, volume=8)

    def is_asked() -> bool:
        strategy.begin()
        strategy.include(Request(8))
        said = strategy.include(Request(8))
        strategy.end()
        return not said

    assert is_asked()
    began_s = time.monotonic()
    strategy.begin()
    assert strategy.include(Request(id="bad"))
    assert time.monotonic() - began_s < with_patience(20)
    assert strategy.include(Request())
    strategy.end()
    assert reason in caplog.text
    wait_until(is_asked, within_s=30)


def test_a_library_without_all_of_the_functions_is_refused(tmp_path: Path) -> None:
    for isolation in Isolation:
        config = config_with(isolation=isolation.value)
        with pytest.raises(InvalidArgument, match="does not define all required custom batching functions for model m"):
            open_strategy(library("empty"), config, 1, tmp_path)


def test_where_a_strategy_is_found(tmp_path: Path) -> None:
    model, backend = tmp_path / "repository" / "m", tmp_path / "backends" / "b"
    folders = (model / "1", model, backend)

    def found(config: ModelConfig = CONFIG) -> Path | None:
        strategy = find_strategy(config, model, folders)
        assert strategy is None or strategy.name == ".so"
        return None if strategy is None else strategy.library

    assert found() is None
    for folder in reversed(folders):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "batchstrategy.so").touch()
        assert found() == folder / "batchstrategy.so"
    (tmp_path / "repository" / "s.so").touch()
    assert (
        found(config_with(TRITON_BATCH_STRATEGY_PATH=str(tmp_path / "repository" / "s.so"))) == tmp_path / "repository" / "s.so"
    )
    for path, said in (("x.so", "not found"), ("../../x.so", "escapes model repository"), ("/etc/passwd", "escapes")):
        with pytest.raises(TpyError, match=f"Batching library path {said}"):
            found(config_with(TRITON_BATCH_STRATEGY_PATH=path))
    assert found(ModelConfig(name="m")) is None, "nothing is batched"

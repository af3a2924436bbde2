"""The suite that every engine passes. Needs pytest.

Derive a test class from `EngineConformance` and give it the fixture `subject`:

    class TestMyEngine(EngineConformance):
        @pytest.fixture(scope="class")
        @classmethod
        def subject(cls):
            return EngineUnderTest(create=MyEngine, prompt=lambda number: f"Tell me story {number}")

Each test states one promise of `tpy.backend.engine`. Engines that load for long may be shared by the tests: `create` is then
called once (`shared`), and each test leaves an engine without requests.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tpy.backend.engine import Delta, Engine, EngineRequest
from tpy.errors import InvalidArgument, TpyError

_NUMBERS = itertools.count(1)
_STEPS_MAX = 10_000
GREEDY: Mapping[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@dataclass(frozen=True, kw_only=True)
class EngineUnderTest:
    """An engine with a small model. `prompt` gives the n-th prompt, each n another one, all of them shorter than
    `prompt_tokens_max` tokens. `refused` are requests that `add` refuses, by a word that the error has; `failing` one that a step
    finds to be impossible. `too_long` is a prompt longer than the context."""

    create: Callable[[], Engine]
    prompt: Callable[[int], str]
    too_long: str
    refused: Mapping[str, EngineRequest] = field(default_factory=dict)
    failing: EngineRequest | None = None


class RunningEngine:
    """An engine, and what it has generated."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.deltas: dict[int, list[Delta]] = {}
        self.open: dict[int, int] = {}
        """Sequences that have not ended, by request."""

    def add(self, prompt: str, *, n: int = 1, max_tokens: int = 8, logprobs: bool = False, **sampling: Any) -> int:
        """Returns the number of the request."""
        return self.give(
            EngineRequest(id=0, prompt=prompt, n=n, max_tokens=max_tokens, logprobs=logprobs, sampling={**GREEDY, **sampling})
        )

    def give(self, request: EngineRequest) -> int:
        """The request, under a new number."""
        number = next(_NUMBERS)
        self.engine.add(
            EngineRequest(
                id=number,
                prompt=request.prompt,
                prompt_token_ids=request.prompt_token_ids,
                sampling=request.sampling,
                n=request.n,
                max_tokens=request.max_tokens,
                logprobs=request.logprobs,
                pooling=request.pooling,
                images=request.images,
            )
        )
        self.deltas[number] = []
        self.open[number] = request.n
        return number

    def step(self) -> None:
        """One step; what it says is checked."""
        for delta in self.engine.step():
            assert self.open.get(delta.id, 0) > 0, f"a delta of a request that has ended or is not known: {delta}"
            earlier = self.deltas[delta.id]
            assert not any(each.sequence == delta.sequence and each.finish_reason for each in earlier), (
                "a delta after the last one"
            )
            if delta.error is None:
                assert delta.tokens > 0 or delta.finish_reason is not None, "a delta of nothing"
                assert delta.prompt_tokens > 0
            earlier.append(delta)
            if delta.error is not None:
                del self.open[delta.id]
            elif delta.finish_reason is not None:
                self.open[delta.id] -= 1
                if not self.open[delta.id]:
                    del self.open[delta.id]
        load = self.engine.load()
        assert 0 <= load.kv_blocks_used <= load.kv_blocks_total
        assert 0 <= load.running <= self.engine.limits().sequences

    def finish(self) -> None:
        """Step until every request has ended."""
        for _ in range(_STEPS_MAX):
            if not self.open:
                return
            self.step()
        raise AssertionError(f"requests {self.open} do not end")

    def cancel(self, number: int) -> None:
        """The request has no further deltas."""
        self.engine.cancel(number)
        self.open.pop(number, None)

    def text(self, number: int, index: int = 0) -> str:
        """The whole text of a sequence."""
        return "".join([each.text for each in self.deltas[number] if each.sequence == index])

    def tokens(self, number: int, index: int = 0) -> int:
        """The number of tokens of a sequence."""
        return sum([each.tokens for each in self.deltas[number] if each.sequence == index])


class EngineFixtures:
    """The engine that a suite tries; `subject` is to be overridden."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> EngineUnderTest:
        """The engine under test: override it."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, subject: EngineUnderTest) -> Iterator[Engine]:
        """One for all tests of the class."""
        engine = subject.create()
        yield engine
        engine.close()

    @pytest.fixture
    def running(self, engine: Engine) -> Iterator[RunningEngine]:
        """The engine, which has no requests before and after."""
        running = RunningEngine(engine)
        yield running
        for number in list(running.open):
            running.cancel(number)
        load = engine.load()
        assert (load.running, load.waiting, load.kv_blocks_used) == (0, 0, 0), "something is left in the engine"


class EngineConformance(EngineFixtures):
    """See the module."""

    def test_a_request_ends_with_a_reason_and_its_tokens(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        number = running.add(subject.prompt(0), max_tokens=5)
        running.finish()
        assert running.deltas[number][-1].finish_reason == "length"
        assert running.tokens(number) == 5
        assert running.text(number)
        assert len({each.prompt_tokens for each in running.deltas[number]}) == 1

    def test_tokens_come_step_by_step(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        number = running.add(subject.prompt(0), max_tokens=6)
        running.finish()
        assert len(running.deltas[number]) > 1

    def test_an_answer_does_not_depend_on_others(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        alone = []
        for place in range(3):
            number = running.add(subject.prompt(place))
            running.finish()
            alone.append(running.text(number))
        numbers = []
        for place in range(3):
            numbers.append(running.add(subject.prompt(place)))
            running.step()
        running.finish()
        assert [running.text(number) for number in numbers] == alone

    def test_several_sequences_of_one_prompt(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        number = running.add(subject.prompt(0), n=3, max_tokens=4)
        running.finish()
        assert [running.tokens(number, index) for index in range(3)] == [4, 4, 4]
        ended = [each.sequence for each in running.deltas[number] if each.finish_reason]
        assert sorted(ended) == [0, 1, 2]

    def test_more_requests_than_it_has_room_for_wait_in_it(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        count = running.engine.limits().sequences + 2
        numbers = [running.add(subject.prompt(place), max_tokens=2) for place in range(count)]
        running.finish()
        assert [running.tokens(number) for number in numbers] == [2] * count

    def test_what_is_cancelled_says_nothing_more_and_frees_its_room(
        self, subject: EngineUnderTest, running: RunningEngine
    ) -> None:
        kept = running.add(subject.prompt(0), max_tokens=20)
        gone = running.add(subject.prompt(1), max_tokens=60)
        running.step()
        running.step()
        running.cancel(gone)
        said = len(running.deltas[gone])
        running.step()
        running.step()
        assert running.engine.load().running == 1
        running.finish()
        assert len(running.deltas[gone]) == said
        assert running.tokens(kept) == 20

    def test_the_last_request_may_be_cancelled(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        number = running.add(subject.prompt(0), max_tokens=60)
        running.step()
        assert running.engine.load().kv_blocks_used > 0
        running.cancel(number)
        assert running.engine.load().kv_blocks_used == 0

    def test_a_request_may_be_cancelled_before_its_first_step(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        running.cancel(running.add(subject.prompt(0)))

    def test_cancelling_what_has_ended_changes_nothing(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        number = running.add(subject.prompt(0), max_tokens=2)
        running.finish()
        running.engine.cancel(number)
        running.engine.cancel(next(_NUMBERS))
        again = running.add(subject.prompt(0), max_tokens=2)
        running.finish()
        assert running.text(again) == running.text(number)

    def test_logprobs_are_there_for_each_token(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        number = running.add(subject.prompt(0), max_tokens=4, logprobs=True)
        running.finish()
        entries: list[Mapping[int, Any]] = []
        for delta in running.deltas[number]:
            entries.extend(delta.logprobs or ())
        assert len(entries) == 4
        assert all(next(iter(entry.values())).logprob <= 0 for entry in entries)

    def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
        self, subject: EngineUnderTest, running: RunningEngine
    ) -> None:
        with pytest.raises(InvalidArgument, match=r"the prompt has (about )?\d+ tokens, at most \d+ are taken"):
            running.add(subject.too_long)

    def test_what_is_refused_is_named_and_harms_nobody(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        number = running.add(subject.prompt(0), max_tokens=6)
        running.step()
        for word, request in subject.refused.items():
            with pytest.raises(TpyError, match=word):
                running.give(request)
            running.step()
        running.finish()
        again = running.add(subject.prompt(0), max_tokens=6)
        running.finish()
        assert running.text(number) == running.text(again)

    def test_what_fails_in_a_step_fails_alone(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        if subject.failing is None:
            pytest.skip("the subject names no failing request")
        expected = running.add(subject.prompt(0), max_tokens=8)
        running.finish()
        number = running.add(subject.prompt(0), max_tokens=8)
        running.step()
        bad = running.give(subject.failing)
        other = running.give(subject.failing)
        running.finish()
        for each in (bad, other):
            assert isinstance(running.deltas[each][-1].error, TpyError)
        assert running.text(number) == running.text(expected)

    def test_an_engine_with_requests_may_be_closed(self, subject: EngineUnderTest) -> None:
        engine = subject.create()
        running = RunningEngine(engine)
        running.add(subject.prompt(0), max_tokens=60)
        running.step()
        engine.close()

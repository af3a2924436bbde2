"""The suite that every engine passes with a model of embeddings. Needs pytest.

Derive a test class from `EmbeddingConformance` and give it the fixture `subject`, as for `EngineConformance`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tpy.backend.engine import EngineRequest
from tpy.errors import InvalidArgument, TpyError
from tpy.testing.engine_conformance import EngineFixtures, EngineUnderTest, RunningEngine

TOLERANCE = 1e-4
"""Of numbers that were computed together with others: their order in a sum is another one."""


def asking(prompt: str, pooling: Mapping[str, Any] | None = None) -> EngineRequest:
    """A request for the embedding of a prompt."""
    return EngineRequest(id=0, prompt=prompt, pooling=pooling or {})


class EmbeddingConformance(EngineFixtures):
    """See the module."""

    def test_a_request_has_one_delta_with_the_embedding_and_no_tokens(
        self, subject: EngineUnderTest, running: RunningEngine
    ) -> None:
        number = running.give(asking(subject.prompt(0)))
        running.finish()
        (delta,) = running.deltas[number]
        assert delta.finish_reason is not None
        assert (delta.tokens, delta.text) == (0, "")
        assert np.isfinite(vector_of(running, number)).all()

    def test_an_embedding_does_not_depend_on_others(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        count = running.engine.limits().sequences + 2
        alone = []
        for place in range(count):
            number = running.give(asking(subject.prompt(place)))
            running.finish()
            alone.append(vector_of(running, number))
        numbers = [running.give(asking(subject.prompt(place))) for place in range(count)]
        running.finish()
        together = [vector_of(running, number) for number in numbers]
        np.testing.assert_allclose(together, alone, rtol=TOLERANCE, atol=TOLERANCE)

    def test_what_is_cancelled_says_nothing(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        gone = running.give(asking(subject.prompt(0)))
        kept = running.give(asking(subject.prompt(1)))
        running.cancel(gone)
        running.finish()
        assert not running.deltas[gone]
        assert vector_of(running, kept).size

    def test_cancelling_what_has_ended_changes_nothing(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        number = running.give(asking(subject.prompt(0)))
        running.finish()
        running.engine.cancel(number)

    def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
        self, subject: EngineUnderTest, running: RunningEngine
    ) -> None:
        with pytest.raises(InvalidArgument, match=r"the prompt has (about )?\d+ tokens, at most \d+ are taken"):
            running.give(asking(subject.too_long))

    def test_what_is_refused_is_named_and_harms_nobody(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        number = running.give(asking(subject.prompt(0)))
        for word, request in subject.refused.items():
            with pytest.raises(TpyError, match=word):
                running.give(request)
        running.finish()
        again = running.give(asking(subject.prompt(0)))
        running.finish()
        np.testing.assert_allclose(vector_of(running, number), vector_of(running, again), rtol=TOLERANCE, atol=TOLERANCE)

    def test_what_fails_in_a_step_fails_alone(self, subject: EngineUnderTest, running: RunningEngine) -> None:
        if subject.failing is None:
            pytest.skip("the subject names no failing request")
        bad = running.give(subject.failing)
        number = running.give(asking(subject.prompt(0)))
        running.finish()
        assert isinstance(running.deltas[bad][-1].error, TpyError)
        assert vector_of(running, number).size


def vector_of(running: RunningEngine, number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The embedding of a request that has ended."""
    (delta,) = running.deltas[number]
    assert delta.embedding is not None
    return np.asarray(delta.embedding, np.float32)

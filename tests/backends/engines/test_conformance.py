"""The suite of engines, on the fake one."""

from __future__ import annotations

import pytest

from tpy.backend.engine import EngineRequest
from tpy.testing.embedding_conformance import EmbeddingConformance, asking
from tpy.testing.engine_conformance import EngineConformance, EngineUnderTest
from tpy.testing.fake_engine import FakeEngine
from tpy.testing.image_conformance import ImageConformance, Pictured


class TestFakeEngine(EngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> EngineUnderTest:
        return EngineUnderTest(
            create=FakeEngine,
            prompt=lambda number: f"tell me story number{number}",
            too_long="word " * 200,
            refused={"impossible": EngineRequest(id=0, prompt="impossible"), "empty": EngineRequest(id=0, prompt="")},
            failing=EngineRequest(id=0, prompt="fail at once"),
        )


class TestFakeEngineOfEmbeddings(EmbeddingConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> EngineUnderTest:
        return EngineUnderTest(
            create=FakeEngine,
            prompt=lambda number: "tell me story number " + "x" * number,
            too_long="word " * 200,
            refused={"dimensions": asking("word", {"dimensions": 9}), "empty": asking("")},
            failing=asking("fail at once"),
        )


class TestFakeEngineWithImages(ImageConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> EngineUnderTest:
        return EngineUnderTest(create=FakeEngine, prompt=lambda number: f"tell me story number{number}", too_long="word " * 200)

    @pytest.fixture(scope="class")
    @classmethod
    def pictured(cls) -> Pictured:
        return Pictured(prompt="look at <image> now", prompt_of_two="first <image> then <image>", images=(b"1", b"22"))

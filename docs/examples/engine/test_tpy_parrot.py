import pytest
from tpy_parrot import Parrot

from tpy.testing.engine_conformance import EngineConformance, EngineUnderTest


class TestParrot(EngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls):
        return EngineUnderTest(create=Parrot, prompt=lambda number: f"say it {number} times", too_long="word " * 20_000)

"""A model that never answers: with TPY_EXECUTE_TIMEOUT_SECONDS its process is ended, and its requests get told why."""

from __future__ import annotations

import pytest

from tpy.backend import InstanceFailure
from tpy.errors import InvalidArgument
from tpy.testing.requests import RecordingSender

from .conftest import Serve, request

HANGS = """
import time
class TritonPythonModel:
    def execute(self, requests):
        if given(requests[0])[0] < 0:
            time.sleep(1000)
        return [answer(tensor(given(r))) for r in requests]
"""
OVERDUE = "Stub process 'm_0' is not healthy. It was ended: execute did not return within 0.3 s"


def limit(text: str) -> dict[str, str]:
    return {"TPY_EXECUTE_TIMEOUT_SECONDS": text}


def test_its_process_is_ended(make: Serve) -> None:
    served = make(HANGS, parameters=limit("0.3"))
    array = served.output()
    assert array.tolist() == [0, 1, 2]
    with pytest.raises(InstanceFailure) as caught:
        served.run(request(-array - 1))
    assert str(caught.value) == OVERDUE
    assert served.python.pid is None
    assert any("model.py" in text and "in execute" in text for text in served.logged("warning")), "where it was"


def test_a_decoupled_model(make: Serve) -> None:
    served = make(HANGS, decoupled=True, parameters=limit("0.3"))
    sender = RecordingSender()
    array = request().inputs["IN"].array - 5
    with pytest.raises(InstanceFailure) as caught:
        served.run(request(array, sender=sender))
    assert str(caught.value) == OVERDUE
    ((result, final),) = sender.sent
    assert final
    assert result is not None
    assert result.error is not None
    assert result.error.message == OVERDUE
    assert served.python.pid is None


@pytest.mark.parametrize("text", ["0", "-1", "x", "inf", "nan"])
def test_numbers_that_are_none(make: Serve, text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected a number of seconds above 0"):
        make(HANGS, parameters=limit(text)).run()


def test_a_thread_cannot_be_ended(make: Serve) -> None:
    with pytest.raises(InvalidArgument, match="needs isolation 'process'"):
        make(HANGS, "thread", parameters=limit("1")).run()

"""Response senders in models that answer once, and requests that are given back: as the real server does, and nothing leaks."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from tpy.backend import AnswerLater, ExecutionResult
from tpy.config.model_config import SequenceBatching
from tpy.errors import Internal
from tpy.testing.requests import RecordingSender

from .conftest import Serve, Served, request

MODEL = """
import gc, threading
F = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
def word(text):
    return answer(tensor(np.array([str(text).encode()], np.object_)))
class TritonPythonModel:
    def initialize(self, args):
        self.told, self.kept = [], []
    def execute(self, requests):
        return [getattr(self, given(r).ravel()[0].decode())(r) for r in requests]
    def attempt(self, call):
        try:
            call()
            self.told.append("fine")
        except BaseException as error:
            self.told.append(f"{type(error).__name__}: {error}")
    def tell(self, r):
        text = "|".join(self.told)
        self.told.clear()
        return word(text)
    def plain(self, r):
        return word("plain")
    def sent(self, r):
        r.get_response_sender().send(word("sent"), F)
    def keep(self, r):
        self.kept.append(r.get_response_sender())
    def answer_kept(self, r):
        senders, self.kept = self.kept, []
        def work():
            for number, sender in enumerate(senders):
                sender.send(word(number), F)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return word(len(senders))
    def answer_large(self, r):
        (sender,), self.kept = self.kept, []
        sender.send(answer(pb_utils.Tensor("OUT", np.arange(300_000, dtype=np.float64)), pb_utils.Tensor("B", np.ones(3))), F)
        return word("large")
    def answer_error(self, r):
        (sender,), self.kept = self.kept, []
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND)), F)
        return word("error")
    def cancelled(self, r):
        return word([sender.is_cancelled() for sender in self.kept])
    def forget_kept(self, r):
        self.kept.clear()
        gc.collect()
        return word("gone")
    def twice(self, r):
        s = r.get_response_sender()
        self.attempt(lambda: s.send(word("one"), F))
        self.attempt(lambda: s.send(word("two"), F))
    def apart(self, r):
        s = r.get_response_sender()
        self.attempt(lambda: s.send(word("one")))
        self.attempt(lambda: s.send(flags=F))
        self.attempt(lambda: s.send(flags=F))
    def nothing(self, r):
        s = r.get_response_sender()
        self.attempt(lambda: s.send(flags=F))
        self.attempt(lambda: s.send(word("after"), F))
    def both(self, r):
        r.get_response_sender().send(word("sent"), F)
        return word("returned")
    def returned_then_sent(self, r):
        self.kept.append(r.get_response_sender())
        return word("returned")
    def send_kept(self, r):
        (s,), self.kept = self.kept, []
        self.attempt(lambda: s.send(word("two"), F))
        return self.tell(r)
    def none(self, r):
        return None
    def wrong(self, r):
        return 5
    def again(self, r):
        r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    def again_with(self, r):
        r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return word("x")
    def bad_flags(self, r):
        self.attempt(lambda: r.set_release_flags(7))
        return self.tell(r)
"""


NOTHING = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."


def results(served: Served, *words: str) -> list[ExecutionResult]:
    return served.run(*(request(np.array([word.encode()], np.object_)) for word in words))


def text(result: ExecutionResult) -> str:
    if result.error is not None:
        return f"{result.error.code.value}: {result.error.message}"
    told: bytes = result.outputs[0].array[0]
    return told.decode()


def say(served: Served, word: str) -> str:
    return text(results(served, word)[0])


class Waiting(RecordingSender):
    """The sender of an answer that comes later, and what came."""

    def __init__(self, result: ExecutionResult) -> None:
        super().__init__()
        assert isinstance(result, AnswerLater)
        result.begin(self)

    def wait(self) -> ExecutionResult:
        assert self.finished.wait(10)
        ((result, final),) = self.sent
        assert final
        assert result is not None
        return result


def test_an_answer_through_the_sender_while_executing(serve: Serve) -> None:
    served = serve(MODEL)
    assert [text(result) for result in results(served, "plain", "sent", "plain")] == ["plain", "sent", "plain"]


@pytest.mark.parametrize(
    ("word", "answer", "told"),
    [
        (
            "twice",
            "one",
            "fine|TritonModelException: Unable to send response. Non-decoupled model cannot send more than one response.",
        ),
        ("apart", "one", "fine|fine|TritonModelException: Unable to send response. Response sender has been closed."),
        ("nothing", "after", f"TritonModelException: {NOTHING}|fine"),
    ],
)
def test_what_triton_says(serve: Serve, word: str, answer: str, told: str) -> None:
    served = serve(MODEL)
    assert say(served, word) == answer
    assert say(served, "tell") == told


def test_answers_that_come_later_in_any_order(serve: Serve) -> None:
    served = serve(MODEL)
    first, plain, second = results(served, "keep", "plain", "keep")
    waiting = [Waiting(first), Waiting(second)]
    assert text(plain) == "plain"
    assert say(served, "answer_kept") == "2"
    assert [text(each.wait()) for each in waiting] == ["0", "1"]


def test_an_answer_that_comes_before_anybody_waits(serve: Serve) -> None:
    served = serve(MODEL)
    (later,) = results(served, "keep")
    assert say(served, "answer_kept") == "1"
    assert text(Waiting(later).wait()) == "0"


def test_large_answers_and_errors(serve: Serve) -> None:
    served = serve(MODEL)
    waiting = Waiting(results(served, "keep")[0])
    assert say(served, "answer_large") == "large"
    large, small = waiting.wait().outputs
    assert large.array.tolist() == list(range(300_000))
    assert small.array.tolist() == [1, 1, 1]
    waiting = Waiting(results(served, "keep")[0])
    assert say(served, "answer_error") == "error"
    assert text(waiting.wait()) == "Not found: no"


def test_cancellation_reaches_senders_that_are_kept(make: Serve) -> None:
    served = make(MODEL)
    waiting = [Waiting(result) for result in results(served, "keep", "keep")]
    assert say(served, "cancelled") == "[False, False]"
    waiting[1].cancel()
    for _ in range(1000):
        if say(served, "cancelled") == "[False, True]":
            break
    else:
        pytest.fail("the model was not told")


def test_senders_that_are_dropped_and_requests_that_are_forgotten(serve: Serve) -> None:
    served = serve(MODEL)
    waiting = Waiting(results(served, "keep")[0])
    assert say(served, "forget_kept") == "gone"
    assert text(waiting.wait()) == "Internal: the model dropped the response sender of a request without having sent a response"
    assert say(served, "none") == (
        "Internal: execute returned None for a request and did not ask for its response sender; return a list of "
        "InferenceResponse, one for each request"
    )


def test_a_response_beside_the_one_that_was_returned(serve: Serve) -> None:
    served = serve(MODEL)
    more = "Unable to send response. Non-decoupled model cannot send more than one response."
    sent, plain = results(served, "both", "plain")
    assert text(sent) == "sent"
    assert text(plain) == f"Internal: Failed to process the request(s) for model 'm_0', message: {more}"
    assert say(served, "returned_then_sent") == "returned"
    assert say(served, "send_kept") == f"TritonModelException: {more}"


def test_what_was_sent_before_a_failure_counts(serve: Serve) -> None:
    served = serve(MODEL)
    sent, wrong, kept = results(served, "sent", "wrong", "keep")
    expected = (
        "Internal: Failed to process the request(s) for model 'm_0', message: Expected an 'InferenceResponse' object in the "
    )
    assert text(sent) == "sent"
    assert text(wrong).startswith(expected)
    assert text(kept).startswith(expected)
    assert "cannot send more than one response" in say(served, "send_kept")


def test_requests_that_are_given_back(serve: Serve) -> None:
    served = serve(MODEL, sequence_batching=SequenceBatching(iterative_sequence=True))
    again, plain = results(served, "again", "plain")
    assert again.reschedule
    assert text(plain) == "plain"
    with pytest.raises(Internal, match="Expected a None object in the execute function return list for reschduled request"):
        say(served, "again_with")
    assert say(served, "bad_flags") == "TritonModelException: set_release_flags: unknown flags 7"


def test_giving_back_is_for_iterative_sequences(serve: Serve) -> None:
    with pytest.raises(Internal, match="configuration has no sequence_batching"):
        say(serve(MODEL), "again")


def test_a_worker_that_dies_ends_what_it_left_open(make: Serve) -> None:
    served = make(MODEL)
    waiting = Waiting(results(served, "keep")[0])
    os.kill(served.python.pid, signal.SIGKILL)
    assert (
        text(waiting.wait())
        == "Internal: Stub process 'm_0' is not healthy. It was ended by SIGKILL (as the kernel does when memory runs out)"
    )


def test_closing_ends_what_is_open(serve: Serve) -> None:
    served = serve(MODEL)
    waiting = Waiting(results(served, "keep")[0])
    served.close()
    assert waiting.wait().error is not None


def test_many_threads_answer_many_requests(make: Serve) -> None:
    served = make("""
        import threading
        class TritonPythonModel:
            def execute(self, requests):
                for r in requests:
                    threading.Thread(target=self.work, args=(r.get_response_sender(), given(r))).start()
            def work(self, sender, array):
                sender.send(answer(tensor(array * 2)), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """)
    for number in range(100):
        waiting = [Waiting(result) if isinstance(result, AnswerLater) else result for result in served.run(request(), request())]
        for each in waiting:
            result = each.wait() if isinstance(each, Waiting) else each
            assert result.outputs[0].array.tolist() == [0, 2, 4], number


def test_requests_have_a_trace_that_is_not_traced(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                (r,) = requests
                assert isinstance(r.trace(), pb_utils.InferenceTrace)
                assert r.trace().get_context() is None
                pb_utils.InferenceRequest(model_name="x", inputs=[], requested_output_names=[], trace=r.trace())
                return [answer(tensor(given(r)))]
    """)
    assert served.output().tolist() == [0, 1, 2]

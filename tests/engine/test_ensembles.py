"""Requests to ensembles: what runs when, what is passed on, what the answer is."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from tpy.backend import ExecutionRequest, ExecutionResult
from tpy.config import RequestTimeout
from tpy.config.model_config import QueuePolicy, TensorReshape, TimeoutAction
from tpy.errors import Internal, InvalidArgument, NotFound
from tpy.messages import DataType, SequencePosition, Tensor
from tpy.testing.trio_clock import TrioClock
from tpy.units import NS_PER_MS

from .ensembles import CHAIN, MembersBackend, ensemble, inputs, outputs, plus, same, serve_all, step, submit
from .fakes import config, dynamic, replace, rig, tensor


async def test_a_chain(autojump_clock: MockClock) -> None:
    backend = MembersBackend({"a": plus(10), "b": plus(100)})
    async with rig(backend=backend, latency_ms=5) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        stream = submit(r, id="x")
        await trio.sleep(0.011)
        assert stream.values == [111]
        response = stream.responses[0]
        assert (response.model_name, response.model_version, response.id, response.final) == ("e", 1, "x", True)
        assert [output.name for output in response.outputs] == ["OUT"]
        assert response.parameters == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}


async def test_an_output_that_is_listed_twice_is_answered_once() -> None:
    """It came to a deadlock, or a stream without responses; the real server answers like this. TensorRT-LLM's ensemble is one."""
    twice = ensemble("e", step("a", "IN", "OUT"), output=outputs("OUT", "OUT"))
    async with rig(backend=MembersBackend({"a": plus(10)})) as r:
        await serve_all(r, config("a"), twice)
        for requested in ((), ("OUT",)):
            stream = submit(r, requested_outputs=requested)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert stream.values == [11]
            assert [output.name for output in stream.responses[0].outputs] == ["OUT"]


async def test_a_step_runs_as_soon_as_its_inputs_are_there(autojump_clock: MockClock) -> None:
    slow = {"slow_0_0": 50, "slow_0": 50}
    diamond = ensemble(
        "e",
        step("slow", "IN", "S"),
        step("a", "IN", "A"),
        step("b", "A", "B"),
        step("sum", {"IN0": "S", "IN1": "B"}, {"OUT0": "OUT", "OUT1": "OTHER"}),
        output=outputs("OUT", "OTHER"),
    )
    async with rig(backend=MembersBackend(), latency_ms=lambda worker: slow.get(worker, 5)) as r:
        two = config("sum", input=inputs("IN0", "IN1"), output=outputs("OUT0", "OUT1"))
        await serve_all(r, config("slow"), config("a"), config("b"), two, diamond)
        stream = submit(r)
        await trio.sleep(0.0551)
        assert stream.ended, "50 ms of the slow branch, with the other one beside it, and 5 of the last step"


async def test_only_what_was_asked_for_runs() -> None:
    backend = MembersBackend()
    both = ensemble("e", step("a", "IN", "X"), step("b", "IN", "OUT"), step("c", "X", "Y"), output=outputs("OUT", "Y"))
    async with rig(backend=backend) as r:
        await serve_all(r, config("a"), config("b"), config("c"), both)
        stream = submit(r, requested_outputs=("OUT",))
        await wait_all_tasks_blocked()
        assert [name for name, _ in backend.seen] == ["b"]
        assert [output.name for output in stream.responses[0].outputs] == ["OUT"]
        submit(r)
        await wait_all_tasks_blocked()
        assert sorted(name for name, _ in backend.seen[1:]) == ["a", "b", "c"]


async def test_the_parameters_of_a_request_apply_to_every_step() -> None:
    backend = MembersBackend()
    async with rig(backend=backend) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        position = SequencePosition(correlation_id=7, start=True)
        stream = submit(r, id="i", parameters={"k": 1}, sequence=position, priority=2, timeout_us=5_000_000)
        await wait_all_tasks_blocked()
        for _, seen in backend.seen:
            assert (seen.id, dict(seen.parameters), seen.sequence, seen.timeout_us) == ("i", {"k": 1}, position, 5_000_000)
            assert seen.requested_outputs == ("OUT",)
        assert stream.responses[0].parameters == {"sequence_id": 7, "sequence_start": True, "sequence_end": False}


async def test_a_step_continues_its_sequence() -> None:
    def answer(request: ExecutionRequest) -> ExecutionResult:
        return ExecutionResult(same(request).outputs, None, {"sequence_id": 9, "sequence_end": True, "other": 1})

    backend = MembersBackend({"a": answer})
    async with rig(backend=backend) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        stream = submit(r)
        await wait_all_tasks_blocked()
        assert backend.seen[1][1].sequence == SequencePosition(correlation_id=9, end=True)
        assert stream.responses[0].parameters == {"sequence_id": 9, "sequence_start": False, "sequence_end": True}


async def test_a_step_that_fails_ends_the_request_with_its_code() -> None:
    backend = MembersBackend({"a": lambda request: ExecutionResult(error=NotFound("no such thing"))})
    async with rig(backend=backend) as r:
        outer = ensemble("outer", step("e", "IN", "OUT"))
        await serve_all(r, config("a"), config("b"), CHAIN, outer)
        stream, nested = submit(r), submit(r, "outer")
        await wait_all_tasks_blocked()
        assert stream.errors == ["Not found: in ensemble 'e', no such thing"]
        assert nested.errors == ["Not found: in ensemble 'outer', in ensemble 'e', no such thing"]
        (counted,) = r.plane.statistics("e")
        assert (counted.inference.success.count, counted.inference.fail.count, counted.execution_count) == (0, 2, 0)
        assert counted.failures.other == 2


async def test_started_steps_finish_before_the_error_is_delivered(autojump_clock: MockClock) -> None:
    backend = MembersBackend({"a": lambda request: ExecutionResult(error=Internal("broke"))})
    both = ensemble("e", step("a", "IN", "OUT"), step("slow", "IN", "Y"), output=outputs("OUT", "Y"))
    async with rig(backend=backend, latency_ms=lambda worker: 50 if worker.startswith("slow") else 5) as r:
        await serve_all(r, config("a"), config("slow"), both)
        stream = submit(r)
        await trio.sleep(0.04)
        assert not stream.responses
        await trio.sleep(0.02)
        assert stream.errors == ["Internal: in ensemble 'e', broke"]
        assert r.plane.statistics("slow")[0].inference.success.count == 1


async def test_a_missing_output_may_be_an_optional_input_and_nothing_else() -> None:
    backend = MembersBackend({"none": lambda request: ExecutionResult()})
    lenient = config("lenient", input=inputs("IN") + inputs("MORE", optional=True))
    ok = ensemble("ok", step("none", "IN", "A"), step("lenient", {"IN": "IN", "MORE": "A"}, "OUT"))
    bad = ensemble("bad", step("none", "IN", "A"), step("b", "A", "OUT"))
    empty = ensemble("empty", step("none", "IN", "OUT"))
    async with rig(backend=backend) as r:
        await serve_all(r, config("none"), config("b"), lenient, ok, bad, empty)
        fine, refused, nothing = submit(r, "ok"), submit(r, "bad", id="x"), submit(r, "empty")
        await wait_all_tasks_blocked()
        assert fine.values == [1]
        assert list(backend.seen[-1][1].inputs) == ["IN"]
        (error,) = refused.errors
        assert error.startswith(
            "Invalid argument: in ensemble 'bad', [request id: x] expected 1 inputs but got 0 inputs for model 'b'. "
        )
        assert (nothing.responses[0].outputs, nothing.responses[0].parameters, nothing.ended) == ((), {}, True)


async def test_optional_inputs_of_the_ensemble() -> None:
    backend = MembersBackend()
    lenient = config("lenient", input=inputs("IN") + inputs("IN2", optional=True), output=outputs("OUT", "OUT2"))
    optional = ensemble(
        "e",
        step("lenient", {"IN": "IN", "IN2": "MAYBE"}, {"OUT": "OUT", "OUT2": "OUT2"}),
        input=inputs("IN") + inputs("MAYBE", optional=True),
        output=outputs("OUT", "OUT2"),
    )
    async with rig(backend=backend) as r:
        await serve_all(r, lenient, optional)
        without = submit(r)
        both = submit(r, inputs=(tensor(1, 2), tensor(1, 2, name="MAYBE", value=5)))
        await wait_all_tasks_blocked()
        assert [output.name for output in without.responses[0].outputs] == ["OUT"]
        assert [output.name for output in both.responses[0].outputs] == ["OUT", "OUT2"]


async def test_models_that_batch_and_models_that_do_not() -> None:
    backend = MembersBackend()
    async with rig(backend=backend) as r:
        plain = config("plain", max_batch_size=0)
        rows = config("rows", max_batch_size=0, input=inputs("IN", dims=(-1, 2)), output=outputs("OUT", dims=(-1, 2)))
        mixed = ensemble("mixed", step("plain", "IN", "A"), step("a", "A", "OUT"))
        wide = ensemble("wide", step("rows", "IN", "A"), step("a", "A", "OUT"))
        flat = ensemble("flat", step("a", "IN", "OUT"), max_batch_size=0)
        await serve_all(r, config("a"), plain, rows, mixed, wide, flat)
        one, many, bare = submit(r, "mixed"), submit(r, "wide", inputs=(tensor(3, 2),)), submit(r, "flat", inputs=(tensor(2),))
        await wait_all_tasks_blocked()
        shapes = [seen.inputs["IN"].array.shape for _, seen in backend.seen]
        assert sorted(shapes) == [(1, 2), (1, 2), (2,), (3, 2), (3, 2)]
        assert one.responses[0].outputs[0].array.shape == (1, 2)
        assert many.responses[0].outputs[0].array.shape == (3, 2)
        assert bare.responses[0].outputs[0].array.shape == (2,)


async def test_tensors_are_let_go_when_no_step_needs_them(autojump_clock: MockClock) -> None:
    alive: list[weakref.ref[object]] = []

    def remember(request: ExecutionRequest) -> ExecutionResult:
        array = np.full((1, 2), 5, np.float32)
        alive.append(weakref.ref(array))
        return ExecutionResult([Tensor("OUT", DataType.FP32, array)])

    chain = ensemble(
        "e", *(step(name, reads, writes) for name, reads, writes in zip("abcd", ["IN", *"ABC"], [*"ABC", "OUT"], strict=True))
    )
    backend = MembersBackend(dict.fromkeys("abc", remember))
    backend.batches = backend.seen = _Forgetful()  # type: ignore[assignment]  # they would keep everything
    async with rig(backend=backend, latency_ms=10) as r:
        await serve_all(r, *(config(name) for name in "abcd"), chain)
        stream = submit(r)
        await trio.sleep(0.0351)  # d runs, with what c has made
        gc.collect()
        assert [ref() is not None for ref in alive] == [False, False, True]
        await trio.sleep(0.01)
        assert stream.ended


async def test_cancelling_reaches_the_step_that_runs(autojump_clock: MockClock) -> None:
    backend = MembersBackend()
    async with rig(backend=backend, latency_ms=10) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        stream = submit(r)
        await trio.sleep(0.005)
        assert stream.handle is not None
        stream.handle.cancel()
        stream.handle.cancel()
        await trio.sleep(0.05)
        assert not stream.responses
        assert [name for name, _ in backend.seen] == ["a"]
        assert backend.seen[0][1].is_cancelled()
        assert [r.plane.statistics(name)[0].failures.canceled for name in ("e", "a")] == [1, 1]


@pytest.mark.parametrize("kind", ["timeout", "deadline"])
async def test_a_deadline_counts_for_all_steps_together(autojump_clock: MockClock, kind: str) -> None:
    async with rig(backend=MembersBackend(), latency_ms=10) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        deadline_ns = TrioClock(autojump_clock).now_ns() + 15 * NS_PER_MS
        stream = submit(r, timeout_us=15_000) if kind == "timeout" else submit(r, deadline_ns=deadline_ns)
        await trio.sleep(0.0151)
        assert stream.errors == ["Unavailable: in ensemble 'e', Request timeout expired"]


async def test_by_default_a_timeout_counts_in_the_queue_of_each_step(autojump_clock: MockClock) -> None:
    """As in Triton, a step's DELAY only moves the request back, and one that executes goes on."""
    delaying = QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_microseconds=10**7, allow_timeout_override=True)
    refusing = replace(delaying, timeout_action=TimeoutAction.REJECT)
    for policy, errors in ((delaying, []), (refusing, ["Unavailable: in ensemble 'e', Request timeout expired"])):
        async with rig(backend=MembersBackend(), latency_ms=10, request_timeout=RequestTimeout.QUEUE) as r:
            member = config("a", dynamic_batching=dynamic(default_queue_policy=policy), max_batch_size=1)
            await serve_all(r, member, config("b"), replace(CHAIN, max_batch_size=1))
            first, second = submit(r, timeout_us=5_000), submit(r, timeout_us=5_000)
            await trio.sleep(0.1)
            assert (first.errors, second.errors) == ([], errors)
            assert len(first.responses) == len(second.responses) == 1


async def test_a_full_queue_of_a_member_is_the_step_s_error() -> None:
    backend = MembersBackend()
    async with rig(backend=backend, latency_ms=10) as r:
        short = config("a", dynamic_batching=dynamic(default_queue_policy=QueuePolicy(max_queue_size=1)), max_batch_size=1)
        await serve_all(r, short, config("b"), replace(CHAIN, max_batch_size=1))
        streams = [submit(r, id="x") for _ in range(9)]
        refused = [stream for stream in streams if stream.responses]
        assert refused
        assert refused[0].errors == ["Unavailable: in ensemble 'e', [request id: x] Exceeds maximum queue size"]


async def test_statistics_add_up_the_steps(autojump_clock: MockClock) -> None:
    async with rig(backend=MembersBackend(), latency_ms=10) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        submit(r, inputs=(tensor(3, 2),))
        await trio.sleep(0.05)
        (counted,) = r.plane.statistics("e")
        inference = counted.inference
        assert (counted.inference_count, counted.execution_count, inference.success.count) == (3, 1, 1)
        assert (inference.success.ns, inference.queue.ns, inference.compute_infer.ns) == (20_000_000, 0, 20_000_000)
        assert [(batch.batch_size, batch.compute_infer.ns) for batch in counted.batches] == [(3, 20_000_000)]
        assert [r.plane.statistics(name)[0].execution_count for name in ("a", "b")] == [1, 1]


async def test_reshape_of_the_ensemble_and_of_its_members() -> None:
    backend = MembersBackend()
    square = TensorReshape(shape=(1, 2))
    inner = config("a", input=inputs("IN", reshape=square), output=outputs("OUT", reshape=square))
    outer = ensemble(
        "e",
        step("a", "IN", "OUT"),
        input=inputs("IN", dims=(2, 1), reshape=TensorReshape(shape=(2,))),
        output=outputs("OUT", dims=(2, 1), reshape=TensorReshape(shape=(2,))),
    )
    async with rig(backend=backend) as r:
        await serve_all(r, inner, outer)
        stream = submit(r, inputs=(tensor(1, 2, 1),))
        await wait_all_tasks_blocked()
        assert backend.seen[0][1].inputs["IN"].array.shape == (1, 1, 2)
        assert stream.responses[0].outputs[0].array.shape == (1, 2, 1)


async def test_bytes_go_through() -> None:
    text = {"data_type": DataType.BYTES}
    backend = MembersBackend()
    async with rig(backend=backend) as r:
        member = config("a", input=inputs("IN", **text), output=outputs("OUT", **text))
        await serve_all(
            r, member, ensemble("e", step("a", "IN", "OUT"), input=inputs("IN", **text), output=outputs("OUT", **text))
        )
        given = Tensor("IN", DataType.BYTES, np.array([[b"x", "\u00e9".encode()]], object))
        stream = submit(r, inputs=(given,))
        await wait_all_tasks_blocked()
        assert stream.responses[0].outputs[0].array is given.array, "passed on, not copied"


async def test_many_steps_that_answer_at_once_do_not_pile_up_on_the_stack() -> None:
    names = [f"T{number}" for number in range(400)]
    long = ensemble("e", *(step("a", reads, writes) for reads, writes in zip(["IN", *names], [*names, "OUT"], strict=True)))
    async with rig(backend=MembersBackend()) as r:
        await serve_all(r, config("a"), long)
        stream = submit(r)
        await wait_all_tasks_blocked()
        assert stream.values == [1]


async def test_what_contradicts_the_ensemble_is_refused_on_arrival() -> None:
    async with rig(backend=MembersBackend()) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        with pytest.raises(InvalidArgument, match="unexpected shape for input 'IN' for model 'e'"):
            submit(r, inputs=(tensor(1, 3),))
        with pytest.raises(InvalidArgument, match="unexpected inference output 'A' for model 'e'"):
            submit(r, requested_outputs=("A",))


class _Forgetful(list[object]):
    def append(self, _: object) -> None:
        pass

    def extend(self, _: object) -> None:
        pass


async def test_a_full_queue_of_a_step_says_when_to_come_again(autojump_clock: MockClock) -> None:
    policy = QueuePolicy(max_queue_size=1)
    async with rig(backend=MembersBackend(), latency_ms=3000) as r:
        member = config("a", max_batch_size=1, dynamic_batching=dynamic(default_queue_policy=policy))
        await serve_all(r, member, ensemble("e", step("a", "IN", "OUT"), max_batch_size=1))
        await trio.lowlevel.checkpoint()
        streams = [submit(r) for _ in range(3)]
        await wait_all_tasks_blocked()
        error = streams[-1].responses[0].error
        assert error is not None
        assert "Exceeds maximum queue size" in error.message
        assert error.wait_s is not None

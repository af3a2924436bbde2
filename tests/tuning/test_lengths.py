"""Batches by length: the choice, the parameters, the core and a model. Decisions are compared with a naive scheduler by the fuzz
targets `scheduler_lengths*`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from fuzz.schedulers.length_targets import best_choice
from tests.engine.fakes import config, dynamic, request, rig
from tests.tuning.lengths import SENTENCES, Sentence, by_length, in_order_of_arrival, serve
from tpy.backend import BackendCapabilities, ExecutionBatch, ExecutionResult
from tpy.config import validate
from tpy.config.model_config import ModelConfig, ModelInput, ModelParameter, TensorReshape
from tpy.config.tuned_batching import LengthBatching, length_batching, tuned_batching
from tpy.messages import DataType, LengthActivity
from tpy.tenants import TenantRules
from tpy.units import NS_PER_MS
from tpy_data.schedulers.core import make_core
from tpy_data.schedulers.core.contract import Dispatch, SchedulerCore, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.length_choice import together
from tpy_data.schedulers.core.length_cores import LengthDynamicCore, LengthFairCore
from tpy_data.schedulers.core.rate_limiter import Supply
from tpy_data.schedulers.core.tenants import tenants_of
from tpy_data.schedulers.core.tuned_cores import TunedDynamicCore
from tpy_tools.commands.explain.core.model import lines_of

IDS = ModelInput(name="IDS", data_type=DataType.INT64, dims=(-1,), allow_ragged_batch=True)
MASK = ModelInput(name="MASK", data_type=DataType.INT64, dims=(2, -1), allow_ragged_batch=True)
EXTRA = ModelInput(name="EXTRA", data_type=DataType.INT64, dims=(-1,), allow_ragged_batch=True, optional=True)
FLAT = ModelInput(name="FLAT", data_type=DataType.INT64, dims=(-1,))


def ragged_config(inputs: Sequence[ModelInput] = (IDS, MASK), *, batching: str = "auto", **parameters: str) -> ModelConfig:
    """Of a model with these parameters, `max_padding` 0.2 unless they say otherwise."""
    values = {"batching": batching, "max_padding": "0.2", **parameters}
    return config(
        input=tuple(inputs),
        dynamic_batching=dynamic(),
        parameters={name: ModelParameter(string_value=value) for name, value in values.items() if value},
    )


# the choice


def tickets_of(*lengths: int, rows: Sequence[int] = ()) -> list[Ticket]:
    tickets = [Ticket(batch_size=count) for count in rows or [1] * len(lengths)]
    for ticket, length in zip(tickets, lengths, strict=True):
        ticket.length = length
    return tickets


def lengths_of(tickets: Sequence[Ticket]) -> list[int]:
    return [ticket.length for ticket in tickets]


@pytest.mark.parametrize(
    ("lengths", "rows_max", "padding", "chosen"),
    [
        ([5], 4, 0.0, [5]),
        ([5, 50, 5, 6, 5], 4, 0.0, [5, 5, 5]),
        ([5, 50, 5, 6, 5], 4, 0.125, [5, 5, 6, 5]),
        ([5, 50, 5, 6, 5], 5, 1.0, [5, 50, 5, 6, 5]),
        ([10, 1, 9, 2, 8, 11], 3, 0.5, [10, 9, 8]),
        ([10, 20, 20, 20, 20, 20, 20], 8, 0.2, [10, 20, 20, 20, 20, 20, 20]),  # one short row beside six long ones
        ([10, 20], 8, 0.2, [10]),
        ([0, 0, 7], 8, 0.0, [0, 0]),
        ([7, 7, 7, 7], 2, 0.0, [7, 7]),
    ],
)
def test_the_first_and_what_is_about_as_long(lengths: list[int], rows_max: int, padding: float, chosen: list[int]) -> None:
    assert lengths_of(together(tickets_of(*lengths), rows_max, int(padding * 1_000_000))) == chosen


def test_of_equal_ones_the_first_go() -> None:
    tickets = tickets_of(5, 3, 3, 3, 5, 5)
    assert together(tickets, 4, 400_000) == [tickets[index] for index in (0, 1, 4, 5)]


def test_a_request_as_large_as_a_batch_goes_alone() -> None:
    tickets = tickets_of(5, 5, rows=[8, 1])
    assert together(tickets, 8, 1_000_000) == tickets[:1]


def test_a_request_that_is_too_large_is_passed_over() -> None:
    tickets = tickets_of(10, 10, 11, 11, 9, 9, 9, rows=[1, 8, 2, 5, 7, 1, 1])
    assert together(tickets, 8, 200_000) == [tickets[index] for index in (0, 2, 3)]
    assert together(tickets[:2] + tickets[4:], 8, 200_000) == [tickets[0], tickets[4]]
    assert together(tickets[:2] + tickets[5:], 8, 200_000) == [tickets[0], *tickets[5:]]


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), min_size=1, max_size=9),
    st.integers(1, 10),
    st.integers(0, 1_000_000),
)
def test_no_other_choice_is_better(requests: list[tuple[int, int]], rows_max: int, padding_ppm_max: int) -> None:
    tickets = tickets_of(*[length for length, _ in requests], rows=[rows for _, rows in requests])
    chosen = together(tickets, rows_max, padding_ppm_max)
    assert set(chosen) == set(best_choice(tickets, rows_max, padding_ppm_max))
    assert chosen == [ticket for ticket in tickets if ticket in chosen]


class Compared:
    """A signature that counts how often it is compared: once for each request that is looked at."""

    def __init__(self) -> None:
        self.count = 0

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        self.count += 1
        return self is other


def batches_of(lengths: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Batches of at most 128 rows without padding: how many requests each has, and of how many it was chosen."""
    core = LengthDynamicCore(DynamicOptions(batch_size_max=128, preferred=frozenset({128})), 0)
    signature = Compared()
    for ticket in tickets_of(*lengths):
        ticket.signature = signature
        core.submit(ticket, 0)
    core.add_instance(0, 0)
    batches: list[tuple[int, int]] = []
    for _ in range(count):
        [batch] = [batch for action in core.take_actions() if isinstance(action, Dispatch) for batch in action.batches]
        batches.append((len(batch), signature.count))
        signature.count = 0
        core.done(0, 0, (0,))
    return batches


def test_fewer_are_looked_at_where_few_are_alike() -> None:
    batches = batches_of(range(1500), 100)
    assert max(looked for _, looked in batches) == 1024
    assert sum(looked for _, looked in batches) <= 230 * 100  # the first ones, and one in 16


def test_all_are_looked_at_where_many_are_alike() -> None:
    batches = batches_of([number % 30 for number in range(3000)], 30)
    assert all(size >= 34 and looked == 1024 for size, looked in batches)


def test_more_are_looked_at_once_more_are_alike() -> None:
    batches = batches_of([*range(800), *[800 + number % 100 for number in range(2500)]], 850)
    assert all(looked == 128 for _, looked in batches[600:608])
    assert all(looked == 1024 for _, looked in batches[820:])


# the parameters


@pytest.mark.parametrize(
    ("inputs", "parameters", "expected"),
    [
        ((IDS, MASK), {}, LengthBatching(200_000, "IDS", 1)),
        ((IDS, MASK), {"padding_input": "MASK", "max_padding": "0"}, LengthBatching(0, "MASK", 2)),
        ((EXTRA, FLAT, IDS), {"max_padding": "1"}, LengthBatching(1_000_000, "IDS", 1)),
        (
            (msgspec.structs.replace(IDS, reshape=TensorReshape(shape=(3, -1)), dims=(-1, 3)),),
            {},
            LengthBatching(200_000, "IDS", 2),
        ),
        ((FLAT, EXTRA), {}, None),
        ((IDS,), {"max_padding": ""}, None),
        ((IDS,), {"max_padding": "1.5"}, None),
        ((IDS,), {"batching": ""}, None),
        ((IDS,), {"padding_input": "nothing"}, None),
    ],
)
def test_the_lengths_of_a_model(
    inputs: Sequence[ModelInput], parameters: dict[str, str], expected: LengthBatching | None
) -> None:
    assert length_batching(ragged_config(inputs, **parameters)) == expected


@pytest.mark.parametrize(
    ("inputs", "parameters", "warnings"),
    [
        ((IDS, MASK), {}, []),
        (
            (IDS,),
            {"max_padding": "20 %"},
            ["max_padding of m has the unexpected value '20 %', expected a share from 0 to 1: batches are not formed by length"],
        ),
        (
            (IDS,),
            {"max_padding": "20"},
            ["max_padding of m has the unexpected value '20', expected a share from 0 to 1: batches are not formed by length"],
        ),
        (
            (FLAT, EXTRA),
            {},
            [
                (
                    "max_padding of m needs an input with allow_ragged_batch, a variable dimension and without optional: batches "
                    "are not formed by length"
                )
            ],
        ),
        (
            (IDS, FLAT),
            {"padding_input": "FLAT"},
            [
                (
                    "padding_input of m names 'FLAT', and needs an input with allow_ragged_batch, a variable dimension and "
                    "without optional: batches are not formed by length"
                )
            ],
        ),
        (
            (IDS, FLAT),
            {"padding_input": "ids"},
            [
                (
                    "padding_input of m has the unexpected value 'ids', expected the name of an input (FLAT, IDS): batches are "
                    "not formed by length"
                )
            ],
        ),
        ((IDS,), {"batching": ""}, ["max_padding of m has no effect without the parameter batching: auto"]),
        (
            (IDS,),
            {"max_padding": "", "padding_input": "IDS"},
            ["padding_input of m has no effect without the parameter max_padding"],
        ),
        (
            (IDS,),
            {"target_p99_ms": "20"},
            ["target_p99_ms of m has no effect beside max_padding: batches are formed by length, and wait for nothing"],
        ),
    ],
)
def test_what_has_no_effect_is_warned_of(inputs: Sequence[ModelInput], parameters: dict[str, str], warnings: list[str]) -> None:
    found = [each.message for each in validate(ragged_config(inputs, **parameters)) if "parameter " in each.message]
    assert [message.removeprefix("parameter ") for message in found] == warnings


def test_the_core_of_a_model() -> None:
    assert isinstance(make_core(ragged_config()), LengthDynamicCore)
    assert isinstance(make_core(ragged_config(), tenants=tenants_of([TenantRules(name="a")])), LengthFairCore)
    assert isinstance(make_core(ragged_config((FLAT,))), TunedDynamicCore)
    assert tuned_batching(ragged_config()) is None
    assert tuned_batching(ragged_config((FLAT,))) is not None


# the core


def dispatched(core: SchedulerCore) -> list[list[int]]:
    """The lengths in the batches that were given to instances."""
    actions = [action for action in core.take_actions() if isinstance(action, Dispatch)]
    return [lengths_of(batch) for action in actions for batch in action.batches]


def test_a_rare_length_waits_for_no_more_batches_than_requests_were_before_it() -> None:
    core = by_length(0)
    core.submit(Sentence(1, 0), 0)
    core.submit(Sentence(2, 0), 0)
    core.submit(Sentence(99, 0), 0)
    core.add_instance(0, 0)
    batches = dispatched(core)
    for now_ns in range(1, 3):  # more of the others come than an instance can ever execute
        for _ in range(100):
            core.submit(Sentence(1, now_ns), now_ns)
            core.submit(Sentence(2, now_ns), now_ns)
        core.done(0, now_ns, (1,))
        batches += dispatched(core)
    assert [batch[0] for batch in batches] == [1, 2, 99]
    assert [len(batch) for batch in batches] == [1, 32, 1]


class Picky:
    """A strategy that wants three requests at most."""

    def __init__(self) -> None:
        self.count = 0
        self.ended = 0

    def begin(self) -> None:
        self.count = 0

    def include(self, ticket: Ticket) -> bool:
        self.count += 1
        return self.count <= 3

    def end(self) -> None:
        self.ended += 1


def test_a_strategy_leaves_out_some_of_the_chosen_ones() -> None:
    strategy = Picky()
    core = LengthDynamicCore(DynamicOptions(batch_size_max=8, preferred=frozenset({8})), 0, strategy=strategy)
    for length in (5, 9, 5, 5, 5, 5):
        core.submit(Sentence(length, 0), 0)
    core.add_instance(0, 0)
    assert dispatched(core) == [[5, 5, 5]]
    core.done(0, 1, (1,))
    assert dispatched(core) == [[9]]
    core.done(0, 2, (1,))
    assert dispatched(core) == [[5, 5]]
    assert strategy.ended == 3


# what it gains, where a batch costs as much as its tokens with their padding


@pytest.mark.parametrize("clients", [64, 128])
@pytest.mark.parametrize("batch_ns", [0, 30 * NS_PER_MS])
def test_real_sentences_are_served_faster_than_in_order_of_arrival(clients: int, batch_ns: int) -> None:
    by_arrival, ours = (
        serve(core, clients, batches=200, batch_ns=batch_ns) for core in (in_order_of_arrival(), by_length(200_000))
    )
    assert ours.per_s > 1.6 * by_arrival.per_s
    assert ours.padding <= 0.2 < 0.5 < by_arrival.padding
    assert ours.mean_ns < 0.7 * by_arrival.mean_ns
    assert ours.rare_p99_ns < 1.5 * by_arrival.rare_p99_ns


def test_the_lengths_are_those_of_sentences() -> None:
    assert len(SENTENCES) == 64
    assert sorted(SENTENCES) == list(SENTENCES)


# a model


def no_outputs(batch: ExecutionBatch) -> list[ExecutionResult]:
    """An answer for each request, whatever it holds."""
    return [ExecutionResult(()) for _ in batch.requests]


@pytest.mark.parametrize("rate_limit", [None, Supply()])
async def test_a_model_gets_batches_of_about_one_length(rate_limit: Supply | None, autojump_clock: MockClock) -> None:
    async with rig(latency_ms=10, rate_limit=rate_limit) as r:
        r.backend.execute = no_outputs
        r.backend.capabilities = BackendCapabilities(name="fake", default_model_filename="model.fake", ragged=True)
        in_ = ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,), allow_ragged_batch=True)
        await r.serve(ragged_config((in_,)))
        sinks = [r.submit(request(rows, length)) for rows, length in ((1, 9), (1, 50), (2, 9), (1, 48), (1, 10), (1, 9))]
        for sink in sinks:
            await sink.wait()
        (explanation,) = r.plane.explain("m")
    shapes = [[each.inputs["IN"].array.shape for each in batch.requests] for batch in r.backend.batches]
    assert shapes == [[(1, 9)], [(1, 50), (1, 48)], [(2, 9), (1, 10), (1, 9)]]
    padding = (50 - 48 + 3) / (9 + 100 + 40)
    assert explanation.activity.queue.lengths == LengthActivity(max_padding=0.2, padding=padding)
    assert explanation.activity.queue.tuning is None
    assert "  lengths     max_padding 0.2; of all that was executed 3% was padding" in list(lines_of(explanation))

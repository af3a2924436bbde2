"""The state machines of the sequence core: any history, compared with its reference in virtual time.

The invariant and all checks are in fuzz/schedulers/sequence_trial.py; here Hypothesis chooses the history and shrinks what fails.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fuzz.schedulers.sequence_trial import SequenceTrial
from tpy.messages import SequencePosition
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.factory import sequence_core
from tpy_data.schedulers.core.overlap import OverlapTerms
from tpy_data.schedulers.core.sequence_options import DirectOptions, SequenceOptions

SLOTS_MAX = 4

direct = st.builds(DirectOptions, queue_delay_ns_max=st.sampled_from((0, 3, 10)), ready_min=st.integers(0, SLOTS_MAX))
with_preferences = st.builds(
    DynamicOptions,
    batch_size_max=st.just(SLOTS_MAX),
    preferred=st.frozensets(st.integers(1, SLOTS_MAX), min_size=1, max_size=2),
    queue_delay_ns_max=st.sampled_from((0, 3, 10)),
)
halving = st.builds(
    DynamicOptions,
    batch_size_max=st.just(SLOTS_MAX),
    preferred=st.just(frozenset({SLOTS_MAX})),
    overlap=st.builds(
        OverlapTerms,
        requests_min=st.just(2),
        convoys_min=st.just(1),
        batches_max=st.integers(1, 4),
        trial_batches=st.integers(1, 2),
    ),
)
oldest = with_preferences | halving
positions = st.builds(
    SequencePosition, correlation_id=st.sampled_from((1, 2, 3, 4, "1", 0)), start=st.booleans(), end=st.booleans()
)


def options_with(
    strategy: st.SearchStrategy[DirectOptions] | st.SearchStrategy[DynamicOptions],
) -> st.SearchStrategy[SequenceOptions]:
    return st.builds(
        SequenceOptions,
        model_name=st.just("m"),
        slots=st.integers(1, SLOTS_MAX),
        idle_ns_max=st.sampled_from((5, 20)),
        iterative=st.booleans(),
        strategy=strategy,
        live_max=st.sampled_from((4, 100)),
        waiting_max=st.sampled_from((6, 100)),
    )


class SequenceMachine(RuleBasedStateMachine):
    """The rules of both strategies. Between two rules any time may pass, whether the driver's timer woke up or not."""

    trial: SequenceTrial | None = None

    def begin(self, options: SequenceOptions) -> None:
        self.trial = SequenceTrial(sequence_core(options), options)
        self.trial.add_instance()

    @property
    def running(self) -> SequenceTrial:
        assert self.trial is not None
        return self.trial

    @rule(
        position=st.one_of(positions, positions, st.none()),
        signature=st.sampled_from("aab"),
        timeout_ns=st.sampled_from((0, 0, 2, 8)),
        deadline_in_ns=st.sampled_from((None, None, 0, 7)),
    )
    def submit(self, position: SequencePosition | None, signature: str, timeout_ns: int, deadline_in_ns: int | None) -> None:
        self.running.submit(position, signature=signature, timeout_ns=timeout_ns, deadline_in_ns=deadline_in_ns)

    @rule(id=st.sampled_from((1, 2, 3, 4)), follow_ups=st.integers(0, 3))
    def submit_sequence(self, id: int, follow_ups: int) -> None:
        self.running.submit(SequencePosition(correlation_id=id, start=True))
        for _ in range(follow_ups):
            if self.running.reference.open_chain(id) is not None:
                self.running.submit(SequencePosition(correlation_id=id))

    @precondition(lambda self: self.trial and self.trial.accepted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.running.cancel(data.draw(st.sampled_from(self.running.accepted)))

    @precondition(lambda self: self.trial and self.trial.busy)
    @rule(data=st.data(), rescheduled=st.integers(0, 2), took_ns=st.sampled_from((0, 1, 2, 12)))
    def complete(self, data: st.DataObject, rescheduled: int, took_ns: int) -> None:
        instance = data.draw(st.sampled_from(sorted(self.running.busy)))
        for ticket in self.running.busy[instance][:rescheduled]:
            self.running.reschedule(ticket)
        self.running.complete(instance, took_ns=took_ns)

    @rule(elapsed_ns=st.sampled_from((1, 2, 4, 12)))
    def pass_time(self, elapsed_ns: int) -> None:
        self.running.now_ns += elapsed_ns

    @rule()
    def advance(self) -> None:
        self.running.advance()

    @rule()
    def advance_to_deadline(self) -> None:
        self.running.advance_to_deadline()

    @rule()
    def add_instance(self) -> None:
        self.running.add_instance()

    @precondition(lambda self: self.trial and self.trial.members + self.trial.retiring)
    @rule(data=st.data())
    def remove_instance(self, data: st.DataObject) -> None:
        self.running.remove_instance(data.draw(st.sampled_from(self.running.members + self.running.retiring)))

    @precondition(lambda self: self.trial and self.trial.members)
    @rule(data=st.data())
    def retire_instance(self, data: st.DataObject) -> None:
        self.running.retire_instance(data.draw(st.sampled_from(self.running.members)))

    @precondition(lambda self: self.trial and self.trial.submitted > 10)
    @rule()
    def refuse_waiting(self) -> None:
        self.running.refuse_waiting()

    @precondition(lambda self: self.trial and self.trial.submitted > 20)
    @rule()
    def stop(self) -> None:
        self.running.stop()

    def teardown(self) -> None:
        if self.trial is not None:
            self.trial.finish()


class DirectMachine(SequenceMachine):
    @initialize(options=options_with(direct))
    def start(self, options: SequenceOptions) -> None:
        self.begin(options)


class OldestMachine(SequenceMachine):
    @initialize(options=options_with(oldest))
    def start(self, options: SequenceOptions) -> None:
        self.begin(options)


machine_settings = settings(max_examples=25, stateful_step_count=40, database=None)
TestDirectSequences = DirectMachine.TestCase
TestDirectSequences.settings = machine_settings
TestOldestSequences = OldestMachine.TestCase
TestOldestSequences.settings = machine_settings

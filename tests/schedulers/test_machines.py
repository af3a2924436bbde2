"""One state machine per core: any history, compared with the reference scheduler in virtual time.

The invariant and all checks are in fuzz/schedulers/trial.py; here Hypothesis chooses the history and shrinks what fails.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fuzz.schedulers.trial import Trial
from tpy.config.model_config import TimeoutAction
from tpy.limits import QUICK_BATCHES_NS_MAX, UNREPORTED_NS_MAX
from tpy_data.schedulers.core.contract import SchedulerCore
from tpy_data.schedulers.core.default import DefaultCore
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules
from tpy_data.schedulers.core.overlap import OverlapTerms

BATCH_SIZE_MAX = 8
NO_TIME_PASSES = 0
TIMES_TAKEN_NS = (0, 1, 2, 12, QUICK_BATCHES_NS_MAX + 1)

rules_of_a_level = st.builds(
    QueueRules,
    timeout_action=st.sampled_from(TimeoutAction),
    default_timeout_ns=st.sampled_from((0, 4, 9)),
    allow_timeout_override=st.booleans(),
    queue_size_max=st.sampled_from((0, 2, 5)),
)
overlap_terms = st.builds(
    OverlapTerms,
    requests_min=st.integers(2, 3),
    convoys_min=st.integers(1, 2),
    batches_max=st.integers(1, 4),
    trial_batches=st.integers(1, 2),
)


@st.composite
def dynamic_options(draw: st.DrawFn) -> DynamicOptions:
    batch_size_max = draw(st.integers(1, BATCH_SIZE_MAX))
    levels = draw(st.lists(rules_of_a_level, min_size=1, max_size=3))
    preferred = draw(st.frozensets(st.integers(1, batch_size_max), min_size=1, max_size=2))
    queue_delay_ns_max = draw(st.sampled_from((0, 3, 10)))
    takes_what_waits = preferred == {batch_size_max} and queue_delay_ns_max == 0
    return DynamicOptions(
        batch_size_max=batch_size_max,
        preferred=preferred,
        queue_delay_ns_max=queue_delay_ns_max,
        preserve_ordering=draw(st.booleans()),
        levels=tuple(levels),
        default_level=draw(st.integers(0, len(levels) - 1)),
        overlap=draw(st.none() | overlap_terms) if takes_what_waits else None,
    )


class SchedulerMachine(RuleBasedStateMachine):
    """The rules that both machines share. Between two rules any time may pass, whether the driver's timer woke up or not."""

    trial: Trial | None = None

    def begin(self, core: SchedulerCore, options: DynamicOptions, *, credit: bool = False) -> None:
        self.trial = Trial(core, options, credit=credit)
        self.trial.add_instance(prefetch=credit)

    @property
    def running(self) -> Trial:
        assert self.trial is not None
        return self.trial

    @rule(
        batch_size=st.integers(1, BATCH_SIZE_MAX),
        signature=st.sampled_from("ab"),
        priority=st.integers(0, 4),
        timeout_ns=st.sampled_from((0, 2, 5, 8)),
        deadline_in_ns=st.sampled_from((None, 0, 3, 7)),
    )
    def submit(self, batch_size: int, signature: str, priority: int, timeout_ns: int, deadline_in_ns: int | None) -> None:
        self.running.submit(
            batch_size=min(batch_size, self.running.options.batch_size_max),
            signature=signature,
            priority=priority,
            timeout_ns=timeout_ns,
            deadline_in_ns=deadline_in_ns,
        )

    @rule(count=st.integers(2, 6))
    def submit_many_alike(self, count: int) -> None:
        self.running.submit_alike(count)

    @precondition(lambda self: self.trial and self.trial.accepted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.running.cancel(data.draw(st.sampled_from(self.running.accepted)))

    @precondition(lambda self: self.trial and self.trial.busy)
    @rule(data=st.data(), times_ns=st.lists(st.sampled_from(TIMES_TAKEN_NS), min_size=1, max_size=4))
    def complete(self, data: st.DataObject, times_ns: list[int]) -> None:
        self.running.complete(data.draw(st.sampled_from(sorted(self.running.busy))), *times_ns)

    @rule(elapsed_ns=st.sampled_from((1, 2, 4, 12, UNREPORTED_NS_MAX)))
    def pass_time(self, elapsed_ns: int) -> None:
        self.running.now_ns += elapsed_ns

    @rule()
    def advance(self) -> None:
        self.running.advance()

    @rule()
    def advance_to_deadline(self) -> None:
        self.running.advance_to_deadline()

    @rule()
    def recall(self) -> None:
        self.running.recall()

    @rule()
    def add_instance(self) -> None:
        self.running.add_instance(prefetch=self.running.credit, credit=1 if self.running.credit else 2)

    @precondition(lambda self: self.trial and self.trial.members)
    @rule(data=st.data())
    def remove_instance(self, data: st.DataObject) -> None:
        self.running.remove_instance(data.draw(st.sampled_from(self.running.members)))

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


class DefaultMachine(SchedulerMachine):
    @initialize()
    def start(self) -> None:
        self.begin(DefaultCore(), DynamicOptions(), credit=True)


class DynamicMachine(SchedulerMachine):
    @initialize(options=dynamic_options())
    def start(self, options: DynamicOptions) -> None:
        self.begin(DynamicCore(options), options)


machine_settings = settings(max_examples=25, stateful_step_count=40, database=None)
TestDefaultCore = DefaultMachine.TestCase
TestDefaultCore.settings = machine_settings
TestDynamicCore = DynamicMachine.TestCase
TestDynamicCore.settings = machine_settings

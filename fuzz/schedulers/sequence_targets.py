"""The targets of sequences: seeded histories of their core against the reference."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.chance import Chance
from fuzz.schedulers.sequence_trial import INVARIANT, SequenceTrial
from fuzz.schedulers.targets import TIMES_TAKEN_NS, VERBS
from fuzz.schedulers.trial import HALVED
from fuzz.target import Target
from tpy.messages import SequencePosition
from tpy_data.schedulers.core.contract import Action, Outcome, Refuse, SchedulerCore, SequenceEnd, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.factory import sequence_core
from tpy_data.schedulers.core.overlap import OverlapTerms
from tpy_data.schedulers.core.sequence_batcher import OldestBatcher
from tpy_data.schedulers.core.sequence_core import SequenceCore
from tpy_data.schedulers.core.sequence_options import DirectOptions, SequenceOptions

RULES = (*VERBS, *(outcome.name for outcome in Outcome), *(end.name for end in SequenceEnd))


def direct_options(chance: Chance) -> SequenceOptions:
    """Small numbers, so that limits are met often."""
    slots = chance.choice((1, 2, 3, 4))
    strategy = DirectOptions(queue_delay_ns_max=chance.choice((0, 3, 10)), ready_min=chance.randint(0, slots))
    return _options(chance, slots, strategy)


def oldest_options(chance: Chance) -> SequenceOptions:
    """Small numbers, so that limits are met often."""
    if chance.random() < 0.3:
        terms = OverlapTerms(
            requests_min=2, convoys_min=1, batches_max=chance.choice((1, 3, 6)), trial_batches=chance.choice((1, 2))
        )
        return _options(chance, 6, DynamicOptions(batch_size_max=6, preferred=frozenset({6}), overlap=terms))
    batch_size_max = chance.choice((1, 2, 4))
    strategy = DynamicOptions(
        batch_size_max=batch_size_max,
        preferred=frozenset({chance.randint(1, batch_size_max), chance.randint(1, batch_size_max)}),
        queue_delay_ns_max=chance.choice((0, 0, 3, 10)),
    )
    return _options(chance, chance.choice((1, 2, 4, 6)), strategy)


def _options(chance: Chance, slots: int, strategy: DirectOptions | DynamicOptions) -> SequenceOptions:
    return SequenceOptions(
        model_name="m",
        slots=slots,
        idle_ns_max=chance.choice((5, 20, 50)),
        iterative=chance.random() < 0.25,
        strategy=strategy,
        live_max=chance.choice((4, 100)),
        waiting_max=chance.choice((6, 100)),
    )


def run_history(chance: Chance, core: SchedulerCore, options: SequenceOptions) -> int:
    """Drive a trial through a random history; returns its number of steps."""
    trial = SequenceTrial(core, options, taken=chance.taken)
    in_step = isinstance(options.strategy, DynamicOptions) and options.strategy.overlap is not None
    for _ in range(1 if in_step else chance.choice((0, 1, 1, 2))):
        trial.add_instance()
    for _ in chance.rounds((50, 60, 70)):
        if chance.random() < 0.4:
            trial.now_ns += chance.choice((1, 1, 1, 2, 2, 4, 12))
        if in_step and chance.random() < 0.9:
            _answer_and_ask(chance, trial)
        else:
            _random_rule(chance, trial)
    if chance.random() < 0.2:
        trial.stop()
    trial.finish()
    return len(trial.steps)


def _answer_and_ask(chance: Chance, trial: SequenceTrial) -> None:
    """A convoy: a batch is over, and sequences go on, or begin."""
    if trial.busy:
        trial.complete(chance.choice(list(trial.busy)), took_ns=chance.choice(TIMES_TAKEN_NS))
    for id in chance.sample(range(1, 7), chance.choice((0, 1, 3, 5, 6))):
        trial.submit(SequencePosition(correlation_id=id, start=trial.reference.open_chain(id) is None))


def _random_rule(chance: Chance, trial: SequenceTrial) -> None:
    rule = chance.random()
    if rule < 0.5:
        trial.submit(
            random_position(chance),
            batch_size=chance.choice((1,) * 20 + (2,)),
            signature=chance.choice("aaaab"),
            timeout_ns=chance.choice((0, 0, 0, 2, 8)),
            deadline_in_ns=chance.choice((None,) * 6 + (0, 3, 7)),
        )
    elif rule < 0.7 and trial.busy:
        trial.complete(chance.choice(list(trial.busy)), took_ns=chance.choice(TIMES_TAKEN_NS))
    elif rule < 0.76 and trial.busy:
        trial.reschedule(chance.choice(chance.choice(list(trial.busy.values()))))
    elif rule < 0.81 and trial.live:
        trial.cancel(chance.choice(sorted(trial.live, key=repr)))
    elif rule < 0.82 and trial.accepted:
        trial.cancel(chance.choice(trial.accepted))
    elif rule < 0.91:
        trial.advance_to_deadline()
    elif rule < 0.93:
        trial.advance()
    elif rule < 0.945 and trial.members + trial.retiring:
        trial.remove_instance(chance.choice(trial.members + trial.retiring))
    elif rule < 0.96 and trial.members:
        trial.retire_instance(chance.choice(trial.members))
    elif rule < 0.99:
        trial.add_instance()
    elif rule < 0.995:
        trial.refuse_waiting()
    else:
        trial.stop()


def random_position(chance: Chance) -> SequencePosition | None:
    """Of one of few sequences, so that they conflict."""
    if chance.random() < 0.05:
        return chance.choice((None, SequencePosition(correlation_id=0), SequencePosition(correlation_id="")))
    return SequencePosition(
        correlation_id=chance.choice((1, 2, 3, 4, 5, "1", "x")), start=chance.random() < 0.4, end=chance.random() < 0.2
    )


def _history_of(make: Callable[[Chance], tuple[SchedulerCore, SequenceOptions]]) -> Callable[[Chance], int]:
    def run(chance: Chance) -> int:
        core, options = make(chance)
        return run_history(chance, core, options)

    return run


def _direct(chance: Chance) -> tuple[SchedulerCore, SequenceOptions]:
    options = direct_options(chance)
    return sequence_core(options), options


def _oldest(chance: Chance) -> tuple[SchedulerCore, SequenceOptions]:
    options = oldest_options(chance)
    return sequence_core(options), options


class LeakyCore(SequenceCore):
    """Wrong on purpose: nobody hears of what was cancelled behind a cancelled request."""

    def _drop(self, ticket: Ticket, outcome: Outcome | None, now_ns: int) -> None:
        super()._drop(ticket, outcome, now_ns)
        self._actions: list[Action] = [
            action for action in self._actions if not (isinstance(action, Refuse) and action.outcome is Outcome.CANCELLED)
        ]


def _leaky(chance: Chance) -> tuple[SchedulerCore, SequenceOptions]:
    options = SequenceOptions(slots=2, strategy=DynamicOptions())
    return LeakyCore(options, lambda: OldestBatcher(DynamicOptions())), options


DIRECT = Target(name="sequence_direct", invariant=INVARIANT, run=_history_of(_direct), smoke_examples=2000, rules=RULES)
OLDEST = Target(
    name="sequence_oldest", invariant=INVARIANT, run=_history_of(_oldest), smoke_examples=2000, rules=(*RULES, HALVED)
)
CANARY = Target(
    name="sequence_canary",
    invariant="a core that forgets to answer what waits behind a cancelled request is found out",
    run=_history_of(_leaky),
    smoke_examples=100,
    must_fail=True,
)

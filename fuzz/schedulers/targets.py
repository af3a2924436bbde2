"""The scheduler targets: seeded histories of a core against the reference scheduler."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.chance import Chance
from fuzz.schedulers.trial import HALVED, INVARIANT, PREFETCHED, Trial
from fuzz.target import Target
from tpy.config.model_config import TimeoutAction
from tpy.limits import QUICK_BATCHES_NS_MAX, UNREPORTED_NS_MAX
from tpy_data.schedulers.core.contract import Outcome, SchedulerCore
from tpy_data.schedulers.core.default import DefaultCore
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules
from tpy_data.schedulers.core.overlap import OverlapTerms

STEPS = (50, 60, 70)
TIMES_TAKEN_NS = (0, 1, 1, 2, 4, 12)
SLOW_NS = QUICK_BATCHES_NS_MAX + 1
VERBS = (
    "submit",
    "cancel",
    "done",
    "reschedule",
    "advance",
    "add_instance",
    "remove_instance",
    "retire_instance",
    "refuse_waiting",
    "stop",
)
RULES = (*VERBS, Outcome.TIMED_OUT.name, Outcome.STOPPING.name, Outcome.NO_INSTANCE.name)


def random_options(chance: Chance) -> DynamicOptions:
    """Small numbers, so that limits are met often."""
    batch_size_max = chance.choice((1, 2, 4, 8))
    sizes = range(1, batch_size_max + 1)
    level_count = chance.choice((1, 1, 2, 3))
    overlap = None
    preferred = frozenset(chance.sample(sizes, min(len(sizes), chance.choice((1, 1, 2)))))
    queue_delay_ns_max = chance.choice((0, 0, 3, 10))
    if chance.random() < 0.3:
        overlap = OverlapTerms(
            requests_min=chance.choice((2, 2, 3)),
            convoys_min=chance.choice((1, 1, 2)),
            batches_max=chance.choice((1, 3, 6)),
            trial_batches=chance.choice((1, 1, 2, 3)),
        )
        batch_size_max, queue_delay_ns_max = chance.choice((4, 8)), 0
        preferred = frozenset({batch_size_max})
    return DynamicOptions(
        batch_size_max=batch_size_max,
        preferred=preferred,
        queue_delay_ns_max=queue_delay_ns_max,
        preserve_ordering=chance.random() < 0.3,
        levels=tuple(
            QueueRules(
                timeout_action=chance.choice((TimeoutAction.REJECT, TimeoutAction.DELAY)),
                default_timeout_ns=chance.choice((0, 0, 4, 9)),
                allow_timeout_override=chance.random() < 0.5,
                queue_size_max=chance.choice((0, 0, 2, 5)),
            )
            for _ in range(level_count)
        ),
        default_level=chance.randrange(level_count),
        overlap=overlap,
    )


def run_history(chance: Chance, core: SchedulerCore, options: DynamicOptions) -> int:
    """Drive a trial of a core through a random history; returns its number of steps."""
    return run_trial(chance, Trial(core, options, credit=isinstance(core, DefaultCore), taken=chance.taken), options)


def run_trial(chance: Chance, trial: Trial, options: DynamicOptions) -> int:
    """As `run_history`."""
    alone = options.overlap is not None or (trial.credit and chance.random() < 0.3)
    for _ in range(1 if alone else chance.randrange(4)):
        _add_instance(chance, trial)
    for _ in chance.rounds(STEPS):
        if chance.random() < 0.5:
            trial.now_ns += chance.choice((1, 1, 1, 2, 2, 4, 4, 12, 12, UNREPORTED_NS_MAX))
        if alone and chance.random() < 0.9:
            _answer_and_ask(chance, trial)
        else:
            _random_rule(chance, trial)
    if chance.random() < 0.3:
        trial.stop()
    trial.finish()
    return len(trial.steps)


def _add_instance(chance: Chance, trial: Trial) -> None:
    if trial.credit:
        trial.add_instance(prefetch=chance.random() < 0.7)
    else:
        trial.add_instance(credit=chance.choice((1, 1, 2, 3)))


def _answer_and_ask(chance: Chance, trial: Trial) -> None:
    """A convoy, or constant work for an instance: something is over, and requests come."""
    if trial.busy:
        _complete(chance, trial)
    trial.submit_alike(chance.choice((0, 1, 2, 3, 5)))


def _complete(chance: Chance, trial: Trial) -> None:
    instance = chance.choice(list(trial.busy))
    if trial.credit:
        trial.complete(instance, *[chance.choice((0, 1, 1, 1, SLOW_NS)) for _ in range(chance.choice((1, 1, 1, 2, 4, 16)))])
    else:
        trial.complete(instance, *[chance.choice(TIMES_TAKEN_NS) for _ in range(chance.choice((1, 1, 2)))])


def _random_rule(chance: Chance, trial: Trial) -> None:
    rule = chance.random()
    if rule < 0.5:
        trial.submit(
            batch_size=chance.randint(1, trial.options.batch_size_max),
            signature=chance.choice("aaaab"),
            priority=chance.randint(0, len(trial.options.levels) + 1),
            timeout_ns=chance.choice((0, 0, 2, 5, 8)),
            deadline_in_ns=chance.choice((None, None, None, 0, 3, 7)),
        )
    elif rule < 0.7 and trial.busy:
        _complete(chance, trial)
    elif rule < 0.74 and trial.busy:
        trial.reschedule(chance.choice(chance.choice(list(trial.busy.values()))[0]))
    elif rule < 0.79 and trial.live:
        trial.cancel(chance.choice(list(trial.live)))
    elif rule < 0.8 and trial.accepted:
        trial.cancel(chance.choice(trial.accepted))
    elif rule < 0.92:
        trial.advance_to_deadline()
    elif rule < 0.95:
        trial.advance()
    elif rule < 0.96 and trial.members:
        trial.remove_instance(chance.choice(trial.members))
    elif rule < 0.965 and trial.members:
        trial.retire_instance(chance.choice(trial.members))
    elif rule < 0.97 and trial.members:
        trial.fail(chance.choice(trial.members))
    elif rule < 0.99:
        _add_instance(chance, trial)
    elif rule < 0.993:
        trial.recall()
    elif rule < 0.997:
        trial.refuse_waiting()
    else:
        trial.stop()


def _history_of(make: Callable[[Chance], tuple[SchedulerCore, DynamicOptions]]) -> Callable[[Chance], int]:
    def run(chance: Chance) -> int:
        core, options = make(chance)
        return run_history(chance, core, options)

    return run


def _dynamic(chance: Chance) -> tuple[SchedulerCore, DynamicOptions]:
    options = random_options(chance)
    return DynamicCore(options), options


class ForgetfulCore(DefaultCore):
    """Wrong on purpose: it never looks at deadlines."""

    def _expire(self, now_ns: int) -> None:
        pass


DEFAULT = Target(
    name="scheduler_default",
    invariant=INVARIANT,
    run=_history_of(lambda _: (DefaultCore(), DynamicOptions())),
    smoke_examples=4000,
    rules=(*RULES, "recall", "revoked", "fail", PREFETCHED),
)
DYNAMIC = Target(
    name="scheduler_dynamic",
    invariant=INVARIANT,
    run=_history_of(_dynamic),
    smoke_examples=4000,
    rules=(*RULES, "recall", "revoked", "fail", HALVED, PREFETCHED),
)
CANARY = Target(
    name="canary",
    invariant="a core that never looks at deadlines is found out",
    run=_history_of(lambda _: (ForgetfulCore(), DynamicOptions())),
    smoke_examples=100,
    must_fail=True,
)

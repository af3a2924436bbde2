"""EnsembleCore: the requests of one ensemble on their way through its steps.

A request has *frames*: the first holds its inputs and whatever follows from them one for one; each response of a decoupled step
opens another, in which the steps after it run once more. Within a frame a tensor is there at most once, a step runs at most
once, as soon as all of its tensors are there, and an answer is given when all requested outputs are. A tensor is let go when the
last step that needs it has begun. So what an answer is made of always belongs together, in whatever order steps end.

Who produces waits for who consumes: a decoupled step is paused while the request's caller is, while as many of its frames as
ENSEMBLE_FRAMES_MAX are open, or while a step in one of them waits for its place among `inflight_max`.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from tpy.errors import Unavailable, invariant
from tpy.limits import ENSEMBLE_FRAMES_MAX, ENSEMBLE_STEP_WAIT_NS_MAX
from tpy_data.schedulers.core.contract import CoreSnapshot, Outcome, Phase, Ticket
from tpy_data.schedulers.core.deadlines import Deadlines
from tpy_data.schedulers.core.ensemble_graph import EnsemblePlan


class End(enum.Enum):
    """The reasons why a request ends with an error."""

    FAILED = "a step failed"
    DEADLOCK = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
    """Every step that could run has, and the request was not answered."""
    TIMED_OUT = Outcome.TIMED_OUT.value
    STOPPING = Outcome.STOPPING.value


_AT_ONCE: Final = (End.TIMED_OUT, End.STOPPING)
"""These do not wait for a slow caller."""


class Answer:
    """One response of an ensemble. `values` are the plan's outputs, in its order, or empty; None among them is an output that its
    step did not make. `end`: it is an error."""

    __slots__ = ("end", "final", "values")

    def __init__(self, values: Sequence[object] = (), *, final: bool = False, end: End | None = None) -> None:
        self.values = values
        self.final = final
        self.end = end


class EnsembleRun(Ticket):
    """One request to an ensemble. The driver subclasses it, and leaves what is below alone."""

    __slots__ = ("answered", "answers", "failed", "has_output", "paused", "plan", "steps")

    plan: EnsemblePlan

    def begin_run(self, plan: EnsemblePlan) -> None:
        """To be called once, before `submit`."""
        self.plan = plan
        self.answered = False
        self.has_output = False  # one of the outputs was made: an end without an answer is not what its models meant
        self.answers: deque[Answer] = deque()
        self.failed = False
        self.paused = False
        self.steps: dict[StepRun, None] = {}


class Frame:
    """See the module. `producer` is the decoupled step whose response opened it, None for a request's first. `missing` counts, by
    step, the tensors that it still waits for; `uses`, by tensor, how often it will still be taken; `active` the steps in it
    that have not ended."""

    __slots__ = ("active", "missing", "outputs_missing", "producer", "uses", "values")

    def __init__(self, producer: StepRun | None, plan: EnsemblePlan) -> None:
        self.producer = producer
        self.values: dict[int, object] = {}
        self.uses: dict[int, int] = {}
        self.missing: dict[int, int] = {}
        self.outputs_missing = len(plan.outputs)
        self.active = 0


class StepRun:
    """One request to the model of a step. The driver subclasses it (see `EnsembleCore`).

    `inputs` are the values of the step's tensors, in the graph's order, until `begun`. `over`: it has ended, or nobody waits
    for it. `frames_open` and `below_waiting` are of decoupled steps: frames that its responses opened, and steps in them that
    wait.
    """

    __slots__ = (
        "begun",
        "below_waiting",
        "decoupled",
        "frame",
        "frames_open",
        "inputs",
        "over",
        "paused",
        "run",
        "step",
        "waits_since_ns",
    )

    def __init__(self, run: EnsembleRun, step: int, frame: Frame, inputs: Sequence[object]) -> None:
        self.run = run
        self.step = step
        self.frame = frame
        self.inputs = inputs
        self.decoupled = run.plan.graph.steps[step].decoupled
        self.begun = False
        self.over = False
        self.paused = False
        self.frames_open = 0
        self.below_waiting = 0
        self.waits_since_ns = 0


class StartStep(msgspec.Struct, frozen=True):
    """Send the step's request, if `EnsembleCore.begin` says so."""

    step: StepRun


class CancelStep(msgspec.Struct, frozen=True):
    """Nobody waits for this request any more."""

    step: StepRun


class PauseStep(msgspec.Struct, frozen=True):
    """Let this request's model send no more for now."""

    step: StepRun


class ResumeStep(msgspec.Struct, frozen=True):
    """Let it go on."""

    step: StepRun


class Deliver(msgspec.Struct, frozen=True):
    """There is something for this request's caller: take it with `take_answer`, until that is None."""

    run: EnsembleRun


Action = StartStep | CancelStep | PauseStep | ResumeStep | Deliver


class EnsembleCore:
    """The verbs. `inflight_max` bounds how many requests each step has at a time, those of all callers together (0: no bound);
    what is beyond waits, first come first served, but no longer than ENSEMBLE_STEP_WAIT_NS_MAX: as in Triton a step then begins
    all the same, because nobody knows what it waits for. `step_type` is the driver's StepRun."""

    def __init__(self, step_count: int, *, inflight_max: int = 0, step_type: type[StepRun] = StepRun) -> None:
        self._inflight_max = inflight_max
        self._step_type = step_type
        self._inflight = [0] * step_count
        self._waiting: tuple[dict[StepRun, None], ...] = tuple({} for _ in range(step_count))
        self._deadlines = Deadlines()
        self._runs: dict[EnsembleRun, None] = {}
        self._actions: list[Action] = []
        self._stopped = False
        self.overdue = 0
        """The number of steps that began although their place was not free."""

    def submit(self, run: EnsembleRun, plan: EnsemblePlan, inputs: Sequence[object], now_ns: int) -> None:
        """Accept a request. `inputs` are the values of the graph's inputs, in its order, None for an optional one that was not
        given. Raises Unavailable after `stop`."""
        if self._stopped:
            raise Unavailable(Outcome.STOPPING.value)
        run.begin_run(plan)
        run.queued_ns = now_ns
        run.phase = Phase.EXECUTING
        self._runs[run] = None
        deadline_ns = run.deadline_ns
        if deadline_ns is not None:
            if deadline_ns <= now_ns:
                self._end_early(run, End.TIMED_OUT)
                return
            self._deadlines.add(run, deadline_ns)
        self._put(run, Frame(None, plan), plan.graph.inputs, inputs, now_ns)
        self._settle(run)

    def begin(self, step: StepRun) -> bool:
        """The driver turns to a StartStep: whether it is to be sent. If so the driver sees to it that the step ends."""
        run = step.run
        if step.over:
            return False
        if run.failed:
            self._step_over(step)
            self._settle(run)
            return False
        step.begun = True
        return True

    def responded(self, step: StepRun, values: Sequence[object] | None, now_ns: int, *, final: bool) -> None:
        """The step's model answered. `values` are those of the graph's outputs of this step, in its order, None among them for
        one that is missing; None instead of them all: without data. No-op for a step that nobody waits for."""
        if step.over:
            return
        run = step.run
        if values is not None and not run.failed:
            outputs = run.plan.graph.steps[step.step].outputs
            if step.decoupled:
                step.frames_open += 1
                frame = Frame(step, run.plan)
                self._put(run, frame, outputs, values, now_ns)
                self._close_if_idle(frame)
                self._regulate(step)
            else:
                self._put(run, step.frame, outputs, values, now_ns)
        if final:
            self._step_over(step)
            self._give_places(step.step)
        self._settle(run)

    def failed(self, step: StepRun, *, final: bool) -> None:
        """The step's model answered with an error. Steps that have begun end in their own time, except decoupled ones, and what
        has not begun never does; then the request ends with End.FAILED. No-op for a step that nobody waits for."""
        if step.over:
            return
        run = step.run
        if final:
            self._step_over(step)
        run.failed = True
        for other in list(run.steps):
            if other.decoupled or not other.begun:
                self._drop(other)
        self._give_all_places()
        self._settle(run)

    def cancel(self, run: EnsembleRun) -> bool:
        """The caller waits no more: its steps are cancelled, no answer follows. False when the request has ended already."""
        if run.phase is Phase.ENDED:
            return False
        run.answers.clear()
        self._drop_all(run)
        self._end(run)
        self._give_all_places()
        return True

    def pause(self, run: EnsembleRun) -> None:
        """The caller is slow: answers wait, and with them the models that make them."""
        run.paused = True
        self._regulate_all(run)

    def resume(self, run: EnsembleRun) -> None:
        """The caller takes answers again, waiting ones first."""
        if run.paused:
            run.paused = False
            if run.answers:
                self._actions.append(Deliver(run))
            self._regulate_all(run)

    def take_answer(self, run: EnsembleRun) -> Answer | None:
        """The next answer to deliver; None when no answer waits, or the caller is paused. With the final one the request has
        ended."""
        answers = run.answers
        if not answers or (run.paused and answers[0].end not in _AT_ONCE):
            return None
        answer = answers.popleft()
        if answer.final:
            self._end(run)
        return answer

    def next_deadline_ns(self) -> int | None:
        """The time at which `advance` must be called at the latest; None: not needed."""
        if not self._inflight_max:
            return self._deadlines.first_ns()
        times = [next(iter(waiting)).waits_since_ns + ENSEMBLE_STEP_WAIT_NS_MAX for waiting in self._waiting if waiting]
        first_ns = self._deadlines.first_ns()
        if first_ns is not None:
            times.append(first_ns)
        return min(times) if times else None

    def advance(self, now_ns: int) -> None:
        """Time has passed."""
        while (ticket := self._deadlines.pop_due(now_ns)) is not None:
            self._end_early(cast(EnsembleRun, ticket), End.TIMED_OUT)
        for waiting in self._waiting:
            while waiting and next(iter(waiting)).waits_since_ns + ENSEMBLE_STEP_WAIT_NS_MAX <= now_ns:
                self.overdue += 1
                self._leave_queue(step := next(iter(waiting)))
                self._start(step)
        self._give_all_places()

    def stop(self) -> None:
        """End every request (STOPPING), and accept none any more."""
        self._stopped = True
        for run in list(self._runs):
            self._end_early(run, End.STOPPING)

    def take_actions(self) -> list[Action]:
        """The decisions since the last call, in order; the driver must perform them all."""
        actions, self._actions = self._actions, []
        return actions

    def snapshot(self) -> CoreSnapshot:
        """Requests that have not ended count as executing: they wait nowhere but in their steps' models."""
        return CoreSnapshot(queued=0, executing=len(self._runs), idle_instances=0)

    @property
    def is_idle(self) -> bool:
        """True if no request is open, no step waits, and no place of a step is taken."""
        return not self._runs and not any(self._inflight) and not any(self._waiting)

    # Frames

    def _put(self, run: EnsembleRun, frame: Frame, tensors: Sequence[int], values: Sequence[object], now_ns: int) -> None:
        """New tensors in a frame, and the steps that can run now."""
        plan = run.plan
        ready: list[int] = []
        for tensor, value in zip(tensors, values, strict=True):
            uses = plan.uses[tensor]
            if not uses:
                continue  # nothing that was asked for needs it
            invariant(tensor not in frame.uses, "a tensor came twice in one frame")
            frame.values[tensor] = value
            frame.uses[tensor] = uses
            readers = plan.readers[tensor]
            for step in readers:
                missing = frame.missing.get(step)
                if missing is None:
                    missing = len(plan.graph.steps[step].inputs)
                frame.missing[step] = missing - 1
                if missing == 1:
                    ready.append(step)
            if uses > len(readers):
                frame.outputs_missing -= 1
                run.has_output = True
        for step in ready:
            inputs = [self._take(frame, tensor) for tensor in plan.graph.steps[step].inputs]
            self._add_step(self._step_type(run, step, frame, inputs), now_ns)
        if not frame.outputs_missing:
            frame.outputs_missing = -1
            self._answer(run, Answer([self._take(frame, tensor) for tensor in plan.outputs]))

    @staticmethod
    def _take(frame: Frame, tensor: int) -> object:
        """The value of a tensor, which is let go when nobody else will take it."""
        uses = frame.uses[tensor] - 1
        frame.uses[tensor] = uses
        return frame.values[tensor] if uses else frame.values.pop(tensor)

    def _close_if_idle(self, frame: Frame) -> None:
        """Ends a frame in which nothing goes on, with or without an answer."""
        producer = frame.producer
        if not frame.active and producer is not None:
            producer.frames_open -= 1
            self._regulate(producer)

    # Steps

    def _add_step(self, step: StepRun, now_ns: int) -> None:
        step.frame.active += 1
        step.run.steps[step] = None
        if self._inflight_max and self._inflight[step.step] >= self._inflight_max:
            step.waits_since_ns = now_ns
            self._waiting[step.step][step] = None
            producer = step.frame.producer
            if producer is not None:
                producer.below_waiting += 1
                self._regulate(producer)
        else:
            self._start(step)

    def _start(self, step: StepRun) -> None:
        self._inflight[step.step] += 1
        self._actions.append(StartStep(step))
        if step.decoupled and step.run.paused:
            self._regulate(step)

    def _leave_queue(self, step: StepRun) -> bool:
        """Takes the step out of the queue for its place. Returns whether it was there."""
        waiting = self._waiting[step.step]
        if step not in waiting:
            return False
        del waiting[step]
        producer = step.frame.producer
        if producer is not None:
            producer.below_waiting -= 1
            self._regulate(producer)
        return True

    def _give_places(self, number: int) -> None:
        """Start steps that wait, as far as there are places."""
        waiting = self._waiting[number]
        while waiting and self._inflight[number] < self._inflight_max:
            step = next(iter(waiting))
            self._leave_queue(step)
            self._start(step)

    def _give_all_places(self) -> None:
        if self._inflight_max:
            for number in range(len(self._waiting)):
                self._give_places(number)

    def _step_over(self, step: StepRun) -> None:
        """The step has ended, or never begins."""
        step.over = True
        step.inputs = ()
        del step.run.steps[step]
        if not self._leave_queue(step):
            self._inflight[step.step] -= 1
        step.frame.active -= 1
        self._close_if_idle(step.frame)

    def _drop(self, step: StepRun) -> None:
        """Nobody waits for the step."""
        if step.begun:
            self._actions.append(CancelStep(step))
        self._step_over(step)

    def _drop_all(self, run: EnsembleRun) -> None:
        for step in list(run.steps):
            self._drop(step)

    def _regulate(self, step: StepRun) -> None:
        """Pause or resume a decoupled step, as things are. One that waits for its place has nothing yet that could be paused."""
        if step.over or step in self._waiting[step.step]:
            return
        pause = step.run.paused or step.below_waiting > 0 or step.frames_open >= ENSEMBLE_FRAMES_MAX
        if pause is not step.paused:
            step.paused = pause
            self._actions.append(PauseStep(step) if pause else ResumeStep(step))

    def _regulate_all(self, run: EnsembleRun) -> None:
        for step in run.steps:
            if step.decoupled:
                self._regulate(step)

    # Requests

    def _answer(self, run: EnsembleRun, answer: Answer) -> None:
        run.answered = True
        run.answers.append(answer)
        self._actions.append(Deliver(run))

    def _settle(self, run: EnsembleRun) -> None:
        """Ends the request with its last answer when no step is left."""
        if run.steps or run.phase is Phase.ENDED or (run.answers and run.answers[-1].final):
            return
        if run.failed:
            self._answer(run, Answer(final=True, end=End.FAILED))
        elif run.answers:
            run.answers[-1].final = True
        elif run.answered or (run.plan.graph.decoupled and not run.has_output):
            self._answer(run, Answer(final=True))
        else:
            self._answer(run, Answer(final=True, end=End.DEADLOCK))

    def _end_early(self, run: EnsembleRun, end: End) -> None:
        run.answers.clear()
        self._drop_all(run)
        self._answer(run, Answer(final=True, end=end))

    def _end(self, run: EnsembleRun) -> None:
        run.phase = Phase.ENDED
        self._deadlines.discard(run)
        del self._runs[run]

"""EnsembleTrial: a core with a random graph, held to what a graph means when nothing runs at the same time.

A value is known by its tensor and its lineage: which responses of which decoupled steps led to it. That is all the naive model
needs: a step may only ever get values of one lineage, an answer too, and each lineage runs each step once.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import ClassVar

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy.limits import ENSEMBLE_FRAMES_MAX, ENSEMBLE_STEP_WAIT_NS_MAX
from tpy_data.schedulers.core.contract import Phase
from tpy_data.schedulers.core.ensemble import (
    Answer,
    CancelStep,
    Deliver,
    End,
    EnsembleCore,
    EnsembleRun,
    PauseStep,
    ResumeStep,
    StartStep,
    StepRun,
)
from tpy_data.schedulers.core.ensemble_graph import EnsembleGraph, EnsemblePlan, GraphStep

INVARIANT = (
    "Every request ends exactly once: with its answers and a final one, or with one error, or with nothing after its caller "
    "cancelled. Steps and answers get values of one lineage only, each step runs at most once in a lineage and only when "
    "outputs that were asked for need it, every lineage that is complete is answered once. No step has more requests than "
    "its bound unless they waited as long as they may; a paused caller gets nothing but the end of its time; a decoupled step "
    "with too much open is paused. In the end no place is taken, nothing waits, and no value is kept."
)

Lineage = tuple[tuple[int, int], ...]


class Value:
    """A tensor of one lineage. All that are alive are known."""

    alive: ClassVar[weakref.WeakSet[Value]] = weakref.WeakSet()

    def __init__(self, tensor: int, lineage: Lineage) -> None:
        self.tensor = tensor
        self.lineage = lineage
        Value.alive.add(self)


class Request(EnsembleRun):
    """A run with what was seen of it."""

    __slots__ = ("answered_lineages", "begun", "broken", "cancelled", "complete", "ended")

    def __init__(self, deadline_ns: int | None) -> None:
        super().__init__(deadline_ns=deadline_ns)
        self.begun: Counter[tuple[int, Lineage]] = Counter()
        self.complete: Counter[Lineage] = Counter()
        self.answered_lineages: Counter[Lineage] = Counter()
        self.broken = False
        self.cancelled = False
        self.ended: Answer | None = None


class Running:
    """A step's request at its model."""

    def __init__(self, step: StepRun, lineage: Lineage) -> None:
        self.step = step
        self.lineage = lineage
        self.responses = 0
        self.paused = False


def random_graph(chance: Chance) -> EnsembleGraph:
    """A graph whose steps read tensors of one flow each, as `check_members` demands."""
    inputs = list(range(chance.randint(1, 3)))
    flows: list[list[int]] = [list(inputs)]
    flow_of = dict.fromkeys(inputs, 0)
    steps: list[GraphStep] = []
    for _ in range(chance.randint(1, 6)):
        flow = chance.randrange(len(flows))
        reads = chance.sample(flows[flow], chance.randint(1, min(2, len(flows[flow]))))
        decoupled = chance.random() < 0.35
        writes = [len(flow_of) + number for number in range(chance.randint(1, 2))]
        if decoupled:
            flow = len(flows)
            flows.append([])
        flows[flow].extend(writes)
        flow_of.update(dict.fromkeys(writes, flow))
        steps.append(GraphStep(tuple(reads), tuple(writes), decoupled))
    written = [flow for flow in flows if set(flow) - set(inputs)]
    last = [tensor for tensor in chance.choice(written) if tensor not in inputs]
    outputs = sorted(chance.sample(last, chance.randint(1, min(3, len(last)))))
    return EnsembleGraph(steps, inputs=inputs, outputs=outputs, tensor_count=len(flow_of))


class EnsembleTrial:
    """Drives a core; every method is one thing that can happen. Raises Violation."""

    def __init__(self, core: EnsembleCore, graph: EnsembleGraph, *, inflight_max: int, taken: Counter[str]) -> None:
        self.taken = taken
        self.core = core
        self.graph = graph
        self.inflight_max = inflight_max
        self.now_ns = 0
        self.steps = 0
        self.requests: list[Request] = []
        self.running: dict[StepRun, Running] = {}
        Value.alive.clear()

    def submit(self, chance: Chance) -> None:
        self.taken["submit"] += 1
        asked = chance.sample(self.graph.outputs, chance.randint(1, len(self.graph.outputs))) if chance.random() < 0.4 else ()
        limit_ns = chance.choice((0, 0, 0, 5, ENSEMBLE_STEP_WAIT_NS_MAX * 2))
        request = Request(deadline_ns=self.now_ns + limit_ns if limit_ns else None)
        self.requests.append(request)
        plan = self.graph.plan(asked)
        self._count_complete(request, plan, ())
        self.core.submit(request, plan, [Value(tensor, ()) for tensor in self.graph.inputs], self.now_ns)
        self._perform()

    def respond(self, running: Running, *, final: bool, data: bool) -> None:
        """A step's model answers: once and finally, or, decoupled, as often as it likes."""
        self.taken["respond"] += 1
        step = running.step
        shape = self.graph.steps[step.step]
        final, data = final or not shape.decoupled, data or not shape.decoupled
        values = None
        if data:
            lineage = running.lineage
            if shape.decoupled:
                lineage = (*lineage, (step.step, running.responses))
                running.responses += 1
                self._count_complete(self._request(step), step.run.plan, lineage)
            values = [Value(tensor, lineage) for tensor in shape.outputs]
        elif not final:
            return
        if final:
            del self.running[step]
        self.core.responded(step, values, self.now_ns, final=final)
        del values
        self._perform()

    def fail(self, running: Running, *, final: bool) -> None:
        self.taken["fail"] += 1
        step = running.step
        final = final or not self.graph.steps[step.step].decoupled
        self._request(step).broken = True
        if final:
            del self.running[step]
        self.core.failed(step, final=final)
        self._perform()

    def cancel(self, request: Request) -> None:
        self.taken["cancel"] += 1
        was_over = request.ended is not None or request.cancelled
        if self.core.cancel(request) == was_over:
            raise Violation("cancel said the opposite of what is")
        request.cancelled = request.cancelled or not was_over
        self._perform()

    def pause(self, request: Request) -> None:
        self.taken["pause"] += 1
        self.core.pause(request)
        self._perform()

    def resume(self, request: Request) -> None:
        self.taken["resume"] += 1
        self.core.resume(request)
        self._perform()

    def advance(self, by_ns: int) -> None:
        self.taken["advance"] += 1
        self.now_ns += by_ns
        deadline_ns = self.core.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self.core.advance(self.now_ns)
            self._perform()

    def stop(self) -> None:
        self.taken["stop"] += 1
        self.core.stop()
        self._perform()

    def finish(self) -> None:
        """Everything comes to its end, and nothing is left."""
        for request in self.requests:
            self.resume(request)
        while self.running:
            self.respond(next(iter(self.running.values())), final=True, data=False)
        for request in self.requests:
            self._check_ended(request)
        if not self.core.is_idle:
            raise Violation("places are taken though nothing runs")
        if self.core.next_deadline_ns() is not None:
            raise Violation("a deadline is left though nothing runs")
        if alive := len(Value.alive):
            raise Violation(f"{alive} values are kept though nothing runs")

    def _perform(self) -> None:
        self.steps += 1
        while actions := self.core.take_actions():
            for action in actions:
                if isinstance(action, StartStep):
                    self._start(action.step)
                elif isinstance(action, Deliver):
                    self._deliver(action.run)
                elif (running := self.running.get(action.step)) is not None:
                    if isinstance(action, CancelStep):
                        del self.running[action.step]
                    elif isinstance(action, PauseStep):
                        self.taken["step paused"] += 1
                        running.paused = True
                    elif isinstance(action, ResumeStep):
                        running.paused = False
        self._check_standing()

    def _start(self, step: StepRun) -> None:
        if not self.core.begin(step):
            return
        request = self._request(step)
        values = [value for value in step.inputs if isinstance(value, Value)]
        if [value.tensor for value in values] != list(self.graph.steps[step.step].inputs):
            raise Violation("a step got other tensors than it reads")
        lineages = {value.lineage for value in values}
        if len(lineages) != 1:
            raise Violation(f"a step got tensors of {len(lineages)} lineages")
        lineage = lineages.pop()
        step.inputs = ()
        request.begun[step.step, lineage] += 1
        if request.begun[step.step, lineage] > 1:
            raise Violation("a step ran twice in one lineage")
        if not any(step.step in readers for readers in step.run.plan.readers):
            raise Violation("a step ran though no requested output needs it")
        if request.ended is not None or request.cancelled or request.broken:
            raise Violation("a step began in a request that had ended or failed")
        self.running[step] = Running(step, lineage)

    def _deliver(self, run: EnsembleRun) -> None:
        request = run
        assert isinstance(request, Request)
        while (answer := self.core.take_answer(run)) is not None:
            if request.ended is not None or request.cancelled:
                raise Violation("an answer after the end")
            if request.paused and answer.end not in (End.TIMED_OUT, End.STOPPING):
                raise Violation("an answer for a paused caller")
            if answer.final:
                request.ended = answer
                self.taken["answered" if answer.end is None else answer.end.name] += 1
            values = [value for value in answer.values if isinstance(value, Value)]
            if values:
                if [value.tensor for value in values] != list(run.plan.outputs):
                    raise Violation("an answer with other outputs than requested")
                lineages = {value.lineage for value in values}
                if len(lineages) != 1:
                    raise Violation(f"an answer of {len(lineages)} lineages")
                request.answered_lineages[lineages.pop()] += 1
            answer.values = values = []

    def _check_standing(self) -> None:
        counts = Counter(step.step for step in self.running)
        if self.inflight_max and not self.core.overdue and any(count > self.inflight_max for count in counts.values()):
            raise Violation(f"{max(counts.values())} requests of a step at a time, {self.inflight_max} are allowed")
        for step, running in self.running.items():
            if step.decoupled and not step.over:
                must = step.run.paused or step.frames_open >= ENSEMBLE_FRAMES_MAX or step.below_waiting > 0
                if must is not running.paused:
                    raise Violation("a decoupled step is paused when it need not be, or not when it must")

    def _check_ended(self, request: Request) -> None:
        if request.cancelled:
            return
        if request.ended is None or request.phase is not Phase.ENDED:
            raise Violation("a request did not end")
        if any(count > 1 for count in request.answered_lineages.values()):
            raise Violation("a lineage was answered twice")
        end = request.ended.end
        if end is None:
            if request.broken:
                raise Violation("a request with a failed step ended well")
            if request.answered_lineages != request.complete:
                raise Violation(f"answered {dict(request.answered_lineages)}, expected {dict(request.complete)}")
        elif end is End.FAILED and not request.broken:
            raise Violation("a request failed without a failed step")
        elif end is End.DEADLOCK:
            raise Violation("a sound graph came to a deadlock")

    def _count_complete(self, request: Request, plan: EnsemblePlan, lineage: Lineage) -> None:
        """A lineage of the flow that the outputs belong to is answered once."""
        writers = {tensor: step for step in self.graph.steps for tensor in step.outputs}
        chain: list[int] = []
        tensor = plan.outputs[0]
        while (step := writers.get(tensor)) is not None:
            if step.decoupled:
                chain.append(self.graph.steps.index(step))
            tensor = step.inputs[0]
        if [number for number, _ in lineage] == chain[::-1]:
            request.complete[lineage] += 1

    def _request(self, step: StepRun) -> Request:
        assert isinstance(step.run, Request)
        return step.run

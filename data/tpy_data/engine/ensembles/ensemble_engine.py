"""EnsembleEngine: the request path of an ensemble. All of it runs on the Trio thread, on the caller's stack or on that of the
member whose answer lets a request go on: no task, no thread and no copy between one step and the next."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from tpy.alarm import Alarm
from tpy.clock import Clock
from tpy.config import ModelConfig
from tpy.echo import request_prefix
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable
from tpy.messages import (
    FINAL_ONLY,
    EngineActivity,
    InferenceRequest,
    InferenceResponse,
    MemberActivity,
    ParameterValue,
    QueueActivity,
    Tensor,
    WaitReason,
)
from tpy.services import ResponseSink
from tpy_data.engine.admission.admission import Admission
from tpy_data.engine.ensembles.ensemble_flow import EnsembleFlow, Flowing, sequence_of
from tpy_data.engine.ensembles.ensemble_request import EnsembleRequest, StepRequest
from tpy_data.engine.requests.model_engine import Drain
from tpy_data.engine.requests.outputs import OutputSelection
from tpy_data.engine.requests.responder import Responder, refused
from tpy_data.engine.requests.statistics import FailureReason, VersionStatistics
from tpy_data.engine.serving.served_copy import ServedCopy
from tpy_data.engine.serving.serving_table import Answering
from tpy_data.exception_text import exception_text
from tpy_data.schedulers.core import CoreSnapshot
from tpy_data.schedulers.core.ensemble import (
    Answer,
    CancelStep,
    Deliver,
    End,
    EnsembleCore,
    PauseStep,
    ResumeStep,
    StartStep,
)

_log = logging.getLogger(__name__)


class EnsembleEngine:
    """A ModelEngine whose model is other models: `members` are those of its steps, in their order, and `answering` what takes the
    steps' requests. These are held from here to `let_go`, so that every request ends with the members that it began with. `run`
    is a task of its owner's nursery."""

    caches = False

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        members: Sequence[ServedCopy],
        answering: Sequence[Answering],
        clock: Clock,
        statistics: VersionStatistics,
    ) -> None:
        scheduling = config.ensemble_scheduling
        self.statistics = statistics
        self.drain = Drain(self._is_idle)
        self.members = tuple(members)
        self.answering = tuple(answering)
        self._name = config.name
        self._responder = Responder(config.name, version)
        self._clock = clock
        self._admission = Admission(config)
        self._outputs = OutputSelection(config)
        self._flow = EnsembleFlow(config, members, answering)
        self._inputs = tuple(entry.name for entry in config.input)
        self._core = EnsembleCore(
            len(self._flow.steps),
            inflight_max=0 if scheduling is None else scheduling.max_inflight_requests,
            step_type=StepRequest,
        )
        self._alarm = Alarm(clock)
        self._performing = False
        self._overdue = 0
        for each in self.answering:
            each.hold()

    async def run(self) -> None:
        """Keep deadlines. Runs until cancelled."""
        while True:
            self._core.advance(await self._alarm.wait())
            if self._core.overdue > self._overdue:
                context = {"model": self._name, "steps": self._core.overdue - self._overdue}
                _log.error(
                    "steps of an ensemble begin beyond max_inflight_requests: they have waited long", extra={"context": context}
                )
                self._overdue = self._core.overdue
            self._perform()

    def submit(self, request: InferenceRequest, sink: ResponseSink) -> EnsembleRequest:
        """As `ResolvedModel.submit`. What goes wrong in a step is delivered, also inside the call."""
        flow = self._flow
        try:
            inputs, batch_size, _ = self._admission.admit(request)
            run = EnsembleRequest(request, batch_size, sink, self)
            plan = flow.graph.plan(flow.numbers_of(request.requested_outputs) if request.requested_outputs else ())
            values = [Flowing(inputs[name], None) if name in inputs else None for name in self._inputs]
            self._core.submit(run, plan, values, self._clock.now_ns())
        except (InvalidArgument, Unavailable) as refusal:
            raise refused(refusal, request, self.statistics) from None
        self._perform()
        return run

    def snapshot(self) -> CoreSnapshot:
        """The number of requests that are on their way."""
        return self._core.snapshot()

    def explain(self) -> EngineActivity:
        """As `ModelEngine.explain`: its requests wait and execute in its members."""
        executing = self._core.snapshot().executing
        members = {member.copy: member for member in self.members}
        return EngineActivity(
            queue=QueueActivity(waits_for=WaitReason.MEMBER if executing else WaitReason.NOTHING, executing=executing),
            members=tuple(_member(member) for member in members.values()),
        )

    def refuse_waiting(self) -> None:
        """Nothing to do: requests wait in the members' queues."""

    def stop(self, *, executing: bool = False) -> None:
        """As `ModelEngine.stop`: end every request; its members give up what they execute for it with them."""
        self._core.stop()
        self._perform()

    def let_go(self) -> None:
        """The engine is drained, or given up: it needs its members no more. To be called once."""
        for each in self.answering:
            each.release()

    # RequestOwner

    def cancel(self, run: EnsembleRequest) -> None:
        """Forget the request and its steps; no answer follows. No-op for one that has ended."""
        if self._core.cancel(run):
            self.statistics.failed(run, FailureReason.CANCELED, self._clock.now_ns())
            self._perform()

    def pause(self, run: EnsembleRequest) -> None:
        """Its caller is slow: so are the models that send more than one response."""
        self._core.pause(run)
        self._perform()

    def resume(self, run: EnsembleRequest) -> None:
        """Deliver what waits, and let its models go on."""
        self._core.resume(run)
        self._perform()

    def step_answered(self, step: StepRequest, response: InferenceResponse) -> None:
        """Go on with what a member answered."""
        if step.over:
            return
        final = response.final
        if response.error is not None:
            self._fail(step, response.error, final=final)
        else:
            # A decoupled model may end without data; any other response without outputs lacks them.
            nothing = final and response.outputs == FINAL_ONLY and step.decoupled
            try:
                values = None if nothing else self._flow.steps[step.step].values(response, sequence_of(step.inputs))
            except InvalidArgument as error:
                self._fail(step, error, final=final)
            else:
                if final:
                    self._end_step(step)
                self._core.responded(step, values, self._clock.now_ns(), final=final)
        self._perform()

    # What the core decides.

    def _perform(self) -> None:
        if self._performing:
            return  # inside an action: the loop below, further up the stack, takes what was decided meanwhile
        self._performing = True
        try:
            while actions := self._core.take_actions():
                for action in actions:
                    if isinstance(action, StartStep):
                        self._start(cast(StepRequest, action.step))
                    elif isinstance(action, Deliver):
                        self._deliver(cast(EnsembleRequest, action.run))
                    elif (handle := cast(StepRequest, action.step).handle) is not None:
                        if isinstance(action, CancelStep):
                            handle.cancel()
                        elif isinstance(action, PauseStep):
                            handle.pause()
                        elif isinstance(action, ResumeStep):
                            handle.resume()
        finally:
            self._performing = False
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns is not None:
            self._alarm.bring_forward(deadline_ns)
        self.drain.check()

    def _start(self, step: StepRequest) -> None:
        if not self._core.begin(step):
            return
        run = step.request
        flow = self._flow.steps[step.step]
        try:
            handle = flow.submit(flow.request(run.request, step.inputs, run.deadline_ns), step)
        except TpyError as error:
            self._fail(step, error, final=True)
        except Exception as bug:
            # The request must end all the same, and the other requests go on.
            _log.exception(
                "a step of an ensemble could not be submitted because of a bug", extra={"context": {"model": self._name}}
            )
            self._fail(step, Internal(exception_text(bug)), final=True)
        else:
            if not step.over:
                step.handle = handle

    def _fail(self, step: StepRequest, error: TpyError, *, final: bool) -> None:
        run = step.request
        if run.error is None:
            run.error = type(error)(self._in_ensemble(error.message))
            run.error.wait_s = error.wait_s
        if final:
            self._end_step(step)
        self._core.failed(step, final=final)

    def _end_step(self, step: StepRequest) -> None:
        step.request.add_times(step.handle, self._clock.now_ns())
        step.handle = None

    def _deliver(self, run: EnsembleRequest) -> None:
        while (answer := self._core.take_answer(run)) is not None:
            self._answer(run, answer)

    def _answer(self, run: EnsembleRequest, answer: Answer) -> None:
        error = None if answer.end is None else self._error(run, answer.end)
        outputs: tuple[Tensor, ...] = ()
        parameters: dict[str, ParameterValue] = {}
        if error is None and answer.values:
            try:
                made = self._flow.outputs(run.plan.outputs, answer.values)
                if len(made) < len(run.plan.outputs):
                    self._log_missing(run, made)
                outputs = self._outputs.select(made, ())
            except Internal as fault:
                error = fault
            else:
                parameters = _sequence_parameters(run, answer.values) if outputs else {}
        if not run.has_responded and (outputs or error is not None):
            run.has_responded = True
            self.statistics.first_response(run, self._clock.now_ns())
        if answer.final:
            self._count(run, answer, error)
        self._responder.respond(run.sink, run.request.id, outputs, parameters, error=error, final=answer.final)

    def _log_missing(self, run: EnsembleRequest, made: Sequence[Tensor]) -> None:
        """In Triton's words, at its level; the answer lacks what no member made."""
        names = {tensor.name for tensor in made}
        for number in run.plan.outputs:
            if self._flow.output_names[number] not in names:
                _log.debug("Composing models did not output tensor %s", self._flow.output_names[number])

    def _count(self, run: EnsembleRequest, answer: Answer, error: TpyError | None) -> None:
        now_ns = self._clock.now_ns()
        if error is None:
            execution = run.times(now_ns)
            self.statistics.executed(((run.batch_size, execution),), self._clock.wall_ms())
            self.statistics.succeeded(((run, execution),), now_ns)
        else:
            self.statistics.failed(run, FailureReason.REJECTED if answer.end is End.TIMED_OUT else FailureReason.OTHER, now_ns)

    def _error(self, run: EnsembleRequest, end: End) -> TpyError:
        if end is End.FAILED:
            return run.error or Internal(self._in_ensemble("a step failed without an error"))
        if end is End.DEADLOCK:
            return InvalidArgument(self._in_ensemble(f"{request_prefix(run.request.id)}{end.value}"))
        return Unavailable(self._in_ensemble(end.value) if end is End.TIMED_OUT else end.value)

    def _in_ensemble(self, message: str) -> str:
        return f"in ensemble '{self._name}', {message}"

    def _is_idle(self) -> bool:
        return not self._core.snapshot().executing


def _member(member: ServedCopy) -> MemberActivity:
    queue, times = member.engine.explain().queue, member.engine.statistics.inference()
    computed = max(1, times.compute_infer.count)
    return MemberActivity(
        name=member.config.name,
        version=member.version,
        waits_for=queue.waits_for,
        waiting=queue.waiting,
        executing=queue.executing,
        queue_ns=times.queue.ns // max(1, times.queue.count),
        compute_ns=(times.compute_input.ns + times.compute_infer.ns + times.compute_output.ns) // computed,
    )


def _sequence_parameters(run: EnsembleRequest, values: Sequence[object]) -> dict[str, ParameterValue]:
    """The parameters that Triton adds to every response of an ensemble: the sequence that its outputs belong to."""
    sequence = sequence_of(values) or run.request.sequence
    if sequence is None:
        return {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    return {"sequence_id": sequence.correlation_id, "sequence_start": sequence.start, "sequence_end": sequence.end}

"""A ThreadChannel without an engine, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.engine.fakes import RecordingSink, request
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure
from tpy.errors import Internal
from tpy.messages import Tensor
from tpy_data.engine.channels.channel import ThreadChannel
from tpy_data.engine.channels.loop_rule import LoopRule
from tpy_data.engine.requests.batch import Batch
from tpy_data.engine.requests.ticket import RequestTicket
from tpy_data.executors.executor import Job

NO_INPUTS: Mapping[str, Tensor] = {}


class StepClock:
    """Stands still unless it is told to go on."""

    ns = 1

    def now_ns(self) -> int:
        return self.ns

    def wall_ms(self) -> int:
        return 0


class HeldWorker:
    """Keeps its jobs until the test runs them; `reports` are the calls that wait for the Trio thread."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.reports: list[Callable[[], None]] = []

    def put(self, job: Job, *, anywhere: bool = False) -> None:
        self.jobs.append(job)

    def run_sync_soon(self, call: Callable[[], None]) -> None:
        raise AssertionError("nothing is told here")

    def close(self) -> None:
        pass

    def step(self, count: int = 1) -> None:
        """One step of the thread."""
        for _ in range(count):
            job = self.jobs[0]
            job.begin()
            if job.run():
                self.reports.append(job.finished)
            if not job.has_more:
                self.jobs.pop(0)


class Direct:
    """A channel, its worker and its reports, without an engine. The instance takes `took_ns` for a batch, of which it computes
    all but `waits_ns`, and dies at `fails_at`, before it has seen it if `fails_unbegun`."""

    def __init__(self, on_loop: LoopRule | None = None) -> None:
        self.clock, self.worker = StepClock(), HeldWorker()
        self.took_ns = [1]
        self.waits_ns = 0
        self._waited_ns = 0
        self.executed: list[str] = []
        self.fails_at = ""
        self.fails_unbegun = False
        self.refuses = False
        self.on_execute: Callable[[], object] = lambda: None
        self.reported: list[list[str]] = []
        self.failures: list[str] = []
        self.channel = ThreadChannel(
            self, self.worker, self.clock, on_loop=on_loop, cpu_ns=lambda: self.clock.ns - self._waited_ns
        )
        self.channel.open(self.take_report)

    def execute(self, batch: ExecutionBatch) -> list[ExecutionResult]:
        sent = batch.requests[0]
        self.executed.append(sent.id)
        self.on_execute()
        self.clock.ns += self.took_ns.pop(0) if len(self.took_ns) > 1 else self.took_ns[0]
        self._waited_ns += self.waits_ns
        if sent.id == self.fails_at:
            raise InstanceFailure("it died", begun=not self.fails_unbegun)
        return [ExecutionResult(error=Internal("refused") if self.refuses else None)] * len(batch.requests)

    def close(self) -> None:
        pass

    def take_report(self, batches: Sequence[Batch], failure: str | None) -> None:
        self.reported.append([batch.tickets[0].id for batch in batches])
        if failure is not None:
            self.failures.append(failure)

    def ticket(self, name: str, inputs: Mapping[str, Tensor] = NO_INPUTS) -> RequestTicket:
        return RequestTicket(
            request(id=name),
            inputs,
            batch_size=1,
            signature=None,
            sink=RecordingSink(),
            owner=None,  # type: ignore[arg-type]  # not asked
        )

    def give(self, names: str, inputs: Mapping[str, Tensor] = NO_INPUTS) -> dict[str, RequestTicket]:
        tickets = {name: self.ticket(name, inputs) for name in names}
        self.channel.give([Batch("m_0", (ticket,)) for ticket in tickets.values()])
        return tickets

    def report(self) -> None:
        reports, self.worker.reports = self.worker.reports, []
        for call in reports:
            call()

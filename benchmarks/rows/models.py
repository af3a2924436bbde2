"""Python models of other kinds than one input and one request at a time: batching, delays, instances, many tensors, strings.

Every model runs in its own process, in tpy and in Triton, from the same model.py and config.pbtxt.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.bench import Bench
from benchmarks.http_exchange import HttpRequest
from benchmarks.load import Load, perf_analyzer, wrk
from benchmarks.rows.tiny import BASELINE, CASES, QUICK_CASES, VALUES, WARM_UP_S, Contender, measure_rounds
from benchmarks.servers.models import IDENTITY_INPUT
from benchmarks.servers.plans import TpyPlan, TritonPlan
from benchmarks.servers.process import Server, ServerPlan, running
from benchmarks.tensors import check_copies

ROW = "HTTP JSON, python model in a worker: {}"
GRPC_ROW = "gRPC, python model in a worker: dynamic batching (perf_analyzer)"
CONTENDER = "tpy python worker"

_TENSORS = 10
_TEXTS = ("a short text", "another one, a little longer than the first", "", "größer als ASCII")


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A model: its title in the table, how many tensors of which type it copies, what else its configuration says, and how long
    one execution takes whatever it holds."""

    name: str
    title: str
    more: str = ""
    tensors: int = 1
    datatype: str = "FP32"
    sleep_s: float = 0.0
    batch: int = 0
    count: int = 1

    @property
    def names(self) -> Sequence[tuple[str, str]]:
        """Its inputs and outputs in pairs."""
        return [(f"INPUT{number}", f"OUTPUT{number}") for number in range(self.tensors)]


_BATCHES = "dynamic_batching { }"
KINDS: tuple[Kind, ...] = (
    Kind(name="dynamic", title="dynamic batching", batch=64, more=_BATCHES),
    Kind(
        name="delay",
        title="dynamic batching with a delay of 100 us",
        batch=64,
        more="dynamic_batching { max_queue_delay_microseconds: 100 }",
    ),
    Kind(name="two", title="two instances", count=2),
    Kind(name="ten", title="ten inputs and outputs", tensors=_TENSORS),
    Kind(name="texts", title="four strings", datatype="STRING"),
    Kind(name="slow", title="2 ms and dynamic batching", batch=64, more=_BATCHES, sleep_s=0.002),
    Kind(
        name="preferred",
        title="2 ms, preferred sizes and a delay of 500 us",
        batch=64,
        more="dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 500 }",
        sleep_s=0.002,
    ),
)


def measure(bench: Bench) -> None:
    """Each model in turn, over HTTP with JSON by wrk; the one with dynamic batching over gRPC by perf_analyzer too."""
    program = bench.peers.wrk
    if program is None:
        bench.say("wrk is missing: the rows of python models are left out")
        return
    with _servers(bench) as servers:
        for kind in KINDS:
            contenders = [Contender(name, server, kind.name) for name, server in servers.items()]
            request = request_for(kind)
            for contender in contenders:
                check_copies(contender.server.ports.http, request)

            def drive(contender: Contender, connections: int, seconds: int, request: HttpRequest = request) -> Load:
                return wrk.drive(program, contender.server.ports.http, request, connections=connections, seconds=seconds)

            for contender in contenders:
                drive(contender, 16, WARM_UP_S)
            cases = bench.effort.cases(CASES, QUICK_CASES)
            measure_rounds(bench, ROW.format(kind.title), contenders, cases, drive, whole_run=True)
        _measure_grpc(bench, [Contender(name, server, "dynamic") for name, server in servers.items()])


def _measure_grpc(bench: Bench, contenders: Sequence[Contender]) -> None:
    analyzer = bench.peers.perf_analyzer
    if analyzer is None:
        bench.say(f"perf_analyzer is missing: row '{GRPC_ROW}' is left out")
        return

    def drive(contender: Contender, concurrency: int, seconds: int) -> Load:
        return perf_analyzer.drive(
            analyzer,
            contender.server.ports.grpc,
            contender.model,
            shape=f"{IDENTITY_INPUT}:{VALUES.size}",
            protocol="grpc",
            concurrency=concurrency,
            seconds=seconds,
        )

    measure_rounds(bench, GRPC_ROW, contenders, bench.effort.cases((16, 32), (16,)), drive, whole_run=False)


def config_of(kind: Kind) -> str:
    """The model's config.pbtxt."""
    lines = [f'name: "{kind.name}"', 'backend: "python"', f"max_batch_size: {kind.batch}"]
    for block, place in (("input", 0), ("output", 1)):
        listed = ", ".join(f'{{ name: "{pair[place]}" data_type: TYPE_{kind.datatype} dims: [ -1 ] }}' for pair in kind.names)
        lines.append(f"{block} [ {listed} ]")
    lines += [f"instance_group [ {{ kind: KIND_CPU count: {kind.count} }} ]", kind.more]
    return "\n".join(lines) + "\n"


def code_of(kind: Kind) -> str:
    """The model.py: every output is its input."""
    return f"""\
import time

import triton_python_backend_utils as pb_utils

NAMES = {list(kind.names)!r}


class TritonPythonModel:
    def execute(self, requests):
        if {kind.sleep_s}:
            time.sleep({kind.sleep_s})
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(given, pb_utils.get_input_tensor_by_name(request, taken).as_numpy()) for taken, given in NAMES]
            )
            for request in requests
        ]
"""


def request_for(kind: Kind) -> HttpRequest:
    """16 floats, or four strings, for each input."""
    data: Sequence[float] | Sequence[str] = _TEXTS if kind.datatype == "STRING" else VALUES.tolist()
    datatype = "BYTES" if kind.datatype == "STRING" else kind.datatype
    shape = [1, len(data)] if kind.batch else [len(data)]
    inputs: list[Mapping[str, object]] = [
        {"name": name, "shape": shape, "datatype": datatype, "data": data} for name, _ in kind.names
    ]
    body = json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    return HttpRequest(path=f"/v2/models/{kind.name}/infer", headers={"Content-Type": "application/json"}, body=body)


def write_models(repository: Path) -> None:
    """All of them, as a model repository."""
    for kind in KINDS:
        write_model(repository, kind)


def write_model(repository: Path, kind: Kind) -> None:
    """One of them."""
    version = repository / kind.name / "1"
    version.mkdir(parents=True)
    (repository / kind.name / "config.pbtxt").write_text(config_of(kind))
    (version / "model.py").write_text(code_of(kind))


@contextlib.contextmanager
def _servers(bench: Bench) -> Iterator[Mapping[str, Server]]:
    """tpy and, where it is installed, Triton, by the names of the table; both run, one is driven at a time."""
    repository = bench.fresh("models")
    write_models(repository)
    plans: dict[str, ServerPlan] = {CONTENDER: TpyPlan(repository=repository)}
    if bench.peers.triton is not None:
        plans[BASELINE] = TritonPlan(triton=bench.peers.triton, repository=repository)
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(running(plan, bench.fresh(f"models-{plan.name}.log"))) for name, plan in plans.items()}

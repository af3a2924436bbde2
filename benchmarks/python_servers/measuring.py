"""One small JSON request to servers that run a function in Python. They run one after another, for a cluster of Ray uses the
machine also when nobody asks it anything; each round starts all of them anew."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.bench import Bench
from benchmarks.http_exchange import HttpRequest
from benchmarks.load import Load, LoadFailed, wrk
from benchmarks.measurement import Measurement
from benchmarks.python_servers.peers import PEERS, Peer, PeerPlan
from benchmarks.rows.tiny import BASELINE, CASES, MLSERVER, VALUES, WARM_UP_S, Contender, measure_once
from benchmarks.servers.models import IDENTITY_INPUT, write_mlserver_identity, write_python_identity
from benchmarks.servers.plans import MlserverPlan, TpyPlan, TritonPlan
from benchmarks.servers.process import Server, ServerFailed, ServerPlan, running
from benchmarks.tensors import WrongAnswer, check_answer, check_identity, json_request

ROW = "Python servers, HTTP JSON, 16 floats"
OURS = ("tpy python worker", "tpy python thread")
_LIST = VALUES.tolist()
_ANSWERS_S_MAX = 60.0


class Served(msgspec.Struct, frozen=True):
    """A server to start, and its contenders: each with the name of its model, or else the peer that is the only one."""

    plan: ServerPlan
    models: tuple[tuple[str, str], ...] = ()
    peer: Peer | None = None


def measure(bench: Bench, peers: Sequence[Peer] = PEERS) -> bool:
    """All servers in each round; then how many times the requests/s of the others tpy answers. A server that fails is reported,
    and the others still run. Returns whether all succeeded."""
    program = bench.peers.wrk
    if program is None:
        bench.say(f"wrk is missing: row '{ROW}' is left out")
        return False
    succeeded = True
    for number in bench.rounds():
        for served in _all_servers(bench, peers):
            try:
                _measure_server(bench, program, served, number)
            except (ServerFailed, LoadFailed, WrongAnswer, OSError) as error:
                succeeded = False
                bench.say(f"{served.plan.name} failed: {error}")
    for measurement in times(bench.measurements):
        bench.note(measurement)
    return succeeded


def _measure_server(bench: Bench, program: Path, served: Served, number: int) -> None:
    with running(served.plan, bench.fresh(f"{served.plan.name}.log")) as server:
        for contender, request in _requests(served, server):

            def drive(one: Contender, connections: int, seconds: int, request: HttpRequest = request) -> Load:
                return wrk.drive(program, one.server.ports.http, request, connections=connections, seconds=seconds)

            _warm_up(contender, drive)
            for connections in CASES:
                measure_once(bench, ROW, contender, connections, drive, number=number)


def times(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The throughput of tpy's models as multiples of each other contender's, in the same case and round."""
    rates = [one for one in measurements if one.row == ROW and one.metric == "throughput"]
    return [
        msgspec.structs.replace(other, metric=f"{own.contender}: throughput", unit="times this one's", baseline="", value=ratio)
        for own in rates
        if own.contender in OURS
        for other in rates
        if other.contender not in OURS and (other.case, other.round) == (own.case, own.round)
        for ratio in [own.value / other.value]
    ]


def _all_servers(bench: Bench, peers: Sequence[Peer]) -> Iterator[Served]:
    repository = bench.fresh("tpy")
    write_python_identity(repository, "worker")
    write_python_identity(repository, "thread", in_thread=True)
    yield Served(TpyPlan(repository=repository), tuple(zip(OURS, ("worker", "thread"), strict=True)))
    if bench.peers.triton is not None:
        repository = bench.fresh("triton")
        write_python_identity(repository, "identity")
        yield Served(TritonPlan(triton=bench.peers.triton, repository=repository), ((BASELINE, "identity"),))
    if bench.peers.mlserver is not None:
        repository = bench.fresh("mlserver")
        write_mlserver_identity(repository, "identity")
        plan = MlserverPlan(program=bench.peers.mlserver, repository=repository, model="identity")
        yield Served(plan, ((MLSERVER, "identity"),))
    for peer in peers:
        yield Served(PeerPlan(peer=peer, folder=bench.fresh(peer.package), answer=_compact(_LIST)), peer=peer)


def _requests(served: Served, server: Server) -> Iterator[tuple[Contender, HttpRequest]]:
    """Each contender, once it has answered its request."""
    port = server.ports.http
    for name, model in served.models:
        request = json_request(model, IDENTITY_INPUT, VALUES)
        check_identity(port, request, VALUES)
        yield Contender(name, server, model), request
    if served.peer is not None:
        body = _compact({served.peer.key: _LIST} if served.peer.key else _LIST)
        request = HttpRequest(path=served.peer.path, headers={"Content-Type": "application/json"}, body=body)
        check_answer(port, request, _LIST)
        yield Contender(served.peer.name, server, ""), request


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _warm_up(contender: Contender, drive: Callable[[Contender, int, int], Load]) -> None:
    """Until a load goes through: Ray starts its HAProxy anew as replicas come."""
    give_up_s = time.monotonic() + _ANSWERS_S_MAX
    while True:
        try:
            drive(contender, 16, WARM_UP_S)
            return
        except LoadFailed:
            if time.monotonic() > give_up_s:
                raise

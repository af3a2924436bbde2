"""Rollouts under load, for real: version after version of three models, of which every second one is faulty, while clients ask.

The versions with even numbers are faulty. Of `fails` such a version fails every 20th request, of `dies` its process is killed at
every 25th, of `sums`, which has sequences of four requests, it fails every fifth beginning of one. The plan's gate must roll each
of them back, and promote each of the others, which comes with a plan in the call.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc as triton

from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until

MODELS = ("fails", "dies", "sums")
MAX_ERROR_PERCENT = 1.0
MIN_REQUESTS = 100
PERCENTS = (20, 60)
"""Of the plan's steps. The time of each is 0: it lasts as many requests as the gates need. The last one of a plan that comes with
a call is 100."""

SEQUENCE_REQUESTS = 4
_FAULTY, _HARMLESS = 1, 0
"""Inputs at which a version with an even number may fail, and at which none does. Requests for a version have the latter."""

_PATIENCE_S = 120.0

MODEL = """
import os
import signal

import numpy as np
import triton_python_backend_utils as pb_utils

START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START


class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])
        self.answer = getattr(self, args["model_name"])
        self.asked = 0
        self.totals = {}

    def execute(self, requests):
        return [self.respond(each) for each in requests]

    def respond(self, request):
        given = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0])
        is_start = bool(request.flags() & START)
        self.asked += given == 1 and self.version % 2 == 0 and (is_start or self.answer != self.sums)
        answer = self.answer(request, given, is_start)
        if answer is None:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("made to fail"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([answer], np.int32))])

    def is_turn(self, every):
        return self.asked > 0 and self.asked % every == 0

    def fails(self, request, given, is_start):
        return None if given and self.is_turn(20) else given

    def dies(self, request, given, is_start):
        if given and self.is_turn(25):
            os.kill(os.getpid(), signal.SIGKILL)
        return given

    def sums(self, request, given, is_start):
        if is_start and self.is_turn(5):
            return None
        sequence = request.correlation_id()
        self.totals[sequence] = given + (0 if is_start else self.totals.get(sequence, 0))
        return self.totals[sequence]
"""

CONFIG = """
backend: "python"
version_policy { latest { num_versions: 3 } }
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
parameters { key: "rollout" value { string_value: '%s' } }
"""


SEQUENCES = "sequence_batching { oldest { max_candidate_sequences: 64 } max_sequence_idle_microseconds: 60000000 }"


class InSequence(NamedTuple):
    """The place of a request in a sequence."""

    number: int
    start: bool
    end: bool


class Answer(NamedTuple):
    """The version that answered, and its output; or the `error`."""

    version: int = 0
    output: int = 0
    error: str = ""


Ask = Callable[[str, str, int, InSequence | None], Answer]
"""Sends a request to a model, for a version or "", with an input."""


class Stage(NamedTuple):
    """A part of a round: the versions that may answer requests without one, and those that are asked for by number. `may_fail`:
    requests without a version may fail."""

    answering: frozenset[int]
    loaded: tuple[int, ...]
    may_fail: bool = False


class Rollback(NamedTuple):
    """A faulty version: what the rollout counted when it was rolled back, and what clients saw. `allowed` is the bound of
    `failed`, see `errors_allowed`."""

    step: int
    counted: int
    counted_failed: int
    answered: int
    failed: int
    allowed: float


class Report(NamedTuple):
    """Of a model: its rollbacks, the requests of clients, and what must not have happened."""

    model: str
    connections: int
    rollbacks: Sequence[Rollback]
    requests: Counter[str]
    broken: Sequence[str]

    def __str__(self) -> str:
        faulty = len(self.rollbacks)
        counted, failed, answered, allowed = zip(
            *((each.counted, each.failed, each.answered, each.allowed) for each in self.rollbacks), strict=True
        )
        counts = ", ".join(f"{what} {number:,}" for what, number in sorted(self.requests.items()))
        lines = (
            f"{self.model}, {self.connections} connections: requests {counts}",
            f"  {faulty} faulty versions rolled back after {min(counted)} to {max(counted)} requests (window: {MIN_REQUESTS})",
            f"  {sum(failed)} of their {sum(answered):,} requests failed, at most {max(failed)} in a rollout",
            f"  (allowed in a rollout: {min(allowed):.1f} or more)",
            f"  {faulty} good versions promoted",
            *(f"  broken: {text}" for text in self.broken[:10]),
        )
        return "\n".join(lines)

    def check(self) -> None:
        """Each faulty version was rolled back in its first step, within the gate's window, after no more errors than allowed."""
        assert not self.broken, str(self)
        for each in self.rollbacks:
            assert (each.step, each.counted <= MIN_REQUESTS) == (1, True), str(self)
            assert each.failed <= each.allowed, str(self)


def errors_allowed(answered: int, connections: int, steps: int) -> float:
    """The most failures that clients may see of a new version that has answered `answered` requests in `steps` steps, failures
    included.

    A step that is passed had at most MAX_ERROR_PERCENT of its requests fail, the one that decides as many of its requests or of
    MIN_REQUESTS, and the request that decided. When a step ends, or the version is rolled back, other requests are on their way:
    none of the gates counts them, and each connection has one at most.
    """
    counted = MAX_ERROR_PERCENT / 100 * (answered + MIN_REQUESTS)
    return counted + connections * steps


def plan(percents: Sequence[int]) -> dict[str, object]:
    """A plan with these steps."""
    steps = [{"percent": percent, "seconds": 0} for percent in percents]
    return {"steps": steps, "min_requests": MIN_REQUESTS, "max_error_percent": MAX_ERROR_PERCENT}


def write(repository: Path, models: Sequence[str], percents: Sequence[int]) -> None:
    """Version 1 of the models."""
    for name in models:
        more = SEQUENCES if name == "sums" else ""
        ModelFolder(repository, name).config(CONFIG % json.dumps(plan(percents)) + more).python(MODEL)


@contextmanager
def over_http(server: ServerProcess) -> Iterator[Ask]:
    """A connection over HTTP."""
    connection = http.client.HTTPConnection(server.http, timeout=_PATIENCE_S)

    def ask(model: str, version: str, given: int, sequence: InSequence | None) -> Answer:
        tensor = {"name": "X", "shape": [1], "datatype": "INT32", "data": [given]}
        body: dict[str, object] = {"inputs": [tensor]}
        if sequence is not None:
            number, start, end = sequence
            body["parameters"] = {"sequence_id": number, "sequence_start": start, "sequence_end": end}
        path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"
        try:
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return Answer(error=repr(error))
        if response.status != 200:
            return Answer(error=f"{response.status} {answer}")
        return Answer(int(answer["model_version"]), answer["outputs"][0]["data"][0])

    try:
        yield ask
    finally:
        connection.close()


@contextmanager
def over_grpc(server: ServerProcess) -> Iterator[Ask]:
    """A channel of Triton's client."""
    with triton.InferenceServerClient(server.grpc) as client:

        def ask(model: str, version: str, given: int, sequence: InSequence | None) -> Answer:
            tensor = triton.InferInput("X", [1], "INT32")
            tensor.set_data_from_numpy(np.array([given], np.int32))
            number, start, end = sequence or (0, False, False)
            more = {"sequence_id": number, "sequence_start": start, "sequence_end": end}
            try:
                answer = client.infer(model, [tensor], version, client_timeout=_PATIENCE_S, **more)
            except triton.InferenceServerException as error:
                return Answer(error=str(error))
            return Answer(int(answer.get_response().model_version), int(answer.as_numpy("Y")[0]))

        yield ask


class Clients:
    """Connections that ask one model until `over` is set, half of them by HTTP, with a pause between two requests. A request
    belongs to the stage in which it is sent."""

    def __init__(self, server: ServerProcess, model: str, count: int, pause_s: float) -> None:
        self.model = model
        self.count = count
        self.stage = Stage(frozenset((1,)), (1,))
        self.requests: Counter[str] = Counter()
        self.broken: list[str] = []
        self.answered: Counter[tuple[Stage, int]] = Counter()
        """Of requests without a version, by stage and version, 0 for those that failed."""
        self.over = threading.Event()
        self._pause_s = pause_s
        self._server = server
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()

    def enter(self, stage: Stage) -> None:
        """Requests that are sent from now on belong to this stage."""
        with self._lock:
            self.stage = stage

    def seen(self, stage: Stage) -> int:
        """The answers to requests without a version that were sent in this stage."""
        with self._lock:
            return sum(count for (each, _), count in self.answered.items() if each == stage)

    def _run(self, number: int) -> None:
        chance = random.Random(number)
        sequences = (1 + number * 10_000_000 + each for each in range(10_000_000))
        with (over_http if number % 2 == 0 else over_grpc)(self._server) as ask:
            while not self.over.wait(self._pause_s):
                if self.model == "sums":
                    self._run_sequence(ask, next(sequences))
                elif chance.random() < 0.1:
                    self._ask_for(ask, chance)
                else:
                    stage = self.stage
                    self._note(stage, ask(self.model, "", _FAULTY, None))

    def _ask_for(self, ask: Ask, chance: random.Random) -> None:
        """A request for a version."""
        stage = self.stage
        version = chance.choice(stage.loaded)
        answer = ask(self.model, str(version), _HARMLESS, None)
        with self._lock:
            self.requests["for a version"] += 1
            if answer.error and self.model == "dies" and version % 2 == 0:
                self.requests["for a version whose process was killed"] += 1
            elif answer.error or answer.version != version:
                self.broken.append(f"version {version} was asked for in {stage}: {answer}")

    def _run_sequence(self, ask: Ask, number: int) -> None:
        """A sequence stays with the version that answered first, whatever is decided meanwhile, and loses nothing."""
        stage = self.stage
        first = ask(self.model, "", _FAULTY, InSequence(number, start=True, end=False))
        self._note(stage, first)
        if first.error:  # it has begun all the same
            ask(self.model, "", _HARMLESS, InSequence(number, start=False, end=True))
            return
        for total in range(2, SEQUENCE_REQUESTS + 1):
            answer = ask(self.model, "", _FAULTY, InSequence(number, start=False, end=total == SEQUENCE_REQUESTS))
            with self._lock:
                self.requests["further ones of a sequence"] += 1
                if answer != Answer(first.version, total):
                    self.broken.append(f"a sequence of version {first.version} got at {total}: {answer}")
                else:
                    self.answered[stage, first.version] += 1

    def _note(self, stage: Stage, answer: Answer) -> None:
        with self._lock:
            self.requests["without a version"] += 1
            self.answered[stage, answer.version] += 1
            if answer.error:
                self.requests["of those failed"] += 1
                if not stage.may_fail:
                    self.broken.append(f"a request failed in {stage}: {answer.error}")
            elif answer.version not in stage.answering:
                self.broken.append(f"version {answer.version} answered in {stage}")


class Rounds:
    """The rollouts of one model, one after another, by steps of `percents`. When something was decided, `after` more requests are
    looked at."""

    def __init__(
        self, server: ServerProcess, folder: ModelFolder, clients: Clients, percents: Sequence[int], *, after: int
    ) -> None:
        self._server = server
        self._folder = folder
        self._clients = clients
        self._percents = percents
        self._after = after
        self.rollbacks: list[Rollback] = []

    def run(self, rounds: int) -> None:
        """Roll out a faulty version and a good one after it, `rounds` times."""
        for number in range(rounds):
            self._run_round(1 + 2 * number)

    def _run_round(self, old: int) -> None:
        faulty, good = old + 1, old + 2
        clients = self._clients
        stage = Stage(frozenset((old, faulty)), (old,), may_fail=True)
        self._begin(stage, faulty)
        wait_until(lambda: self._state() == "rolled back", within_s=_PATIENCE_S)
        status = self._rollout()
        self._watch(Stage(frozenset((old,)), (old, faulty)))
        answered = clients.answered[stage, faulty] + clients.answered[stage, 0]
        allowed = errors_allowed(answered, clients.count, len(self._percents))
        counted = status["new"]["ended"], status["new"]["failed"]
        self.rollbacks.append(Rollback(status["step"], *counted, answered, clients.answered[stage, 0], allowed))

        self._begin(Stage(frozenset((old, good)), (old, faulty)), good)
        given = self._rollout({"action": "start", "plan": plan((*self._percents, 100))})
        assert (given["plan_from"], given["steps"]) == ("call", 1 + len(self._percents)), given
        wait_until(lambda: self._state() in ("promoted", ""), within_s=_PATIENCE_S)
        self._watch(Stage(frozenset((good,)), (faulty, good)))

    def _begin(self, stage: Stage, version: int) -> None:
        """Load a version while clients ask."""
        self._clients.enter(stage)
        self._folder.python(MODEL, version)
        self._post("load", {})

    def _watch(self, stage: Stage) -> None:
        self._clients.enter(stage)
        wait_until(lambda: self._clients.seen(stage) >= self._after, within_s=_PATIENCE_S)

    def _state(self) -> str:
        """The state of the rollout, "" when it is over."""
        try:
            return self._rollout()["state"]
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return ""

    def _rollout(self, change: dict[str, object] | None = None) -> Any:
        return self._post("rollout", change)

    def _post(self, what: str, body: dict[str, object] | None) -> Any:
        url = f"http://{self._server.http}/v2/repository/models/{self._folder.name}/{what}"
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(url, data, timeout=_PATIENCE_S) as answer:
            return json.loads(answer.read() or b"null")


def run(
    folder: Path,
    *,
    rounds: int,
    models: Sequence[str] = MODELS,
    connections: int = 4,
    percents: Sequence[int] = PERCENTS,
    after: int = 200,
    pause_s: float = 0.002,
) -> list[Report]:
    """Roll out `rounds` faulty and as many good versions of each model, all models at the same time."""
    repository = folder / "models"
    write(repository, models, percents)
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(*flags, repositories=[repository]) as server, ExitStack() as stack:
        clients = [stack.enter_context(Clients(server, name, connections, pause_s)) for name in models]
        stories = [Rounds(server, ModelFolder(repository, each.model), each, percents, after=after) for each in clients]
        with ThreadPoolExecutor(len(stories)) as pool:
            list(pool.map(lambda story: story.run(rounds), stories))
    told = zip(clients, stories, strict=True)
    return [Report(each.model, each.count, story.rollbacks, each.requests, each.broken) for each, story in told]

"""A new version gets a share of the requests, and is promoted or rolled back by its gates."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.backends import onnx_models
from tests.fleet.rollouts import run as run_rollouts
from tpy._proto import message_class

from .repositories import ModelFolder
from .server import ServerProcess, run_tpy
from .waiting import wait_until

CONFIG = """
backend: "python"
version_policy: { latest { num_versions: 2 } }
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "VERSION" data_type: TYPE_INT32 dims: [ 1 ] } ]
parameters { key: "rollout" value { string_value: '%s' } }
"""

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

ALIKE = -1

class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        return [self.answer(int(pb_utils.get_input_tensor_by_name(each, "X").as_numpy()[0])) for each in requests]

    def answer(self, x):
        if x == self.version:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"version {x} fails"))
        answer = 7 if x == ALIKE else self.version
        return pb_utils.InferenceResponse([pb_utils.Tensor("VERSION", np.array([answer], np.int32))])
"""

PLAN: dict[str, Any] = {"steps": [{"percent": 50, "seconds": 0}], "min_requests": 20}
FAILS, WORKS, ALIKE = 2, 0, -1
"""Inputs with which version 2 fails, with which it does not, and with which it answers as version 1 does."""

SHADOWED = {**PLAN, "shadow": {"percent": 50, "seconds": 0}}


RolloutRequest, RolloutStatus = (message_class(f"tpy.rollout.v1.{name}") for name in ("RolloutRequest", "RolloutStatus"))


@contextmanager
def serving(repository: Path, *flags: str) -> Iterator[ServerProcess]:
    with ServerProcess("--model-control-mode=explicit", "--load-model=*", *flags, repositories=[repository]) as server:
        yield server


@pytest.fixture
def model(tmp_path: Path) -> ModelFolder:
    return ModelFolder(tmp_path / "models", "m").config(CONFIG % json.dumps(PLAN)).file("1/model.py", MODEL)


def infer(server: ServerProcess, x: int, count: int, *, version: str = "") -> Counter[object]:
    """The versions that answered, and errors, over both protocols in turn."""
    found: Counter[object] = Counter()
    with triton_http.InferenceServerClient(server.http) as http, triton_grpc.InferenceServerClient(server.grpc) as grpc:
        for number in range(count):
            kind, client = ((triton_http, http), (triton_grpc, grpc))[number % 2]
            given = kind.InferInput("X", [1], "INT32")
            given.set_data_from_numpy(np.array([x], np.int32))
            try:
                answer = client.infer("m", [given], version)
            except Exception as error:
                found[str(error).rpartition("] ")[2]] += 1
            else:
                named = answer.get_response()
                named = named["model_version"] if isinstance(named, dict) else named.model_version
                assert answer.as_numpy("VERSION")[0] == (7 if x == ALIKE else int(named))
                found[int(named)] += 1
    return found


def begin(server: ServerProcess, model: ModelFolder) -> None:
    """Load version 2 beside version 1."""
    model.file("2/model.py", MODEL)
    with triton_http.InferenceServerClient(server.http) as client:
        client.load_model("m")


def rollout(server: ServerProcess, action: str = "") -> Any:
    """The answer of the route, or the status of its refusal."""
    body = json.dumps({"action": action}).encode() if action else None
    try:
        with urllib.request.urlopen(f"http://{server.http}/v2/repository/models/m/rollout", body) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code


def grpc_rollout(server: ServerProcess, method: str, plan: str = "") -> Any:
    """The answer of the same over gRPC, or the code of its refusal."""
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(f"/tpy.rollout.v1.RolloutService/{method}")
        try:
            return RolloutStatus.FromString(call(RolloutRequest(model_name="m", plan=plan).SerializeToString(), timeout=60))
        except grpc.RpcError as error:
            return error.code()


def index(server: ServerProcess) -> dict[str, str]:
    """The reasons of model m's versions, which are all READY."""
    with urllib.request.urlopen(f"http://{server.http}/v2/repository/index", b"") as answer:
        entries = [entry for entry in json.load(answer) if entry["name"] == "m"]
    assert {entry["state"] for entry in entries} == {"READY"}
    return {entry["version"]: entry.get("reason", "") for entry in entries}


def metrics(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as answer:
        return answer.read().decode()


@pytest.mark.parametrize("processes", [0, 1])
def test_a_version_that_fails_is_rolled_back(model: ModelFolder, processes: int, tmp_path: Path) -> None:
    flags = (f"--frontend-processes={processes}", f"--rollout-file={tmp_path / 'rollouts.json'}")
    with serving(model.path.parent, *flags) as server:
        assert infer(server, FAILS, 4) == {1: 4}
        assert rollout(server) == 404, "one version is no rollout"
        begin(server, model)
        status = rollout(server)
        assert (status["state"], status["percent"]) == ("running", 50)
        assert (status["old"]["version"], status["new"]["version"]) == (1, 2)
        assert infer(server, WORKS, 10) == {1: 5, 2: 5}
        assert index(server) == {"1": "", "2": "rollout: it gets 50 % of the requests"}
        assert 'tpy_rollout_percent{model="m",version="2"} 50' in metrics(server)

        assert infer(server, FAILS, 60) == {1: 59, "version 2 fails": 1}, "the gate allows none of 20"
        status = rollout(server)
        assert (status["state"], status["percent"]) == ("rolled back", 0)
        assert status["reason"] == "1 of 6 requests failed (16.7 %); at most 1 % of 20 are allowed"
        assert infer(server, WORKS, 4, version="2") == {2: 4}, "whoever names a version gets it"
        wait_until(lambda: index(server) == {"1": "", "2": f"rolled back: {status['reason']}"})
        assert 'tpy_rollout_decisions_total{model="m",state="rolled back"} 1' in metrics(server)
        server.wait_log("model 'm': version 2 is rolled back, 1 gets all requests: 1 of 6 requests failed")
    with serving(model.path.parent, *flags) as server:
        assert infer(server, WORKS, 10) == {1: 10}, "a restart forgets nothing"
        model.file("2/model.py", f"{MODEL}\n# mended")
        with triton_http.InferenceServerClient(server.http) as client:
            client.load_model("m")
        assert infer(server, WORKS, 10) == {1: 5, 2: 5}, "a version that was loaded anew has another chance"


def test_a_version_that_passes_is_promoted(model: ModelFolder) -> None:
    with serving(model.path.parent) as server:
        begin(server, model)
        assert set(infer(server, WORKS, 41)) == {1, 2}
        wait_until(lambda: rollout(server) == 404, within_s=30)
        assert infer(server, WORKS, 10) == {2: 10}
        server.wait_log("model 'm': version 2 gets all requests: 20 requests of the new version ended, 0 of them failed")
    with serving(model.path.parent) as server:
        assert infer(server, WORKS, 4) == {2: 4}, "what is there at the start is there on purpose"


def test_it_can_be_ended_by_hand_and_begun_again(model: ModelFolder, tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    with serving(model.path.parent, f"--audit-log={log}", "--frontend-processes=1") as server:
        assert grpc_rollout(server, "Status") is grpc.StatusCode.NOT_FOUND
        begin(server, model)
        assert infer(server, WORKS, 10) == {1: 5, 2: 5}
        status = grpc_rollout(server, "Status")
        assert (status.state, status.percent, status.step, status.old.ended, status.new.ended) == ("running", 50, 1, 5, 5)
        assert status.new.p99_ns > 0
        line = "rollout     version 2 gets 50 % of the requests, step 1 of 1; version 2: 5 ended, 0 failed, p99 "
        assert run_tpy("explain", "m", "-u", server.http).out.count(line) == 2, "each version has it"
        status = grpc_rollout(server, "RollBack")
        assert (status.state, status.reason, status.new.version) == ("rolled back", "as asked", 2)
        assert infer(server, WORKS, 4) == {1: 4}
        status = grpc_rollout(server, "Start", json.dumps({**PLAN, "max_error_percent": 5}))
        assert (status.state, status.percent, status.new.ended, status.plan_from) == ("running", 50, 0, "call")
        assert infer(server, WORKS, 4) == {1: 2, 2: 2}
        assert rollout(server, "pause") == 400
        assert rollout(server, "promote")["state"] == "promoted"
        assert infer(server, WORKS, 6) == {2: 6}
        assert rollout(server, "roll_back") == 404, "it is over"
        wait_until(lambda: index(server) == {"1": "", "2": ""})
        assert grpc_rollout(server, "Promote") is grpc.StatusCode.NOT_FOUND
    lines = [line for line in map(json.loads, log.read_text().splitlines()) if line["action"] == "rollout"]
    # Two processes write them: only those of one are in order.
    assert Counter((line["protocol"], line["result"], line["details"].get("state")) for line in lines) == Counter(
        [
            ("rollout", "OK", "rolled back"),
            ("grpc", "OK", None),
            ("rollout", "OK", "running"),
            ("grpc", "OK", None),
            ("http", "INVALID_ARG", None),
            ("rollout", "OK", "promoted"),
            ("http", "OK", None),
            ("http", "NOT_FOUND", None),
            ("grpc", "NOT_FOUND", None),
        ]
    )


def refusal(server: ServerProcess, **body: Any) -> tuple[int, str]:
    """The answer to a change that is not made."""
    asked = urllib.request.Request(f"http://{server.http}/v2/repository/models/m/rollout", json.dumps(body).encode())
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked)
    return refused.value.code, json.load(refused.value)["error"]


def test_a_call_gives_the_plan(model: ModelFolder, tmp_path: Path) -> None:
    without = re.sub("(?m)^parameters.*", "", CONFIG)
    model.config(without).file("2/model.py", MODEL)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN))
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", "--repository-settle-ms=0")
    with ServerProcess(*flags, repositories=[model.path.parent]) as server:
        assert infer(server, WORKS, 4) == {2: 4}
        expected = "expected a JSON object like"
        for plan, reason in (({"pace": 1}, "Object contains unknown field `pace`"), ([], "Expected `object`, got `array`")):
            code, text = refusal(server, action="start", plan=plan)
            assert (code, text.partition(", " + expected)[0]) == (400, f"the plan for m is not a valid rollout plan: {reason}")
        text = "unexpected plan with action 'promote' for a rollout, expected it with start only"
        assert refusal(server, action="promote", plan=PLAN) == (400, text)
        assert refusal(server, action="start", plan=None)[0] == 400, "as over gRPC"
        assert refusal(server, action="start", plan="x" * 9200) == (400, "the body has 9231 bytes, expected at most 9216")
        assert "it has 9002 bytes, at most 8192 are allowed" in refusal(server, action="start", plan="x" * 9000)[1]
        assert refusal(server, action="start")[0] == 404

        empty = tmp_path / "null.json"
        empty.write_text("null")
        outcome = run_tpy("rollout", "m", "-u", server.http, "--start", "--plan", str(empty))
        assert (outcome.code, "Expected `object`, got `null`" in outcome.err) == (1, True)
        assert grpc_rollout(server, "Start", "null") is grpc.StatusCode.INVALID_ARGUMENT

        started = run_tpy("rollout", "m", "-u", server.http, "--start", "--plan", str(file))
        assert (started.code, started.err) == (0, "")
        assert started.out.startswith("m: version 2 gets 50 % of the requests, step 1 of 1;")
        assert started.out.endswith("; its plan was given with a call\n")
        assert infer(server, WORKS, 10) == {1: 5, 2: 5}
        model.config(CONFIG % json.dumps({**PLAN, "steps": [{"percent": 10}]}))
        server.wait_log("(?s)(version 2 gets 50 % of the requests, version 1 the others.*){2}")
        assert infer(server, WORKS, 10) == {1: 5, 2: 5}, "the parameter that came meanwhile does not hold yet"
        status = grpc_rollout(server, "Start")
        assert (status.percent, status.plan_from) == (10, "parameter")
        status = grpc_rollout(server, "Start", json.dumps({"steps": [{"percent": 25}]}))
        assert (status.percent, status.plan_from) == (25, "call")
        assert json.loads(status.plan)["steps"] == [{"percent": 25.0, "seconds": 60.0}]
        assert rollout(server)["plan"] == json.loads(status.plan)
        assert grpc_rollout(server, "RollBack", "{}") is grpc.StatusCode.INVALID_ARGUMENT


def test_a_version_that_dies_under_load_is_rolled_back_and_the_next_one_promoted(tmp_path: Path) -> None:
    [report] = run_rollouts(tmp_path, rounds=1, models=("dies",), connections=3, percents=(50,), after=20, pause_s=0.015)
    report.check()
    [rollback] = report.rollbacks
    assert rollback.counted_failed == 2, "the gate allows 1 of 100"
    for wrong in (rollback._replace(failed=20), rollback._replace(counted=101), rollback._replace(step=2)):
        with pytest.raises(AssertionError):
            report._replace(rollbacks=[wrong]).check()


@pytest.mark.parametrize("processes", [0, 1])
def test_a_version_that_answers_otherwise_is_rolled_back_before_it_answers(model: ModelFolder, processes: int) -> None:
    model.config(CONFIG % json.dumps(SHADOWED))
    with serving(model.path.parent, f"--frontend-processes={processes}") as server:
        begin(server, model)
        assert infer(server, ALIKE, 10) == {1: 10}
        wait_until(lambda: rollout(server)["compared"] == 5, within_s=30)
        status = rollout(server)
        assert (status["state"], status["percent"], status["step"], status["steps"]) == ("running", 0, 1, 2)
        assert (status["new"]["ended"], status["differed"]) == (5, 0)
        assert infer(server, WORKS, 2) == {1: 2}, "its answers are not sent"
        wait_until(lambda: rollout(server)["state"] == "rolled back", within_s=30)
        assert infer(server, WORKS, 4) == {1: 4}
        reason = "1 of 6 answers differ (16.7 %); at most 1 % of 20 are allowed; the last one: output 'VERSION' [0] is 2, was 1"
        assert rollout(server)["reason"] == reason
        server.wait_log(re.escape(f"version 2 is rolled back, 1 gets all requests: {reason}"))


def test_a_version_that_answers_alike_goes_on_to_the_first_step(model: ModelFolder) -> None:
    model.config(CONFIG % json.dumps(SHADOWED))
    with serving(model.path.parent) as server:
        begin(server, model)
        assert infer(server, ALIKE, 40) == {1: 40}
        wait_until(lambda: rollout(server)["percent"] == 50, within_s=30)
        server.wait_log(
            "gets 50 % of the requests: 20 requests of the new version ended, 0 of them failed, 0 of 20 answers differ"
        )
        assert infer(server, WORKS, 10) == {1: 5, 2: 5}


ENSEMBLE = """
platform: "ensemble"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "VERSION" data_type: TYPE_INT32 dims: [ 1 ] } ]
ensemble_scheduling { step [ {
  model_name: "m" model_version: %d input_map { key: "X" value: "X" } output_map { key: "VERSION" value: "VERSION" }
} ] }
"""

CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.ask(each) for each in requests]

    def ask(self, request):
        given = [pb_utils.get_input_tensor_by_name(request, "X")]
        asked = pb_utils.InferenceRequest(
            model_name="m", requested_output_names=["VERSION"], inputs=given, parameters={"user": request.request_id()}
        )
        answer = asked.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse(answer.output_tensors())
"""


@pytest.fixture
def callers(model: ModelFolder) -> Path:
    """The repository of `model`, with two ensembles of it, one of which names its version, and a model that calls it."""
    repository = model.path.parent
    for name, version in (("e", -1), ("first", 1)):
        (ModelFolder(repository, name).config(ENSEMBLE % version).path / "1").mkdir()
    caller = re.sub("(?m)^(parameters|version_policy).*", "", CONFIG)
    ModelFolder(repository, "calls").config(caller).file("1/model.py", CALLER)
    return repository


def versions_of(server: ServerProcess, model: str, x: int, users: Iterable[str]) -> list[object]:
    """The version that answered each user's request, or the error."""
    found: list[object] = []
    with triton_http.InferenceServerClient(server.http) as client:
        for user in users:
            given = triton_http.InferInput("X", [1], "INT32")
            given.set_data_from_numpy(np.array([x], np.int32))
            try:
                answer = client.infer(model, [given], request_id=user, parameters={"user": user})
            except Exception as error:
                found.append(str(error).rpartition("] ")[2])
            else:
                found.append(int(answer.as_numpy("VERSION")[0]))
    return found


def test_steps_of_ensembles_and_calls_take_part(model: ModelFolder, callers: Path) -> None:
    users = [f"user {number}" for number in range(10)]
    model.config(CONFIG % json.dumps({**SHADOWED, "shadow": {"seconds": 0}, "min_requests": 4}))
    with serving(callers) as server:
        begin(server, model)
        assert versions_of(server, "e", ALIKE, "abc") == [7] * 3
        wait_until(lambda: rollout(server)["compared"] == 3, within_s=30)
        assert versions_of(server, "e", WORKS, "d") == [1]
        wait_until(lambda: rollout(server)["state"] == "rolled back", within_s=30)
        assert "output 'VERSION' [0] is 2, was 1" in rollout(server)["reason"], "steps are copied"

        model.config(CONFIG % json.dumps({**PLAN, "sticky": "parameter:user", "min_requests": 1000}))
        begin(server, model)
        assert rollout(server)["state"] == "rolled back", "another configuration is no other version"
        assert rollout(server, "start")["plan"]["sticky"] == "parameter:user"
        found = versions_of(server, "m", WORKS, users)
        assert set(found) == {1, 2}
        assert versions_of(server, "e", WORKS, users) == versions_of(server, "calls", WORKS, users) == found, "whichever way"

        model.config(CONFIG % json.dumps(PLAN))
        begin(server, model)
        for name in ("e", "calls", "m"):
            assert Counter(versions_of(server, name, WORKS, users)) == {1: 5, 2: 5}, name
        assert versions_of(server, "first", WORKS, users) == [1] * 10
        status = rollout(server)
        assert (status["old"]["ended"], status["new"]["ended"]) == (15, 15)
        assert Counter(versions_of(server, "e", FAILS, users)) == {1: 9, "in ensemble 'e', version 2 fails": 1}
        assert rollout(server)["state"] == "rolled back"
        assert versions_of(server, "e", WORKS, users) == [1] * 10
        assert rollout(server, "start")["state"] == "running"
        assert rollout(server, "promote")["state"] == "promoted"
        assert versions_of(server, "e", WORKS, users) == [2] * 10


def test_the_command(model: ModelFolder) -> None:
    with serving(model.path.parent) as server:
        asked = ("rollout", "m", "-u", server.http)
        outcome = run_tpy(*asked)
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err == "tpy: error: HTTP 404: no version of model 'm' is rolled out\n"
        begin(server, model)
        outcome = run_tpy(*asked)
        assert outcome.code == 0
        assert outcome.out.startswith(
            "m: version 2 gets 50 % of the requests, step 1 of 1; version 2: 0 ended, 0 failed, p99 0 ms; "
        )
        assert run_tpy(*asked, "--wait", "--promote").code == 1
        outcome = run_tpy(*asked, "--roll-back", "--json")
        assert (outcome.code, json.loads(outcome.out)["state"]) == (0, "rolled back")
        outcome = run_tpy(*asked, "--start", "--json")
        assert (outcome.code, json.loads(outcome.out)["state"]) == (0, "running")
        assert infer(server, WORKS, 4) == {1: 2, 2: 2}
        assert run_tpy(*asked, "--roll-back").code == 0
        outcome = run_tpy(*asked, "--wait")
        assert (outcome.code, outcome.out) == (1, "m: version 2 is rolled back, version 1 gets all requests: as asked\n")
        outcome = run_tpy(*asked, "--promote")
        assert (outcome.code, outcome.out) == (0, "m: version 2 gets all requests: as asked\n")


def test_the_command_waits_for_the_promotion(model: ModelFolder) -> None:
    with serving(model.path.parent) as server:
        begin(server, model)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(run_tpy, "rollout", "m", "-u", server.http, "--wait")
            wait_until(lambda: rollout(server) == 404 or (infer(server, WORKS, 10) and waiting.done()), within_s=60)
            outcome = waiting.result(60)
        assert outcome.code == 0, outcome.out
        assert outcome.out.splitlines()[-1] == "m: version 2 gets all requests"


def test_a_new_configuration_is_that_of_both_versions(model: ModelFolder) -> None:
    with serving(model.path.parent) as server:
        model.config((CONFIG % json.dumps(PLAN)).replace("dims: [ 1 ]", "dims: [ -1 ]"))
        begin(server, model)
        status = rollout(server)
        assert (status["state"], status["percent"], status["reason"]) == ("running", 50, "")
        assert infer(server, WORKS, 10) == {1: 5, 2: 5}


def test_versions_that_differ_share_no_requests(tmp_path: Path) -> None:
    """Their inputs and outputs are those of their files: the configuration says nothing of them."""
    parameters = CONFIG[CONFIG.index("parameters") :] % json.dumps(PLAN)
    policy = "version_policy: { latest { num_versions: 2 } }"
    folder = ModelFolder(tmp_path / "models", "m").config(f'backend: "onnxruntime"\n{policy}\n{parameters}')
    folder.file("1/model.onnx", onnx_models.affine(2.0, 1.0))
    with serving(folder.path.parent) as server, triton_http.InferenceServerClient(server.http) as client:
        folder.file("2/model.onnx", onnx_models.gathering())
        client.load_model("m")
        status = rollout(server)
        assert (status["state"], status["percent"]) == ("running", 0)
        assert status["reason"].startswith("its inputs are not those of the old version: ")
        assert client.get_model_metadata("m")["inputs"] == client.get_model_metadata("m", "1")["inputs"]
        server.wait_log("model 'm': version 2 gets no requests without a version: its inputs are not")


def test_plans_that_cannot_be(model: ModelFolder) -> None:
    model.config(CONFIG % '{"steps": []}')
    checked = run_tpy("check", str(model.path.parent))
    assert checked.code == 1
    assert "parameter 'rollout' of m is not a valid rollout plan: Expected `array` of length >= 1" in checked.out


def test_a_file_that_cannot_be_read_ends_the_start(model: ModelFolder, tmp_path: Path) -> None:
    file = tmp_path / "rollouts.json"
    file.write_text('{"m": {"version": "two"}}')
    with ServerProcess(f"--rollout-file={file}", repositories=[model.path.parent], expect_exit=1) as server:
        server.process.wait(60)
    assert f"--rollout-file {file} cannot be read: Expected `int`, got `str`" in server.log

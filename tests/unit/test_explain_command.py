"""`tpy explain`: explanations and traces as lines, and what it says where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from tpy.messages import (
    BatchingRules,
    CacheActivity,
    EngineActivity,
    InstanceActivity,
    InstanceState,
    LevelActivity,
    MemberActivity,
    MemoryGrowth,
    ModelExplanation,
    QueueActivity,
    RecentActivity,
    ResourceUse,
    RolloutArm,
    RolloutStatus,
    SequenceActivity,
    TenantActivity,
    WaitReason,
)
from tpy.units import KIB, MIB, NS_PER_MS, NS_PER_S
from tpy_tools.commands.client import Client, ClientError, client_of
from tpy_tools.commands.explain import ask
from tpy_tools.commands.explain.ask import explain_model, explain_request, read_rows
from tpy_tools.commands.explain.core.model import lines_of
from tpy_tools.commands.explain.core.request import find
from tpy_tools.commands.explain.core.units import duration

FULL = ModelExplanation(
    name="m",
    version=3,
    batching=BatchingRules(
        scheduler="dynamic_batching", max_batch_size=8, preferred_batch_sizes=(4, 8), queue_delay_ns=2 * NS_PER_MS, decoupled=True
    ),
    activity=EngineActivity(
        queue=QueueActivity(
            waits_for=WaitReason.RATE_LIMITER,
            executing=2,
            prefetched=1,
            levels=(LevelActivity(priority=1), LevelActivity(priority=2, waiting=5, oldest_ns=30 * NS_PER_MS, size_max=9)),
            due_ns=NS_PER_MS,
            sequences=SequenceActivity(live=3, waiting=1, slots=2),
            tenants=(TenantActivity(name="a", waiting=5, oldest_ns=30 * NS_PER_MS, share=0.75),),
        ),
        cache=CacheActivity(hits=3, misses=1, waiting=2),
        resources=(ResourceUse(name="R", device=0, needed=2, used=3, supply=4),),
        members=(MemberActivity(name="n", version=1, waiting=4, compute_ns=NS_PER_MS),),
    ),
    instances=(
        InstanceActivity(name="m_0", kind="KIND_GPU", device_id=1, state=InstanceState.EXECUTING, executing_ns=NS_PER_S, held=1),
        InstanceActivity(
            name="m_1",
            kind="KIND_CPU",
            state=InstanceState.FAILED,
            reason="killed\x1b",
            memory=MemoryGrowth(
                first_bytes=100 * MIB,
                last_bytes=150 * MIB,
                requests=50_000,
                period_ns=50 * 60 * NS_PER_S,
                trend_bytes=MIB,
                trend_bytes_min=-4 * KIB,
                trend_bytes_max=2 * MIB,
                leaks=True,
            ),
        ),
    ),
    recent=RecentActivity(window_ns=10 * NS_PER_S, batches=9, batch_size_mean=2.5, execution_ns_mean=NS_PER_MS, busy=0.5),
    batch_sizes={1: 3, 4: 9},
    succeeded=12,
    failed=1,
    queue_ns_mean=NS_PER_MS,
    compute_ns_mean=2 * NS_PER_MS,
    limit="rate_limiter",
    advice=("Do less.",),
)


def test_a_rollout_as_a_line() -> None:
    old, new = RolloutArm(version=3, ended=9, failed=0, p99_ns=NS_PER_MS), RolloutArm(version=4, ended=1, failed=1, p99_ns=0)
    status = RolloutStatus(model="m", state="running", percent=10, step=2, steps=3, reason="", old=old, new=new)
    [line] = [each for each in lines_of(msgspec.structs.replace(FULL, rollout=status)) if "rollout" in each]
    given = msgspec.structs.replace(status, plan_from="call")
    [of_call] = [each for each in lines_of(msgspec.structs.replace(FULL, rollout=given)) if "rollout" in each]
    assert of_call == f"{line}; its plan was given with a call"
    assert line == (
        "  rollout     version 4 gets 10 % of the requests, step 2 of 3; version 4: 1 ended, 1 failed, p99 0 ms; "
        "version 3: 9 ended, 0 failed, p99 1 ms"
    )


def test_an_explanation_as_lines() -> None:
    assert list(lines_of(FULL)) == [
        "m, version 3: READY",
        "  requests    12 answered, 1 failed; on average 1 ms in the queue, 2 ms executing",
        "  batching    dynamic_batching, max_batch_size 8, preferred 4, 8, delay 2 ms, decoupled",
        "  now         2 executing, 6 waiting, 1 given to an instance and not started",
        "  queue       priority 2: 5 of at most 9 waiting, the oldest for 30 ms",
        "  tenant      a: 5 waiting, share 75%, the oldest for 30 ms",
        "  waits for   the rate limiter, for 1 ms more at most",
        "  sequences   3 live, 1 of them waiting for one of 2 slots",
        "  instance    m_0 on GPU 1: executing for 1 s, holds 1, 0 batches done",
        "  instance    m_1 on CPU: failed: killed?",
        "  memory      m_1: 100 MiB, 50 min later 150 MiB, +1,024 KiB per 1,000 requests (from -4 to +2,048)",
        "  recent      busy 50% of the last 10 s; 9 batches of 2.5 rows in 1 ms on average",
        "  batch sizes 1: 25%, 4: 75% of 12 batches",
        "  cache       answered 75% of 4; 2 waiting in front of it",
        "  resource    R of device 0: 3 of 4 in use, an execution needs 2",
        "  member      n, version 1: 0 executing, 4 waiting; on average 0 ns in the queue, 1 ms executing",
        "  limit       rate limiter",
        "  advice      Do less.",
    ]


@pytest.mark.parametrize("reason", list(WaitReason))
def test_every_reason_has_its_words(reason: WaitReason) -> None:
    said = ModelExplanation(name="m", version=1, activity=EngineActivity(queue=QueueActivity(waits_for=reason)))
    assert any(text.startswith("  waits for") for text in lines_of(said)) is (reason is not WaitReason.NOTHING)


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.5 us"), (999_999, "1000 us"), (123_456_789, "123 ms"), (7_200 * NS_PER_S, "7200 s")],
)
def test_durations(ns: int, text: str) -> None:
    assert duration(ns) == text


def stamps(number: int, **at_ns: int) -> list[dict[str, Any]]:
    return [{"id": number, "timestamps": [{"name": name, "ns": ns}]} for name, ns in at_ns.items()]


ROWS = [
    {"id": 1, "model_name": "m", "model_version": 1, "request_id": "other"},
    {"id": 2, "model_name": "e", "model_version": 1, "request_id": "x"},
    *stamps(2, HTTP_RECV_START=0, HTTP_RECV_END=10, REQUEST_START=20, QUEUE_START=20, REQUEST_END=900, HTTP_SEND_START=900),
    *stamps(2, HTTP_SEND_END=1000),
    {"id": 3, "model_name": "m", "model_version": 2, "request_id": "x", "parent_id": 2},
    *stamps(3, REQUEST_START=20, QUEUE_START=20, COMPUTE_START=620, COMPUTE_INPUT_END=640, COMPUTE_OUTPUT_START=700),
    *stamps(3, COMPUTE_END=800, REQUEST_END=820),
    {"id": 3, "activity": "TENSOR_QUEUE_INPUT", "tensor": {}},
    "nonsense",
]


def test_a_traced_request_with_its_steps(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(orjson.dumps(ROWS))
    assert explain_request(Client("", 0), "e", "x", trace_file=file) == [
        "request x",
        "e, version 1: 1 us altogether",
        "  received               10 ns",
        "  admitted               10 ns",
        "  sent                  100 ns  ###",
        "  most of it: sent (10%)",
        "    m, version 2: 800 ns altogether",
        "      in the queue          600 ns  ######################",
        "      inputs made ready      20 ns  #",
        "      executed               60 ns  ##",
        "      outputs made ready    100 ns  ####",
        "      answered               20 ns  #",
        "      most of it: in the queue (75%)",
    ]


def test_a_step_is_found_by_its_model() -> None:
    (trace,) = find(ROWS, "m", "x")  # type: ignore[arg-type]  # one row is none
    assert trace.head["id"] == 3


def test_numbered_files_are_read_in_their_order(tmp_path: Path) -> None:
    for number in (2, 10):
        rows = [{"id": 1, "model_name": "m", "model_version": number, "request_id": "x"}]
        (tmp_path / f"trace.json.{number}").write_bytes(orjson.dumps(rows))
    lines = explain_request(Client("", 0), "m", "x", trace_file=tmp_path / "trace.json")
    assert [text for text in lines if "version" in text] == ["m, version 2: 0 ns altogether", "m, version 10: 0 ns altogether"]


def test_of_a_large_file_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "TRACE_FILE_READ_BYTES_MAX", 300)
    file = tmp_path / "trace.json"
    file.write_bytes(orjson.dumps([{"id": number, "model_name": "m"} for number in range(1000)]))
    rows = read_rows(file)
    assert 1 < len(rows) < 20
    assert rows[-1]["id"] == 999


@pytest.mark.parametrize(("content", "said"), [(b"{", "is not a trace file"), (b"{}", "expected a list")])
def test_a_file_of_another_kind(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with pytest.raises(ClientError, match=said):
        read_rows(file)


class Scripted(Client):
    """A server that gives these answers by path; a ClientError is raised."""

    def __init__(self, **answers: object) -> None:
        super().__init__("host", 1)
        self._answers = {path.replace("_", "/"): answer for path, answer in answers.items()}

    def get(self, path: str) -> object:
        answer = next(answer for end, answer in self._answers.items() if path.endswith(end))
        if isinstance(answer, ClientError):
            raise answer
        return answer

    def post(self, path: str, body: bytes) -> object:
        return self.get(path)


UNKNOWN = ClientError("HTTP 400: requested model 'm' is not available", 400)


def test_a_model_that_is_not_served_has_its_state_and_reason() -> None:
    rows = [{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "broken"}, {"name": "n", "version": "1"}]
    assert explain_model(Scripted(explain=UNKNOWN, index=rows), "m") == ["m, version 1: UNAVAILABLE: broken"]
    with pytest.raises(ClientError, match="is not available"):
        explain_model(Scripted(explain=UNKNOWN, index=[]), "m")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"trace_file": "", "trace_mode": "triton"}, "the server writes no traces.*--trace-config triton,file=trace.json"),
        ({"trace_mode": "opentelemetry"}, "OpenTelemetry"),
        ({"trace_file": "/nowhere/trace.json"}, "there is no file '/nowhere/trace.json' here.*--trace-file"),
    ],
)
def test_what_to_switch_on_where_there_is_no_trace(settings: object, said: str) -> None:
    with pytest.raises(ClientError, match=said):
        explain_request(Scripted(setting=settings), "m", "x", trace_file=None)


def test_a_request_that_was_not_traced(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(orjson.dumps(ROWS))
    with pytest.raises(ClientError, match=r"no trace of a request 'y' to model 'm'.*trace_rate"):
        explain_request(Client("", 0), "m", "y", trace_file=file)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "host:many", "http://host:99999"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ClientError, match="is not the URL of a server"):
        client_of(url)


def test_what_is_no_header() -> None:
    with pytest.raises(ClientError, match="a header is NAME: VALUE, got 'x'"):
        client_of("host", headers=("x",))


def test_an_answer_of_another_kind() -> None:
    with pytest.raises(ClientError, match="unknown form"):
        explain_model(Scripted(explain={"explanations": [{"name": 5}]}, index=[]), "m")


def test_another_server_has_states_only() -> None:
    rows = [{"name": "m", "version": "1", "state": "READY"}]
    lines = explain_model(Scripted(explain=ClientError("HTTP 404: Not Found", 404), index=rows), "m")
    assert lines == ["m, version 1: READY", "  no further details: the server is not tpy, or is an older version"]

"""Requests and responses of the load generators."""

import json

import pytest

from benchmarks.http_exchange import AnswerReader, BadAnswer, HttpRequest
from benchmarks.load import LoadFailed, perf_analyzer, wrk

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 5\r\nX: y\r\n\r\nhello"


def feed(reader: AnswerReader, data: bytes, size: int) -> list[bool]:
    return [reader.feed(memoryview(data)[start : start + size]) for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, len(ANSWER) - 5, len(ANSWER)])
def test_an_answer_is_complete_with_its_last_byte(size: int) -> None:
    reader = AnswerReader()

    for _ in range(2):
        seen = feed(reader, ANSWER, size)
        assert seen == [False] * (len(seen) - 1) + [True]


def test_an_answer_without_a_body_is_complete() -> None:
    assert AnswerReader().feed(memoryview(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "expected status 200, got 'HTTP/1.1 500 Oops'"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "no Content-Length"),
        (ANSWER + b"!", "1 bytes more"),
        (b"x" * 70_000, "no end of the answer's head"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "expected status 200"),
    ],
)
def test_an_answer_that_cannot_be_counted_is_refused(data: bytes, expected: str) -> None:
    with pytest.raises(BadAnswer, match=expected):
        AnswerReader().feed(memoryview(data))


def test_a_request_has_its_length_and_the_host() -> None:
    request = HttpRequest(path="/v2/models/m/infer", headers={"Content-Type": "text/plain"}, body=b"body")

    head, _, body = request.to_bytes("127.0.0.1:8000").partition(b"\r\n\r\n")

    assert head.splitlines() == [
        b"POST /v2/models/m/infer HTTP/1.1",
        b"Host: 127.0.0.1:8000",
        b"Content-Length: 4",
        b"Content-Type: text/plain",
    ]
    assert body == b"body"


def test_the_script_of_wrk_quotes_every_byte() -> None:
    script = wrk.lua_script(HttpRequest(path="/p", headers={"A": "b"}, body=b'{"x"}\\\n\x00\xff1'))

    assert 'wrk.path = "/p"' in script
    assert r'wrk.body = "{\034x\034}\092\010\000\2551"' in script
    assert 'wrk.headers["A"] = "b"' in script


def test_varied_requests_are_made_before_and_sent_in_turn() -> None:
    request = HttpRequest(path="/p", headers={}, body=b"{}")

    script = wrk.lua_script(request, varied=True)

    assert "for number = 1, 61 do" in script
    assert "at = at % 61 + 1" in script
    assert "function request()" not in wrk.lua_script(request)


def wrk_output(**changes: float) -> str:
    result = {"answered": 400, "duration_us": 2_000_000, "p50_us": 1500, "p99_us": 2500, "refused": 0, "broken": 0} | changes
    return f"Running 1s test\nbenchmark-result {json.dumps(result)}\n"


def test_the_result_of_wrk_is_read() -> None:
    load = wrk.parse_result(wrk_output(), cpu_s=0.5)

    assert (load.answered, load.per_s, load.latency_p50_ms, load.latency_p99_ms, load.cpu_s) == (400, 200.0, 1.5, 2.5, 0.5)


@pytest.mark.parametrize("output", ["unable to connect", wrk_output(refused=1), wrk_output(broken=2), wrk_output(answered=0)])
def test_a_run_of_wrk_with_failed_requests_does_not_count(output: str) -> None:
    with pytest.raises(LoadFailed):
        wrk.parse_result(output, cpu_s=0.0)


def test_the_report_of_perf_analyzer_is_read() -> None:
    names = "Concurrency,Inferences/Second,Client Send,p50 latency,p90 latency,p95 latency,p99 latency"
    report = f"{names}\n16,6000.5,20,2400,3000,3500,4200\n"

    load = perf_analyzer.parse_report(report, seconds=2.0, cpu_s=1.0)

    assert (load.answered, load.latency_p50_ms, load.latency_p99_ms) == (12001, 2.4, 4.2)


def test_an_empty_report_of_perf_analyzer_does_not_count() -> None:
    with pytest.raises(LoadFailed):
        perf_analyzer.parse_report("Concurrency,Inferences/Second\n", seconds=2.0, cpu_s=1.0)

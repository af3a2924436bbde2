"""Every route: statuses and bodies, the same bytes on our path and on Hypercorn's."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from pathlib import Path

import pytest
import trio

from tpy import limits
from tpy.errors import Internal, Unavailable

from .fakes import FakeServices
from .harness import INFER, Answer, Client, get, infer, infer_body, post, running

METADATA = {
    "name": "m",
    "versions": ["1"],
    "platform": "identity",
    "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}],
    "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [-1, -1]}],
}
SOME = {"count": 2, "ns": 7}
NONE = {"count": 0, "ns": 0}
STATISTICS = {
    "model_stats": [
        {
            "name": "m",
            "version": "1",
            "last_inference": 123,
            "inference_count": 3,
            "execution_count": 2,
            "inference_stats": {
                "success": SOME,
                "fail": NONE,
                "queue": SOME,
                "compute_input": NONE,
                "compute_infer": NONE,
                "compute_output": NONE,
                "cache_hit": NONE,
                "cache_miss": NONE,
            },
            "response_stats": {},
            "batch_stats": [{"batch_size": 2, "compute_input": SOME, "compute_infer": SOME, "compute_output": SOME}],
            "memory_usage": [{"type": "CPU", "id": 0, "byte_size": 9}],
        }
    ]
}
NONE = {"p50_ns": 0, "p90_ns": 0, "p99_ns": 0}
EXPLANATIONS = {
    "explanations": [
        {
            "name": "m",
            "version": 1,
            "namespace": "",
            "state": "READY",
            "reason": "",
            "now_ns": 0,
            "batching": {
                "scheduler": "default",
                "max_batch_size": 0,
                "preferred_batch_sizes": [],
                "queue_delay_ns": 0,
                "decoupled": False,
                "max_inflight_requests": 0,
            },
            "activity": {
                "queue": {
                    "waits_for": "nothing",
                    "executing": 0,
                    "prefetched": 0,
                    "levels": [],
                    "due_ns": None,
                    "sequences": None,
                    "tenants": [],
                    "tuning": None,
                    "lengths": None,
                },
                "cache": None,
                "resources": [],
                "members": [],
                "called": [],
            },
            "instances": [
                {
                    "name": "m_0",
                    "kind": "KIND_CPU",
                    "device_id": 0,
                    "state": "executing",
                    "reason": "",
                    "executing_ns": 0,
                    "held": 1,
                    "credit": 1,
                    "batches": 0,
                    "recent": [{"begin_ns": 5, "end_ns": 7, "batch_size": 2}],
                    "memory": None,
                }
            ],
            "recent": {"window_ns": 0, "batches": 0, "batch_size_mean": 0.0, "execution_ns_mean": 0, "busy": 0.0},
            "latency": {"requests": 0, "total": NONE, "queue": NONE},
            "batch_sizes": {"2": 3},
            "succeeded": 0,
            "failed": 0,
            "queue_ns_mean": 0,
            "compute_ns_mean": 0,
            "limit": "nothing",
            "advice": ["Do less."],
            "rollout": None,
        }
    ]
}
INDEX = [
    {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "Internal: no"},
    {"name": "m", "version": "1", "state": "READY"},
    {"name": "never"},
]
LOGGING = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
NO_SHM = {"error": "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."}
NOT_FOUND = {"error": "Not Found"}
NOT_ALLOWED = {"error": "Method Not Allowed"}
UNKNOWN = {"error": "Request for unknown model: 'x' is not found"}
NO_REPOSITORY = {"error": "'repository_name' specification is not supported"}
BINARY = json.dumps(
    {
        "id": "b",
        "inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }
)
ROLLOUT = "/v2/repository/models/m/rollout"
INFERRED = {"model_name": "m", "model_version": "1", "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 1]}]}

# request, status, body (None: empty)
EXCHANGES: list[tuple[bytes, int, object]] = [
    (get("/v2/health/live"), 200, None),
    (get("/v2/health/ready?verbose=1"), 200, None),
    (post("/v2/health/live", ""), 405, NOT_ALLOWED),
    (get("/v2/health"), 404, NOT_FOUND),
    (get("/v2/"), 404, NOT_FOUND),
    (get("/v2//health/live"), 404, NOT_FOUND),
    (get("//v2/health/live"), 404, NOT_FOUND),
    (get("/v2%2Fhealth/live"), 404, NOT_FOUND),
    (get("/v2%2fmodels/m"), 404, NOT_FOUND),
    (post("/v2/models/m%2Finfer", infer_body(1)), 404, NOT_FOUND),
    (post("//v2/models/m/infer", infer_body(1)), 404, NOT_FOUND),
    (get("/v2/health/live?a=//b%2F"), 200, None),
    (get("/nosuch"), 404, NOT_FOUND),
    (get("/static/x"), 404, NOT_FOUND),
    (b"OPTIONS /v2 HTTP/1.1\r\nHost: t\r\n\r\n", 405, NOT_ALLOWED),
    (get("/v2"), 200, {"name": "triton", "version": "1.2.3", "extensions": ["statistics", "logging"]}),
    (get("/v2/models/m/ready"), 200, None),
    (get("/v2/models/m/versions/1/ready"), 200, None),
    (get("/v2/models/x/ready"), 400, {"error": "Model version not ready"}),
    (get("/v2/models//ready"), 400, {"error": "Missing model name in ModelReady request"}),
    (get("/v2/models/m"), 200, METADATA),
    (get("/v2/models/m/versions/1"), 200, METADATA),
    (get("/v2/models/m/versions/2"), 404, {"error": "Request for unknown model: 'm' version 2 is not found"}),
    (get("/v2/models/m/versions/one"), 404, NOT_FOUND),
    (get("/v2/models/m/versions/-1"), 404, NOT_FOUND),
    (get("/v2/models/m/"), 404, NOT_FOUND),
    (get("/v2/models/a%2Fb"), 404, NOT_FOUND),
    (get("/v2/models/x"), 404, UNKNOWN),
    (
        get("/v2/models/m/versions/99999999999999999999"),
        400,
        {
            "error": "failed to get model version from specified version string '99999999999999999999' "
            "(details: stol), version should be an integral value > 0"
        },
    ),
    (get("/v2/models/x/config"), 404, UNKNOWN),
    (get("/v2/models/stats"), 200, STATISTICS),
    (get("/v2/models/m/stats"), 200, STATISTICS),
    (get("/v2/models/m/versions/1/stats"), 200, STATISTICS),
    (get("/v2/models/m/explain"), 200, EXPLANATIONS),
    (get("/v2/models/m/versions/1/explain"), 200, EXPLANATIONS),
    (get("/v2/models/x/explain"), 400, {"error": "requested model 'x' is not available"}),
    (get("/v2/models/x/stats"), 400, {"error": "requested model 'x' is not available"}),
    (post("/v2/repository/index", ""), 200, INDEX),
    (post("/v2/repository/index", '{"ready": true}'), 200, INDEX[1:2]),
    (post("/v2/repository/index", '{"ready": 1}'), 400, {"error": "Invalid value for 'ready': expected a boolean"}),
    (post("/v2/repository/index", "null"), 200, INDEX),
    (post("/v2/repository/index", "[]"), 200, INDEX),
    (post("/v2/repository/index", "[1]"), 400, {"error": "attempt to get members for non-object"}),
    (post("/v2/repository/index", "5"), 400, {"error": "attempt to get members for non-object"}),
    (get("/v2/repository/index"), 405, NOT_ALLOWED),
    (post("/v2/repository/r/index", ""), 200, INDEX),
    (post("/v2/repository/r/models/m/load", ""), 501, NO_REPOSITORY),
    (post("/v2/repository/r/models/m/unload", ""), 501, NO_REPOSITORY),
    (post("/v2/repository/models/m/load", ""), 200, None),
    (post("/v2/repository/models/m/load", "null"), 200, None),
    (post("/v2/repository/models/m/load", '{"parameters": null}'), 200, None),
    (post("/v2/repository/models/m/load", '{"parameters": []}'), 200, None),
    (
        post("/v2/repository/models/m/load", '{"parameters": {"x": "y"}}'),
        400,
        {"error": "unexpected error on creating Triton parameter"},
    ),
    (
        post("/v2/repository/models/m/load", '{"parameters": {"config": 1}}'),
        400,
        {"error": "attempt to access JSON non-string as string"},
    ),
    (post("/v2/repository/models/m/load", '{"parameters": 5}'), 400, {"error": "attempt to get members for non-object"}),
    (
        post("/v2/repository/models/m/load", "{"),
        400,
        {"error": "failed to parse the request JSON buffer: Missing a name for object member. at 1; expected JSON, got { >>> "},
    ),
    (post("/v2/repository/models/m/unload", ""), 200, None),
    (post("/v2/repository/models/m/unload", "[]"), 200, None),
    (post("/v2/repository/models/m/unload", '{"parameters": null}'), 200, None),
    (post("/v2/repository/models/m/unload", '{"parameters": [1]}'), 400, {"error": "attempt to get members for non-object"}),
    (post("/v2/repository/models/m/unload", '{"parameters": {"unload_dependents": true, "other": 1}}'), 200, None),
    (
        post("/v2/repository/models/m/unload", '{"parameters": {"unload_dependents": 1}}'),
        400,
        {"error": "attempt to access JSON non-boolean as boolean"},
    ),
    (get("/v2/logging"), 200, LOGGING),
    (post("/v2/logging", "null"), 200, LOGGING),
    (post("/v2/logging", '{"log_info": null, "other": 1}'), 200, LOGGING),
    (
        post("/v2/logging", '{"log_file": "x"}'),
        501,
        {"error": "log file location can not be updated through network protocol"},
    ),
    (post("/v2/logging", '{"log_info": 1}'), 400, {"error": "attempt to access JSON non-boolean as boolean"}),
    (
        post("/v2/logging", '{"log_verbose_level": -1}'),
        400,
        {"error": "attempt to access JSON non-unsigned-integer as unsigned-integer"},
    ),
    (post("/v2/logging", '{"log_format": 1}'), 400, {"error": "attempt to access JSON non-string as string"}),
    (
        post("/v2/logging", ""),
        400,
        {"error": "failed to parse the request JSON buffer: The document is empty. at 0; expected JSON, got no body"},
    ),
    (get("/v2/trace/setting"), 200, TRACE),
    (get("/v2/models/m/trace/setting"), 200, TRACE),
    (get("/v2/models/x/trace/setting"), 400, {"error": "Request for unknown model : x"}),
    (get("/v2/models/m/versions/1/trace/setting"), 404, NOT_FOUND),
    (post("/v2/trace/setting", "{}"), 200, TRACE),
    (post("/v2/trace/setting", "null"), 200, TRACE),
    (post("/v2/models/m/trace/setting", '{"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": null}'), 200, TRACE),
    (post("/v2/models/x/trace/setting", "{}"), 400, {"error": "Request for unknown model : x"}),
    (post("/v2/models/m/trace/setting", '{"trace_rate": "5", "trace_mode": "x"}'), 200, {**TRACE, "trace_rate": "5"}),
    (post("/v2/trace/setting", '{"trace_level": [], "log_frequency": "2"}'), 200, {**TRACE, "log_frequency": "2"}),
    (
        post("/v2/trace/setting", '{"trace_level": ["TENSORS"]}'),
        400,
        {"error": "Attempting to set invalid trace setting :trace file name is not given"},
    ),
    (post("/v2/systemsharedmemory/region/r/register", "{}"), 501, NO_SHM),
    (post("/v2/cudasharedmemory/region/r/register", "{}"), 501, NO_SHM),
    *(
        case
        for kind in ("system", "cuda")
        for case in (
            (get(f"/v2/{kind}sharedmemory/status"), 200, []),
            (
                get(f"/v2/{kind}sharedmemory/region/r/status"),
                404,
                {"error": f"Unable to find {kind} shared memory region: 'r'"},
            ),
            (post(f"/v2/{kind}sharedmemory/register", ""), 501, NO_SHM),
            (post(f"/v2/{kind}sharedmemory/unregister", ""), 501, NO_SHM),
            (post(f"/v2/{kind}sharedmemory/region/r/unregister", ""), 501, NO_SHM),
        )
    ),
    (
        post("/v2/models/m/generate", '{"INPUT0": [1, 2.5], "id": "a"}'),
        200,
        {"OUTPUT0": [1.0, 2.5], "id": "a", "model_name": "m", "model_version": "1"},
    ),
    (post(ROLLOUT, '{"action": "start", "plan": {"steps": [{"percent": 5}]}}'), 200, ...),
    (
        post(ROLLOUT, '{"action": "start", "plan": {"max_error_percent": NaN}}'),
        400,
        {"error": "'plan.max_error_percent' is NaN, expected a finite number or null"},
    ),
    (
        post(ROLLOUT, '{"action": "start", "plan": {"steps": [{"percent": 5}, {"percent": -Infinity}]}}'),
        400,
        {"error": "'plan.steps[1].percent' is -Infinity, expected a finite number or null"},
    ),
    (
        post(ROLLOUT, f'{{"action": "start", "plan": {"[" * 1000}{"]" * 1000}}}'),
        400,
        {"error": f"'plan{'[0]' * 9}' is nested more than 8 deep, expected a plan of a rollout"},
    ),
    (get(INFER), 405, NOT_ALLOWED),
    (infer(1, 2), 200, ...),
    (post("/v2/models/m/versions/1/infer", infer_body(1)), 200, ...),
    (post("/v2/models/m/versions/x/infer", infer_body(1)), 404, NOT_FOUND),
    (post("/v2/models/x/infer", infer_body(1)), 404, UNKNOWN),
    (post("/v2/models/x/infer", ""), 404, UNKNOWN),
    (
        post("/v2/models/flow/infer", ""),
        501,
        {"error": "HTTP end point doesn't support models with decoupled transaction policy"},
    ),
    (post(INFER, "x"), 400, ...),
    (post(INFER, "{}"), 400, ...),
    (post(INFER, BINARY + "12345678", f"Inference-Header-Content-Length: {len(BINARY)}"), 200, ...),
    (post(INFER, BINARY + "1234", f"Inference-Header-Content-Length: {len(BINARY)}"), 400, ...),
    (post(INFER, BINARY + "12345678", "Inference-Header-Content-Length: x"), 400, ...),
    (post(INFER, "12345678", "Inference-Header-Content-Length: 0"), 200, ...),
    (post(INFER, gzip.compress(infer_body(1).encode(), mtime=0), "Content-Encoding: gzip"), 200, ...),
    (post(INFER, zlib.compress(infer_body(1).encode()), "Content-Encoding: deflate"), 200, ...),
    (post(INFER, "nonsense", "Content-Encoding: gzip"), 400, ...),
    (post(INFER, infer_body(1), "Content-Encoding: br"), 501, {"error": "Unsupported compression type"}),
    (post(INFER, infer_body(1), "Accept-Encoding: gzip"), 200, ...),
    (post(INFER, infer_body(1), "Accept-Encoding: deflate;q=1, gzip;q=0.5"), 200, ...),
    (post(INFER, infer_body(1), "Accept-Encoding: br"), 200, ...),
]


@pytest.fixture
async def client() -> object:
    async with running(FakeServices()) as server:
        yield await server.connect()


@pytest.mark.parametrize(("request_bytes", "status", "body"), EXCHANGES)
async def test_exchanges(client: Client, request_bytes: bytes, status: int, body: object) -> None:
    answer = await client.ask(request_bytes)
    assert answer.status == status
    if body is None:
        assert answer.body == b""
    elif body is not ...:
        assert answer.document == body
        assert answer.headers["content-type"] == "application/json"
    assert ("allow" in answer.headers) == (status == 405)


async def test_status_lines_and_headers_are_tritons() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        assert (await client.ask(get(INFER))).status_line == "HTTP/1.1 405 Not Allowed"
        assert (await client.ask(get("/x"))).status_line == "HTTP/1.1 404 Not Found"
        answer = await client.ask(get("/v2/health/live"))
        assert (answer.status_line, answer.headers["content-type"]) == ("HTTP/1.1 200 OK", "text/plain")
        answer = await client.ask(post(INFER, "", "Content-Encoding: br"))
        assert answer.headers["accept-encoding"] == "gzip, deflate"
        answer = await client.ask(post(INFER, BINARY + "12345678", f"Inference-Header-Content-Length: {len(BINARY)}"))
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.body[int(answer.headers["inference-header-content-length"]) :] == b"12345678"


async def test_not_live_and_not_ready_are_400() -> None:
    services = FakeServices()
    services.repository.live = services.repository.ready = services.repository.model_is_ready = False
    async with running(services) as server:
        client = await server.connect()
        for path in ("/v2/health/live", "/v2/health/ready"):
            answer = await client.ask(get(path))
            assert (answer.status, answer.body) == (400, b"")
        answer = await client.ask(get("/v2/models/m/ready"))
        assert (answer.status, answer.error) == (400, "Model version not ready")


async def test_config_is_the_whole_normalised_configuration() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        document = (await client.ask(get("/v2/models/m/config"))).document
        assert isinstance(document, dict)
        assert (document["name"], document["backend"], document["max_batch_size"]) == ("m", "identity", 8)
        assert "version_policy" in document or "input" in document


async def test_load_takes_a_config_and_files_and_reports_errors() -> None:
    services = FakeServices()
    async with running(services) as server:
        client = await server.connect()
        content = bytes(range(256)) * 2000
        parameters = {"config": '{"backend": "identity"}', "file:1/model.onnx": base64.b64encode(content).decode(), "file:l": ""}
        body = json.dumps({"parameters": parameters})
        assert len(body) > limits.HTTP_INLINE_JSON_BYTES_MAX
        assert (await client.ask(post("/v2/repository/models/new/load", body))).status == 200
        [load] = services.repository.loads
        assert load.model_name == "new"
        assert load.config_json == '{"backend": "identity"}'
        assert dict(load.files) == {"1/model.onnx": content, "l": b""}
        answer = await client.ask(post("/v2/repository/models/new/load", '{"parameters": {"file:1/x": "!"}}'))
        assert answer.status == 400
        assert "load parameter 'file:1/x' is not base64" in answer.error
        services.repository.raises = Unavailable("explicit model load / unload is not allowed if polling is enabled")
        answer = await client.ask(post("/v2/repository/models/m/load", ""))
        assert (answer.status, answer.error) == (503, "explicit model load / unload is not allowed if polling is enabled")
        services.repository.raises = RuntimeError("a bug")
        answer = await client.ask(post("/v2/repository/models/m/load", ""))
        assert answer.status == 500
        assert "a bug" not in answer.error
        assert (await client.ask(get("/v2/health/live"))).status == 200


async def test_unload_passes_its_flag_and_log_settings_take_effect() -> None:
    services = FakeServices()
    async with running(services) as server:
        client = await server.connect()
        await client.ask(post("/v2/repository/models/a/unload", ""))
        await client.ask(post("/v2/repository/models/b/unload", '{"parameters": {"unload_dependents": true}}'))
        assert services.repository.unloads == [("a", False), ("b", True)]
        answer = await client.ask(post("/v2/logging", '{"log_verbose_level": 3, "log_info": false, "log_format": "ISO8601"}'))
        assert answer.document == LOGGING | {"log_verbose_level": 3, "log_info": False, "log_format": "ISO8601"}


async def test_a_client_that_leaves_does_not_disturb_the_next_load() -> None:
    services = FakeServices()
    services.repository.gate = trio.Event()
    async with running(services) as server:
        leaving = await server.connect()
        await leaving.send(post("/v2/repository/models/m/load", ""))
        await services.repository.load_began.wait()
        await leaving.stream.aclose()
        services.repository.gate.set()
        client = await server.connect()
        assert (await client.ask(post("/v2/repository/models/m/load", ""))).status == 200


async def test_a_model_that_answers_later_or_with_an_error() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        for number, error in enumerate((None, Internal("model failed"), Unavailable("Request timeout expired"))):
            await client.send(infer(1))
            await services.inference.wait_submitted(number + 1)
            services.inference.submitted[number].answer(error)
            answer: Answer = await client.answer()
            assert answer.status == (200, 500, 503)[number]


@pytest.mark.parametrize("is_blob", [False, True])
async def test_a_small_answer_is_compressed_where_that_is_accepted(is_blob: bool) -> None:
    body = infer_body(0.5)
    if is_blob:
        body = body.replace('{"inputs"', '{"parameters":{"binary_data_output":true},"inputs"', 1)
    async with running(FakeServices()) as server:
        client = await server.connect()
        plain = await client.ask(post(INFER, body))
        assert "content-encoding" not in plain.headers
        assert ("inference-header-content-length" in plain.headers) is is_blob
        packed = await client.ask(post(INFER, body, "Accept-Encoding: gzip"))
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body


async def test_large_answers_are_compressed_in_a_thread() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        values = [0.5] * 60_000
        body = gzip.compress(infer_body(*values).encode())
        answer = await client.ask(post(INFER, body, "Content-Encoding: gzip", "Accept-Encoding: gzip"))
        assert answer.headers["content-encoding"] == "gzip"
        assert json.loads(gzip.decompress(answer.body))["outputs"][0]["data"] == values


async def test_a_unix_socket_serves_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    for _ in range(2):
        async with running(FakeServices(), address=f"unix:{path}") as server:
            assert str(server.address) == f"unix:{path}"
            client = await server.connect()
            assert (await client.ask(infer(1))).status == 200
            assert (await client.ask(get("/v2/health/live"))).status == 200
        assert not path.exists()

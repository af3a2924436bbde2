"""Requests to models that the routes of MLflow's scoring protocol make."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from tests.frontends.http.fakes import FakeServices, describe
from tpy.clock import SystemClock
from tpy.errors import InvalidArgument, NotFound, TooManyRequests, TpyError, Unavailable, Unsupported
from tpy.frontends.access.core.policy import Allowance, RoleGrant
from tpy.frontends.access.gate import Caller
from tpy.frontends.http.message import HttpReply, HttpRequest, fields_of
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.serving import create_endpoint
from tpy_platforms.mlflow.answers import error_reply, refusal_reply
from tpy_platforms.mlflow.invocations import InvocationsApi

ROWS = {"inputs": [[float(at)] for at in range(20)]}


def api_of(services: FakeServices, model: str = "") -> InvocationsApi:
    return InvocationsApi(create_endpoint(HttpOptions(address="127.0.0.1", port=0), services, SystemClock()), model=model)


def request_of(body: object, kind: str = "application/json") -> HttpRequest:
    headers = [(b"content-type", kind.encode())] if kind else []
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpRequest(
        method=b"POST",
        target=b"/invocations",
        path="/invocations",
        version="1.1",
        headers=headers,
        fields=fields_of(headers),
        keep_alive=True,
        body=content,
    )


def document(reply: HttpReply) -> Any:
    return json.loads(b"".join(reply.parts))


async def test_the_only_model_that_is_ready() -> None:
    services = FakeServices()
    api = api_of(services)
    assert document(await api.invocations(request_of({"inputs": [[1, 2]]}))) == {"predictions": [[1.0, 2.0]]}
    services.repository.rows.clear()
    with pytest.raises(InvalidArgument, match="none of them are ready; start the server with --mlflow-model"):
        await api.invocations(request_of({"inputs": [[1, 2]]}))
    assert document(await api_of(services, "m").invocations(request_of(b"a\n1\n", "text/csv"))) == {"predictions": [[1.0]]}
    with pytest.raises(NotFound):
        await api.invocations_of(request_of({"inputs": [[1]]}), model="m", version="2")


async def test_batches_run_at_the_same_time_and_stay_in_order() -> None:
    services = FakeServices()
    services.inference.immediate = False
    reply: list[HttpReply] = []

    async def ask() -> None:
        reply.append(await api_of(services, "m").invocations(request_of(ROWS)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await services.inference.wait_submitted(3)
        for submitted in reversed(services.inference.submitted):
            submitted.answer()
    assert document(reply[0]) == {"predictions": ROWS["inputs"]}
    assert services.inference.holds.total() == 0


MANY = {"inputs": [[float(at)] for at in range(100)]}


@pytest.mark.parametrize("room", [1, 3])
@pytest.mark.parametrize("bound", ["queue", "concurrency"])
async def test_batches_wait_for_room(bound: str, room: int) -> None:
    """As many as the queue or the caller's key has room for run at the same time; all are answered."""
    services, request, reply = FakeServices(), request_of(MANY), list[HttpReply]()
    services.inference.immediate = False
    allowance = Allowance(concurrency=room if bound == "concurrency" else None)
    request.caller = Caller("ann", RoleGrant(roles=frozenset()), allowance)
    services.inference.room = room if bound == "queue" else None

    async def ask() -> None:
        reply.append(await api_of(services, "m").invocations_of(request, model="m"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        for at in range(13):
            await services.inference.wait_submitted(at + 1)
            assert allowance.running <= room
            services.inference.submitted[at].answer()
    assert document(reply[0]) == {"predictions": MANY["inputs"]}
    assert (allowance.running, len(services.inference.submitted)) == (0, 13)
    assert services.inference.refused <= 1, "each try counts as a refused request"


async def test_a_refusal_is_the_answer_when_no_batch_runs() -> None:
    services, request = FakeServices(), request_of(MANY)
    services.inference.room = 0
    with pytest.raises(Unavailable, match="maximum queue size"):
        await api_of(services, "m").invocations(request)
    services.inference.room = None
    request = request_of(MANY)
    request.caller = Caller("ann", RoleGrant(roles=frozenset()), Allowance(concurrency=0))
    with pytest.raises(TooManyRequests):
        await api_of(services, "m").invocations_of(request, model="m")
    assert services.inference.holds.total() == 0


async def test_a_long_column_of_csv_is_read_in_a_thread() -> None:
    services = FakeServices()
    endpoint = create_endpoint(HttpOptions(address="127.0.0.1", port=0), services, SystemClock())
    for _ in range(endpoint.threads.available_tokens):
        endpoint.threads.acquire_on_behalf_of_nowait(object())
    api = InvocationsApi(endpoint, model="m")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(api.invocations, request_of(b"a\n" + b"1\n" * 100, "text/csv"))
        nursery.start_soon(api.invocations, request_of(b"a\n" + b"1\n" * 8192, "text/csv"))
        await trio.testing.wait_all_tasks_blocked()
        assert endpoint.threads.statistics().tasks_waiting == 1
        assert len(services.inference.submitted) == 13, "those of the short one"
        nursery.cancel_scope.cancel()


async def test_the_first_error_ends_the_others() -> None:
    services = FakeServices()
    services.inference.immediate = False
    errors: list[TpyError] = []

    async def ask() -> None:
        try:
            await api_of(services, "m").invocations(request_of(ROWS))
        except TpyError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await services.inference.wait_submitted(3)
        services.inference.submitted[0].answer(TpyError("no memory"))
    assert [error.message for error in errors] == ["no memory"]
    assert [submitted.cancelled for submitted in services.inference.submitted] == [False, True, True]
    assert services.inference.holds.total() == 0


async def test_a_client_that_leaves_cancels_all() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(api_of(services, "m").invocations, request_of(ROWS))
        await services.inference.wait_submitted(3)
        nursery.cancel_scope.cancel()
    assert all(submitted.cancelled for submitted in services.inference.submitted)
    assert services.inference.holds.total() == 0


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("", "only supports"),
        ("application/x-www-form-urlencoded", "Got 'application/x-www-form-urlencoded'"),
        ("application/vnd.apache.parquet", "only supports"),
        ("application/json; charset=latin-1", "only supports UTF-8"),
        ("application/json; format=pandas-split", "Unrecognized content type parameters: format"),
    ],
)
async def test_types_of_bodies(kind: str, words: str) -> None:
    reply = await api_of(FakeServices(), "m").invocations(request_of({"inputs": [[1]]}, kind))
    assert (reply.status, reply.content_type) == (415, "text/plain; charset=utf-8")
    assert words in b"".join(reply.parts).decode()


async def test_what_cannot_be_asked() -> None:
    api = api_of(FakeServices(), "flow")
    with pytest.raises(Unsupported, match="decoupled"):
        await api.invocations(request_of({"inputs": [[1]]}))
    api = api_of(FakeServices(), "m")
    with pytest.raises(InvalidArgument, match="at most 4194304 bytes here, this one has"):
        await api.invocations(request_of({"inputs": ["a" * 5_000_000]}))
    packed = request_of({"inputs": [[1]]})
    packed.fields[b"content-encoding"] = b"gzip"
    with pytest.raises(InvalidArgument, match="content-encoding"):
        await api.invocations(packed)


async def test_large_bodies_and_answers_go_to_threads() -> None:
    services = FakeServices()
    services.inference.models["m"] = describe("m")
    rows = [[float(at)] * 3_000 for at in range(40)]
    assert document(await api_of(services, "m").invocations(request_of({"inputs": rows}))) == {"predictions": rows}
    assert len(services.inference.submitted) == 5


def test_errors_have_mlflows_form() -> None:
    reply = error_reply(InvalidArgument("no"))
    assert (reply.status, document(reply)) == (400, {"error_code": "BAD_REQUEST", "message": "no"})
    for status, code in (
        (404, "RESOURCE_DOES_NOT_EXIST"),
        (413, "BAD_REQUEST"),
        (503, "TEMPORARILY_UNAVAILABLE"),
        (500, "INTERNAL_ERROR"),
    ):
        assert document(refusal_reply(status, "x")) == {"error_code": code, "message": "x"}


async def test_ping_and_version() -> None:
    services = FakeServices()
    for api in (api_of(services), api_of(services, "m")):
        assert (await api.ping(request_of(b""))).status == 200
    services.repository.ready = services.repository.model_is_ready = False
    for api in (api_of(services), api_of(services, "m")):
        assert (await api.ping(request_of(b""))).status == 404
    assert document_text(await api_of(services).version(request_of(b""))).count(".") == 2


def document_text(reply: HttpReply) -> str:
    return b"".join(reply.parts).decode()
